"""Measure the errors and the power of the gate's bounds, and write them into ``docs/trust.md`` and ``docs/trust.png``.

Run ``make trust``, some minutes on one core. Paired returns are synthetic: 160 hosts in five families, and a standard
deviation of 2.3 points over hosts, which is that of a new policy less its champion on ``benchmark`` (docs/results.md).
Bounds and levels are those that the gate computes, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np
from marked_part import replace_part
from numpy.typing import NDArray
from scipy import stats
from scipy.special import zeta

from simic.contracts.settings.run import GateConfig
from simic.numerics.mean_bounds import lower_bound
from simic.numerics.spending import level
from simic.validation.palette import BLUE, GREEN, GREY, ORANGE
from simic.validation.plots import new_figure, save, style_axes

PAGE = Path(__file__).parents[1] / "trust.md"
PICTURE = Path(__file__).parents[1] / "trust.png"
BEGIN, END = "<!-- measured by docs/scripts/draw_trust.py -->", "<!-- end of the measurements -->"

NIGHTS, HOSTS, SPREAD = 60, 160, 2.3
FAMILIES = [row % 5 for row in range(HOSTS)]
HOMES, FEW_HOMES, BLOCK, BOUNDS, TRIES = 2400, 400, 200, 60_000, 10_000
BUDGET = GateConfig().error_budget
LEVELS = np.array([level(night, BUDGET) for night in range(1, NIGHTS + 1)])
SHOWN = (1, 10, 40)
LEAST_LEVELS = (0.01, 0.001, 0.0001)

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def rare(share: float, loss: float) -> Draw:
    """Return normal differences of which a share loses more, with mean 0."""
    return lambda random, shape: random.standard_normal(shape) - loss * (random.random(shape) < share) + share * loss


EQUAL: dict[str, Draw] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "70 % of the hosts equal": lambda random, shape: random.standard_normal(shape) * (random.random(shape) < 0.3),
    "heavy tails (Student, 3 degrees)": lambda random, shape: random.standard_t(3, shape),
    "skewed to the right (exponential)": lambda random, shape: random.exponential(size=shape) - 1.0,
    "skewed to the left (exponential)": lambda random, shape: 1.0 - random.exponential(size=shape),
    "a large loss on 5 % of the hosts": rare(0.05, 10.0),
    "strongly skewed to the left (log-normal)": lambda random, shape: np.exp(0.5) - random.lognormal(size=shape),
    "a huge loss on 1 % of the hosts": rare(0.01, 20.0),
}
"""Differences of a candidate that is exactly as good as the champion, in standard deviations of the normal part."""


def ever(draw: Draw, levels: NDArray[np.float64], homes: int, mean: float = 0.0) -> float:
    """Return the share of homes that accept at least one of ``NIGHTS`` candidates of this true mean."""
    random = np.random.default_rng(0)
    blocks = [
        lower_bound(draw(random, (BLOCK, NIGHTS, HOSTS)) + mean, levels, FAMILIES).lower > 0.0
        for _ in range(homes // BLOCK)
    ]
    return float(np.concatenate(blocks).any(axis=1).mean())


def errors(draw: Draw) -> tuple[list[float], list[float]]:
    """Return how often one bound exceeds the true mean, over its level: that of the gate, and Student's."""
    random, wrong = np.random.default_rng(1), np.zeros((2, len(LEAST_LEVELS)))
    for _ in range(BOUNDS // BLOCK // 10):
        values = draw(random, (BLOCK * 10, HOSTS))
        means, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(HOSTS)
        for column, alpha in enumerate(LEAST_LEVELS):
            wrong[0, column] += (lower_bound(values, alpha, FAMILIES).lower > 0.0).sum()
            wrong[1, column] += (means > stats.t.isf(alpha, HOSTS - 1) * error).sum()
    ours, students = wrong / BOUNDS / np.array(LEAST_LEVELS)
    return ours.tolist(), students.tolist()


def power(gains: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return the share of candidates of these true gains in points that pass the bound at a level."""
    random, passed = np.random.default_rng(2), np.zeros(len(gains))
    for _ in range(TRIES // BLOCK):
        found = lower_bound(SPREAD * random.standard_normal((BLOCK, HOSTS)), alpha, FAMILIES).lower
        passed += (found[:, None] + gains > 0.0).sum(axis=0)
    return passed / TRIES


def row(*cells: object) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def error_tables() -> Iterator[str]:
    """Yield the tables of errors: over sixty nights, and of one bound."""
    same = np.full(NIGHTS, BUDGET)
    yield f"Chance that a home accepts at least one of {NIGHTS} candidates in a row, of {HOMES:,} simulated homes:"
    yield from ("", row("differences to the champion", "the gate", "the same level every night"), "|---|---|---|")
    for name, draw in EQUAL.items():
        yield row(f"equal; {name}", f"{ever(draw, LEVELS, HOMES):.1%}", f"{ever(draw, same, FEW_HOMES):.0%}")
    for loss in (0.1, 0.3):
        found = [ever(EQUAL["normal"], levels, FEW_HOMES, -loss / SPREAD) for levels in (LEVELS, same)]
        yield row(f"{loss} points worse; normal", f"{found[0]:.1%}", f"{found[1]:.0%}")
    yield from (
        "",
        f"How often one bound is above the true mean, over its level ({BOUNDS:,} samples each; 1 is exact):",
    )
    heads = [f"at {alpha:g}: gate (Student)" for alpha in LEAST_LEVELS]
    yield from ("", row("differences", *heads), "|---" * (1 + len(heads)) + "|")
    for name, draw in EQUAL.items():
        ours, students = errors(draw)
        yield row(name, *(f"{one:.1f} ({other:.1f})" for one, other in zip(ours, students, strict=True)))


def power_table(gains: NDArray[np.float64], rates: dict[str, NDArray[np.float64]]) -> Iterator[str]:
    """Yield the promotion rate at some true gains."""
    shown = [index for index, gain in enumerate(gains) if round(float(gain), 3) in (0.25, 0.5, 0.75, 1.0, 1.5)]
    yield f"Chance that the bound to the champion passes, by true gain ({TRIES:,} candidates each):"
    yield from ("", row("", *(f"+{gains[index]:g} points" for index in shown)), "|---" * (1 + len(shown)) + "|")
    for name, rate in rates.items():
        yield row(name, *(f"{rate[index]:.0%}" for index in shown))


def schedule_table() -> Iterator[str]:
    """Yield the gain that passes with 80 % power, by schedule, from normal quantiles."""

    schedules: dict[str, Callable[[float], float]] = {
        f"k^-{exponent:g} / zeta({exponent:g})": partial(_power_law, exponent) for exponent in (2.0, 1.5, 1.2)
    }
    schedules["log k / (k exp sqrt log k), of LORD"] = _lord
    schedules["1/60 for 60 nights, then nothing"] = lambda k: 1.0 / NIGHTS if k <= NIGHTS else 0.0
    ordinals, normal = (1, 2, 10, 40, 365), NormalDist()
    yield "Gain in points that passes with 80 % power, by share of the budget at judgement k:"
    yield from ("", row("share", *(f"k = {k}" for k in ordinals)), "|---" * (1 + len(ordinals)) + "|")
    for name, share in schedules.items():
        cells = []
        for k in ordinals:
            alpha = BUDGET * share(k)
            gain = (normal.inv_cdf(0.8) - normal.inv_cdf(alpha)) * SPREAD / np.sqrt(HOSTS) if alpha else None
            cells.append("never" if gain is None else f"{gain:.2f}")
        yield row(name, *cells)


def _power_law(exponent: float, k: float) -> float:
    return k**-exponent / float(zeta(exponent))


def _lord(k: float) -> float:
    """Return the share of Javanmard and Montanari (2018, Annals of Statistics 46(2)), whose sum is 1."""
    return 0.07720838 * float(np.log(max(k, 2.0)) / (k * np.exp(np.sqrt(np.log(k)))))


def draw_power(gains: NDArray[np.float64], rates: dict[str, NDArray[np.float64]]) -> None:
    """Draw the promotion rate over the true gain."""
    figure = new_figure(7.0, 3.8)
    axes = figure.subplots()
    for (name, rate), colour in zip(rates.items(), (BLUE, ORANGE, GREEN, GREY), strict=True):
        axes.plot(gains, 100.0 * rate, color=colour, label=name, linewidth=1.8)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel(f"true gain over the champion, points ({HOSTS} hosts, standard deviation {SPREAD})", fontsize=8)
    axes.set_ylabel("candidates that pass, %", fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    style_axes(axes)
    save(figure, PICTURE)


def measured() -> str:
    """Return the part of the page that is measured, and draw the picture."""
    gains = np.linspace(-0.25, 2.0, 46)
    rates = {f"judgement {ordinal}": power(gains, level(ordinal, BUDGET)) for ordinal in SHOWN}
    rates["2.5 % every night"] = power(gains, BUDGET)
    draw_power(gains, rates)
    parts: Sequence[Iterator[str]] = (error_tables(), power_table(gains, rates), schedule_table())
    return "\n\n".join("\n".join(part) for part in parts)


def main() -> None:
    """Replace what stands between the marks of the page."""
    replace_part(PAGE, BEGIN, END, measured())


if __name__ == "__main__":
    main()
