"""The configuration model: a profile is a complete, named set of settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from simic.contracts.actions import BlueprintName
from simic.contracts.base import Contract, Identifier, Positive, UnitInterval
from simic.contracts.errors import ConfigError
from simic.contracts.lake_url import parse_url
from simic.contracts.results.log_evidence import EvidenceKind
from simic.contracts.rewards import DEFAULT_FAMILY, FAMILIES, FlagConfig, Reward
from simic.contracts.settings.karn import ControllerConfig, KarnConfig
from simic.contracts.settings.lifecycle import GovernorConfig, LifecycleConfig
from simic.contracts.settings.telemetry import TelemetryConfig
from simic.contracts.settings.training import TrainConfig

__all__ = [
    "BusConfig",
    "CollectConfig",
    "CurateConfig",
    "EpisodeStopConfig",
    "FurtherCollection",
    "GateConfig",
    "IngestConfig",
    "LakeConfig",
    "RunConfig",
    "StagesConfig",
    "TrialConfig",
    "WorldConfig",
]

PAID_AT_THE_END = frozenset({"sparse", "minimal"})
"""Reward families that pay the gain of an episode in its last step."""


class WorldConfig(Contract):
    """Hosts and their training."""

    set: Identifier = "benchmark"
    without: tuple[Identifier, ...] = ()
    """Families of the set that collection leaves out; training knows nothing of them, and judgement stays on the whole
    set. It counts in a new home only: reports that have landed are learned from, whichever family they are of."""
    images: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Images of the user for sets whose hosts read images: an ``.npz`` file in CIFAR layout, or a folder with one
    subfolder of PNG or JPEG files per class; null means the bundled digits."""
    horizon: Annotated[int, Field(ge=4, le=1000)] = 20
    """Number of epochs of an episode."""
    chunk: Annotated[int, Field(ge=1, le=4096)] = 64
    """Largest number of hosts trained together; 64 to 256 are fastest on a CPU, thousands on a GPU."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    """Threads of one ensemble; more than one slows small hosts down. One and two give identical bits. More may not, so
    the collected episodes count as different ones."""
    prune_epochs: Annotated[int, Field(ge=0, le=100)] = 0
    """Epochs over which alpha falls to 0 before a seed in blending or holding is pruned; 0 prunes at once."""
    blend: Literal["own", "add", "multiply", "gate"] = "own"
    """Operator that blends seeds into their hosts: the own one of each blueprint, or one for all."""
    lifecycle: LifecycleConfig = LifecycleConfig()
    governor: GovernorConfig = GovernorConfig()
    snapshot_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Largest memory for the governor's snapshot of one ensemble, MiB."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Number of processes that train chunks of hosts in parallel; null means one per core, or one on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device on which hosts train."""
    form: Literal["auto", "compacted", "masked"] = "auto"
    """Memory layout of hosts: compacted computes only active parts; masked keeps all shapes constant, which a GPU
    needs; auto is compacted on cpu and masked on cuda."""

    @model_validator(mode="after")
    def _gpu_form_is_masked(self) -> WorldConfig:
        if self.device == "cuda" and self.form == "compacted":
            raise ValueError(
                "world.form = compacted changes tensor shapes from epoch to epoch and runs on world.device = cpu only; "
                "on cuda use masked or auto"
            )
        return self

    @property
    def rules(self) -> dict[str, int | float]:
        """Return the settings of ``lifecycle`` and ``governor`` by dotted name, as the identity of an episode has them.

        Defaults are among them, so that another default makes another identity.
        """
        sections: tuple[tuple[str, Contract], ...] = (("lifecycle", self.lifecycle), ("governor", self.governor))
        return {f"{section}.{name}": value for section, settings in sections for name, value in settings}

    @property
    def is_masked(self) -> bool:
        """Resolved value of ``form``."""
        return self.form == "masked" or self.device == "cuda"

    @property
    def processes(self) -> int | None:
        """Resolved value of ``workers``; null is one per core."""
        return 1 if self.workers is None and self.device == "cuda" else self.workers


class FurtherCollection(Contract):
    """Hosts of a further set that a run with train.start = distil learns from too."""

    set: Identifier
    branch_hosts: Positive
    """Hosts of which one decision each is branched before the first training run."""
    round_branch_hosts: Annotated[int, Field(ge=0, le=1_000_000)]
    """Hosts of a round whose decisions are branched; 0 leaves the set out of rounds."""


