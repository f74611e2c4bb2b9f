"""Circuit breakers: every transition, and what a training does while one is open."""

from __future__ import annotations

import itertools

import pytest
from pydantic import ValidationError

from simic.contracts.errors import CircuitOpenError, TransientError
from simic.contracts.settings.safety import BreakerConfig, BreakersConfig, SafetyConfig
from simic.contracts.telemetry import CircuitState
from simic.learning.safety.breaker import Breaker, BreakerEvent, Breakers, BreakerState, step

OPENS_AT = 3
CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
SUCCEEDED, FAILED, WAITED = BreakerEvent.SUCCEEDED, BreakerEvent.FAILED, BreakerEvent.WAITED
STATES = [BreakerState(CLOSED, failures) for failures in range(OPENS_AT)]
STATES += [BreakerState(circuit, OPENS_AT) for circuit in (OPEN, HALF_OPEN)]
TABLE = {
    (BreakerState(CLOSED, 0), SUCCEEDED): BreakerState(CLOSED, 0),
    (BreakerState(CLOSED, 0), FAILED): BreakerState(CLOSED, 1),
    (BreakerState(CLOSED, 0), WAITED): BreakerState(CLOSED, 0),
    (BreakerState(CLOSED, 1), SUCCEEDED): BreakerState(CLOSED, 0),
    (BreakerState(CLOSED, 1), FAILED): BreakerState(CLOSED, 2),
    (BreakerState(CLOSED, 1), WAITED): BreakerState(CLOSED, 1),
    (BreakerState(CLOSED, 2), SUCCEEDED): BreakerState(CLOSED, 0),
    (BreakerState(CLOSED, 2), FAILED): BreakerState(OPEN, 3),
    (BreakerState(CLOSED, 2), WAITED): BreakerState(CLOSED, 2),
    (BreakerState(OPEN, 3), SUCCEEDED): BreakerState(OPEN, 3),
    (BreakerState(OPEN, 3), FAILED): BreakerState(OPEN, 3),
    (BreakerState(OPEN, 3), WAITED): BreakerState(HALF_OPEN, 3),
    (BreakerState(HALF_OPEN, 3), SUCCEEDED): BreakerState(CLOSED, 0),
    (BreakerState(HALF_OPEN, 3), FAILED): BreakerState(OPEN, 3),
    (BreakerState(HALF_OPEN, 3), WAITED): BreakerState(HALF_OPEN, 3),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, BreakerEvent)))
def test_d13_every_transition(state: BreakerState, event: BreakerEvent) -> None:
    assert step(state, event, OPENS_AT) == TABLE[state, event]


def test_d13_every_state_is_reached_from_the_first() -> None:
    reached, todo = set[BreakerState](), [BreakerState()]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += [step(state, event, OPENS_AT) for event in BreakerEvent]
    assert reached == set(STATES)


def breaker(failures: int = OPENS_AT) -> tuple[Breaker, list[float]]:
    pauses: list[float] = []
    return Breaker("storage", BreakerConfig(failures=failures, open_s=30.0), pauses.append), pauses


def broken(times: int) -> list[OSError | None]:
    return [OSError("no space")] * times + [None]


def run(one: Breaker, outcomes: list[OSError | None]) -> int:
    """Call an operation with these outcomes; returns how many were used."""
    left = list(outcomes)

    def operation() -> None:
        if (error := left.pop(0)) is not None:
            raise error

    one.call(operation)
    return len(outcomes) - len(left)


def test_an_operation_is_tried_again_until_its_breaker_opens_then_waits_for_one_more_attempt() -> None:
    one, pauses = breaker()
    assert run(one, broken(2)) == 3
    assert (one.failures, one.openings, pauses) == (2, 0, [])
    assert run(one, broken(3)) == 4, "the success before has set the count back"
    assert (one.failures, one.openings, pauses) == (5, 1, [30.0])
    assert run(one, broken(2)) == 3, "the attempt after the pause has closed it"
    assert pauses == [30.0]


def test_a_failed_attempt_after_the_pause_is_an_error_with_its_cause() -> None:
    one, pauses = breaker()
    with pytest.raises(CircuitOpenError, match="breaker storage stays open: after 3 failures") as caught:
        run(one, broken(9))
    assert isinstance(caught.value.__cause__, OSError)
    assert isinstance(caught.value, TransientError)
    assert (one.failures, pauses) == (4, [30.0])


def test_a_breaker_with_one_failure_pauses_at_once() -> None:
    one, pauses = breaker(failures=1)
    run(one, broken(1))
    assert pauses == [30.0]


def test_an_error_of_another_kind_is_not_tried_again() -> None:
    one, _ = breaker()

    def operation() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one.call(operation)
    assert one.failures == 0


def test_settings_given_in_part_keep_the_defaults_of_their_place() -> None:
    found = SafetyConfig.model_validate(
        {
            "breakers": {"storage": {"open_s": 7.0}},
            "anomalies": {"supervised": {"max_ratio": 9.0}, "escalate_after": 4},
        }
    )
    assert found.breakers == BreakersConfig(storage=BreakerConfig(failures=3, open_s=7.0))
    assert found.anomalies.supervised == SafetyConfig().anomalies.supervised.model_copy(update={"max_ratio": 9.0})
    assert found.anomalies.supervised.max_step_kl != found.anomalies.objective.max_step_kl
    with pytest.raises(ValidationError, match="opens_s"):
        SafetyConfig.model_validate({"breakers": {"storage": {"opens_s": 7.0}}})


def test_the_thresholds_of_the_design_are_the_defaults_and_settings_take_effect() -> None:
    config = BreakersConfig()
    assert {name: tuple(one.values()) for name, one in config.model_dump().items()} == {
        "learner": (5, 60.0),
        "storage": (3, 30.0),
        "sampling": (5, 30.0),
    }
    pauses: list[float] = []
    every = Breakers(BreakersConfig(sampling=BreakerConfig(failures=2, open_s=7.0)), pauses.append)
    run(every.sampling, broken(2))
    assert (every.failures, every.openings, pauses) == (2, 1, [7.0])
