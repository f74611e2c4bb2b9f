"""Receipts that a stage passes to the next one: a path, counts and digests, never rows.

The chain of receipts is the lineage: each names the digests of its inputs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Finite, Text, UtcDatetime
from simic.contracts.file_digest import FileDigest
from simic.contracts.policy_update import PolicyUpdate, SemanticVersion
from simic.contracts.settings.continual import StageVisit
from simic.contracts.settings.safety import TrainingStop

__all__ = [
    "SEAL_FIELDS",
    "CollectionReceipt",
    "IngestReceipt",
    "PolicyVersion",
    "Provenance",
    "PublicationReceipt",
    "Receipt",
    "SnapshotManifest",
    "TrainingReport",
    "check_policy_or_failure",
]

SEAL_FIELDS = frozenset({"key_id", "signature"})
"""Fields added to a sealed receipt; no receipt has fields of these names."""


class Provenance(NamedTuple):
    """Code and settings that made a receipt."""

    code_version: str
    config_digest: str
    seed: int


class Receipt(Contract):
    """Fields of all receipts."""

    schema_version: Literal[1] = 1
    code_version: Text
    config_digest: Digest
    """Digest of the resolved configuration."""
    seed: Count
    started_at: UtcDatetime
    finished_at: UtcDatetime


def check_policy_or_failure(policy_digest: str | None, failure: str | None) -> None:
    """Raise ValueError unless the receipt of a training has either a policy or the failure of its training."""
    if (policy_digest is None) != (failure is not None):
        raise ValueError("expected either a policy or the failure of its training")


class CollectionReceipt(Receipt):
    """Episodes grown and reported to the bus."""

    stage: Literal["collect"] = "collect"
    controller: Text
    policy_digest: Digest | None
    set: Text
    host_keys_digest: Digest
    pictures_digest: Digest | None = None
    """Digest of the user's own images; null means the bundled digits."""
    episodes: Count
    branches: Count = 0
    """Branches of these episodes, each a further episode: one decision is changed, the rest is the same controller."""
    reports: Count
    reports_digest: Digest
    """Digest over the report ids in order, branches included."""
    governor_events: Count
    """Branches included."""
    stopped: dict[str, Count] = Field(default_factory=dict)
    """Number of episodes that ended early, cut off, by reason; empty where ``collect.stop`` is off."""
    epochs_left_out: Count = 0
    """Number of epochs up to the horizon that these episodes did not run."""
    actions: dict[str, Count]
    """Number of decisions per operation, without branches."""
    mean_return: Finite | None
    """Mean over the episodes that ended by themselves; null if none did."""
    test_accuracy: Finite | None


class IngestReceipt(Receipt):
    """Reports that landed as Parquet."""

    stage: Literal["ingest"] = "ingest"
    read: Count
    landed: Count
    duplicate: Count
    quarantined: Count
    retried: Count | None = None
    """Number of repeated deliveries, in files of the spool or entries of a stream; null in receipts of versions that
    did not count them."""
    dead_lettered: Count | None = None
    """Number of entries that could not be delivered, or not again; they are on the dead-letter stream. Null in receipts
    of versions that did not count them."""
    lost: Count | None = None
    """Number of entries that were trimmed from the stream before they were ingested; null in receipts of versions that
    did not count them."""
    lag: Count | None = None
    """Number of items that wait on the bus at the end; null if it did not answer, and in receipts of versions that did
    not count them."""
    reasons: dict[str, Count]
    """Quarantined reports per reason."""
    raw_dropped: Count = 0
    """Number of refused lines whose bytes did not fit into the quarantine. Once it is full, the first line of each
    reason and source stands for all of a batch."""
    parts: list[Text]
    """Ledger names of the parts this run committed."""
    ledger_digest: Digest
    """Digest over all committed parts, in the order of the ledger."""
    ledger_rows: Count


class SnapshotManifest(Receipt):
    """An immutable, content-addressed set of training rows."""

    stage: Literal["curate"] = "curate"
    digest: Digest
    """Digest over files, SQL and curation config; wall-clock times and the location of rows in the lake are excluded.
    """
    path: Text
    files: list[FileDigest]
    """The snapshot's own files."""
    sources: list[FileDigest] = Field(default_factory=list)
    """Sources of its states: the linked parts, and the index of rows in them."""
    sql_digest: Digest
    ledger_digest: Digest
    ledger_parts: list[Text]
    reward_family: Text
    reward_digest: Digest | None = None
    """Digest of the reward family and its constants; null in snapshots of versions with one family."""
    gamma: Finite
    rows_in: Count
    rows_out: Count
    rejected: dict[str, Count]
    """Number of rows left out, per reason."""
    episodes: dict[str, Count]
    """Number of complete episodes per split: train, validation, test."""


class TrainingReport(Receipt):
    """A trained policy."""

    stage: Literal["train"] = "train"
    digest: Digest
    """Digest of the sealed policy."""
    path: Text
    """Directory of the sealed policy."""
    snapshot_digest: Digest
    start_digest: Digest | None
    """Digest of the policy from which training started, if any."""
    sets: list[Text] = Field(default_factory=list)
    """Host sets of the training episodes, sorted."""
    updates: Count
    recoveries: Count = 0
    """Number of divergences after which training went back to a checkpoint with half the learning rates."""
    anomalies: dict[str, Count] = Field(default_factory=dict)
    """Number of updates with each kind of anomaly (``AnomalyKind``); kinds that no update had are left out."""
    conservative_entries: Count = 0
    """How often training became conservative."""
    episodes: Count
    """Number of distinct training episodes."""
    passes: Finite
    """Mean number of replay passes per episode."""
    metrics: dict[str, Finite]
    """Final values of the training curves."""
    curriculum: list[StageVisit] = Field(default_factory=list)
    """Stages of ``train.curriculum``, in order, those of earlier rounds of the run included; the last one is open.
    Empty without a curriculum."""
    stopped: TrainingStop | None = None
    """Why and where training ended early, because it was hopeless; null if it finished. A policy of such a training is
    not judged."""
    curves_path: Text
    """Path of JSON lines, one record per logged update."""


class PolicyVersion(Receipt):
    """A version in the registry."""

    stage: Literal["promote"] = "promote"
    name: Text
    number: Count
    semantic_version: SemanticVersion
    digest: Digest
    reference: Text
    aliases: list[Text]
    previous: Count | None
    """Number of the previous champion, if any."""
    snapshot_digest: Digest
    gate_digest: Digest
    mlflow_run_id: Text


class PublicationReceipt(Receipt):
    """An update on the bus, published exactly once per version and target."""

    stage: Literal["publish"] = "publish"
    update: PolicyUpdate
    event_id: Text
    delivered: bool
    """False when this version was already published."""