class EpisodeStopConfig(Contract):
    """When the episode of a hopeless host ends early, cut off. Off by default.

    Only ordinary episodes end early. Branches, episodes whose decisions are branched, and episodes that judge run to
    their horizon, because their returns are compared.
    """

    fall: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Fall of validation accuracy below the best of the episode from which a host counts as hopeless; null never."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of consecutive epochs with such a fall after which its episode ends."""


class CollectConfig(Contract):
    """Training hosts that a run grows before its first training and in rounds, and the branches of their decisions."""

    controller: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")] = "explore"
    """Controller that acts while there is no champion, with train.start = scratch."""
    episodes: Annotated[int, Field(ge=0, le=10_000_000)] = 2000
    """Number of episodes of `simic collect`, and of a run with train.start = scratch before its first training; 0 uses
    the reports that are on the bus."""
    rounds: Annotated[int, Field(ge=0, le=1000)] = 1
    """Rounds collected after the first training run, each followed by another training run."""
    round_episodes: Positive = 200
    """Number of episodes of a round, with train.start = scratch."""
    branch_hosts: Annotated[int, Field(ge=0, le=1_000_000)] = 144
    """Hosts of which one decision each is branched before the first training run, with train.start = distil; 0 uses the
    reports that are on the bus, and collects no hosts of ``further`` then either."""
    round_branch_hosts: Positive = 54
    """Hosts of a round whose decisions are branched, with train.start = distil."""
    branch_decisions: Annotated[int, Field(ge=1, le=100)] = 3
    """Largest number of decisions of a host that are branched in a round. At least one is drawn; up to two others are
    those at which the policy began a seed after its first one."""
    branch_actions: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Largest number of actions tried at one decision besides the controller's own, drawn at random if there are more;
    each costs one episode."""
    further: tuple[FurtherCollection, ...] = (
        FurtherCollection(set="varied", branch_hosts=304, round_branch_hosts=114),
        FurtherCollection(set="shapes", branch_hosts=182, round_branch_hosts=65),
        FurtherCollection(set="maps", branch_hosts=96, round_branch_hosts=18),
        FurtherCollection(set="compound", branch_hosts=84, round_branch_hosts=60),
    )
    """Further sets whose training hosts are branched in every collection, with train.start = distil, so that the policy
    carries over to them. If the run's own set is here, these numbers replace smaller ones of ``branch_hosts`` and
    ``round_branch_hosts``, because a set of many families needs more than the default. Families in ``world.without``
    are left out here too. A snapshot holds all reports that have landed, so in a home that learned from a set
    before, its hosts stay among them."""

    stop: EpisodeStopConfig = EpisodeStopConfig()

    @field_validator("further")
    @classmethod
    def _each_set_once(cls, further: tuple[FurtherCollection, ...]) -> tuple[FurtherCollection, ...]:
        names = [collection.set for collection in further]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"collect.further names {', '.join(twice)} twice; name each set once")
        return further


class BusConfig(Contract):
    """Settings of Redis Streams; the spool does not use them."""

    batch: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Largest number of entries of one read, which form one delivery."""
    block_ms: Annotated[int, Field(ge=0, le=5000)] = 0
    """Milliseconds that a claim waits for more entries once the stream is drained; 0 is right except in a service."""
    reclaim_idle_s: Annotated[float, Field(gt=0.0, le=86_400.0)] = 60.0
    """Seconds after which unacknowledged entries of another consumer are taken over; must exceed the time for the
    slowest batch."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of deliveries of an entry, the last one alone, before it becomes a dead letter."""
    ttl_s: Annotated[int, Field(ge=1, le=30 * 86_400)] = 7 * 86_400
    """Age at which an undelivered report becomes a dead letter; a week, so that a late nightly run loses nothing."""
    keep_s: Annotated[int, Field(ge=0, le=30 * 86_400)] | None = 86_400
    """Age after which acknowledged entries are trimmed; null keeps all. Others are never trimmed."""
    dead_letters: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Largest number of dead letters per topic; older ones are deleted and count as lost."""
    connect_attempts: Annotated[int, Field(ge=1, le=100)] = 8
    """Attempts to reach an absent server, with growing pauses, before giving up."""
    deadline_s: Annotated[float, Field(gt=0.0, le=3600.0)] = 10.0
    """Seconds of silence from Redis after which a verb gives up: timeouts, refused connections and pauses between
    attempts, summed since the last answer. After that, reports of the verb wait in the spool, and its queries fail.
    Must exceed ``block_ms``."""

    @model_validator(mode="after")
    def _waiting_for_more_is_no_silence(self) -> Self:
        if self.block_ms >= 1000 * self.deadline_s:
            raise ValueError(
                f"bus.deadline_s = {self.deadline_s:g} must be more than bus.block_ms = {self.block_ms}, because the "
                "server is asked to keep silent for so long"
            )
        return self


class IngestConfig(Contract):
    """Ingestion from the bus into Parquet."""

    batch_reports: Positive = 10_000
    max_report_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 262_144
    max_depth: Annotated[int, Field(ge=4, le=100)] = 16
    quarantine_mb: Annotated[int, Field(ge=0, le=1_048_576)] = 1024
    """Space for refused reports, MB. Bytes that do not fit are omitted; once it is full, each batch keeps one row per
    reason and source, and once the files exceed the limit by 16 MB, refused lines are counted only."""
    max_file_mb: Annotated[int, Field(ge=1, le=1_048_576)] = 4096
    """Largest size of one spool file in MiB, both on disk and decompressed. A larger file is set aside; lines read
    before count."""
    max_file_s: Annotated[float, Field(gt=0.0, le=86_400.0)] = 3600.0
    """Longest time in seconds to read one spool file. A slower one is set aside; lines read before count."""
    max_file_refusals: Positive = 100_000
    """Largest number of refused lines in one spool file. Beyond it the rest is not read and the file is set aside.
    Redis cannot keep unread entries, so there every entry is read; ``bus.batch`` bounds a delivery."""
    max_future_s: Annotated[float, Field(ge=0.0, le=3.2e8)] = 86_400.0
    """Largest number of seconds by which ``issued_at`` may lie ahead of the newest known moment: that of the clock, or
    of the newest landed part if the clock was set back. A report beyond it is refused and can be sent again."""
    max_age_days: Annotated[float, Field(gt=0.0, le=36_500.0)] = 3650.0
    """Largest number of days by which ``issued_at`` may lie behind the clock. An older report is refused; the default
    is the largest ``curate.ttl_days``, so no curation could have used it."""
    declared_blueprints: Annotated[tuple[BlueprintName, ...], Field(max_length=128)] = ()
    """Blueprints of other frameworks, of which no code is installed here. Reports may name them, and a policy that is
    trained with the same setting may choose them. No host of Simic can grow one."""


class LakeConfig(Contract):
    """Location and retention of landed parts. Only retention affects training data, and it is off by default."""

    url: str | None = None
    """``s3://bucket/prefix?endpoint_override=HOST:PORT&scheme=http&region=NAME``; null means ``data/experience``, or
    the value of ``SIMIC_LAKE_URL``. Fixed before the first ingest; credentials come from the environment."""
    compact_parts: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Number of consecutive small parts of a UTC month that makes an ingest merge them before it starts, two if the
    month is over; one merge per ingest; 0 leaves merging to ``simic lake compact``."""
    small_mb: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Size in MiB below which a part is small."""
    target_mb: Annotated[int, Field(ge=1, le=100_000)] = 128
    """Size in MiB of the input after which a merge takes no more parts."""
    max_age_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    """An ingest first drops parts whose newest row landed more than this many days ago; null keeps all. While
    it is set, only parts of one UTC day are merged, so that no row of them stays more than a day longer."""
    max_bytes: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """An ingest first drops the oldest parts while the total size exceeds this many bytes; null keeps all. While it is
    set, a merge takes less than an eighth of it, so that no drop takes much more than the excess."""
    grace_minutes: Annotated[float, Field(ge=0, le=100_000)] = 60.0
    """Minutes that files of merged and dropped parts stay for readers in progress."""
    remember_days: Annotated[float, Field(ge=0, le=36_500)] = 365.0
    """Days for which ids of dropped reports are remembered, so that a repeated report is recognised. More than
    ``curate.ttl_days`` makes no difference, because curation leaves out older reports."""

    @field_validator("url")
    @classmethod
    def _url_is_an_address(cls, url: str | None) -> str | None:
        try:
            if url is not None:
                parse_url(url)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return url


class CurateConfig(Contract):
    """Curation of landed rows into a snapshot."""

    reward: Reward = Field(default_factory=FAMILIES[DEFAULT_FAMILY], validate_default=True)
    """Reward that the learner sees; trials always use ``basic`` points."""
    flags: FlagConfig = FlagConfig()
    gamma: Annotated[float, Field(ge=0.9, le=1.0)] = 0.99
    """Discount per decision, thus per epoch unless an episode decides every few epochs. The learner reads it from the
    snapshot, so it is set only here."""
    ttl_days: Annotated[float, Field(gt=0, le=3650)] = 365.0
    also_horizons: Annotated[tuple[Annotated[int, Field(ge=4, le=1000)], ...], Field(max_length=64)] = ()
    """Horizons of further episodes to use, beside ``world.horizon``: networks that Simic does not train have their own.
    Rent is charged per horizon of the episode."""
    max_versions_behind: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Largest number of versions by which an episode's policy may be behind the newest one; null is no limit. Versions
    are policies that were promoted in this home or acted in a whole, usable episode."""
    max_mb: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Largest uncompressed size in MiB of the steps of a snapshot; beyond it the oldest and least useful episodes are
    left out. Null is no limit."""
    memory_limit_mb: Annotated[int, Field(ge=64)] = 2048
    threads: Annotated[int, Field(ge=1, le=64)] = 2


class TrialConfig(Contract):
    """Trials on held-out hosts."""

    hosts_per_family: Positive = 32
    """Hosts per family in trials; a judgement uses more if ``gate.min_episodes`` requires it."""
    also_sets: tuple[Identifier, ...] = ("varied", "shapes", "maps")
    """Further sets on whose test hosts a run tries its candidate before the gate decides: there it must do no harm.
    The run's own set is skipped."""
    also_hosts_per_family: Positive = 16
    """Hosts per family of a further set."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    bootstrap_samples: Annotated[int, Field(ge=200, le=1_000_000)] = 10_000
    land: bool = False
    """Whether the episodes of judgements and comparisons become field reports on the bus, marked as judging experience:
    queries see them once ingested, and no training uses them. It has no effect on results."""


class GateConfig(Contract):
    """Which criteria the promotion gate applies, and their bounds."""

    without: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] = ()
    """Criteria that do not apply, by the names of their files or plug-ins; all others do. The page of the gate says
    so."""
    min_episodes: Positive = 150
    evidence: EvidenceKind = "trials"
    """trials: hosts of ``world.set`` are grown. reports: a candidate for a set that Simic cannot grow is judged from
    logged episodes of held-out hosts, without trials; docs/trust.md says what that does not show."""
    require_plan_book: bool = False
    """Whether sets of other packages, ``maps``, ``shapes`` and ``trunks`` need a plan book too; other shipped sets
    always do. Without a book there is no comparison with blind and symptom, and the heuristic follows its default
    rules."""
    error_budget: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.025
    """Largest chance that a home ever promotes a candidate that is no better than its champion, or than wait, random,
    heuristic or blind, unless returns are strongly skewed to the left. Each judgement spends a part, so later ones
    show less (docs/trust.md)."""
    margin_over_baselines: Annotated[float, Field(ge=0.0)] = 0.0
    """The lower bound of the paired difference to wait, random, heuristic and blind must exceed this many points."""
    margin_over_champion: Annotated[float, Field(ge=0.0)] = 0.0
    """The lower bound of the paired difference to the champion must exceed this many points."""
    max_loss_to_symptom: Annotated[float, Field(ge=0.0)] = 0.5
    """Largest mean paired loss to ``symptom`` in points, where the plan book has a tree; on the set ``varied`` the
    candidate must be better than ``symptom`` in the mean, whatever this says."""
    max_loss_on_further_sets: Annotated[float, Field(ge=0.0)] = 0.3
    """Largest mean paired loss to never growing in points, on each set of ``trial.also_sets``."""
    max_regression: UnitInterval = 0.05
    """Largest relative loss of mean test accuracy and of mean validation accuracy that the confidence bound may leave
    open, against wait and against the champion, if there is one."""
    min_success: UnitInterval = 0.5
    """Least share of held-out hosts whose committed network is at least as accurate as if nothing had grown. Noise
    alone gives about a half."""
    min_validation_accuracy: UnitInterval | None = None
    """Least mean validation accuracy of the committed networks, where the set defines one; null asks for none."""
    max_validation_loss: Annotated[float, Field(gt=0.0)] | None = None
    """Largest mean validation loss of the committed networks, where the set defines one; null asks for none."""
    max_hacking_share: UnitInterval = 0.05
    """Largest share of the measured steps of the candidate's trials that are flagged as reward hacking."""
    max_ransomware_share: UnitInterval = 0.02
    """Largest share of the measured steps of the candidate's trials that are flagged as ransomware."""
    max_decision_ms: Annotated[float, Field(gt=0.0)] = 1000.0
    """Time in milliseconds within which half of the candidate's decisions for one host, or more, must be made."""
    max_recovery_s: Annotated[float, Field(gt=0.0)] = 30.0
    """Time in seconds in which the candidate must be loaded and decide again after a fault of the machine."""
    max_policy_mb: Annotated[float, Field(gt=0.0)] = 256.0
    """Largest size in MB of the candidate's weights while it decides."""
    max_candidate_age_days: Annotated[int, Field(ge=0)] = 30
    """Most whole days between the end of training and validation."""
    min_mean_ratio: UnitInterval = 0.05
    """Least mean min(1, rho) in the last pass; below it, learning was too far off-policy."""
    max_governor_rate: UnitInterval = 0.02
    """Largest number of governor panics per episode in the candidate's trials."""


