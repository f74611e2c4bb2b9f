"""The one configuration model: a run is a named, complete recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError
from simic.contracts.lake_url import parse_url
from simic.contracts.rewards import DEFAULT_FAMILY, FAMILIES, Reward, RewardConfig

__all__ = [
    "BusConfig",
    "CollectConfig",
    "CurateConfig",
    "GateConfig",
    "IngestConfig",
    "LakeConfig",
    "NetworkConfig",
    "ReplayConfig",
    "RewardConfig",
    "RunConfig",
    "TrainConfig",
    "TrialConfig",
    "WorldConfig",
]

Positive = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class WorldConfig(Contract):
    """The hosts."""

    set: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")] = "benchmark"
    images: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A user's own pictures, for sets whose hosts look at images: an ``.npz`` file in CIFAR layout, or a folder with a
    folder of PNG or JPEG files per class; null means digits."""
    horizon: Annotated[int, Field(ge=4, le=1000)] = 20
    """Epochs of an episode."""
    chunk: Annotated[int, Field(ge=1, le=4096)] = 64
    """Hosts trained together; 64 to 256 are fastest on a CPU, a GPU wants thousands."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    """Threads of one ensemble; more than one slows tiny hosts down. One and two give the same bits; more need not, so
    what they grow counts as other episodes."""
    prune_epochs: Annotated[int, Field(ge=0, le=100)] = 0
    """Epochs over which alpha falls to 0 before a seed that its host feels is pruned; 0 prunes at once."""
    blend: Literal["own", "add", "multiply", "gate"] = "own"
    """Operator that blends seeds into their hosts: each blueprint's own, or one for all."""
    snapshot_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Memory the governor may use for the snapshot of one ensemble, MiB."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Processes that grow chunks side by side; null means one per core, and one alone on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where hosts train."""
    form: Literal["auto", "compacted", "masked"] = "auto"
    """How they are laid out: compacted computes only what takes part, masked keeps every shape the same, which a GPU
    needs; auto is compacted on cpu and masked on cuda."""

    @model_validator(mode="after")
    def _gpu_form_is_masked(self) -> WorldConfig:
        if self.device == "cuda" and self.form == "compacted":
            raise ValueError(
                "world.form = compacted changes its shapes from epoch to epoch and runs on world.device = cpu only; "
                "on cuda use masked or auto"
            )
        return self

    @property
    def is_masked(self) -> bool:
        """What ``form`` comes to."""
        return self.form == "masked" or self.device == "cuda"

    @property
    def processes(self) -> int | None:
        """What ``workers`` comes to; null is one per core."""
        return 1 if self.workers is None and self.device == "cuda" else self.workers


class CollectConfig(Contract):
    """Step 1: experience of our own."""

    controller: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")] = "explore"
    """Who acts while there is no champion."""
    episodes: Annotated[int, Field(ge=0, le=10_000_000)] = 2000
    """Before the first training run; 0 uses what is on the bus."""
    rounds: Annotated[int, Field(ge=0, le=1000)] = 8
    """Rounds of own episodes after the first training run."""
    round_episodes: Positive = 200


class BusConfig(Contract):
    """Redis Streams; the spool has no use for these."""

    batch: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Entries of one read, which make one delivery."""
    block_ms: Annotated[int, Field(ge=0, le=5000)] = 0
    """How long a claim waits for more once the stream is drained; 0 does not wait, which is right but for a service."""
    reclaim_idle_s: Annotated[float, Field(gt=0.0, le=86_400.0)] = 60.0
    """Entries that another consumer took and did not acknowledge for so long are taken over: more than the worst batch
    takes."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    """Deliveries of an entry, the last of them by itself, before it becomes a dead letter."""
    ttl_s: Annotated[int, Field(ge=1, le=30 * 86_400)] = 7 * 86_400
    """Age at which a report that nobody took becomes a dead letter; a week, so that a late nightly run is no loss."""
    keep_s: Annotated[int, Field(ge=0, le=30 * 86_400)] | None = 86_400
    """Age from which on acknowledged entries are trimmed away; null keeps all. Others are never trimmed."""
    dead_letters: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Dead letters kept per topic; older ones leave and count as lost."""
    connect_attempts: Annotated[int, Field(ge=1, le=100)] = 8
    """Calls of an absent server, with growing pauses, before giving up."""
    deadline_s: Annotated[float, Field(gt=0.0, le=3600.0)] = 10.0
    """Seconds that a verb waits for Redis in all while it does not answer: timeouts, refused connections and the pauses
    between calls, added up until the next answer, from which it counts anew. Once they are used up the verb calls no
    more: what it reports waits in the spool, and what it asks is an error. More than ``block_ms``."""

    @model_validator(mode="after")
    def _waiting_for_more_is_no_silence(self) -> Self:
        if self.block_ms >= 1000 * self.deadline_s:
            raise ValueError(
                f"bus.deadline_s = {self.deadline_s:g} must be more than bus.block_ms = {self.block_ms}, because the "
                "server is asked to keep silent for so long"
            )
        return self


