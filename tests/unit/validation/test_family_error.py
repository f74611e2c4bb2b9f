"""Sixty nights in a row: how often the gate's bounds ever accept candidates that are no better than the champion.

The paired returns are synthetic. Bound and level are those of the gate; ``test_the_gate_judges_this_bound`` holds it to
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.builders.judged_candidates import NOW, evidence_of, sealed_policy
from support.builders.judgements import judgement
from support.builders.validation_reports import validation_of

from simic.contracts.results.gate import Verdict
from simic.contracts.results.receipts import Provenance
from simic.contracts.settings.run import RunConfig
from simic.numerics.mean_bounds import lower_bound
from simic.numerics.spending import level
from simic.runtime.home import Home
from simic.validation.promotion_gate import decide

NIGHTS, HOMES, HOSTS, BUDGET = 60, 800, 160, 0.025
FAMILIES = [row % 5 for row in range(HOSTS)]
LEVELS = np.array([level(night, BUDGET) for night in range(1, NIGHTS + 1)])
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
EQUAL: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "rarely much worse": lambda generator, shape: 1.0 - generator.exponential(size=shape),
}


def acceptances(draw: Draw, alpha: NDArray[np.float64], mean: float = 0.0, homes: int = HOMES) -> NDArray[np.bool_]:
    """Whether each home [homes] accepted each night [NIGHTS] a candidate of true ``mean`` over the champion."""
    generator = np.random.default_rng(0)
    blocks = [
        lower_bound(draw(generator, (100, NIGHTS, HOSTS)) + mean, alpha, FAMILIES).lower > 0.0
        for _ in range(homes // 100)
    ]
    return np.concatenate(blocks)


@pytest.mark.parametrize("name", EQUAL)
def test_drl13_sixty_equal_candidates_in_a_row_are_ever_accepted_as_rarely_as_promised(name: str) -> None:
    ever = acceptances(EQUAL[name], LEVELS).any(axis=1).mean()
    assert ever <= BUDGET + 3.0 * np.sqrt(BUDGET * (1.0 - BUDGET) / HOMES)


def test_drl13_slightly_worse_candidates_are_accepted_more_rarely_and_better_ones_are_accepted() -> None:
    assert acceptances(EQUAL["normal"], LEVELS, mean=-0.05, homes=400).any(axis=1).mean() <= BUDGET / 2.0
    found = acceptances(EQUAL["normal"], LEVELS, mean=0.4, homes=100).mean(axis=0)
    assert found[0] > 0.9 and found[-1] > 0.6


def test_at_one_level_every_night_most_homes_would_accept_one() -> None:
    """The simulation sees the error that the levels prevent: 1 - 0.975^60 = 78 %."""
    ever = acceptances(EQUAL["normal"], np.full(NIGHTS, BUDGET), homes=200).any(axis=1).mean()
    assert ever == pytest.approx(1.0 - (1.0 - BUDGET) ** NIGHTS, abs=0.1)


def test_the_gate_judges_this_bound(tmp_path: Path) -> None:
    config, provenance = RunConfig(), Provenance("0.1.0+0", "c" * 64, 0)
    config = config.model_copy(update={"trial": config.trial.model_copy(update={"bootstrap_samples": 200})})
    home = Home(tmp_path)
    training = evidence_of(home, *sealed_policy(home, b"one")).training
    report = validation_of(training, config, provenance, margin=0.7, champion="e" * 64, ordinal=7)
    rows = {row.controller: np.asarray(row.returns) for row in report.trials.controllers}
    verdicts = []
    for alpha in (0.02, 1e-5):
        decision = decide(
            report, config.gate, judgement=judgement(ordinal=7, alpha=alpha), trial=config.trial, min_commit_rate=0.0,
            provenance=provenance, now=NOW,
        )  # fmt: skip
        line = next(one for one in decision.criteria if one.name == "return_over_champion")
        bound = lower_bound(rows["candidate"] - rows["champion"], alpha, report.trials.families)
        assert (line.value, line.detectable) == (float(bound.lower), float(bound.detectable))
        assert f"at level {alpha:.2g}" in line.evidence
        verdicts.append(line.verdict)
    assert verdicts == [Verdict.PASS, Verdict.FAIL], "the same evidence passes only while the level is large"
