"""Circuit breakers (Nygard 2018, Release It!, section 5.2): a pure step, and a breaker that counts and waits.

A training has nothing else to do while a breaker is open, so it pauses; then one attempt decides whether it goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from simic.contracts.errors import CircuitOpenError
from simic.contracts.settings.safety import BreakerConfig, BreakersConfig
from simic.contracts.telemetry import CircuitState

__all__ = ["Breaker", "BreakerEvent", "BreakerState", "Breakers", "step"]

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class BreakerEvent(Enum):
    """What happens to a breaker."""

    SUCCEEDED = auto()
    FAILED = auto()
    WAITED = auto()
    """The pause of an open breaker is over."""


class BreakerState(NamedTuple):
    """State of a breaker."""

    circuit: CircuitState = CircuitState.CLOSED
    failures: int = 0
    """Consecutive failures; no more than open it."""


def step(state: BreakerState, event: BreakerEvent, failures: int) -> BreakerState:
    """Return the next state; ``failures`` in a row open a closed breaker, one opens a half-open one.

    A success closes a half-open breaker. An open one changes only by waiting.
    """
    opened = BreakerState(CircuitState.OPEN, failures)
    match state.circuit, event:
        case CircuitState.CLOSED, BreakerEvent.SUCCEEDED:
            return BreakerState()
        case CircuitState.CLOSED, BreakerEvent.FAILED:
            return state._replace(failures=state.failures + 1) if state.failures + 1 < failures else opened
        case CircuitState.OPEN, BreakerEvent.WAITED:
            return state._replace(circuit=CircuitState.HALF_OPEN)
        case CircuitState.HALF_OPEN, BreakerEvent.SUCCEEDED:
            return BreakerState()
        case CircuitState.HALF_OPEN, BreakerEvent.FAILED:
            return opened
    return state


class Breaker:
    """One breaker of a training, with counts for the error rate."""

    def __init__(self, name: str, config: BreakerConfig, wait: Callable[[float], None] = time.sleep) -> None:
        """Begin closed; ``wait`` pauses for seconds."""
        self._name, self._config, self._wait = name, config, wait
        self._state = BreakerState()
        self.failures = 0
        """All failures so far."""
        self.openings = 0
        """How often it has opened."""

    @property
    def paused_s(self) -> float:
        """Return the seconds of all pauses so far."""
        return self.openings * self._config.open_s

    def succeeded(self) -> None:
        """Count a success."""
        if self._state.circuit is CircuitState.HALF_OPEN:
            _LOG.info("circuit breaker %s is closed again", self._name)
        self._move(BreakerEvent.SUCCEEDED)

    def failed(self, error: Exception) -> bool:
        """Count a failure; if it opens the breaker, pause, and return True: an attempt is due that decides.

        Raises:
            CircuitOpenError: if that attempt has failed; its cause is ``error``.
        """
        was_last = self._state.circuit is CircuitState.HALF_OPEN
        self.failures += 1
        self._move(BreakerEvent.FAILED)
        if was_last:
            raise CircuitOpenError(
                f"circuit breaker {self._name} stays open: after {self._config.failures} failures and a pause of "
                f"{self._config.open_s:g} s one more attempt failed: {error}"
            ) from error
        place = f"{self._state.failures} of {self._config.failures}"
        _LOG.warning("failure %s of circuit breaker %s: %s", place, self._name, error)
        if self._state.circuit is CircuitState.OPEN:
            self.openings += 1
            _LOG.warning("circuit breaker %s is open; training pauses for %g s", self._name, self._config.open_s)
            self._wait(self._config.open_s)
            self._move(BreakerEvent.WAITED)
            return True
        return False

    def call(self, operation: Callable[[], T]) -> T:
        """Return what ``operation`` returns; it is tried again after an OSError as long as the breaker lets it.

        An operation that succeeds at once says nothing of others, whose failures stay counted.

        Raises:
            CircuitOpenError: if the last attempt fails too.
        """
        has_failed = False
        while True:
            try:
                result = operation()
            except OSError as error:
                has_failed = True
                self.failed(error)
            else:
                if has_failed:
                    self.succeeded()
                return result

    def _move(self, event: BreakerEvent) -> None:
        self._state = step(self._state, event, self._config.failures)


class Breakers:
    """The breakers of a training; they outlive a return to a checkpoint."""

    def __init__(self, config: BreakersConfig, wait: Callable[[float], None] = time.sleep) -> None:
        self.learner = Breaker("learner", config.learner, wait)
        self.storage = Breaker("storage", config.storage, wait)
        self.sampling = Breaker("sampling", config.sampling, wait)

    @property
    def failures(self) -> int:
        """Return all failures so far."""
        return self.learner.failures + self.storage.failures + self.sampling.failures

    @property
    def open_s(self) -> float:
        """Return the seconds during which a breaker was open so far."""
        return self.learner.paused_s + self.storage.paused_s + self.sampling.paused_s

    @property
    def openings(self) -> int:
        """Return how often a breaker has opened."""
        return self.learner.openings + self.storage.openings + self.sampling.openings
