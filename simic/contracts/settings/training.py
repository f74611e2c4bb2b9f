"""Settings of training and replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Identifier, Positive, UnitInterval
from simic.contracts.settings.continual import CurriculumConfig, EwcConfig, LoraConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import SafetyConfig

__all__ = ["WITHOUT_EFFECT", "DeviceName", "PrecisionName", "ReplayConfig", "TrainConfig"]

WITHOUT_EFFECT: Mapping[str, Any] = {
    "checkpoint_updates": True,
    "max_hours": True,
    "max_memory_gb": True,
    "replay": {"capacity", "ttl_s"},
    "safety": {"update_timeout_s"},
}
"""Settings of ``TrainConfig`` that do not change what is learned, as pydantic excludes them: no identity of a run or a
training has them. A training that comes close to ``max_memory_gb``, or to the memory of its machine, is the exception:
it becomes conservative (``train.safety.conservative.triggers``), and its receipt says so."""


DeviceName = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["float32", "bfloat16", "float16"]


class ReplayConfig(Contract):
    """Replay: capacity, lifetime and draws."""

    capacity: Positive = 100_000
    """Largest number of steps in a live buffer; whole sequences leave when more arrive. No command has one yet."""
    ttl_s: Annotated[float, Field(gt=0.0, le=1e9)] = 3600.0
    """Seconds after which a sequence leaves a live buffer. No command has one yet."""
    max_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 6144
    """Largest size in MiB of columns in memory. A live buffer evicts sequences; a larger snapshot is mapped from files.
    """
    alpha: UnitInterval = 0.6
    """Exponent of priorities: 0 is uniform, 1 is proportional."""
    beta: UnitInterval = 0.4
    """Initial exponent of the importance-sampling correction; 1 corrects fully."""
    eps: Annotated[float, Field(ge=1e-9, le=1.0)] = 0.01
    """Added to every magnitude, so that every sequence can be drawn."""
    anneal_draws: Annotated[int, Field(ge=0, le=10_000_000_000)] | None = None
    """Number of draws over which beta rises linearly to 1; null is all of a training, 0 keeps it constant."""
    max_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.999
    """Factor per update on the greatest priority, which new sequences receive; 1 never forgets an outlier."""


class TrainConfig(Contract):
    """Training: distillation, or an objective on a log."""

    start: Literal["scratch", "distil"] = "distil"
    """How a run learns: distil tries many actions at decisions of its hosts and learns from their returns, then by
    V-trace from other episodes unless that raises the regret; scratch learns from a log as ``objective`` says. Without
    branches in the snapshot, distil learns as scratch does."""
    objective: Identifier = "vtrace"
    """How a log is learned from: vtrace, ppo, awr, fitted_q, cloning, or an installed objective. V-trace also follows a
    distillation. Cloning imitates whoever acted, whatever came of it."""
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    """Trainings of a run's last snapshot, which differ in their seed alone: the run's own seed and those after it. With
    two or more, all policies are tried on the same validation hosts, and the best one is the candidate. Only runs heed
    it, not `simic train`."""
    distil_passes: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Passes over all branched decisions in every training run."""
    network: NetworkConfig = NetworkConfig()
    policy_lr: Annotated[float, Field(ge=1e-6, le=1e-2)] = 4e-3
    value_lr: Annotated[float, Field(ge=1e-6, le=1e-2)] = 1e-3
    min_lr: Annotated[float, Field(ge=0.0, le=1e-3)] = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 1e-4
    warmup_updates: Annotated[int, Field(ge=0, le=100_000)] = 10
    clip_norm: Annotated[float, Field(gt=0.0, le=100.0)] = 0.5
    batch_sequences: Annotated[int, Field(ge=8, le=256)] = 32
    """Episodes per update; a power of two."""
    micro_batch_sequences: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most rows of an update that are processed at once: episodes of a log, decisions of a distillation or steps of a
    Q-function. The gradients of the parts add up, each weighted by its share of the rows, so memory falls and the batch
    stays. A mean over the steps of a batch becomes a mean over the parts' means; counts add up. Null processes
    all rows at once."""
    cloning_passes: Annotated[int, Field(ge=0, le=100)] = 3
    value_passes: Annotated[int, Field(ge=0, le=100)] = 3
    q_updates: Annotated[int, Field(ge=1, le=1_000_000)] = 450
    """Updates of each Q-function, and about as many of the distillation, with train.objective = fitted_q."""
    vtrace_passes: Annotated[int, Field(ge=0, le=100)] = 8
    """Passes of V-trace, PPO, AWR or cloning over the log in the first training run. With 0 a new policy has
    only ``cloning_passes`` and ``value_passes``."""
    round_passes: Annotated[int, Field(ge=1, le=100)] = 4
    """Passes of V-trace, PPO, AWR or cloning over the new episodes of a round."""
    average: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.6
    """Share of the average over earlier rounds in a round's policy; 0 acts with the learner's own weights. Objectives
    that do not average ignore it: ppo, fitted_q and cloning, and a distillation."""
    max_passes: Annotated[int, Field(ge=1, le=100)] = 8
    """Largest number of these passes over one episode, over all trainings of a policy and of those that it started
    from. More than ``vtrace_passes`` leaves some for rounds and later runs."""
    replay_ratio: Annotated[float, Field(ge=0.0, le=100.0)] = 1.0
    """Largest number of earlier episodes in a pass, per new one, in a round or a training that starts from a policy.
    New are those without a counted pass. Earlier ones are drawn anew for every pass, among those with passes left;
    without new ones, all of them take part."""
    rho_bar: Annotated[float, Field(ge=0.0)] = 1.0
    """Bound on importance ratios: of V-trace, and of the weights with which PPO learns from another policy's log."""
    c_bar: Annotated[float, Field(ge=0.0)] = 1.0
    """Bound on the ratios of V-trace's traces."""
    pg_rho_bar: Annotated[float, Field(ge=0.0)] = 1.0
    """Bound on the ratios that weigh V-trace's policy gradient."""
    min_effective_share: UnitInterval = 0.0
    """Least effective sample size of V-trace, as a share of the steps and as the mean over a pass; below it no further
    pass is made, because the policy is too far from the behaviour. 0 makes all passes."""
    lambda_: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Decay of V-trace's traces and of generalised advantage estimation."""
    ppo_epochs: Annotated[int, Field(ge=1, le=100)] = 1
    """Passes of PPO that share one reference policy, from which ratios, advantages and KL are computed."""
    ppo_clip: Annotated[float, Field(ge=0.01, le=0.9)] = 0.2
    """A head's ratio to the reference gains nothing beyond 1 +- this."""
    ppo_dual_clip: Annotated[float, Field(ge=2.0, le=1e6)] = 3.0
    """A bad action's loss does not grow beyond this ratio; a large number turns this off."""
    ppo_max_kl: Annotated[float, Field(gt=0.0, le=100.0)] = 0.1
    """KL(reference || policy) in nats per step, averaged over a batch; above it PPO leaves out the rest of the pass
    and the other passes that share the reference. Episodes that it did not reach keep that pass."""
    awr_temperature: Annotated[float, Field(ge=0.01, le=100.0)] = 0.3
    """Advantage of which a step of AWR weighs e times as much as one without, in deviations of the log's returns around
    the values; a large number clones the behaviour."""
    awr_max_weight: Annotated[float, Field(ge=1.0, le=1e6)] = 20.0
    """Largest weight of a step of AWR."""
    entropy_bonus: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Weight of the entropy of each head, averaged over the steps that use the head; fitted_q, cloning and a
    distillation ignore it."""
    entropy_bonus_last: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Weight of the entropy in the last update of the passes of V-trace, PPO or AWR of one training; it falls linearly
    from ``entropy_bonus``. Null keeps that weight."""
    cloning_weight: Annotated[float, Field(ge=0.0, le=10.0)] = 0.03
    """Weight of the log-likelihood of the logged actions during V-trace and PPO. It keeps the policy near the
    behaviour, so that a head keeps its spread until the advantages distinguish its choices."""
    sampling: Literal["uniform", "prioritised"] = "uniform"
    """How a pass of V-trace, PPO, AWR or cloning chooses episodes: uniform visits each once, prioritised draws those
    whose values are far off more often, with importance weights (``train.replay``). Every draw is a pass."""
    min_experiences: Positive = 1000
    """Least number of steps; with fewer, training refuses to start."""
    min_commit_rate: UnitInterval = 0.02
    """P(germinates at least once) x P(fossilises at least once) on logged states; below this value training stops,
    because the policy has collapsed."""
    checkpoint_updates: Annotated[int, Field(ge=0, le=1_000_000)] = 50
    """Updates from one checkpoint to the next, from which a killed or diverged training goes on; 0 writes none."""
    max_hours: Annotated[float, Field(gt=0.0, le=10_000.0)] = 24.0
    """Largest number of hours of one training, those before a resumption included."""
    max_memory_gb: Annotated[float, Field(gt=0.0, le=100_000.0)] = 12.0
    """Largest resident memory of the training process in GB (1e9 bytes); beyond it training stops."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    device: DeviceName = "cpu"
    """Where a policy is trained; auto is a CUDA device where there is one. Equal inputs give equal bits on the CPU, and
    other bits on another device. Sealed policies and checkpoints hold the same kind of file for all."""
    precision: PrecisionName = "float32"
    """Format in which the network computes losses; weights, gradients, moments and all that a loss makes of logits and
    values stay float32. float16 scales the loss: an update whose gradients overflow is left out and counted
    (``overflow_count``)."""
    tf32: bool = False
    """Whether a CUDA device multiplies float32 matrices with 10 bits of mantissa; the CPU ignores it."""
    replay: ReplayConfig = ReplayConfig()
    lora: LoraConfig = LoraConfig()
    safety: SafetyConfig = SafetyConfig()
    ewc: EwcConfig = EwcConfig()
    curriculum: CurriculumConfig = CurriculumConfig()

    @model_validator(mode="after")
    def _batch_is_power_of_two(self) -> TrainConfig:
        if self.batch_sequences & (self.batch_sequences - 1):
            raise ValueError(f"train.batch_sequences must be a power of two, found {self.batch_sequences}")
        if self.entropy_bonus_last is not None and self.entropy_bonus_last > self.entropy_bonus:
            raise ValueError(
                f"train.entropy_bonus_last {self.entropy_bonus_last} exceeds train.entropy_bonus {self.entropy_bonus}, "
                "but the weight of the entropy can only fall"
            )
        if self.min_lr > min(self.policy_lr, self.value_lr):
            raise ValueError(f"train.min_lr {self.min_lr} exceeds a learning rate")
        return self