class IngestConfig(Contract):
    """Bus to Parquet."""

    batch_reports: Positive = 10_000
    max_report_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 262_144
    max_depth: Annotated[int, Field(ge=4, le=100)] = 16
    quarantine_mb: Annotated[int, Field(ge=0, le=1_048_576)] = 1024
    """Room for refused reports. Bytes that do not fit are left out; once it is used up, one row per reason and source
    stands for all of a batch."""
    max_file_mb: Annotated[int, Field(ge=1, le=1_048_576)] = 4096
    """MiB of one spool file, on disk and unpacked. A larger file is set aside; lines read before that count."""
    max_file_s: Annotated[float, Field(gt=0.0, le=86_400.0)] = 3600.0
    """Seconds that one spool file may take from its first byte to its last. A slower one is set aside; lines read
    before that count."""
    max_file_refusals: Positive = 100_000
    """Refused lines of one spool file after which the rest is not read and the file is set aside. Redis cannot keep
    what was not read, so everything is read there; ``bus.batch`` bounds a delivery."""
    max_future_s: Annotated[float, Field(ge=0.0, le=3.2e8)] = 86_400.0
    """Seconds by which ``issued_at`` may lie ahead of the newest moment known here: the clock's, or that of the newest
    landed part if the clock was set back. A report beyond that is refused and can be sent again."""
    max_age_days: Annotated[float, Field(gt=0.0, le=36_500.0)] = 3650.0
    """Days by which ``issued_at`` may lie behind the clock. A report beyond that is refused; the default is the largest
    ``curate.ttl_days``, so no curation could have used it."""


class LakeConfig(Contract):
    """Where landed parts lie, and what becomes of them. Nothing here decides over what is learned but retention, which
    does nothing unless it is asked to."""

    url: str | None = None
    """``s3://bucket/prefix?endpoint_override=HOST:PORT&scheme=http&region=NAME``; null means ``data/experience``, or
    what ``SIMIC_LAKE_URL`` names. Chosen once, before anything has landed; credentials come from the environment."""
    compact_parts: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Small parts in a row from which an ingest merges them first, one merge per ingest; 0 leaves it to
    ``simic lake compact``."""
    small_mb: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Parts below this are small, MiB."""
    target_mb: Annotated[int, Field(ge=1, le=100_000)] = 128
    """A merge takes up no more parts once it has read this much, MiB."""
    max_age_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    """An ingest first drops parts whose newest row landed longer ago; null keeps them."""
    max_bytes: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """An ingest first drops the oldest parts while all together are larger; null keeps them."""
    grace_minutes: Annotated[float, Field(ge=0, le=100_000)] = 60.0
    """Files of merged and dropped parts stay this long for readers that have begun."""
    remember_days: Annotated[float, Field(ge=0, le=36_500)] = 365.0
    """Ids of dropped reports are known this long, so that one told again does not come back as new. Beyond
    ``curate.ttl_days`` that makes no difference, for curation leaves out what is older."""

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
    """Rows to snapshot."""

    reward: Reward = Field(default_factory=FAMILIES[DEFAULT_FAMILY], validate_default=True)
    """What the learner is shown; trials judge by ``basic`` points whatever it says."""
    gamma: Annotated[float, Field(ge=0.9, le=1.0)] = 0.99
    """Discount per epoch; the learner takes it from the snapshot, so there is only this one."""
    ttl_days: Annotated[float, Field(gt=0, le=3650)] = 365.0
    max_versions_behind: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Episodes whose policy is more versions behind the newest one are left out; null is no limit."""
    max_mb: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Uncompressed MiB of steps a snapshot may hold; beyond, the oldest and least useful episodes leave. Null is no
    limit."""
    memory_limit_mb: Annotated[int, Field(ge=64)] = 2048
    threads: Annotated[int, Field(ge=1, le=64)] = 2


class NetworkConfig(Contract):
    """The learned controller's shape."""

    hidden: Annotated[int, Field(ge=8, le=1024)] = 48
    layers: Annotated[int, Field(ge=1, le=16)] = 2
    """Rounds of message passing."""
    exploration: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.01
    """Uniform share mixed into every head while acting and learning."""


class ReplayConfig(Contract):
    """Experience at hand: how much of it, how long, and what is drawn from it."""

    capacity: Positive = 100_000
    """Steps a live buffer holds; whole sequences leave when more arrive."""
    ttl_s: Annotated[float, Field(gt=0.0, le=1e9)] = 3600.0
    """Seconds of wall clock after which a sequence leaves a live buffer."""
    max_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 6144
    """MiB of columns in memory, measured from the arrays: a live buffer evicts, a larger snapshot is mapped from
    files."""
    alpha: Share = 0.6
    """Exponent of priorities: 0 is uniform, 1 is proportional."""
    beta: Share = 0.4
    """Exponent of the correction for them at first; 1 is a full one."""
    eps: Annotated[float, Field(ge=1e-9, le=1.0)] = 0.01
    """Added to every magnitude, so that no sequence is ever out of reach."""
    anneal_draws: Annotated[int, Field(ge=0, le=10_000_000_000)] = 0
    """Draws over which beta rises to 1 on a straight line; 0 keeps it as it is."""
    max_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.999
    """Per update, what becomes of the greatest priority, with which newcomers enter; 1 never forgets an outlier."""


