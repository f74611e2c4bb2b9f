"""Checks that the numbers of a validation report follow from the episodes in the same report.

Every mean and interval is recomputed from the returns per host, by the code and the seed that made the report. Whether
the episodes are genuine is not checked here; the seal of the receipt ensures that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simic.contracts.names import WAIT
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.trials import ControllerTrial, Estimate, FamilyTrial, TrialReport
from simic.contracts.settings.run import TrialConfig
from simic.validation.criterion import REPORTS
from simic.validation.log_evidence import log_differences
from simic.validation.trials import paired_estimate

__all__ = ["disagreements"]

TOLERANCE = 1e-9
"""Tolerance, absolute and relative to the larger number, for rounding by another version of NumPy."""


def disagreements(report: ValidationReport, config: TrialConfig, candidate: str) -> list[str]:
    """Return each number that does not follow from the episodes, with expected and found value.

    ``config`` has the confidence and the number of resamples; ``candidate`` names the row that is compared with the
    others.
    """
    if report.evidence == REPORTS:
        return list(_logged(report, config))
    own = list(_trials(report.trials, config, report.seed))
    # Rows of a wrong shape give no numbers to compare with.
    own += [] if any(_shape(report.trials)) else _differences(report, config, candidate)
    others = (
        f"further set {trials.set}: {line}"
        for trials in report.further
        for line in _trials(trials, config, trials.seed)
    )
    return [*own, *others]


def _logged(report: ValidationReport, config: TrialConfig) -> Iterator[str]:
    """Check that the differences are those of the estimates per host in the log."""
    log = report.log
    if log is None:
        yield "the evidence is reports, and there is no log"
        return
    expected = log_differences(log, config.confidence)
    if missing := sorted(expected.keys() ^ report.differences.keys()):
        yield f"differences: expected {', '.join(expected) or 'none'}, found others: {', '.join(missing)}"
    for name in expected.keys() & report.differences.keys():
        yield from _compare(f"difference to {name}", expected[name], report.differences[name])


def _trials(trials: TrialReport, config: TrialConfig, seed: int) -> Iterator[str]:
    wrong = list(_shape(trials))
    yield from wrong or (line for trial in trials.controllers for line in _row(trial, trials, config, seed))


def _shape(trials: TrialReport) -> Iterator[str]:
    """Check that every row has one finite return and accuracy per host, and a distinct name."""
    hosts, names = len(trials.host_keys), [trial.controller for trial in trials.controllers]
    if hosts < 2:
        yield f"expected 2 hosts or more, found {hosts}"
    if len(trials.families) != hosts:
        yield f"expected the families of {hosts} hosts, found {len(trials.families)}"
    if len(set(names)) != len(names):
        yield f"expected one row per controller, found {', '.join(names)}"
    for trial in trials.controllers:
        columns = [("returns", trial.returns), ("test accuracies", trial.test_accuracies)]
        columns += [("validation accuracies", trial.validation_accuracies)] if trial.validation_accuracies else []
        for what, values in columns:
            if len(values) != hosts:
                yield f"{trial.controller}: expected {hosts} {what}, found {len(values)}"
            elif not np.isfinite(values).all():
                yield f"{trial.controller}: not all {what} are finite"


def _row(trial: ControllerTrial, trials: TrialReport, config: TrialConfig, seed: int) -> Iterator[str]:
    """Check one controller over all hosts and over those of each family."""
    wait = next((np.asarray(row.returns) for row in trials.controllers if row.controller == WAIT), None)
    returns = np.asarray(trial.returns)
    yield from _summary(trial.controller, trial, trial, slice(None))
    if trial.over_wait is not None:
        what = f"{trial.controller} over {WAIT}"
        if wait is None:
            yield f"{what}: there is no row of {WAIT}"
        else:
            yield from _compare(what, paired_estimate(returns, wait, config, seed, trials.families), trial.over_wait)
    labels = np.asarray(trials.families)
    for family, own in trial.by_family.items():
        mine = np.flatnonzero(labels == family)
        what = f"{trial.controller} on {family}"
        if mine.size == 0:
            yield f"{what}: no host is of this family"
            continue
        yield from _summary(what, own, trial, mine)
        if own.over_wait is not None and wait is not None:
            # Nothing depends on the interval of one family, so its mean is enough.
            mean = float((returns[mine] - wait[mine]).mean())
            yield from _differing(f"{what} over {WAIT}", {"mean": (mean, own.over_wait.mean)})


def _summary(what: str, found: FamilyTrial, trial: ControllerTrial, rows: NDArray[np.int64] | slice) -> Iterator[str]:
    """Check the means of ``found`` over ``rows`` of a controller; validation accuracies may be missing."""
    returns, accuracies = np.asarray(trial.returns)[rows], np.asarray(trial.test_accuracies)[rows]
    pairs = {
        "episodes": (returns.size, found.episodes),
        "mean return": (float(returns.mean()), found.mean_return),
        "mean test accuracy": (float(accuracies.mean()), found.test_accuracy),
    }
    if trial.validation_accuracies:
        mean = float(np.asarray(trial.validation_accuracies)[rows].mean())
        pairs["mean validation accuracy"] = (mean, found.validation_accuracy)
    yield from _differing(what, pairs)


def _differences(report: ValidationReport, config: TrialConfig, candidate: str) -> Iterator[str]:
    returns: Mapping[str, Sequence[float]] = {trial.controller: trial.returns for trial in report.trials.controllers}
    for name, found in report.differences.items():
        what = f"difference to {name}"
        if missing := sorted({candidate, name} - set(returns)):
            yield f"{what}: there is no row of {', '.join(missing)}"
            continue
        expected = paired_estimate(returns[candidate], returns[name], config, report.seed, report.trials.families)
        yield from _compare(what, expected, found)


def _compare(what: str, expected: Estimate, found: Estimate) -> Iterator[str]:
    fields = ("mean", "lower", "upper", "confidence", "n")
    yield from _differing(what, {name: (getattr(expected, name), getattr(found, name)) for name in fields})


def _differing(what: str, pairs: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    for name, (expected, found) in pairs.items():
        if not math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{what}: expected {name} {expected:.12g}, found {found:.12g}"
