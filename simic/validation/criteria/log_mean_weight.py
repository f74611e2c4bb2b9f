"""``log_mean_weight``: the log has the actions of the policies, and its probabilities are right.

The expected mean weight is the probability that an episode of the policy can occur in the log, 1 if all can. Where the
log of one controller, or on one set, lacks actions of a policy, the estimate of that policy rests on the hosts of the
others.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import short
from simic.contracts.results.gate import Criterion
from simic.validation.criterion import REPORTS, Case, line
from simic.validation.off_policy import LEAST_WEIGHT, farthest_group, weight_margin

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_mean_weight"
SUMMARY = (
    "mean weight of candidate, wait and champion: 1 within three standard errors, and 0.85 that much below it; 1 for "
    "each set and logging controller too, within the errors of as many groups"
)
ORDER = 260
EVIDENCE = REPORTS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield three criteria per policy: the distance from 1, over what passes, in all and by group; the lower end."""
    for name, support in case.log_support.items():
        away = lower = None
        evidence = f"mean weight for {name}"
        if (
            support is not None
            and support.mean_weight is not None
            and (margin := weight_margin(support.mean_weight_error)) > 0.0
        ):
            away, lower = abs(support.mean_weight - 1.0) / margin, support.mean_weight - margin
            evidence += f", {support.mean_weight:.3f}; three standard errors are {margin:.2g}"
        text = f"distance from 1 over three standard errors: {evidence}"
        yield line(f"{NAME}_distance_{name}", away, "<=", 1.0, text)
        yield _by_group(case, name)
        yield line(f"{NAME}_lower_{name}", lower, ">=", LEAST_WEIGHT, f"three standard errors below the {evidence}")


def _by_group(case: Case, name: str) -> Criterion:
    """Return the criterion on the group whose mean weight is farthest from 1; a group of few hosts has none."""
    groups, policies = ([] if case.report.log is None else case.report.log.groups), len(case.log_support)
    evidence = f"distance from 1 over what {len(groups)} groups for {policies} policies reach as seldom as one mean "
    evidence += f"reaches three standard errors: mean weight for {name}"
    farthest = farthest_group(groups, name, max(1, len(groups) * policies))
    if farthest is None:
        return line(f"{NAME}_groups_{name}", None, "<=", 1.0, evidence)
    evidence += f"; the farthest is that of {short(farthest[0].behaviour)} on {farthest[0].set}"
    return line(f"{NAME}_groups_{name}", farthest[1], "<=", 1.0, evidence)
