"""Receipts that a stage passes to the next one: a path, counts and digests, never rows.

The chain of receipts is the lineage: each names the digests of its inputs.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Digest, Finite, UtcDatetime
from simic.contracts.continual import StageVisit
from simic.contracts.file_digest import FileDigest
from simic.contracts.judgements import Judgement, Ordinal
from simic.contracts.log_evidence import EvidenceKind, LogEvidence
from simic.contracts.names import MODEL_NAME
from simic.contracts.policy_update import PolicyUpdate, SemanticVersion
from simic.contracts.safety import StopCause, TrainingStop

__all__ = [
    "SEAL_FIELDS",
    "CollectionReceipt",
    "ControllerTrial",
    "Criterion",
    "Estimate",
    "FamilyTrial",
    "GateDecision",
    "IngestReceipt",
    "PolicyVersion",
    "Probe",
    "Provenance",
    "PublicationReceipt",
    "Receipt",
    "RentTrial",
    "RunReceipt",
    "SeedChoice",
    "SeedTrial",
    "SnapshotManifest",
    "StaticTrial",
    "StoppedSeed",
    "Text",
    "TrainingReport",
    "TrialReport",
    "ValidationReport",
    "Verdict",
]

Text = Annotated[str, Field(max_length=4096)]
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
    """Number of repeated deliveries, in files of the spool or entries of a stream. This and the next three are null in
    receipts of versions that did not count them."""
    dead_lettered: Count | None = None
    """Number of entries that could not be delivered, or not again; they are on the dead-letter stream."""
    lost: Count | None = None
    """Number of entries that were trimmed from the stream before they were ingested."""
    lag: Count | None = None
    """Number of items that wait on the bus at the end; null if it did not answer."""
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


class Estimate(Contract):
    """A paired mean difference with its percentile-bootstrap interval, which contains the mean."""

    mean: Finite
    lower: Finite
    upper: Finite
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)]
    n: Annotated[int, Field(ge=2, le=2**53)]
    """Number of pairs."""

    @model_validator(mode="after")
    def _check_order(self) -> Estimate:
        if not self.lower <= self.mean <= self.upper:
            raise ValueError(f"expected lower <= mean <= upper, found {self.lower}, {self.mean}, {self.upper}")
        return self


class FamilyTrial(Contract):
    """Results of one controller on a group of hosts."""

    episodes: Count
    mean_return: Finite
    over_wait: Estimate | None
    """Difference to ``wait``, paired by host key; null for ``wait`` itself and for a single host."""
    test_accuracy: Finite
    validation_accuracy: Finite
    committed_parameters: Finite
    test_over_wait: Estimate | None = None
    """Difference of test accuracies to ``wait``, as a share, paired by host key; null as ``over_wait``."""
    host_parameters: Finite | None = None
    """Mean number of trainable parameters of the hosts without seeds; null in reports of earlier versions."""
    extra_compute: Finite | None = None
    """Mean of: parameters of seeds, summed over the epochs in which they are alive or fossilised, over the host's own
    parameters times the horizon. Probes, evaluations and the controller's own compute are not in it."""


class RentTrial(Contract):
    """Results of one controller at another rent; no host grows again for it."""

    factor: Annotated[float, Field(ge=0.0)]
    """What the rent per parameter is multiplied by."""
    mean_return: Finite
    over_wait: Estimate | None
    """Difference to ``wait``, which pays no rent, paired by host key; null for ``wait`` itself."""


class StaticTrial(Contract):
    """The networks that a controller ended with, trained from the start without growing."""

    same: Literal["epochs", "compute"]
    """What the static networks share with the episodes: the number of epochs, or parameters summed over epochs."""
    mean_epochs: Finite | None
    """Epochs trained; with equal compute it differs between hosts. Null in a proof whose trainings all failed."""
    mean_return: Finite
    test_accuracy: Finite
    governor_events: Count
    return_difference: Estimate
    """Controller minus static network, paired by host key, in points."""
    test_difference: Estimate
    """The same of test accuracies, as a share, which no rent is in."""


