"""What watches one attempt at a training, from its first update or a checkpoint to its end.

All of its state but the error rate is a function of the records of updates, so a resumed training arrives in it by
feeding the recorded ones again. What no objective may see is in metrics of its own (``GUARD_METRICS``).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from simic.contracts.actions import Head
from simic.contracts.errors import DivergenceError, HopelessError
from simic.contracts.settings.safety import AnomalyKind, Severity, StopCause, Trigger
from simic.contracts.settings.training import TrainConfig
from simic.learning.safety import conservative, loss_trend
from simic.learning.safety.anomalies import STEP_KL, Anomaly, AnomalyDetector
from simic.learning.safety.breaker import Breakers
from simic.learning.safety.conservative import Allowance, Mode
from simic.learning.safety.loss_trend import LOSSES, LossTrend, is_stale

__all__ = ["GUARD_METRICS", "OUT_OF_MEMORY", "Guard", "Hopeless"]

_LOG = logging.getLogger(__name__)

ANOMALIES, CONSERVATIVE, HEALTHY, RECOVERIES = "anomalies", "conservative_mode", "conservative_healthy", "recoveries"
OUT_OF_MEMORY = "out_of_memory_count"
"""Metric of an update that was made in smaller parts because memory ran out on its way."""
GUARD_METRICS = frozenset({ANOMALIES, CONSERVATIVE, HEALTHY, RECOVERIES, STEP_KL})
"""Metrics that the guard adds to the record of an update: the number of anomalies, whether the next update is
conservative and how many healthy ones it has behind it, the divergences so far, and the KL of a measured update."""
_RECOVERED_SHARE = 0.5
"""Factor on all learning rates after a divergence."""


class Hopeless(NamedTuple):
    """Why a training is hopeless."""

    cause: StopCause
    phase: str
    detail: str


class Guard:
    """Watches the updates of all learners of a training, in order."""

    def __init__(self, config: TrainConfig, breakers: Breakers | None = None, recoveries: int = 0) -> None:
        """Begin an attempt at a training; ``breakers`` outlive it."""
        self._config, self._batch = config.safety, config.batch_sequences
        self.recoveries = recoveries
        """Divergences after which the training went on; each halves the learning rates."""
        self.breakers = Breakers(self._config.breakers) if breakers is None else breakers
        self._detector = AnomalyDetector(self._config.anomalies, config.clip_norm)
        self._trend, self._mode = LossTrend(), Mode()
        self._phase = ""
        self._failures: deque[int] = deque(maxlen=self._config.conservative.error_updates)
        self._counted = (self.breakers.failures, self.breakers.openings)
        self.anomalies: Counter[AnomalyKind] = Counter()
        """Updates with each kind of anomaly."""
        self.conservative_entries = 0
        """How often training became conservative."""
        self._collapsed = 0
        """Updates in a row, of one phase, at which the policy had collapsed."""
        self.stop: Hopeless | None = None
        """Why the training is hopeless; None before ``require_hope`` said so."""

    @property
    def allowance(self) -> Allowance:
        """Return what the next update may do."""
        return conservative.allowance(self._mode, self._config.conservative, self._batch)

    @property
    def lr_factor(self) -> float:
        """Return the factor on all learning rates of the next update."""
        return _RECOVERED_SHARE**self.recoveries * self.allowance.lr_factor

    def largest_part(self, rows: int) -> int:
        """Return how many of the ``rows`` of an update are processed at once: in conservative mode half.

        Rows are sequences, or decisions or steps, of which an update has more; the mode's bound on sequences is the
        least part.
        """
        return min(rows, max(self.allowance.batch_sequences, -(-rows // 2))) if self._mode.is_on else rows

    def require_stable(self) -> None:
        """Raise DivergenceError ahead of an update if the loss has risen for too many passes."""
        phase, recoveries, number = self._trend.place
        if recoveries == self.recoveries and self._trend.rises >= self._config.anomalies.rising_passes:
            raise DivergenceError(
                f"the loss of phase {phase} has risen {self._trend.rises} times in a row from pass to pass, up to pass "
                f"{number - 1}; train.safety.anomalies.rising_passes allows fewer. Lower the learning rates"
            )

    def require_hope(self) -> None:
        """Raise HopelessError ahead of an update if the training will not come to anything."""
        phase, config = self._trend.place[0], self._config.hopeless
        if config.collapsed_updates is not None and self._collapsed >= config.collapsed_updates:
            self.stop = Hopeless(
                StopCause.COLLAPSED,
                self._phase,
                f"the policy had collapsed at {self._collapsed} updates in a row; "
                f"train.safety.hopeless.collapsed_updates is {config.collapsed_updates}",
            )
        elif config.stale_passes is not None and is_stale(self._trend, config.stale_passes, config.min_improvement):
            self.stop = Hopeless(
                StopCause.NO_PROGRESS,
                phase,
                f"the loss was {self._trend.first:.4g} in the first pass and at least {self._trend.best:.4g} in "
                f"{self._trend.passes} later ones; train.safety.hopeless.stale_passes is {config.stale_passes}",
            )
        else:
            return
        raise HopelessError(f"training is hopeless in phase {self.stop.phase}: {self.stop.detail}")

    def become_conservative(self, trigger: Trigger) -> None:
        """Make the next update conservative, ahead of it."""
        self._enter(conservative.step(self._mode, [trigger], self._config.conservative), [trigger])

    def observe(
        self, phase: str, number: int, metrics: Mapping[str, float], step_kl: float | None, *, has_pressure: bool
    ) -> dict[str, float]:
        """Watch an update that was made in pass ``number`` of a phase, and return its metrics with the guard's own."""
        known = {**metrics, RECOVERIES: float(self.recoveries)}
        if step_kl is not None:
            known[STEP_KL] = step_kl
        anomalies = self._watch(phase, number, known, has_step_kl=step_kl is not None)
        for anomaly in anomalies:
            if anomaly.is_new:
                _LOG.warning("anomaly in phase %s: %s", phase, anomaly)
        triggers = self._triggers(known, anomalies, has_pressure=has_pressure)
        self._enter(conservative.step(self._mode, triggers, self._config.conservative), triggers)
        known |= {ANOMALIES: float(len(anomalies)), CONSERVATIVE: float(self._mode.is_on)}
        if self._mode.is_on:
            known[HEALTHY] = float(self._mode.healthy)
        return known

    def repeat(self, phase: str, number: int, metrics: Mapping[str, float]) -> None:
        """Arrive where ``observe`` was after an update with these recorded ``metrics``."""
        self._watch(phase, number, metrics, has_step_kl=STEP_KL in metrics)
        was_on, is_on = self._mode.is_on, bool(metrics[CONSERVATIVE])
        self.conservative_entries += is_on and not was_on
        self._mode = Mode(is_on, int(metrics[HEALTHY])) if is_on else Mode()

    def _watch(self, phase: str, number: int, metrics: Mapping[str, float], *, has_step_kl: bool) -> list[Anomaly]:
        anomalies = self._detector.observe(phase=phase, metrics=metrics, has_step_kl=has_step_kl)
        has_collapsed = any(anomaly.severity is Severity.CRITICAL and _is_collapse(anomaly) for anomaly in anomalies)
        before = self._collapsed if phase == self._phase else 0
        self._phase, self._collapsed = phase, before + 1 if has_collapsed else 0
        name = LOSSES.get(phase, "")
        if name in metrics:
            self._trend = loss_trend.step(self._trend, phase, int(metrics[RECOVERIES]), number, metrics[name])
            limit, rises = self._config.anomalies.rising_passes, self._trend.rises
            if rises >= limit:
                kind, worst = AnomalyKind.LOSS_RISING, Severity.CRITICAL
                anomalies.append(
                    Anomaly(kind, name, float(rises), float(limit), worst, is_new=self._trend.updates == 1)
                )
        self.anomalies.update({anomaly.kind for anomaly in anomalies})
        return anomalies

    def _triggers(
        self, metrics: Mapping[str, float], anomalies: Collection[Anomaly], *, has_pressure: bool
    ) -> list[Trigger]:
        """Return what makes training conservative after an update, from all that was seen since the one before."""
        failures, openings = self.breakers.failures, self.breakers.openings
        self._failures.append(failures - self._counted[0])
        has_opened, self._counted = openings > self._counted[1], (failures, openings)
        config = self._config.conservative
        seen = {
            Trigger.ERROR_RATE: sum(self._failures) > config.max_error_rate * config.error_updates,
            Trigger.MEMORY_PRESSURE: has_pressure,
            Trigger.BREAKER_OPEN: has_opened,
            Trigger.OUT_OF_MEMORY: metrics.get(OUT_OF_MEMORY, 0.0) > 0.0,
            Trigger.TRAINING_INSTABILITY: any(anomaly.severity is Severity.CRITICAL for anomaly in anomalies),
        }
        return [trigger for trigger, is_seen in seen.items() if is_seen]

    def _enter(self, mode: Mode, triggers: Collection[Trigger]) -> None:
        """Take a mode, and tell the operator if it changes."""
        if mode.is_on and not self._mode.is_on:
            self.conservative_entries += 1
            allowed = conservative.allowance(mode, self._config.conservative, self._batch)
            names = ", ".join(trigger.value for trigger in triggers)
            _LOG.warning(
                "training is conservative (%s): learning rates x %g, parts of at most %d sequences, no priorities, "
                "deadline x %g, until %d updates are healthy",
                names, allowed.lr_factor, allowed.batch_sequences, allowed.timeout_factor,
                self._config.conservative.healthy_updates,
            )  # fmt: skip
        elif self._mode.is_on and not mode.is_on:
            _LOG.info("training is no longer conservative")
        self._mode = mode


def _is_collapse(anomaly: Anomaly) -> bool:
    """Return whether an anomaly says that the policy always takes the same operation, or no longer grows anything."""
    if anomaly.kind is AnomalyKind.ENTROPY_COLLAPSE:
        return anomaly.metric == f"entropy_{Head.OP.value}"
    return anomaly.kind is AnomalyKind.COMMIT_COLLAPSE
