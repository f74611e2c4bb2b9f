"""``mean_over_wait_on``: on each further set the candidate does no harm, compared with never growing.

The value is the mean, because a run tries too few hosts of a further set for a lower bound this near to 0. Trials of
another policy, on hosts that training may have seen, or on those of another judgement, are no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import CANDIDATE
from simic.contracts.results.gate import Criterion
from simic.contracts.results.trials import Estimate, TrialReport
from simic.contracts.splits import Split, split_of
from simic.validation.criterion import POLICIES, TRIALS, Case, interval_text, line
from simic.validation.judging_keys import keys_of_others

__all__ = ["EVIDENCE", "MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "mean_over_wait_on"
SUMMARY = "mean paired difference to wait on each set of `trial.also_sets`, at least -`gate.max_loss_on_further_sets`"
ORDER = 220
EVIDENCE = TRIALS
MODELS = POLICIES


def judge(case: Case) -> Iterator[Criterion]:
    """Yield one criterion per further set."""
    report, ordinal = case.report, case.judgement.ordinal
    by_set = {trials.set: trials for trials in report.further if trials.policy_digest == report.policy_digest}
    for set_name in dict.fromkeys(case.trial.also_sets):
        if set_name == report.trials.set:
            continue
        name, bound = f"{NAME}_{set_name}", -case.gate.max_loss_on_further_sets
        estimate = _estimate(by_set.get(set_name), ordinal)
        if estimate is None:
            lacking = f"no trial of the candidate on the hosts of judgement {ordinal} of {set_name}"
            yield line(name, None, ">=", bound, lacking)
            continue
        evidence = f"paired difference to wait on the further set {set_name}: mean {estimate.mean:+.2f} "
        yield line(name, estimate.mean, ">=", bound, evidence + interval_text(estimate))


def _estimate(trials: TrialReport | None, ordinal: int) -> Estimate | None:
    if trials is None or keys_of_others(trials.host_keys, ordinal):
        return None
    if any(split_of(trials.set, key) is not Split.TEST for key in trials.host_keys):
        return None
    return next((row.over_wait for row in trials.controllers if row.controller == CANDIDATE), None)
