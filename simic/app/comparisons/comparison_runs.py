"""Comparisons as MLflow runs: one run, and below it one per controller or policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simic.app.container import Container
from simic.contracts.results.comparison import Comparison, PairComparison
from simic.contracts.results.recipes import RecipeComparison, RecipePair
from simic.contracts.results.trials import ControllerTrial, TrialReport
from simic.registry.headline import RunTable
from simic.registry.instrument_runs import ComparedPolicy, ComparisonResult, has_database, log_comparison

__all__ = ["log_compared", "log_recipes"]

_COLUMNS = (
    "first", "second", "verdict", "difference", "lower", "upper", "p", "adjusted_p", "probability_of_improvement",
)  # fmt: skip


def log_compared(container: Container, comparison: Comparison) -> str | None:
    """Log a comparison of controllers and policies; None and errors are those of ``log_instrument``."""
    names = dict.fromkeys(name for pair in comparison.pairs for name in (pair.controller, pair.against))
    result = ComparisonResult(
        name=f"compare: {', '.join(names)}",
        kind="compare",
        receipt=comparison.trials,
        policies=_policies(comparison.trials, {}),
        tables=[_table(comparison.pairs)],
    )
    return log_comparison(container.home, result)


def log_recipes(container: Container, comparison: RecipeComparison) -> str | None:
    """Log a comparison of recipes; None and errors are those of ``log_instrument``."""
    if not has_database(container.home):
        return None
    report = container.receipts.read(TrialReport, container.home.receipts / comparison.trials)
    params = {
        policy.controller: {
            "recipe": recipe.name,
            "recipe_config_digest": recipe.config_digest,
            "training_seed": str(policy.seed),
            "policy_digest": str(policy.policy_digest),
            **recipe.settings,
        }
        for recipe in comparison.recipes
        for policy in recipe.policies
        if policy.policy_digest is not None
    }
    result = ComparisonResult(
        name=f"ab: {', '.join(recipe.name for recipe in comparison.recipes)}",
        kind=comparison.stage,
        receipt=comparison,
        policies=_policies(report, params),
        tables=[_table(comparison.pairs or comparison.policies)],
    )
    return log_comparison(container.home, result)


def _policies(report: TrialReport, params: Mapping[str, Mapping[str, str]]) -> list[ComparedPolicy]:
    common = {"set": report.set, "hosts": str(len(report.host_keys)), "seed": str(report.seed)}
    return [
        ComparedPolicy(row.controller, {**common, **params.get(row.controller, {})}, _metrics(row))
        for row in report.controllers
    ]


def _table(pairs: Sequence[PairComparison] | Sequence[RecipePair]) -> RunTable:
    return RunTable("pairs", _COLUMNS, [_row(pair) for pair in pairs])


def _row(pair: PairComparison | RecipePair) -> list[object]:
    names = (pair.controller, pair.against) if isinstance(pair, PairComparison) else (pair.recipe, pair.against)
    difference = pair.difference
    tests = (pair.p, pair.adjusted_p, pair.probability_of_improvement)
    return [*names, pair.verdict.value, difference.mean, difference.lower, difference.upper, *tests]


def _metrics(row: ControllerTrial) -> dict[str, float]:
    """Return what a run shows; a metric without evidence is left out."""
    over = row.over_wait
    metrics = {
        "mean_return": row.mean_return,
        "gain_over_wait_mean": None if over is None else over.mean,
        "gain_over_wait_lower": None if over is None else over.lower,
        "gain_over_wait_upper": None if over is None else over.upper,
        "test_accuracy": row.test_accuracy,
        "validation_accuracy": row.validation_accuracy,
        "committed_parameters": row.committed_parameters,
        "extra_compute": row.extra_compute,
    }
    return {name: value for name, value in metrics.items() if value is not None}
