"""Settings and words of what watches a training: anomalies, circuit breakers, conservative mode and deadlines."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Positive, UnitInterval

__all__ = [
    "AnomalyBounds",
    "AnomalyConfig",
    "AnomalyKind",
    "BreakerConfig",
    "BreakersConfig",
    "ConservativeConfig",
    "HopelessConfig",
    "SafetyConfig",
    "Severity",
    "StopCause",
    "TrainingStop",
    "Trigger",
]


class AnomalyKind(str, Enum):
    """Sign of an unhealthy training, in one update or in a pass of updates."""

    ENTROPY_COLLAPSE = "entropy_collapse"
    """A head chooses almost always the same."""
    KL_JUMP = "kl_jump"
    """One update moves the policy far."""
    RATIO_EXPLOSION = "ratio_explosion"
    """An importance ratio is very large."""
    RATIO_COLLAPSE = "ratio_collapse"
    """The policy hardly ever does what the log did."""
    GRADIENT_EXPLOSION = "gradient_explosion"
    """The norm of a gradient is many times the clip."""
    GRADIENT_DRIFT = "gradient_drift"
    """The norm of a gradient grows and stays large."""
    VALUE_COLLAPSE = "value_collapse"
    """The values explain less of the returns than a constant would."""
    COMMIT_COLLAPSE = "commit_collapse"
    """The policy has stopped growing networks for good."""
    STALENESS = "staleness"
    """The policy is far from the one that made the log."""
    LOSS_RISING = "loss_rising"
    """The loss of a pass is higher than that of the pass before, many times in a row."""
    NOT_FINITE = "not_finite"
    """A metric is NaN or infinite although loss and gradients are not."""


class Severity(str, Enum):
    """How bad an anomaly is."""

    WARNING = "warning"
    """Reported."""
    CRITICAL = "critical"
    """Repeated, or far beyond the bound; makes the training conservative."""


class Trigger(str, Enum):
    """What makes a training conservative."""

    ERROR_RATE = "error_rate"
    """Many updates, batches or writes fail."""
    MEMORY_PRESSURE = "memory_pressure"
    """The process has almost all memory that it may use."""
    BREAKER_OPEN = "breaker_open"
    """A circuit breaker has opened."""
    TRAINING_INSTABILITY = "training_instability"
    """An anomaly is critical."""
    OUT_OF_MEMORY = "out_of_memory"
    """An update did not get the memory that it asked for."""


class StopCause(str, Enum):
    """Reason for which a training counts as hopeless."""

    COLLAPSED = "collapsed"
    """The policy has collapsed, and has stayed so for ``train.safety.hopeless.collapsed_updates`` updates."""
    NO_PROGRESS = "no_progress"
    """The loss of a phase has not fallen in ``train.safety.hopeless.stale_passes`` passes."""


class TrainingStop(Contract):
    """Why and where a hopeless training ended early."""

    cause: StopCause
    phase: Annotated[str, Field(max_length=64)]
    updates: Count
    """Updates of all learners that were made."""
    planned_updates: Count
    detail: Annotated[str, Field(max_length=512)]
    """The measured values and their bounds."""


class AnomalyBounds(Contract):
    """Bounds of one kind of phase; a metric that a phase does not have is not checked."""

    min_entropy_share: UnitInterval = 0.1
    """Least entropy of a head, as a share of its largest so far in the phase; 0 turns this off. With
    ``train.network.exploration`` above 0 no entropy falls to 0, so a small share is never reached. A
    distillation, whose temperature falls, is not checked."""
    max_step_kl: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1
    """Largest KL(before || after) of one update in nats per decision, summed over the heads that matter."""
    max_ratio: Annotated[float, Field(ge=1.0, le=1e9)] = 1e6
    """Largest importance ratio of a step to the behaviour."""
    min_mean_ratio: UnitInterval = 0.01
    """Least mean of min(1, ratio to the behaviour) over a batch."""
    max_behaviour_kl: Annotated[float, Field(gt=0.0, le=1e6)] = 2.0
    """Largest KL(behaviour || policy) in nats per step, minus the mean log-ratio of a batch; beyond it the log is
    stale."""
    max_gradient_clips: Annotated[float, Field(gt=1.0, le=1e6)] = 200.0
    """Largest norm of a gradient before the clip, as a multiple of ``train.clip_norm``."""
    max_drift_clips: Annotated[float, Field(gt=1.0, le=1e6)] = 40.0
    """Norm of a gradient, as a multiple of ``train.clip_norm`` and averaged over about 10 updates, beyond which it
    drifts if it is also ``drift_factor`` times its average over about 100 updates."""
    drift_factor: Annotated[float, Field(gt=1.0, le=1e6)] = 3.0
    """Growth of a gradient's norm, see ``max_drift_clips``."""
    min_explained_variance: Annotated[float, Field(ge=-1e6, le=1.0)] = -0.5
    """Least share of the variance of returns that the values explain; 0 is what a constant explains."""
    min_commit_rate: UnitInterval = 0.0
    """Commit rate of a batch at which, or below which, the policy counts as collapsed, where fossilising was legal."""