class ControllerTrial(FamilyTrial):
    """Results of one controller on all held-out hosts."""

    controller: Text
    illegal_actions: Count
    """Number of decisions outside the masks; the host waited instead."""
    governor_events: Count
    by_family: dict[str, FamilyTrial]
    """The same results per family."""
    returns: list[Finite]
    """Return per host, in the order of the report's host keys."""
    test_accuracies: list[Finite]
    validation_accuracies: list[Finite] = Field(default_factory=list)
    """Of the committed network per host; empty in reports of earlier versions."""
    validation_losses: list[Finite] = Field(default_factory=list)
    """Of the committed network per host; empty in reports of earlier versions."""
    measured_steps: Count | None = None
    """Number of steps after which the contribution of a seed was measured; null, as the next two, in reports of earlier
    versions."""
    hacking_steps: Count | None = None
    """Number of them that are flagged as reward hacking, as in ``rewards`` of the catalogue."""
    ransomware_steps: Count | None = None
    rents: list[Finite] = Field(default_factory=list)
    """Points of rent in each return; empty in reports of earlier versions."""
    by_rent: list[RentTrial] = Field(default_factory=list)
    """The same results at other rents, if they were asked for."""
    static: list[StaticTrial] = Field(default_factory=list)
    """Comparisons with the final networks trained from the start, if they were asked for; none of ``wait``."""


class TrialReport(Receipt):
    """Results of every controller on the same hosts."""

    stage: Literal["trials"] = "trials"
    set: Text
    host_keys: list[Count]
    families: list[Text]
    """Family of each host, in the order of ``host_keys``."""
    controllers: list[ControllerTrial]
    plans_digest: Digest | None
    """Digest of the plan book that ``heuristic``, ``blind``, ``symptom``, ``oracle`` and ``expert`` follow."""
    without_book: list[Text] = Field(default_factory=list)
    """Consequences of a missing plan book or tree: controllers left out, and ``heuristic`` on its default rules."""
    policy_digest: Digest | None = None
    """Digest of the policy in row ``candidate``; null if no candidate took part."""
    book_differences: list[Text] = Field(default_factory=list)
    """Settings in which these episodes differ from those that the plan book was searched on."""


class SeedTrial(Contract):
    """The policy of one training seed, tried on validation hosts."""

    training_seed: Count
    policy_digest: Digest
    controller: Text
    """Its row in the trials."""
    mean_return: Finite
    over_wait: Estimate
    """Difference to never growing, paired by host key."""


class StoppedSeed(Contract):
    """A training seed whose training was hopeless and ended early, so that its policy was not tried."""

    training_seed: Count
    policy_digest: Digest
    cause: StopCause


class SeedChoice(Receipt):
    """The best of several trainings that differ in their seed alone; ``seed`` is that of the run."""

    stage: Literal["choose"] = "choose"
    policy_digest: Digest
    """The policy with the greatest mean difference; the first of several with the same one."""
    training_seed: Count
    """Its training seed."""
    set: Text
    """Set of the validation hosts."""
    hosts: Count
    """Number of validation hosts, the same for all policies."""
    snapshot_digest: Digest
    start_digest: Digest | None
    """Policy from which all trainings started, if any."""
    mean: Finite
    """Mean over training seeds of the mean difference to never growing, in points, as the next three."""
    spread: Annotated[float, Field(ge=0.0)] | None
    """Standard deviation between training seeds; null if a single training finished."""
    least: Finite
    greatest: Finite
    """That of the chosen policy. It is the greatest of several noisy figures, so it promises more than new hosts show.
    """
    seeds: Annotated[list[SeedTrial], Field(min_length=1)]
    """Trainings that finished, in the order of training."""
    stopped: list[StoppedSeed] = Field(default_factory=list)
    """Trainings that ended early because they were hopeless, in the order of training; none of them is chosen."""

    trials: Text
    """Receipt of the trials of all policies, as the views name it."""

    @property
    def policies(self) -> frozenset[str]:
        """Return the digests of the policies of all these trainings."""
        return frozenset([*(one.policy_digest for one in self.seeds), *(one.policy_digest for one in self.stopped)])