class TrainConfig(Contract):
    """Cloning, value fit, V-trace."""

    network: NetworkConfig = NetworkConfig()
    policy_lr: Annotated[float, Field(ge=1e-6, le=1e-2)] = 4e-3
    value_lr: Annotated[float, Field(ge=1e-6, le=1e-2)] = 1e-3
    min_lr: Annotated[float, Field(ge=0.0, le=1e-3)] = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 1e-4
    warmup_updates: Annotated[int, Field(ge=0, le=100_000)] = 10
    clip_norm: Annotated[float, Field(gt=0.0, le=100.0)] = 0.5
    batch_sequences: Annotated[int, Field(ge=8, le=256)] = 32
    """Episodes per update; a power of two."""
    cloning_passes: Annotated[int, Field(ge=0, le=100)] = 3
    value_passes: Annotated[int, Field(ge=0, le=100)] = 3
    vtrace_passes: Annotated[int, Field(ge=0, le=100)] = 8
    """Over the log, in the first training run."""
    round_passes: Annotated[int, Field(ge=1, le=100)] = 4
    """Over a round's new episodes."""
    average: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.6
    """Share of the earlier rounds' average that a round's policy keeps; 0 acts with the learner's own weights."""
    max_passes: Annotated[int, Field(ge=1, le=100)] = 8
    """V-trace passes any one episode may take part in during a run."""
    rho_bar: Annotated[float, Field(ge=0.0)] = 1.0
    c_bar: Annotated[float, Field(ge=0.0)] = 1.0
    lambda_: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    entropy_bonus: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Weight of the entropy of each head, averaged over the steps at which it mattered."""
    cloning_weight: Annotated[float, Field(ge=0.0, le=10.0)] = 0.03
    """Weight, during V-trace, of the log-likelihood of the behaviour's own actions: it holds the policy near what was
    tried, so that a head keeps its spread until the advantages have told its choices apart."""
    min_experiences: Positive = 1000
    """Steps below which training refuses to start."""
    min_commit_rate: Share = 0.02
    """P(germinates at least once) x P(fossilises at least once), on logged states, below which training stops as
    collapsed."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    replay: ReplayConfig = ReplayConfig()

    @model_validator(mode="after")
    def _batch_is_power_of_two(self) -> TrainConfig:
        if self.batch_sequences & (self.batch_sequences - 1):
            raise ValueError(f"train.batch_sequences must be a power of two, found {self.batch_sequences}")
        if self.min_lr > min(self.policy_lr, self.value_lr):
            raise ValueError(f"train.min_lr {self.min_lr} exceeds a learning rate")
        return self


class TrialConfig(Contract):
    """Closed-loop trials on held-out hosts."""

    hosts_per_family: Positive = 32
    """Of trials; a judgement takes more where that is needed for ``gate.min_episodes``."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    bootstrap_samples: Annotated[int, Field(ge=200, le=1_000_000)] = 10_000


class GateConfig(Contract):
    """Bounds of the gate."""

    min_episodes: Positive = 150
    require_plan_book: bool = False
    """Whether a set that Simic does not ship must have a plan book too; shipped sets always must. Without a book there
    is no comparison with blind, and the heuristic follows its default rules."""
    min_confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """Of the intervals whose lower bounds are judged."""
    margin_over_baselines: Annotated[float, Field(ge=0.0)] = 0.0
    """Lower bound of the paired difference to wait, random, heuristic and blind must exceed this; points."""
    margin_over_champion: Annotated[float, Field(ge=0.0)] = 0.0
    """Likewise to the champion."""
    max_regression: Share = 0.05
    """Relative loss of mean test accuracy, and of mean validation accuracy, against the champion, or against wait, that
    is still tolerated."""
    min_mean_ratio: Share = 0.05
    """Mean min(1, rho) in the last pass below which learning was too far off-policy."""
    max_governor_rate: Share = 0.02
    """Governor panics per episode of the candidate's trials that are still tolerated."""


class RunConfig(Contract):
    """Everything a run needs to know, complete and frozen."""

    world: WorldConfig = WorldConfig()
    collect: CollectConfig = CollectConfig()
    bus: BusConfig = BusConfig()
    ingest: IngestConfig = IngestConfig()
    lake: LakeConfig = LakeConfig()
    curate: CurateConfig = CurateConfig()
    train: TrainConfig = TrainConfig()
    trial: TrialConfig = TrialConfig()
    gate: GateConfig = GateConfig()
