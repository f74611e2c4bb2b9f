"""The guard: what makes a training conservative, what it records, and that records alone restore it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from simic.contracts.errors import DivergenceError
from simic.contracts.settings.safety import (
    AnomalyBounds,
    AnomalyConfig,
    AnomalyKind,
    BreakerConfig,
    BreakersConfig,
    ConservativeConfig,
    SafetyConfig,
    Trigger,
)
from simic.contracts.settings.training import TrainConfig
from simic.learning.safety.breaker import Breakers
from simic.learning.safety.guard import GUARD_METRICS, Guard

NORMS = {"grad_norm_policy": 0.5, "grad_norm_value": 0.5}
LOUD = {"grad_norm_policy": 1e4, "grad_norm_value": 0.5}
STEADY = BreakerConfig(failures=2, open_s=0.0)
CONFIG = SafetyConfig(
    anomalies=AnomalyConfig(grace_updates=0, escalate_after=2, rising_passes=3, supervised=AnomalyBounds()),
    breakers=BreakersConfig(learner=STEADY, storage=STEADY, sampling=STEADY),
    conservative=ConservativeConfig(healthy_updates=3, error_updates=10, max_error_rate=0.2),
)


def guard(*, triggers: tuple[Trigger, ...] = tuple(Trigger), breakers: Breakers | None = None, **more: Any) -> Guard:
    conservative = CONFIG.conservative.model_copy(update={"triggers": triggers})
    safety = CONFIG.model_copy(update={"conservative": conservative})
    return Guard(TrainConfig(safety=safety, clip_norm=0.5, batch_sequences=32), breakers, **more)


def see(
    one: Guard, metrics: dict[str, float] | None = None, *, pressure: bool = False, number: int = 0
) -> dict[str, float]:
    return one.observe("q_fit", number, {**NORMS, **(metrics or {})}, None, has_pressure=pressure)


def cause(one: Guard, trigger: Trigger) -> None:
    """Let happen what ``trigger`` stands for, for real."""
    match trigger:
        case Trigger.ERROR_RATE:
            for _ in range(3):
                one.breakers.storage.failed(OSError("no space"))
                one.breakers.storage.succeeded()
            see(one)
        case Trigger.MEMORY_PRESSURE:
            see(one, pressure=True)
        case Trigger.BREAKER_OPEN:
            one.breakers.sampling.failed(OSError("no answer"))
            one.breakers.sampling.failed(OSError("no answer"))
            see(one)
        case Trigger.TRAINING_INSTABILITY:
            see(one, LOUD)
        case Trigger.OUT_OF_MEMORY:
            one.become_conservative(Trigger.OUT_OF_MEMORY)


@pytest.mark.parametrize("trigger", Trigger)
def test_d16_every_trigger_of_the_settings_is_one_that_happens(trigger: Trigger) -> None:
    """Each makes training conservative if it alone is configured, and does not if all others are."""
    alone, left_out = guard(triggers=(trigger,)), guard(triggers=tuple(one for one in Trigger if one is not trigger))
    for one in (alone, left_out):
        see(one)
        assert one.allowance.lr_factor == 1.0
        cause(one, trigger)
    assert (alone.allowance.lr_factor, alone.conservative_entries) == (0.5, 1)
    assert (left_out.allowance.lr_factor, left_out.conservative_entries) == (1.0, 0)


def test_d13_a_breaker_that_has_closed_again_still_made_training_conservative() -> None:
    one = guard(triggers=(Trigger.BREAKER_OPEN,))
    cause(one, Trigger.BREAKER_OPEN)
    one.breakers.sampling.succeeded()
    assert one.allowance.lr_factor == 0.5


def test_d15_the_mode_changes_rates_only_by_the_factor_that_the_controller_applies() -> None:
    one = guard(recoveries=1)
    assert (one.lr_factor, one.allowance.is_prioritised) == (0.5, True)
    cause(one, Trigger.OUT_OF_MEMORY)
    assert (one.lr_factor, one.allowance.is_prioritised) == (0.25, False)


def test_an_update_that_was_made_in_smaller_parts_for_want_of_memory_makes_training_conservative() -> None:
    one = guard(triggers=(Trigger.OUT_OF_MEMORY,))
    assert see(one, {"out_of_memory_count": 0.0})["conservative_mode"] == 0.0
    assert see(one, {"out_of_memory_count": 1.0})["conservative_mode"] == 1.0


@pytest.mark.parametrize(("rows", "part"), [(32, 16), (31, 16), (8, 8), (16, 16), (128, 64), (255, 128)])
def test_in_conservative_mode_half_of_the_rows_are_processed_at_once(rows: int, part: int) -> None:
    """Sequences of a log, or decisions and steps, of which an update has more than ``train.batch_sequences``."""
    one = guard()
    assert one.largest_part(rows) == rows
    cause(one, Trigger.OUT_OF_MEMORY)
    assert one.largest_part(rows) == part


def test_the_mode_ends_after_healthy_updates_and_all_of_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = guard()
    records = [see(one), see(one, LOUD), see(one), see(one), see(one)]
    assert [record["conservative_mode"] for record in records] == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert [record.get("conservative_healthy") for record in records] == [None, 0.0, 1.0, 2.0, None]
    assert [record["anomalies"] for record in records] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert (
        "anomaly in phase q_fit: critical gradient_explosion: grad_norm_policy is 1e+04, the bound 100" in caplog.text
    )
    assert "training is conservative (training_instability): learning rates x 0.5, parts of at most 16" in caplog.text
    assert "training is no longer conservative" in caplog.text


def test_what_the_guard_adds_to_a_record_has_the_names_that_objectives_do_not_see() -> None:
    one = guard()
    record = one.observe("vtrace_of_another", 0, NORMS, 0.01, has_pressure=True)
    assert set(record) - set(NORMS) == GUARD_METRICS


def test_fed_with_its_own_records_a_guard_arrives_in_the_same_state() -> None:
    """The trigger that no metric shows, memory, included: after any update the next ones are the same."""
    draw = random.Random(1)  # noqa: S311
    one = guard()
    inputs = [({"grad_norm_policy": draw.choice([0.5, 0.5, 0.5, 150.0])}, draw.random() < 0.1) for _ in range(60)]
    records = [see(one, metrics, pressure=pressure, number=n // 5) for n, (metrics, pressure) in enumerate(inputs)]
    assert 5 < sum(record["conservative_mode"] for record in records) < 55
    for cut in range(60):
        other = guard()
        for number, record in enumerate(records[:cut]):
            other.repeat("q_fit", number // 5, record)
        rest = [
            see(other, metrics, pressure=pressure, number=(cut + n) // 5)
            for n, (metrics, pressure) in enumerate(inputs[cut:])
        ]
        assert rest == records[cut:]
        assert (other.anomalies, other.conservative_entries) == (one.anomalies, one.conservative_entries)


def rise(one: Guard, passes: int, first: int = 0) -> None:
    for number in range(first, first + passes):
        see(one, {"q_loss": float(number)}, number=number)


def test_a_loss_that_rises_pass_after_pass_is_a_divergence_ahead_of_the_next_update() -> None:
    one = guard()
    rise(one, 4)
    one.require_stable()
    rise(one, 1, first=4)
    with pytest.raises(
        DivergenceError, match="loss of phase q_fit has risen 3 times in a row from pass to pass, up to pass 3"
    ):
        one.require_stable()
    assert one.anomalies == {AnomalyKind.LOSS_RISING: 1}
    assert one.allowance.lr_factor == 0.5
    one.observe("theirs", 0, NORMS, None, has_pressure=False)
    assert one.anomalies == {AnomalyKind.LOSS_RISING: 1}, "a phase without a known loss has no trend"


def test_after_a_recovery_the_rises_before_it_do_not_count() -> None:
    one, records = guard(), []
    for number in range(5):
        records.append(see(one, {"q_loss": float(number)}, number=number))
    again = guard(recoveries=1)
    for number, record in enumerate(records):
        again.repeat("q_fit", number, record)
    again.require_stable()
    rise(again, 4, first=5)
    again.require_stable()
    rise(again, 1, first=9)
    with pytest.raises(DivergenceError):
        again.require_stable()
