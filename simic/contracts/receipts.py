"""What one stage hands to the next: a path, counts and digests, never rows.

The chain of receipts is the lineage: each names the digests of what it read.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Digest, Finite, UtcDatetime
from simic.contracts.policy_update import PolicyUpdate, SemanticVersion

__all__ = [
    "SEAL_FIELDS",
    "CollectionReceipt",
    "ControllerTrial",
    "Criterion",
    "Estimate",
    "FamilyTrial",
    "FileDigest",
    "GateDecision",
    "IngestReceipt",
    "PolicyVersion",
    "Provenance",
    "PublicationReceipt",
    "Receipt",
    "RunReceipt",
    "SnapshotManifest",
    "TrainingReport",
    "TrialReport",
    "ValidationReport",
    "Verdict",
]

Text = Annotated[str, Field(max_length=4096)]
SEAL_FIELDS = frozenset({"key_id", "signature"})
"""Fields that stand beside those of a receipt where it is sealed; no receipt has fields of these names."""


class Provenance(NamedTuple):
    """What every receipt says of the code and settings that made it."""

    code_version: str
    config_digest: str
    seed: int


class Receipt(Contract):
    """Common to all receipts."""

    schema_version: Literal[1] = 1
    code_version: Text
    config_digest: Digest
    """Of the resolved configuration."""
    seed: Count
    started_at: UtcDatetime
    finished_at: UtcDatetime


class CollectionReceipt(Receipt):
    """Episodes grown and reported to the bus."""

    stage: Literal["collect"] = "collect"
    controller: Text
    policy_digest: Digest | None
    set: Text
    host_keys_digest: Digest
    pictures_digest: Digest | None = None
    """Of a user's own pictures; null means the hosts saw digits."""
    episodes: Count
    reports: Count
    reports_digest: Digest
    """Over the report ids in order."""
    governor_events: Count
    actions: dict[str, Count]
    """Decisions per operation."""
    mean_return: Finite | None
    test_accuracy: Finite | None


class IngestReceipt(Receipt):
    """Reports that became Parquet."""

    stage: Literal["ingest"] = "ingest"
    read: Count
    landed: Count
    duplicate: Count
    quarantined: Count
    retried: Count | None = None
    """Delivered before and not acknowledged then, in files of the spool or entries of a stream; this and the next three
    are null in receipts from before they were counted."""
    dead_lettered: Count | None = None
    """Entries that the bus could not deliver, or not again; kept on its dead-letter stream."""
    lost: Count | None = None
    """Entries that somebody trimmed from the stream before they were ingested."""
    lag: Count | None = None
    """What waits on the bus at the end; null if it was away by then."""
    reasons: dict[str, Count]
    """Quarantined reports per reason."""
    raw_dropped: Count = 0
    """Refused lines whose bytes found no room in the quarantine; once that is full, the first of each reason and source
    in a batch stands for all."""
    parts: list[Text]
    """Ledger names of the parts this run committed."""
    ledger_digest: Digest
    """Of all committed parts, in ledger order."""
    ledger_rows: Count


