"""``log_mean_weight``: the log has the actions of the policies, and its probabilities are right.

The expected mean weight is the probability that an episode of the policy can occur in the log, 1 if all can. Where the
log of one controller, or on one set, lacks actions of a policy, the estimate of that policy rests on the hosts of the
others.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.log_evidence import MeanWeight
from simic.contracts.receipts import Criterion
from simic.validation.criterion import REPORTS, Case, line
from simic.validation.off_policy import LEAST_HOSTS, LEAST_WEIGHT, weight_margin

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_mean_weight"
SUMMARY = (
    "mean weight of candidate, wait and champion: 1 within three standard errors, for each set and logging controller "
    "too, and 0.85 that much below it"
)
ORDER = 260
EVIDENCE = REPORTS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield three criteria per policy: the distance from 1, over what passes, in all and by group; the lower end."""
    for name, found in case.log_support.items():
        away = lower = None
        evidence = f"mean weight for {name}"
        if (
            found is not None
            and found.mean_weight is not None
            and (margin := weight_margin(found.mean_weight_error)) > 0.0
        ):
            away, lower = abs(found.mean_weight - 1.0) / margin, found.mean_weight - margin
            evidence += f", {found.mean_weight:.3f}; three standard errors are {margin:.2g}"
        text = f"distance from 1 over three standard errors: {evidence}"
        yield line(f"{NAME}_distance_{name}", away, "<=", 1.0, text)
        yield _by_group(case, name)
        yield line(f"{NAME}_lower_{name}", lower, ">=", LEAST_WEIGHT, f"three standard errors below the {evidence}")


def _by_group(case: Case, name: str) -> Criterion:
    """Return the criterion on the group whose mean weight is farthest from 1; a group of few hosts has none."""
    groups = [] if case.report.log is None else case.report.log.groups
    away = {
        (group.set, group.behaviour): _distance(group.weights.get(name)) if group.hosts >= LEAST_HOSTS else None
        for group in groups
    }
    evidence = f"distance from 1 over three standard errors, by set and logging controller: mean weight for {name}"
    known = {group: value for group, value in away.items() if value is not None}
    if len(known) < len(groups) or not known:
        return line(f"{NAME}_groups_{name}", None, "<=", 1.0, evidence)
    of_set, behaviour = worst = max(known, key=lambda group: known[group])
    evidence += f", {len(groups)} groups; the farthest is that of {behaviour[:12]} on {of_set}"
    return line(f"{NAME}_groups_{name}", known[worst], "<=", 1.0, evidence)


def _distance(weight: MeanWeight | None) -> float | None:
    if weight is None or weight.mean is None or (margin := weight_margin(weight.error)) == 0.0:
        return None
    return abs(weight.mean - 1.0) / margin
