"""The anomaly detector: a state machine over the metrics of updates. It reads no clock and no weights.

A training that is resumed feeds it the recorded metrics, so it arrives in the same state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

from simic.contracts.actions import HEADS
from simic.contracts.errors import ContractError
from simic.contracts.settings.safety import AnomalyBounds, AnomalyConfig, AnomalyKind, Severity

__all__ = ["STEP_KL", "Anomaly", "AnomalyDetector", "Sight", "escalate"]

STEP_KL = "step_kl"
"""Metric of updates at which the KL between the policies before and after was measured."""
ENTROPIES = tuple(f"entropy_{head.value}" for head in HEADS)
NORMS = ("grad_norm_policy", "grad_norm_value")
_LARGEST_LOG = 700.0
"""Largest log-ratio of which a float holds the ratio; objectives of other packages may not clamp theirs."""
FAST, SLOW = 0.9, 0.99
"""Weights of the past in the two averages of a gradient's norm."""

_OFF_POLICY = (*ENTROPIES, *NORMS, "explained_variance", "max_log_ratio", "mean_ratio", "mean_log_ratio", "commit_rate")
DELIVERED: Mapping[str, tuple[str, ...]] = {
    "cloning": ("grad_norm_policy",),
    "value_fit": ("grad_norm_value", "value_fit_explained_variance"),
    "distillation": NORMS,
    "q_fit": NORMS,
    "vtrace": _OFF_POLICY,
    "ppo": _OFF_POLICY,
    "awr": _OFF_POLICY,
    "imitation": _OFF_POLICY,
}
"""Metrics that a phase declares; one that is missing is an error. Other phases are checked by what they have."""
SUPERVISED = frozenset({"cloning", "value_fit", "distillation", "q_fit", "imitation"})
COOLING = frozenset({"distillation"})
"""Phases whose temperature falls, so that their entropies are meant to fall; in these no entropy is an anomaly."""


class Sight(Enum):
    """Result of one check at one update: a metric against its bound."""

    ABSENT = auto()
    """The metric is absent, or says nothing here."""
    WITHIN = auto()
    BEYOND = auto()
    FAR = auto()
    """Beyond the bound by a factor."""


class Anomaly(NamedTuple):
    """A bound that an update is beyond."""

    kind: AnomalyKind
    metric: str
    value: float
    bound: float
    severity: Severity
    is_new: bool
    """Whether the update before had none of this severity."""

    def __str__(self) -> str:
        """Return a line for the log."""
        return f"{self.severity.value} {self.kind.value}: {self.metric} is {self.value:.4g}, the bound {self.bound:.4g}"


class _Check(NamedTuple):
    kind: AnomalyKind
    metric: str
    value: float
    bound: float
    sight: Sight


def escalate(repeats: int, sight: Sight, after: int) -> tuple[int, Severity | None]:
    """Return the number of consecutive updates beyond a bound, and how bad the last one is; None is fine.

    ``after`` repeats, or one far beyond the bound, are critical, and stay so until a value is within it.
    """
    match sight:
        case Sight.ABSENT:
            return repeats, None
        case Sight.WITHIN:
            return 0, None
        case Sight.BEYOND:
            repeats = min(repeats + 1, after)
        case Sight.FAR:
            repeats = after
    return repeats, Severity.CRITICAL if repeats >= after else Severity.WARNING