class FileDigest(Contract):
    """One file of a sealed directory."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    sha256: Digest
    size_bytes: Count


class SnapshotManifest(Receipt):
    """An immutable, content-addressed set of training rows."""

    stage: Literal["curate"] = "curate"
    digest: Digest
    """Of files, SQL and curation config; wall-clock times and where in the lake a row lay take no part."""
    path: Text
    files: list[FileDigest]
    """What the snapshot is."""
    sources: list[FileDigest] = Field(default_factory=list)
    """Where its states lie: the parts it holds, and the place of each row in them."""
    sql_digest: Digest
    ledger_digest: Digest
    ledger_parts: list[Text]
    reward_family: Text
    reward_digest: Digest | None = None
    """Of the family and its constants; null in snapshots made before there was a choice."""
    gamma: Finite
    rows_in: Count
    rows_out: Count
    rejected: dict[str, Count]
    """Rows left out, per reason."""
    episodes: dict[str, Count]
    """Complete episodes per split: train, validation, test."""


class TrainingReport(Receipt):
    """A policy that learned."""

    stage: Literal["train"] = "train"
    digest: Digest
    """Of the sealed policy."""
    path: Text
    snapshot_digest: Digest
    start_digest: Digest | None
    """The policy it started from, if any."""
    updates: Count
    episodes: Count
    """Distinct training episodes seen."""
    passes: Finite
    """Mean replay passes per episode so far."""
    metrics: dict[str, Finite]
    """Final values of the training curves."""
    curves_path: Text
    """JSON lines, one record per logged update."""


class Estimate(Contract):
    """A paired mean difference with its percentile-bootstrap interval; the mean lies within."""

    mean: Finite
    lower: Finite
    upper: Finite
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)]
    n: Annotated[int, Field(ge=2, le=2**53)]
    """Pairs."""

    @model_validator(mode="after")
    def _check_order(self) -> Estimate:
        if not self.lower <= self.mean <= self.upper:
            raise ValueError(f"expected lower <= mean <= upper, found {self.lower}, {self.mean}, {self.upper}")
        return self


class FamilyTrial(Contract):
    """One controller over some hosts."""

    episodes: Count
    mean_return: Finite
    over_wait: Estimate | None
    """Paired by host key; null for ``wait`` itself and for a single host."""
    test_accuracy: Finite
    validation_accuracy: Finite
    committed_parameters: Finite


class ControllerTrial(FamilyTrial):
    """One controller over all the held-out hosts."""

    controller: Text
    illegal_actions: Count
    """Decisions that the masks forbid; the host waited instead."""
    governor_events: Count
    by_family: dict[str, FamilyTrial]
    """The same for every family that was tried."""
    returns: list[Finite]
    """Per host, in the order of the report's host keys."""
    test_accuracies: list[Finite]


class TrialReport(Receipt):
    """Every controller on the same hosts."""

    stage: Literal["trials"] = "trials"
    set: Text
    host_keys: list[Count]
    families: list[Text]
    """Of each host, in the order of ``host_keys``."""
    controllers: list[ControllerTrial]
    plans_digest: Digest | None
    """Of the plan book that ``heuristic``, ``blind``, ``oracle`` and ``expert`` follow."""
    without_book: list[Text] = Field(default_factory=list)
    """What lacks because the set has no plan book: controllers left out, and ``heuristic`` on its default rules."""


class ValidationReport(Receipt):
    """Evidence about one candidate."""

    stage: Literal["validate"] = "validate"
    policy_digest: Digest
    champion_digest: Digest | None
    snapshot_digest: Digest
    trials: TrialReport
    differences: dict[str, Estimate]
    """Candidate minus each other controller, paired by host key."""
    training_metrics: dict[str, Finite]
    figures: dict[str, Text]
    """PNG paths by name."""
    probes: dict[str, Finite] = Field(default_factory=dict)
    """Properties of the candidate measured beside the trials, such as ``determinism_mismatches``."""


class Verdict(str, Enum):
    """Anything but PASS rejects."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    MISSING = "MISSING"


class Criterion(Contract):
    """One line of a gate decision."""

    name: Text
    value: Finite | None
    """Null when the evidence is missing or not finite."""
    bound: Finite
    comparison: Literal[">", ">=", "<", "<="]
    verdict: Verdict
    evidence: Text


class GateDecision(Receipt):
    """Every criterion; accepted only if each one passed."""

    stage: Literal["gate"] = "gate"
    policy_digest: Digest
    champion_digest: Digest | None
    accepted: bool
    criteria: list[Criterion]
    digest: Digest
    """Over the criteria and the digests judged."""


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
    """Number of the champion before, if any."""
    snapshot_digest: Digest
    gate_digest: Digest
    mlflow_run_id: Text


class PublicationReceipt(Receipt):
    """An update on the bus, exactly once per version and target."""

    stage: Literal["publish"] = "publish"
    update: PolicyUpdate
    event_id: Text
    delivered: bool
    """False when this version was already published."""


class RunReceipt(Receipt):
    """The whole loop, in the order in which its stages ran."""

    stage: Literal["run"] = "run"
    token: Text
    """Names the run; a run that was killed goes on under its token."""
    profile: Text
    is_resumed: bool
    start_digest: Digest | None
    """The champion it started from, if any."""
    collections: list[CollectionReceipt]
    ingests: list[IngestReceipt]
    snapshots: list[SnapshotManifest]
    trainings: list[TrainingReport]
    validation: ValidationReport
    decision: GateDecision
    version: PolicyVersion | None
    """Null when the gate rejected."""
    publication: PublicationReceipt | None
