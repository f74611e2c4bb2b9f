"""The promotion gate: a pure function from a validation report to a decision with all criteria.

A criterion whose evidence is missing or not finite is MISSING, and MISSING rejects as FAIL does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from simic.contracts.config import GateConfig, TrialConfig
from simic.contracts.judgements import Judgement
from simic.contracts.names import CANDIDATE, CHAMPION
from simic.contracts.receipts import (
    ControllerTrial,
    Criterion,
    Estimate,
    GateDecision,
    Provenance,
    TrialReport,
    ValidationReport,
    Verdict,
)
from simic.contracts.splits import Split, split_of
from simic.trust.sealed_receipts import decision_digest
from simic.validation.baselines.plan_book import (
    HEURISTIC,
    PLAN_BOOK,
    REQUIRES_PLAN_BOOK,
    SYMPTOM,
    missing_book_message,
    other_game_message,
    requires_book,
)
from simic.validation.gate_bounds import POWER, Direction, difference_bound, loss_bound
from simic.validation.judging_keys import keys_of_others
from simic.validation.report_checks import disagreements

__all__ = [
    "BASELINES",
    "COMMIT_RATE",
    "DETERMINISM",
    "MEAN_RATIO",
    "REGRESSION_METRICS",
    "Metric",
    "decide",
    "rejection_message",
]

BASELINES = ("wait", "random", "heuristic", "blind")
"""Controllers that every candidate must beat; a set without a plan book may lack blind."""
SETS_TO_BEAT_SYMPTOM = frozenset({"varied"})
"""Sets on which a candidate must beat the tree: their families do not tell what a host needs, so a controller that
reads one observation has much left to gain."""
PLAN_BASELINES = (HEURISTIC, "blind", SYMPTOM, "oracle")
"""Controllers of a judgement that follow a plan book."""
COMMIT_RATE = "commit_rate"
"""Training metric: P(germinates at least once) x P(fossilises at least once), on logged states."""
MEAN_RATIO = "mean_ratio"
"""Training metric: mean min(1, rho) in the last pass."""
EXPECTED_REGRET = "expected_regret"
"""Training metric of distillation: points that the policy is expected to lose against the best tried actions."""
FITTED_REGRET = "fitted_regret"
"""Training metric of fitted Q: the same against the actions that the Q-functions prefer."""
Q_EXPLAINED = "q_explained_variance"
"""Training metric of fitted Q: share of the variance of returns explained on hosts that a Q-function did not see."""
DETERMINISM = "determinism_mismatches"
"""Probe: hosts whose return changed when they were run again beside other hosts."""


_SHOWN = 3
"""Largest number of disagreements in a message."""


class Metric(NamedTuple):
    """A metric that must not get worse by more than the tolerated share."""

    field: str
    """Field of a ``ControllerTrial`` with an entry per host."""
    direction: Direction


REGRESSION_METRICS: Mapping[str, Metric] = {
    "test_accuracy": Metric("test_accuracies", Direction.HIGHER),
    "validation_accuracy": Metric("validation_accuracies", Direction.HIGHER),
}

Comparison = Literal[">", ">=", "<", "<="]
_HOLDS: Mapping[Comparison, Callable[[float, float], bool]] = {
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
}


def decide(
    report: ValidationReport,
    config: GateConfig,
    *,
    judgement: Judgement,
    trial: TrialConfig,
    min_commit_rate: float,
    provenance: Provenance,
    now: datetime,
) -> GateDecision:
    """Judge the candidate of ``report``; it is accepted only if every criterion passes.

    Args:
        judgement: that for which the evidence was collected, with its level.
        trial: settings of the report's intervals.
        min_commit_rate: least ``commit_rate``, the bound at which training stops.
    """
    candidate = next((row for row in report.trials.controllers if row.controller == CANDIDATE), None)
    criteria = [
        _configuration_criterion(report, provenance.config_digest),
        _book_criterion(report.trials, config),
        *_game_criteria(report.trials),
        _agreement_criterion(report, trial),
        *_evidence_criteria(report, config, candidate, judgement),
        *_difference_criteria(report, config, judgement.alpha),
        *_symptom_criteria(report, config),
        *_further_criteria(report, config, trial.also_sets, judgement),
        *_regression_criteria(report, config, judgement.alpha),
        *_safety_criteria(report, config, candidate),
        *_training_criteria(report.training_metrics, config, min_commit_rate),
    ]
    return GateDecision(
        code_version=provenance.code_version,
        config_digest=provenance.config_digest,
        seed=provenance.seed,
        started_at=now,
        finished_at=now,
        policy_digest=report.policy_digest,
        champion_digest=report.champion_digest,
        judgement=judgement,
        accepted=all(criterion.verdict is Verdict.PASS for criterion in criteria),
        criteria=criteria,
        digest=decision_digest(
            report.policy_digest, report.champion_digest, report.snapshot_digest, judgement, criteria
        ),
    )


def _criterion(
    name: str,
    value: float | None,
    comparison: Comparison,
    bound: float,
    evidence: str,
    detectable: float | None = None,
) -> Criterion:
    if value is None or not math.isfinite(value):
        found = "nothing" if value is None else str(value)
        text = f"{evidence}; found {found}; criterion not met"
        return Criterion(
            name=name, value=None, bound=bound, comparison=comparison, verdict=Verdict.MISSING, evidence=text
        )
    verdict = Verdict.PASS if _HOLDS[comparison](value, bound) else Verdict.FAIL
    return Criterion(
        name=name,
        value=float(value),
        bound=bound,
        comparison=comparison,
        verdict=verdict,
        evidence=evidence,
        detectable=detectable,
    )


def _configuration_criterion(report: ValidationReport, judging: str) -> Criterion:
    """Return the criterion that all receipts have the judging configuration, for which the bounds were chosen."""
    made = (report.config_digest, report.trials.config_digest)
    evidence = (
        f"receipts made under another configuration than that of the gate, {judging[:12]}; theirs: {_short(made)}"
    )
    return _criterion("other_configuration", float(sum(digest != judging for digest in made)), "<=", 0.0, evidence)


def _book_criterion(trials: TrialReport, config: GateConfig) -> Criterion:
    """Return the criterion that baselines follow a plan book; only sets of other packages may lack one."""
    needed = float(requires_book(trials.set, is_asked=config.require_plan_book))
    if trials.plans_digest is not None:
        evidence = f"plan book {trials.plans_digest[:12]} of set {trials.set}"
        return _criterion(PLAN_BOOK, 1.0, ">=", needed, evidence)
    return _criterion(PLAN_BOOK, 0.0, ">=", needed, missing_book_message(trials.set, PLAN_BASELINES))


def _game_criteria(trials: TrialReport) -> Iterator[Criterion]:
    """Yield the criterion that a plan book was searched with the settings of the trials, if it was not."""
    if trials.book_differences:
        evidence = other_game_message(trials.set, trials.book_differences)
        yield _criterion("plan_book_of_other_settings", float(len(trials.book_differences)), "<=", 0.0, evidence)


def _agreement_criterion(report: ValidationReport, config: TrialConfig) -> Criterion:
    """Return the criterion that means and intervals follow from the episodes in the report."""
    found = disagreements(report, config, CANDIDATE)
    evidence = "means and intervals that do not follow from the returns per host in the same report"
    if found:
        evidence += f": {'; '.join(found[:_SHOWN])}"
    return _criterion("other_than_its_episodes", float(len(found)), "<=", 0.0, evidence)


def _short(digests: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(digest[:12] for digest in digests))


def _evidence_criteria(
    report: ValidationReport, config: GateConfig, candidate: ControllerTrial | None, judgement: Judgement
) -> Iterator[Criterion]:
    """Yield the criteria on number, split and choice of the hosts."""
    keys = report.trials.host_keys
    episodes = None if candidate is None else float(min(candidate.episodes, len(set(keys))))
    evidence = f"distinct held-out hosts of set {report.trials.set} the candidate was tried on"
    yield _criterion("episodes", episodes, ">=", config.min_episodes, evidence)
    leaked = None if not keys else float(sum(split_of(report.trials.set, key) is not Split.TEST for key in keys))
    yield _criterion("hosts_outside_test_split", leaked, "<=", 0.0, "hosts that training may have seen")
    strange = float(keys_of_others(keys, judgement.ordinal)) if keys else None
    evidence = f"hosts that judgement {judgement.ordinal} of set {report.trials.set} does not draw"
    yield _criterion("hosts_of_other_judgements", strange, "<=", 0.0, evidence)


def _difference_criteria(report: ValidationReport, config: GateConfig, alpha: float) -> Iterator[Criterion]:
    """Yield the criteria on lower confidence bounds of paired return differences, in points.

    A candidate passes only if each of them holds, so all may be at the level of the judgement (intersection-union test:
    Berger 1982, Technometrics 24(4)).
    """
    margins = dict.fromkeys(_baselines(report, config), config.margin_over_baselines)
    if report.champion_digest is not None:
        margins[CHAMPION] = config.margin_over_champion
    for name, margin in margins.items():
        yield _difference(report, config, name, margin, alpha)


def _baselines(report: ValidationReport, config: GateConfig) -> list[str]:
    """Return the controllers to beat; those that need a plan book are left out only if none exists or is required."""
    trials = report.trials
    if trials.plans_digest is not None or requires_book(trials.set, is_asked=config.require_plan_book):
        return list(BASELINES)
    return [name for name in BASELINES if name not in REQUIRES_PLAN_BOOK or name in report.differences]


def _difference(report: ValidationReport, config: GateConfig, other: str, margin: float, alpha: float) -> Criterion:
    name, label = f"return_over_{other}", other
    estimate: Estimate | None = report.differences.get(other)
    if other == HEURISTIC and report.trials.plans_digest is None:
        label = f"{other} on its default rules"
    if estimate is None:
        return _criterion(name, None, ">", margin, f"no paired difference to {label} in the report")
    evidence = f"lower bound at level {alpha:.2g} of the paired difference to {label}: mean {estimate.mean:+.2f} "
    evidence += _interval(estimate)
    if estimate.n < config.min_episodes:
        return _criterion(name, None, ">", margin, f"{evidence}; fewer than {config.min_episodes}")
    found = difference_bound(report.trials, other, alpha)
    # A mean that is not finite invalidates the estimate, whatever its returns.
    if found is None or not math.isfinite(estimate.mean):
        return _criterion(name, None, ">", margin, evidence)
    evidence += f"; {margin + found.detectable:.2f} points would pass with {POWER:.0%} power"
    return _criterion(name, found.bound, ">", margin, evidence, margin + found.detectable)


def _interval(estimate: Estimate) -> str:
    interval = f"[{estimate.lower:+.2f}, {estimate.upper:+.2f}] points at {estimate.confidence:.0%}"
    return f"{interval} over {estimate.n} hosts"


def _symptom_criteria(report: ValidationReport, config: GateConfig) -> Iterator[Criterion]:
    """Yield the criterion that the candidate is about as good as the tree, unless the trials say that there is none.

    On ``SETS_TO_BEAT_SYMPTOM`` it must be better.

    Its value is the mean, not a lower bound: a candidate that is level with the tree would fail a bound of half a point
    on some hundred hosts more often than not.
    """
    name, is_to_beat = f"mean_over_{SYMPTOM}", report.trials.set in SETS_TO_BEAT_SYMPTOM
    bound = 0.0 if is_to_beat else -config.max_loss_to_symptom
    holds: Comparison = ">" if is_to_beat else ">="
    estimate = report.differences.get(SYMPTOM)
    if estimate is None and SYMPTOM in report.trials.without_book:
        return
    if estimate is None or estimate.n < config.min_episodes:
        found = "no" if estimate is None else f"{estimate.n} hosts, fewer than {config.min_episodes}, in the"
        yield _criterion(name, None, holds, bound, f"{found} paired difference to {SYMPTOM} in the report")
        return
    evidence = f"mean of the paired difference to {SYMPTOM}, a tree that reads one observation: {_interval(estimate)}"
    yield _criterion(name, estimate.mean, holds, bound, evidence)


def _further_criteria(
    report: ValidationReport, config: GateConfig, sets: Sequence[str], judgement: Judgement
) -> Iterator[Criterion]:
    """Yield one criterion for each further set: there the candidate does no harm, compared with never growing.

    Its value is the mean, because a run tries too few hosts of a further set for a lower bound this near to 0. Trials
    of another policy, on hosts that training may have seen, or on those of another judgement, are no evidence.
    """
    found = {trials.set: trials for trials in report.further if trials.policy_digest == report.policy_digest}
    for set_name in dict.fromkeys(sets):
        if set_name == report.trials.set:
            continue
        name, bound = f"mean_over_wait_on_{set_name}", -config.max_loss_on_further_sets
        trials = found.get(set_name)
        keys = () if trials is None else trials.host_keys
        rows = () if trials is None else trials.controllers
        estimate = next((row.over_wait for row in rows if row.controller == CANDIDATE), None)
        is_strange = any(split_of(set_name, key) is not Split.TEST for key in keys) or keys_of_others(
            keys, judgement.ordinal
        )
        if estimate is None or is_strange:
            lacking = f"no trial of the candidate on the hosts of judgement {judgement.ordinal} of {set_name}"
            yield _criterion(name, None, ">=", bound, lacking)
            continue
        evidence = f"mean of the paired difference to wait on the further set {set_name}: {_interval(estimate)}"
        yield _criterion(name, estimate.mean, ">=", bound, evidence)


def _regression_criteria(report: ValidationReport, config: GateConfig, alpha: float) -> Iterator[Criterion]:
    """Yield the criteria that no metric regresses by more than the tolerated share, against wait and the champion.

    The upper bound of the loss is judged. Small losses against one champion after the other could add up, those against
    never growing cannot.
    """
    for reference in ("wait",) if report.champion_digest is None else (CHAMPION, "wait"):
        for metric, (field, direction) in REGRESSION_METRICS.items():
            found = loss_bound(report.trials, reference, field, direction, alpha)
            evidence = f"upper bound at level {alpha:.2g} of the relative loss of mean {metric}, where "
            evidence += f"{direction.value} is better, against {reference}"
            if found is not None:
                evidence += f": mean {found.estimate:+.4f}"
            value = None if found is None else found.bound
            yield _criterion(f"{metric}_regression_to_{reference}", value, "<=", config.max_regression, evidence)


def _safety_criteria(
    report: ValidationReport, config: GateConfig, candidate: ControllerTrial | None
) -> Iterator[Criterion]:
    illegal = None if candidate is None else float(candidate.illegal_actions)
    yield _criterion("illegal_actions", illegal, "<=", 0.0, "actions of the candidate that its masks forbid")
    panics = None
    if candidate is not None and candidate.episodes:
        panics = candidate.governor_events / candidate.episodes
    evidence = "governor panics per episode of the candidate"
    yield _criterion("governor_rate", panics, "<=", config.max_governor_rate, evidence)
    evidence = "hosts whose return changed when the candidate grew them again beside other hosts"
    yield _criterion(DETERMINISM, report.probes.get(DETERMINISM), "<=", 0.0, evidence)


def _training_criteria(metrics: Mapping[str, float], config: GateConfig, min_commit_rate: float) -> Iterator[Criterion]:
    broken = sorted(name for name, value in metrics.items() if not math.isfinite(value))
    evidence = f"training metrics that are not finite, of {len(metrics)}" + (f": {broken}" if broken else "")
    yield _criterion("training_metrics_not_finite", float(len(broken)) if metrics else None, "<=", 0.0, evidence)
    evidence = "P(germinates at least once) x P(fossilises at least once), on logged states; 0 never commits"
    yield _criterion(COMMIT_RATE, metrics.get(COMMIT_RATE), ">=", min_commit_rate, evidence)
    if FITTED_REGRET in metrics:
        evidence = "share of the variance of returns that the Q-functions explain on hosts they did not see"
        yield _criterion(Q_EXPLAINED, metrics.get(Q_EXPLAINED), ">", 0.0, evidence)
    if MEAN_RATIO not in metrics and metrics.keys() & {EXPECTED_REGRET, FITTED_REGRET}:
        return  # distilled, and no V-trace on top: there are no importance ratios
    evidence = "mean min(1, rho) of the last pass; small means learning was too far off-policy"
    yield _criterion(MEAN_RATIO, metrics.get(MEAN_RATIO), ">=", config.min_mean_ratio, evidence)


def rejection_message(decision: GateDecision) -> str:
    """Return why a candidate was rejected: every criterion that did not pass, with value and bound."""
    failed = [line for line in decision.criteria if line.verdict is not Verdict.PASS]
    reasons = "; ".join(
        f"{line.name} is {'missing' if line.value is None else f'{line.value:.4g}'}, "
        f"needs {line.comparison} {line.bound:.4g}"
        for line in failed
    )
    ending = "There is still no champion" if decision.champion_digest is None else "The champion stays"
    return f"the gate rejected policy {decision.policy_digest[:12]}: {reasons}. {ending}"
