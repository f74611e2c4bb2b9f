"""``log_effective_hosts``: enough of the log is as the policies would act."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import REPORTS, Case, line
from simic.validation.log_evidence import support_text
from simic.validation.off_policy import LEAST_EFFECTIVE

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_effective_hosts"
SUMMARY = "effective number of hosts of the log at every step, for candidate, wait and champion, at least 50"
ORDER = 250
EVIDENCE = REPORTS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield one criterion per policy."""
    for name, support in case.log_support.items():
        evidence = f"effective number of hosts for {name}"
        if support is None:
            yield line(f"{NAME}_{name}", None, ">=", LEAST_EFFECTIVE, evidence)
        else:
            yield line(
                f"{NAME}_{name}", support.effective_hosts, ">=", LEAST_EFFECTIVE, f"{evidence}: {support_text(support)}"
            )
