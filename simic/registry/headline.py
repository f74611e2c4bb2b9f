"""Headline metrics and tables by which MLflow shows a judgement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simic.contracts.names import ALONE, BLIND, CANDIDATE, CHAMPION, HEURISTIC, ORACLE, SYMPTOM, WAIT
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.trials import FamilyTrial, SeedChoice, TrialReport

__all__ = [
    "GAINS",
    "HEADLINES",
    "SHARE_OF_ORACLE",
    "RunTable",
    "headline_metrics",
    "seed_metrics",
    "seed_table",
    "share_of_oracle",
    "tables",
]

GAINS = (WAIT, HEURISTIC, BLIND, SYMPTOM, CHAMPION)
"""Controllers that the candidate is compared with in a headline metric."""
COMMIT_RATE = "commit_rate"
SHARE_OF_ORACLE = "share_of_oracle"
HEADLINES = (
    *(f"gain_over_{name}_{bound}" for name in GAINS for bound in ("mean", "lower")),
    SHARE_OF_ORACLE,
    COMMIT_RATE,
)
"""Names of the twelve metrics. A gain is the mean paired difference of returns per host; ``lower`` is the lower bound
of its interval."""


class RunTable(NamedTuple):
    """A table artifact of a run."""

    name: str
    columns: Sequence[str]
    rows: list[list[object]]


def headline_metrics(report: ValidationReport) -> dict[str, float]:
    """Return the headline metrics of a judgement; a metric without evidence is left out."""
    metrics: dict[str, float] = {}
    for name in (*GAINS, ALONE):
        if (gain := report.differences.get(name)) is not None:
            metrics[f"gain_over_{name}_mean"] = gain.mean
            metrics[f"gain_over_{name}_lower"] = gain.lower
    if (share := share_of_oracle(report.trials)) is not None:
        metrics[SHARE_OF_ORACLE] = share
    if COMMIT_RATE in report.training_metrics:
        metrics[COMMIT_RATE] = report.training_metrics[COMMIT_RATE]
    return metrics


def seed_metrics(choice: SeedChoice | None) -> dict[str, float]:
    """Return the spread over training seeds, in points over wait on validation hosts; nothing if there was one seed.

    ``training_seeds_stopped`` counts those whose trainings ended early because they were hopeless.
    """
    if choice is None:
        return {}
    known = {name: getattr(choice, name) for name in ("mean", "spread", "least", "greatest")}
    known["stopped"] = float(len(choice.stopped))
    return {f"training_seeds_{name}": value for name, value in known.items() if value is not None}


def seed_table(choice: SeedChoice) -> RunTable:
    """Return a table of the policies of all training seeds on the same validation hosts."""
    columns = ("training_seed", "policy", "return_mean", "gain_over_wait_mean", "gain_over_wait_lower")
    rows: list[list[object]] = [
        [seed.training_seed, seed.policy_digest, seed.mean_return, seed.over_wait.mean, seed.over_wait.lower]
        for seed in choice.seeds
    ]
    return RunTable("training_seeds", columns, rows)


def share_of_oracle(report: TrialReport) -> float | None:
    """Return the candidate's mean gain over ``wait`` divided by the oracle's; None unless the oracle gains."""
    gains = {trial.controller: trial.over_wait for trial in report.controllers}
    ours, best = gains.get(CANDIDATE), gains.get(ORACLE)
    return None if ours is None or best is None or best.mean <= 0 else ours.mean / best.mean


def tables(report: ValidationReport, gate: GateDecision) -> list[RunTable]:
    """Return tables of criteria, judgement, paired differences, and every controller over all hosts and per family."""
    return [
        RunTable(
            "gate",
            ("criterion", "value", "comparison", "bound", "verdict", "detectable", "evidence"),
            [
                [c.name, c.value, c.comparison, c.bound, c.verdict.value, c.detectable, c.evidence]
                for c in gate.criteria
            ],
        ),
        RunTable("judgement", tuple(Judgement.model_fields), [list(gate.judgement.model_dump().values())]),
        RunTable(
            "differences",
            ("candidate_minus", "mean", "lower", "upper", "confidence", "pairs"),
            [[name, e.mean, e.lower, e.upper, e.confidence, e.n] for name, e in report.differences.items()],
        ),
        RunTable(
            "controllers",
            (
                "controller",
                "family",
                "episodes",
                "return_mean",
                "gain_over_wait_mean",
                "gain_over_wait_lower",
                "test_accuracy_mean",
                "committed_parameters_mean",
                "validation_accuracy_mean",
                "test_gain_over_wait_mean",
                "test_gain_over_wait_lower",
                "host_parameters_mean",
                "extra_compute_mean",
            ),
            list(_trial_rows(report.trials)),
        ),
    ]


def _trial_rows(report: TrialReport) -> Iterator[list[object]]:
    for trial in report.controllers:
        yield _trial_row(trial.controller, "all", trial)
        for family, own in trial.by_family.items():
            yield _trial_row(trial.controller, family, own)


def _trial_row(controller: str, family: str, trial: FamilyTrial) -> list[object]:
    gain, tested = trial.over_wait, trial.test_over_wait
    return [
        controller,
        family,
        trial.episodes,
        trial.mean_return,
        None if gain is None else gain.mean,
        None if gain is None else gain.lower,
        trial.test_accuracy,
        trial.committed_parameters,
        trial.validation_accuracy,
        None if tested is None else tested.mean,
        None if tested is None else tested.lower,
        trial.host_parameters,
        trial.extra_compute,
    ]