class _GivenInPart(Contract):
    """Holds tables with defaults of their own place; what a given table leaves out has the default of its place."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {
            name: {**defaults[name].model_dump(), **value}
            if isinstance(value, Mapping) and isinstance(defaults.get(name), Contract)
            else value
            for name, value in values.items()
        }


class AnomalyConfig(_GivenInPart):
    """The anomaly detector."""

    supervised: AnomalyBounds = AnomalyBounds(max_step_kl=0.5, min_explained_variance=-1.0)
    """Cloning, value regression, distillation and Q-functions: they may begin with random weights."""
    objective: AnomalyBounds = AnomalyBounds()
    """V-trace, PPO, AWR and objectives of other packages."""
    grace_updates: Annotated[int, Field(ge=0, le=100_000)] = 20
    """Updates at the start of a phase in which only NaN and infinity count."""
    escalate_after: Annotated[int, Field(ge=1, le=1000)] = 10
    """Number of consecutive updates beyond a bound that turns a warning into a critical anomaly."""
    far_factor: Annotated[float, Field(gt=1.0, le=1e6)] = 5.0
    """A value beyond its bound by this factor is critical at once; explained variance and commit rate have no far."""
    kl_updates: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """Every how many updates the KL between the policies before and after is measured; 0 never."""
    kl_states: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Number of states of the log on which it is measured, the same in a whole training."""
    rising_passes: Annotated[int, Field(ge=2, le=1000)] = 10
    """Number of passes, each with a higher loss than the one before, after which a training has diverged."""


class BreakerConfig(Contract):
    """A circuit breaker: closed, then open, then half-open with one attempt."""

    failures: Positive
    """Consecutive failures that open it."""
    open_s: Annotated[float, Field(ge=0.0, le=3600.0)]
    """Seconds for which the training pauses once it is open; then one attempt decides."""


class BreakersConfig(_GivenInPart):
    """The circuit breakers of a training."""

    learner: BreakerConfig = BreakerConfig(failures=5, open_s=60.0)
    """Updates that run out of memory."""
    storage: BreakerConfig = BreakerConfig(failures=3, open_s=30.0)
    """Writes of checkpoints and curves."""
    sampling: BreakerConfig = BreakerConfig(failures=5, open_s=30.0)
    """Batches that cannot be read from the data set."""


class ConservativeConfig(Contract):
    """Conservative mode: smaller batches and learning rates while something is wrong."""

    triggers: tuple[Trigger, ...] = tuple(Trigger)
    """What enters the mode; without any it is off."""
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Factor on all learning rates."""
    timeout_factor: Annotated[float, Field(ge=1.0, le=100.0)] = 1.5
    """Factor on ``train.safety.update_timeout_s``."""
    healthy_updates: Positive = 50
    """Consecutive updates without a trigger after which the mode ends."""
    max_error_rate: UnitInterval = 0.05
    """Failures per update, over the last ``error_updates`` updates, above which the mode begins."""
    error_updates: Positive = 100
    """Number of updates of the error rate."""
    max_memory_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Resident memory, as a share of the least of ``train.max_memory_gb``, the control group's limit and the machine's
    memory, above which the mode begins."""


class HopelessConfig(Contract):
    """When a training ends early because it will not come to anything. Off by default.

    Its policy is sealed as it is then and never judged. With several training seeds the others go on, and a run fails
    if no training finishes.
    """

    collapsed_updates: Positive | None = None
    """Number of consecutive updates with a critical ``commit_collapse``, or a critical ``entropy_collapse`` of the
    operation, after which the policy counts as collapsed for good; null never. A distillation has neither."""
    stale_passes: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Number of passes of a phase after its first one without a loss below that of the first, after which nothing is
    learned; null never. A phase that begins with a trained policy has little to improve, so the number is to exceed the
    passes of a round."""
    min_improvement: UnitInterval = 0.01
    """Least share by which a loss must have fallen below that of the first pass."""


class SafetyConfig(Contract):
    """What watches a training."""

    anomalies: AnomalyConfig = AnomalyConfig()
    hopeless: HopelessConfig = HopelessConfig()
    breakers: BreakersConfig = BreakersConfig()
    conservative: ConservativeConfig = ConservativeConfig()
    update_timeout_s: Annotated[float, Field(gt=0.0, le=86_400.0)] = 1800.0
    """Seconds from one update to the next, with everything between them, after which a training counts as hanging and
    ends with exit code 4. What hangs in native code cannot be interrupted: then the whole process ends, 30 s later. The
    setting changes no result."""

    @model_validator(mode="after")
    def _pauses_are_shorter_than_the_deadline(self) -> SafetyConfig:
        breakers = self.breakers
        if (
            longest := max(breakers.learner.open_s, breakers.storage.open_s, breakers.sampling.open_s)
        ) >= self.update_timeout_s:
            raise ValueError(
                f"train.safety.update_timeout_s = {self.update_timeout_s:g} must be more than the longest pause of "
                f"train.safety.breakers, {longest:g} s, which is no hanging"
            )
        return self
