"""Simulate the coverage of intervals and the verdicts on logs, and draw both as ``docs/off-policy.png``.

Usage: python docs/scripts/draw_off_policy.py [--draws 2000] [--logs 200]
Prints the tables of ``docs/off-policy.md``. It takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from math import log
from pathlib import Path
from statistics import NormalDist

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from simic.numerics.intervals import Interval, empirical_bernstein, hoeffding, student_interval
from simic.numerics.off_policy import LoggedEpisodes
from simic.numerics.ratio_sums import RatioSums, ratio_bootstrap
from simic.validation import off_policy

Floats = NDArray[np.float64]
CONFIDENCE, SAMPLES = 0.95, 300
SIZES = (10, 100, 1000)
PAGE_SAMPLES = 200
"""Resamples per log; the verb takes 2,000."""
SHIFTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
STEPS, EPISODES = 20, 2_000
OUT = Path(__file__).parents[1] / "off-policy.png"


def bootstrap(values: Floats, low: float, high: float) -> Interval | None:  # noqa: ARG001 - the signature of bounds
    """Return the bootstrap interval of a mean."""
    return ratio_bootstrap(RatioSums(values[:, None], np.ones((len(values), 1))), CONFIDENCE, SAMPLES)


def student(values: Floats, low: float, high: float) -> Interval:  # noqa: ARG001 - the signature of bounds
    """Return Student's interval."""
    return student_interval(values, CONFIDENCE)


METHODS: Mapping[str, Callable[[Floats, float, float], Interval | None]] = {
    "bootstrap": bootstrap,
    "Student": student,
    "empirical Bernstein": empirical_bernstein,
    "Hoeffding": hoeffding,
}
CUT = 20.0


def lognormal_weighted(generator: np.random.Generator, count: int) -> Floats:
    """Weights with a heavy tail times returns in [0, 1]; weights are cut, so that a range can be declared."""
    return np.minimum(generator.lognormal(-0.5, 1.0, count), CUT) * generator.uniform(0.5, 1.0, count)


def lognormal_mean() -> float:
    """Return the mean of ``lognormal_weighted``."""
    normal, level = NormalDist(), log(CUT) + 0.5
    return 0.75 * (normal.cdf(level - 1.0) + CUT * (1.0 - normal.cdf(level)))


DISTRIBUTIONS: Mapping[str, tuple[Callable[[np.random.Generator, int], Floats], float, float]] = {
    "uniform": (lambda generator, count: generator.uniform(size=count), 1.0, 0.5),
    "Bernoulli(0.01)": (lambda generator, count: (generator.random(count) < 0.01).astype(float), 1.0, 0.01),
    "lognormal weights": (lognormal_weighted, CUT, lognormal_mean()),
}


def coverage(draws: int) -> dict[tuple[str, int, str], tuple[float, float]]:
    """Return the share of intervals that hold the mean, and their mean width, by distribution, n and method."""
    found = {}
    for name, (draw, high, truth) in DISTRIBUTIONS.items():
        for size in SIZES:
            generator = np.random.default_rng(size)
            values = draw(generator, draws * size).reshape(draws, size)
            for method, interval in METHODS.items():
                made = [interval(row, 0.0, high) for row in values]
                hits = [one is not None and one.lower <= truth <= one.upper for one in made]
                widths = [one.upper - one.lower for one in made if one is not None]
                found[name, size, method] = float(np.mean(hits)), float(np.mean(widths))
    return found


def log_of(shift: float, gain: float, seed: int) -> LoggedEpisodes:
    """Episodes of 20 binary choices under even odds, for a target that takes the first with 1/2 + ``shift``.

    Each first choice pays ``gain``; the return has noise with standard deviation 1.
    """
    generator = np.random.default_rng(seed)
    first = generator.random((STEPS, EPISODES)) < 0.5
    return LoggedEpisodes.of(
        log_prob_target=np.log(np.where(first, 0.5 + shift, 0.5 - shift)),
        log_prob_behaviour=np.full(first.shape, np.log(0.5)),
        rewards=gain * first + generator.normal(0.0, STEPS**-0.5, first.shape),
        valid=np.ones(first.shape, dtype=bool),
    )


def verdicts(logs: int, gain: float) -> dict[float, Counter[str]]:
    """Return the number of each verdict per distance of the target from the behaviour."""
    off_policy.SAMPLES = PAGE_SAMPLES
    hosts, groups = np.arange(EPISODES), [("simulated", "even odds")] * EPISODES
    return {
        shift: Counter(
            off_policy.judge(log_of(shift, gain, seed), hosts, groups, 0, 0.0).verdict.value for seed in range(logs)
        )
        for shift in SHIFTS
    }


def draw(covered: Mapping[tuple[str, int, str], tuple[float, float]], judged: Mapping[str, dict[float, Counter[str]]],
         logs: int) -> None:  # fmt: skip
    """Write the figure."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(DISTRIBUTIONS) + len(judged), figsize=(16, 3.6))
    for axis, name in zip(axes, DISTRIBUTIONS, strict=False):
        for method in METHODS:
            axis.plot(SIZES, [covered[name, size, method][0] for size in SIZES], marker="o", label=method)
        axis.axhline(CONFIDENCE, color="grey", lw=0.8)
        axis.set(xscale="log", xlabel="n", title=name, ylim=(0.0, 1.03))
    axes[0].set_ylabel("coverage")
    axes[0].legend(fontsize=7, loc="lower right")
    colours = {"better": "C2", "worse": "C3", "no difference shown": "C7", "insufficient evidence": "C1"}
    for axis, (title, found) in zip(axes[len(DISTRIBUTIONS) :], judged.items(), strict=True):
        below = np.zeros(len(SHIFTS))
        for verdict, colour in colours.items():
            heights = np.array([found[shift][verdict] / logs for shift in SHIFTS])
            axis.bar([str(shift) for shift in SHIFTS], heights, bottom=below, color=colour, label=verdict)
            below += heights
        axis.set(xlabel="distance from the behaviour", title=title)
    axes[-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(OUT, dpi=110, metadata={"Software": None})


def main() -> None:
    """Simulate, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--logs", type=int, default=200)
    arguments = parser.parse_args()
    covered = coverage(arguments.draws)
    lines = [f"| distribution | n | {' | '.join(METHODS)} |", "| --- | --- |" + " --- |" * len(METHODS)]
    for name in DISTRIBUTIONS:
        for size in SIZES:
            found = [covered[name, size, method] for method in METHODS]
            lines.append(f"| {name} | {size} | {' | '.join(f'{hit:.1%} ({width:.3g})' for hit, width in found)} |")
    judged = {
        "no policy is better": verdicts(arguments.logs, 0.0),
        "the first choice pays 0.3": verdicts(arguments.logs, 0.3),
    }
    for title, counts in judged.items():
        lines += ["", title, *(f"{shift}: {dict(counted)}" for shift, counted in counts.items())]
    sys.stdout.write("\n".join(lines) + "\n")
    draw(covered, judged, arguments.logs)


if __name__ == "__main__":
    main()
