"""Laws of conservative mode, whatever comes in whatever order."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from simic.contracts.settings.safety import ConservativeConfig, Trigger
from simic.learning.rates import LrSchedule
from simic.learning.safety.conservative import Mode, allowance, step

TURNS = 1000


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(3, 8).map(lambda power: 1 << power),
    st.floats(1e-6, 1e-2),
    st.floats(0.01, 1.0),
    st.integers(1, 4),
)
def test_d14_entered_and_left_a_thousand_times_every_value_comes_back(
    seed: int, batch: int, peak: float, factor: float, healthy: int
) -> None:
    """The batch stays a power of two in [8, 256]; rates and budgets outside the mode are the first ones to the bit."""
    config = ConservativeConfig(lr_factor=factor, healthy_updates=healthy)
    random = Random(seed)  # noqa: S311
    schedule, mode, entries, exits, update = LrSchedule(10, 500, 1.0, 0.1), Mode(), 0, 0, 0
    while exits < TURNS:
        triggers = random.sample(list(Trigger), random.randint(1, 5)) if random.random() < 0.4 else []
        before, mode = mode, step(mode, triggers, config)
        entries += mode.is_on and not before.is_on
        exits += before.is_on and not mode.is_on
        allowed = allowance(mode, config, batch)
        assert 8 <= allowed.batch_sequences <= 256
        assert allowed.batch_sequences & (allowed.batch_sequences - 1) == 0
        assert mode.healthy < healthy
        rate = schedule.share(update) * peak
        if mode.is_on:
            assert rate * allowed.lr_factor == rate * factor
            assert allowed.batch_sequences == max(8, batch // 2)
            assert (allowed.timeout_factor, allowed.is_prioritised) == (1.5, False)
        else:
            assert rate * allowed.lr_factor == rate
            assert allowed == allowance(Mode(), config, batch)
            assert (allowed.batch_sequences, allowed.timeout_factor, allowed.is_prioritised) == (batch, 1.0, True)
        update = (update + 1) % 500
    assert entries == TURNS
