"""Conservative mode: when it begins and ends, and what it allows."""

from __future__ import annotations

import itertools

import pytest

from simic.contracts.settings.safety import ConservativeConfig, Trigger
from simic.learning.safety.conservative import Allowance, Mode, allowance, step

CONFIG = ConservativeConfig(healthy_updates=3)
MODES = [Mode(), *(Mode(is_on=True, healthy=healthy) for healthy in range(3))]
EVENTS = [(), *((trigger,) for trigger in Trigger), tuple(Trigger)]


@pytest.mark.parametrize(("mode", "triggers"), list(itertools.product(MODES, EVENTS)))
def test_d14_every_transition(mode: Mode, triggers: tuple[Trigger, ...]) -> None:
    after = step(mode, triggers, CONFIG)
    if triggers:
        assert after == Mode(is_on=True)
    elif not mode.is_on or mode.healthy == 2:
        assert after == Mode()
    else:
        assert after == Mode(is_on=True, healthy=mode.healthy + 1)


@pytest.mark.parametrize("trigger", Trigger)
def test_d16_a_trigger_acts_if_and_only_if_it_is_configured(trigger: Trigger) -> None:
    others = tuple(one for one in Trigger if one is not trigger)
    assert step(Mode(), [trigger], ConservativeConfig(triggers=(trigger,))).is_on
    assert not step(Mode(), [trigger], ConservativeConfig(triggers=others)).is_on
    assert not step(Mode(), [trigger], ConservativeConfig(triggers=())).is_on


def test_d16_all_triggers_are_on_by_default() -> None:
    assert ConservativeConfig().triggers == tuple(Trigger)


def test_d14_what_the_mode_allows_is_bounded_and_entering_twice_is_entering_once() -> None:
    normal = allowance(Mode(), CONFIG, 32)
    assert normal == Allowance(1.0, 32, is_prioritised=True, timeout_factor=1.0)
    once = step(Mode(), [Trigger.ERROR_RATE], CONFIG)
    twice = step(once, list(Trigger), CONFIG)
    assert allowance(once, CONFIG, 32) == Allowance(0.5, 16, is_prioritised=False, timeout_factor=1.5)
    assert allowance(twice, CONFIG, 32) == allowance(once, CONFIG, 32)
    assert allowance(once, CONFIG, 8).batch_sequences == 8