class AnomalyDetector:
    """Checks the metrics of every update of one training, in order."""

    def __init__(self, config: AnomalyConfig, clip_norm: float) -> None:
        """Begin; bounds on gradients are multiples of ``clip_norm``."""
        self._config, self._clip = config, clip_norm
        self._phase, self._in_phase = "", 0
        self._repeats: dict[tuple[AnomalyKind, str], int] = {}
        self._largest: dict[str, float] = {}
        self._means: dict[str, tuple[float, float]] = {}

    def observe(self, *, phase: str, metrics: Mapping[str, float], has_step_kl: bool) -> list[Anomaly]:
        """Return the anomalies of an update.

        Raises:
            ContractError: if a metric is missing that the phase declares, or the KL of a measured update.
        """
        self._require(phase, metrics, has_step_kl=has_step_kl)
        if phase != self._phase:
            self._phase, self._in_phase = phase, 0
            self._largest.clear()
            self._means.clear()
            self._repeats.clear()
        self._in_phase += 1
        anomalies = []
        for check in self._checks(metrics):
            key, after = (check.kind, check.metric), self._config.escalate_after
            before = self._repeats.get(key, 0)
            self._repeats[key], severity = escalate(before, check.sight, after)
            if severity is not None:
                is_new = before < after if severity is Severity.CRITICAL else before == 0
                anomalies.append(Anomaly(check.kind, check.metric, check.value, check.bound, severity, is_new))
        return anomalies

    def _require(self, phase: str, metrics: Mapping[str, float], *, has_step_kl: bool) -> None:
        expected = {*DELIVERED.get(phase, ()), *([STEP_KL] if has_step_kl else [])}
        if missing := sorted(expected - set(metrics)):
            raise ContractError(
                f"phase {phase} declares metrics for the anomaly detector that its update does not have: expected "
                f"{missing}, found {sorted(metrics)}; deliver them, or change DELIVERED in simic/learning/safety"
            )

    def _checks(self, metrics: Mapping[str, float]) -> Iterator[_Check]:
        """Yield the checks of an update; the averages and largest values of the phase move first."""
        for name, value in metrics.items():
            sight = Sight.WITHIN if math.isfinite(value) else Sight.FAR
            yield _Check(AnomalyKind.NOT_FINITE, name, value, math.inf, sight)
        known = {name: value for name, value in metrics.items() if math.isfinite(value)}
        bounds = self._config.supervised if self._phase in SUPERVISED else self._config.objective
        checks = [
            *(() if self._phase in COOLING else self._entropies(known, bounds)),
            *self._ratios(known, bounds),
            *self._gradients(known, bounds),
            *self._values(known, bounds),
        ]
        if self._in_phase > self._config.grace_updates:
            yield from checks

    def _entropies(self, metrics: Mapping[str, float], bounds: AnomalyBounds) -> Iterator[_Check]:
        """Compare entropies with their largest. Exactly 0 says nothing: no step of the batch used the head."""
        for name in ENTROPIES:
            if value := metrics.get(name, 0.0):
                self._largest[name] = max(value, self._largest.get(name, 0.0))
                yield self._least(
                    AnomalyKind.ENTROPY_COLLAPSE, name, value, bounds.min_entropy_share * self._largest[name]
                )

    def _ratios(self, metrics: Mapping[str, float], bounds: AnomalyBounds) -> Iterator[_Check]:
        if STEP_KL in metrics:
            yield self._most(AnomalyKind.KL_JUMP, STEP_KL, metrics[STEP_KL], bounds.max_step_kl)
        if "max_log_ratio" in metrics:
            largest = math.exp(min(_LARGEST_LOG, metrics["max_log_ratio"]))
            yield self._most(AnomalyKind.RATIO_EXPLOSION, "exp(max_log_ratio)", largest, bounds.max_ratio)
        if "mean_log_ratio" in metrics:
            divergence = -metrics["mean_log_ratio"]
            yield self._most(AnomalyKind.STALENESS, "-mean_log_ratio", divergence, bounds.max_behaviour_kl)
        if "mean_ratio" in metrics:
            yield self._least(AnomalyKind.RATIO_COLLAPSE, "mean_ratio", metrics["mean_ratio"], bounds.min_mean_ratio)

    def _gradients(self, metrics: Mapping[str, float], bounds: AnomalyBounds) -> Iterator[_Check]:
        for name in NORMS:
            if name not in metrics:
                continue
            norm, most = metrics[name], bounds.max_gradient_clips * self._clip
            yield self._most(AnomalyKind.GRADIENT_EXPLOSION, name, norm, most)
            steady = min(norm, most)  # an explosion is no drift
            fast, slow = self._means.get(name, (steady, steady))
            fast, slow = FAST * fast + (1.0 - FAST) * steady, SLOW * slow + (1.0 - SLOW) * steady
            self._means[name] = fast, slow
            drift = max(bounds.max_drift_clips * self._clip, bounds.drift_factor * slow)
            yield self._most(AnomalyKind.GRADIENT_DRIFT, name, fast, drift)

    def _values(self, metrics: Mapping[str, float], bounds: AnomalyBounds) -> Iterator[_Check]:
        for name in ("explained_variance", "value_fit_explained_variance"):
            if name in metrics:
                is_within = metrics[name] >= bounds.min_explained_variance
                sight = Sight.WITHIN if is_within else Sight.BEYOND
                yield _Check(AnomalyKind.VALUE_COLLAPSE, name, metrics[name], bounds.min_explained_variance, sight)
        if "commit_rate" in metrics and metrics.get("fossilize_legal", 1.0):
            rate = metrics["commit_rate"]
            sight = Sight.BEYOND if rate <= bounds.min_commit_rate else Sight.WITHIN
            yield _Check(AnomalyKind.COMMIT_COLLAPSE, "commit_rate", rate, bounds.min_commit_rate, sight)

    def _most(self, kind: AnomalyKind, name: str, value: float, bound: float) -> _Check:
        far = bound * self._config.far_factor
        sight = Sight.WITHIN if value <= bound else Sight.BEYOND if value <= far else Sight.FAR
        return _Check(kind, name, value, bound, sight)

    def _least(self, kind: AnomalyKind, name: str, value: float, bound: float) -> _Check:
        far = bound / self._config.far_factor
        sight = Sight.WITHIN if value >= bound else Sight.BEYOND if value >= far else Sight.FAR
        return _Check(kind, name, value, bound, sight)