class Probe(Contract):
    """A property of a candidate that was measured in addition to its trials."""

    value: Finite
    """What the criterion of the probe's name judges, mostly the number of cases that failed."""
    count: Count
    """Number of cases that were examined."""
    detail: Text = ""
    """The first case that failed, or what was measured besides."""


class ValidationReport(Receipt):
    """Evidence about one candidate."""

    stage: Literal["validate"] = "validate"
    model: Text = MODEL_NAME
    """Registered model of the candidate; absent in receipts of earlier versions, which judged policies alone."""
    ordinal: Ordinal
    """Number of the judgement in the home, by which the hosts were chosen."""
    policy_digest: Digest
    """The candidate: a policy or Karn."""
    champion_digest: Digest | None
    """The champion of the same model, if there is one."""
    consulted_by: Digest | None = None
    """The policy in all rows of a judgement of Karn, the champion of policies; null for a policy."""
    snapshot_digest: Digest
    evidence: EvidenceKind = "trials"
    """What the differences follow from."""
    trials: TrialReport
    """Without hosts and controllers where the evidence is reports."""
    differences: dict[str, Estimate]
    """Candidate minus each other controller, paired by host key."""
    training_metrics: dict[str, Finite]
    figures: dict[str, Text]
    """Paths of PNG files by name."""
    probes: dict[str, Probe] = Field(default_factory=dict)
    """By name of the criterion."""
    further: list[TrialReport] = Field(default_factory=list)
    """Trials of the candidate on the further sets (``trial.also_sets``), in that order."""
    log: LogEvidence | None = None
    """What logged episodes say; beside trials, null if there are none on held-out hosts."""

    @property
    def hosts(self) -> int:
        """Number of held-out hosts that the differences are over."""
        return len(self.trials.host_keys if self.evidence == "trials" or self.log is None else self.log.host_keys)


class Verdict(str, Enum):
    """Verdict on a criterion; anything but PASS rejects."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    MISSING = "MISSING"


class Criterion(Contract):
    """One criterion of a gate decision."""

    name: Text
    value: Finite | None
    """Null if the evidence is missing or not finite."""
    bound: Finite
    comparison: Literal[">", ">=", "<", "<="]
    verdict: Verdict
    evidence: Text
    detectable: Finite | None = None
    """Smallest true difference, in points, that would have passed with 80 % power; null where the value is no bound of
    a difference."""


class GateDecision(Receipt):
    """All criteria; the candidate is accepted only if each one passed."""

    stage: Literal["gate"] = "gate"
    model: Text = MODEL_NAME
    """As in the validation report, and so are the next three."""
    policy_digest: Digest
    champion_digest: Digest | None
    consulted_by: Digest | None = None
    judgement: Judgement
    accepted: bool
    without: list[Text] = Field(default_factory=list)
    """Criteria that the settings leave out."""
    evidence: EvidenceKind = "trials"
    absent: list[Text] = Field(default_factory=list)
    """Criteria that do not apply to this kind of evidence, and those that had nothing to judge, with the reason."""
    criteria: list[Criterion]
    digest: Digest
    """Digest over the criteria, the judgement and the judged digests."""


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


class RunReceipt(Receipt):
    """Receipts of all stages of a run, in their order."""

    stage: Literal["run"] = "run"
    token: Text
    """Name of the run; a resumed run keeps it."""
    profile: Text
    is_resumed: bool
    start_digest: Digest | None
    """Digest of the champion from which the run started, if any."""
    collections: list[CollectionReceipt]
    ingests: list[IngestReceipt]
    snapshots: list[SnapshotManifest]
    trainings: list[TrainingReport]
    choice: SeedChoice | None = None
    """Which of the last trainings is judged; null if there is one."""
    validation: ValidationReport
    decision: GateDecision
    version: PolicyVersion | None
    """Null if the gate rejected the candidate."""
    publication: PublicationReceipt | None
