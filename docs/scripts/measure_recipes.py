"""Measure the verdicts and the intervals of ``simic ab`` with few trainings, and write them into ``docs/trust.md``.

``make trust`` runs it, less than a minute on one core. Values of trainings are synthetic; the functions are those of
the verb, and the bootstrap is that of ``simic proof``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from marked_part import replace_part
from numpy.typing import NDArray

from simic.contracts.results.comparison import Verdict
from simic.contracts.settings.run import TrialConfig
from simic.numerics.intervals import Interval, crossed_ratio, crossed_student
from simic.validation.recipes import Judging, compare_recipes

PAGE = Path(__file__).parents[1] / "trust.md"
BEGIN, END = "<!-- measured by docs/scripts/measure_recipes.py -->", "<!-- end of the comparisons of recipes -->"

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
VERDICTS, DRAWS, RESAMPLED, SAMPLES, HOSTS = 1500, 4000, 1000, 200, 20
VERDICT_SEEDS, SEEDS = (4, 5, 6, 8), range(2, 9)
JUDGING = Judging("benchmark", ("cap", "cap"), TrialConfig())


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return random.standard_normal(shape)


def heavy(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Student's distribution with 3 degrees of freedom, at variance 1."""
    return random.standard_t(3, shape) / np.sqrt(3.0)


def skewed(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return random.exponential(size=shape) - 1.0


def failing(share: float) -> Draw:
    """Trainings that fail are worth 0, the others vary around it."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return np.where(random.random(shape) < share, 0.0, random.standard_normal(shape))

    return draw


def scaled(factor: float) -> Draw:
    return lambda random, shape: factor * random.standard_normal(shape)


def seldom(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """One training in five falls to a value far below the others; mean 0, variance 1."""
    return np.where(random.random(shape) < 0.2, -2.0, 0.5)


PAIRS: Mapping[str, tuple[Draw, Draw]] = {
    "equal distributions, normal": (normal, normal),
    "equal distributions, every second training fails": (failing(0.5), failing(0.5)),
    "spreads 3 : 1": (scaled(3.0), normal),
    "spreads 10 : 1": (scaled(10.0), normal),
    "spreads 1,000 : 1": (scaled(1000.0), normal),
    "one recipe fails three times in four": (failing(0.75), normal),
    "one recipe always fails": (failing(1.0), normal),
}
"""Two recipes of equal medians, 0."""
TABLES: Mapping[str, tuple[Draw, float, float, float]] = {
    "normal, spread between trainings alone": (normal, 1.0, 0.0, 0.0),
    "normal, as much between hosts": (normal, 1.0, np.sqrt(HOSTS), 1.0),
    "normal, three times as much between hosts": (normal, 1.0, 3.0 * np.sqrt(HOSTS), 3.0),
    "heavy tails between trainings (Student, 3 degrees)": (heavy, 1.0, 0.0, 1.0),
    "skewed between trainings (exponential)": (skewed, 1.0, 0.0, 1.0),
    "one training in five is much worse": (seldom, 1.0, 0.0, 1.0),
}
"""Distribution of the effect of a training, and standard deviations of the effects of trainings, hosts and cells."""


def wrong_verdicts(pair: tuple[Draw, Draw], seeds: int) -> float:
    """Return the share of comparisons in which one of two recipes is called better."""
    random, found = np.random.default_rng(seeds), 0
    for _ in range(VERDICTS):
        values = {name: np.repeat(draw(random, (seeds, 1)), 2, axis=1) for name, draw in zip("ab", pair, strict=True)}
        found += compare_recipes(values, JUDGING)[0].verdict is not Verdict.NOT_SHOWN
    return found / VERDICTS


def coverage(
    table: tuple[Draw, float, float, float], seeds: int, draws: int, interval: Callable[[Floats], Interval]
) -> float:
    """Return the share of tables whose interval has the true mean, 0."""
    draw, between_seeds, between_hosts, residual = table
    random, hits = np.random.default_rng(seeds), 0
    for _ in range(draws):
        values = between_seeds * draw(random, (seeds, 1)) + between_hosts * random.standard_normal((1, HOSTS))
        found = interval(values + residual * random.standard_normal((seeds, HOSTS)))
        hits += found.lower <= 0.0 <= found.upper
    return hits / draws


def tables() -> Iterator[str]:
    """Yield the table of verdicts and that of intervals."""
    yield (
        f"Chance that one of two recipes of equal median is called better or worse at level 0.05, of {VERDICTS:,} "
        "simulated comparisons:"
    )
    yield from ("", f"| trainings | {' | '.join(f'{one} seeds' for one in VERDICT_SEEDS)} |")
    yield "|---" * (1 + len(VERDICT_SEEDS)) + "|"
    for name, pair in PAIRS.items():
        yield f"| {name} | {' | '.join(f'{wrong_verdicts(pair, seeds):.1%}' for seeds in VERDICT_SEEDS)} |"
    yield from ("", f"Share of 95 % intervals with the true difference, {DRAWS:,} tables of {HOSTS} hosts each:", "")
    yield f"| difference | {' | '.join(f'{one} seeds' for one in SEEDS)} |"
    yield "|---" * (1 + len(SEEDS)) + "|"
    for name, table in TABLES.items():
        yield _line(name, [coverage(table, seeds, DRAWS, crossed_student) for seeds in SEEDS])
    for name, table in list(TABLES.items())[:3]:
        found = [coverage(table, seeds, RESAMPLED, _resampled) for seeds in SEEDS]
        yield _line(f"*crossed bootstrap (ADR 22), {RESAMPLED:,} tables*: {name}", found)


def _resampled(values: NDArray[np.float64]) -> Interval:
    """Return the crossed bootstrap interval of the mean of a table."""
    found = crossed_ratio(values, np.ones(values.shape[1]), samples=SAMPLES)
    assert found is not None  # noqa: S101 - the denominators are positive
    return found


def _line(name: str, shares: list[float]) -> str:
    return f"| {name} | {' | '.join(f'{one:.1%}' for one in shares)} |"


def main() -> None:
    """Replace what stands between the marks of the page."""
    replace_part(PAGE, BEGIN, END, "\n".join(tables()))


if __name__ == "__main__":
    main()