class RolloutConfig(Contract):
    """How production takes a new champion. The settings go into the signed update and stay as they were then."""

    start: Literal["full", "partial"] = "full"
    """full: all consumers use a new champion at once. partial: a share of them does, until ``simic rollout advance``
    finds that it succeeds. The first champion always begins full, because there is no policy for the others."""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of the consumers that use a new champion first."""
    hours: Annotated[float, Field(gt=0.0, le=8760.0)] = 24.0
    """Hours before all consumers may use it."""
    min_success: UnitInterval = 0.8
    """Least share of its whole episodes that must succeed; below it the champion is rolled back."""
    min_episodes: Positive = 50
    """Least number of whole episodes; with fewer the evidence is insufficient, and the rollout goes on."""


class StagesConfig(Contract):
    """Limits of the stages of a run of the flow `simic`; other commands and flows have none."""

    max_hours: Annotated[float, Field(gt=0.0, le=10_000.0)] = 12.0
    """Largest number of hours of a stage that grows hosts, lands reports or makes a snapshot. A run that reaches it
    stays open. Trainings have ``train.max_hours``; each other stage has one hour."""


class RunConfig(Contract):
    """All settings of a run, immutable."""

    world: WorldConfig = WorldConfig()
    collect: CollectConfig = CollectConfig()
    bus: BusConfig = BusConfig()
    ingest: IngestConfig = IngestConfig()
    lake: LakeConfig = LakeConfig()
    curate: CurateConfig = CurateConfig()
    train: TrainConfig = TrainConfig()
    trial: TrialConfig = TrialConfig()
    gate: GateConfig = GateConfig()
    rollout: RolloutConfig = RolloutConfig()
    stages: StagesConfig = StagesConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    controller: ControllerConfig = ControllerConfig()
    karn: KarnConfig = KarnConfig()

    @model_validator(mode="after")
    def _seeds_are_tried_on_grown_hosts(self) -> Self:
        if self.train.seeds > 1 and self.gate.evidence != "trials":
            raise ValueError(
                f"train.seeds = {self.train.seeds} chooses among policies on validation hosts, which gate.evidence = "
                f"{self.gate.evidence} does not grow; set train.seeds to 1"
            )
        return self

    @model_validator(mode="after")
    def _stopped_episodes_have_been_paid(self) -> Self:
        if self.collect.stop.fall is not None and self.curate.reward.family in PAID_AT_THE_END:
            raise ValueError(
                f"collect.stop.fall = {self.collect.stop.fall:g} cuts episodes off, and curate.reward.family = "
                f"{self.curate.reward.family} pays what an episode gained in its last step, where the value of the "
                "state that follows would pay it again; use basic or shaped, or set collect.stop.fall to null"
            )
        return self

    @property
    def further_collections(self) -> tuple[FurtherCollection, ...]:
        """Resolved value of ``collect.further``: without the run's own set, and none unless train.start is distil."""
        if self.train.start != "distil":
            return ()
        return tuple(collection for collection in self.collect.further if collection.set != self.world.set)
