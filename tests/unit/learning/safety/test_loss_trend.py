"""Whether the loss rises from pass to pass."""

from __future__ import annotations

from collections.abc import Iterable

from simic.learning.safety.loss_trend import LossTrend, step


def after(losses: Iterable[float], trend: LossTrend | None = None, phase: str = "awr", recoveries: int = 0) -> int:
    """Rises after passes of two updates with these mean losses, as the first update behind them sees it."""
    state = LossTrend() if trend is None else trend
    for number, loss in enumerate([*losses, 0.0]):
        for deviation in (-0.4, 0.4):
            state = step(state, phase, recoveries, number, loss + deviation)
    return state.rises


def test_only_passes_in_a_row_count() -> None:
    assert after([1.0]) == 0
    assert after([1.0, 1.1, 1.2, 1.3]) == 3
    assert after([1.0, 1.1, 1.2, 1.2]) == 0, "equal is not higher"
    assert after([1.0, 1.1, 0.9, 1.0, 1.1]) == 2


def test_updates_within_a_pass_do_not_count() -> None:
    state = LossTrend()
    for loss in (1.0, 2.0, 3.0, 4.0):
        state = step(state, "vtrace", 0, 0, loss)
    assert (state.rises, state.updates, state.total) == (0, 4, 10.0)


def test_another_phase_or_a_recovery_begins_anew() -> None:
    state = LossTrend()
    for number in range(9):
        state = step(state, "awr", 0, number, float(number))
    assert state.rises == 7
    assert step(state, "vtrace", 0, 0, 1.0).rises == 0
    assert step(state, "awr", 1, 9, 9.0).rises == 0
    assert step(state, "awr", 0, 9, 9.0).rises == 8
