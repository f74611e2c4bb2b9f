"""Measure the test of ``simic compare --until-decided``, and write its errors and savings into ``docs/trust.md``.

``make trust`` runs it, less than a minute on one core. Differences are synthetic: 320 pairs, looked at after every 40.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from draw_trust import EQUAL
from marked_part import replace_part
from numpy.typing import NDArray
from scipy import stats

from simic.numerics.sequential import anytime_p
from simic.validation.comparison import BEST_ROUNDS

PAGE = Path(__file__).parents[1] / "trust.md"
BEGIN, END = "<!-- measured by docs/scripts/measure_sequential.py -->", "<!-- end of the sequential tests -->"

PAIRS, EACH, DRAWS, LEVEL = 320, 40, 2000, 0.05
LOOKS = range(EACH, PAIRS + 1, EACH)
GAINS = (0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
"""True differences in standard deviations of the paired differences."""


def shown(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return [looks, draws]: whether the sequential test shows a difference."""
    return np.array([anytime_p(values[:, :n], EACH, BEST_ROUNDS * EACH) <= LEVEL for n in LOOKS])


def student(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return [looks, draws]: whether Student's test, made for one look, shows a difference."""
    errors = [np.maximum(values[:, :n].std(axis=1, ddof=1), 1e-300) / np.sqrt(n) for n in LOOKS]
    means = [values[:, :n].mean(axis=1) for n in LOOKS]
    return np.array(
        [abs(m / e) > stats.t.isf(LEVEL / 2.0, n - 1) for m, e, n in zip(means, errors, LOOKS, strict=True)]
    )


def tables() -> Iterator[str]:
    """Yield the table of errors and that of savings."""
    yield (
        f"Chance that equal arms ever differ at level {LEVEL:g}, of {DRAWS:,} simulated comparisons with "
        f"{len(LOOKS)} looks; the last column looks once, at {PAIRS} pairs:"
    )
    yield from ("", "| differences | sequential | Student at every look | Student once |", "|---|---|---|---|")
    for name, draw in EQUAL.items():
        values = draw(np.random.default_rng(0), (DRAWS, PAIRS))
        ours, theirs = shown(values), student(values)
        ever = [float(found.any(axis=0).mean()) for found in (ours, theirs)]
        yield f"| {name} | {ever[0]:.1%} | {ever[1]:.1%} | {theirs[-1].mean():.1%} |"
    yield from ("", "Differences shown, and mean number of pairs until then or until all have grown (normal):", "")
    yield from ("| true difference, standard deviations | sequential | pairs | fixed 320 pairs |", "|---|---|---|---|")
    for gain in GAINS:
        values = gain + np.random.default_rng(1).standard_normal((DRAWS, PAIRS))
        found = shown(values)
        pairs = np.where(found.any(axis=0), np.array(LOOKS)[found.argmax(axis=0)], PAIRS)
        yield f"| {gain:g} | {found.any(axis=0).mean():.0%} | {pairs.mean():.0f} | {student(values)[-1].mean():.0%} |"


def main() -> None:
    """Replace what stands between the marks of the page."""
    replace_part(PAGE, BEGIN, END, "\n".join(tables()))


if __name__ == "__main__":
    main()
