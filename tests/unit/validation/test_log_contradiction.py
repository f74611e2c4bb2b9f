"""The criterion that trials and a log of the same set tell the same return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.builders.judged_candidates import NOW
from support.builders.validation_reports import FAMILIES, HOSTS, rows_of

from simic.contracts.names import CANDIDATE
from simic.contracts.results.gate import Criterion, ValidationReport, Verdict
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.log_evidence import LogEvidence, LogGroup, LogSupport, MeanWeight
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import GateConfig, RunConfig, TrialConfig
from simic.validation.criteria import log_contradiction
from simic.validation.criterion import Case

OWN = Provenance("0", "0" * 64, 0)._asdict() | {"started_at": NOW, "finished_at": NOW}
ENOUGH = LogSupport(
    hosts=100, effective_hosts=80.0, largest_share=0.02, largest_weight=2.0, overlap=0.9, clip_count=0, mean_weight=1.0,
    mean_weight_error=0.03,
)  # fmt: skip


def group(mean: float | None, hosts: int = 50, cut_off: float | None = 0.01) -> LogGroup:
    """Episodes of one controller, whose mean weight for the candidate has a standard error of 0.03."""
    weight = MeanWeight(mean=mean, error=None if mean is None else 0.03)
    return LogGroup(
        set="benchmark", behaviour="explore", episodes=hosts, hosts=hosts, cut_off=cut_off, weights={CANDIDATE: weight}
    )


def judged(
    returns: Sequence[float],
    families: Sequence[str],
    support: LogSupport = ENOUGH,
    offsets: Sequence[float] = (0, 0),
    groups: Sequence[LogGroup] = (group(1.0), group(1.05)),
    host_episodes: Sequence[int] = (),
    cut_off: float | None = 0.01,
) -> list[Criterion]:
    """Trials with a mean return of 45 on both families, plus ``offsets``, and a log with the given returns."""
    rows = rows_of({"wait": 40.0, CANDIDATE: 45.0}, RunConfig(), 0)
    shifted = [value + offsets[row % 2] for row, value in enumerate(rows[1].returns)]
    trials = TrialReport(
        **OWN, set="benchmark", host_keys=list(range(HOSTS)), families=[FAMILIES[row % 2] for row in range(HOSTS)],
        controllers=[rows[0], rows[1].model_copy(update={"returns": shifted})], plans_digest=None,
    )  # fmt: skip
    count = len(returns)
    log = LogEvidence(
        estimator="PDWIS", snapshot_digest="0" * 64, behaviours={"explore": count}, left_out={}, episodes=count,
        sets=["benchmark"] * count, families=list(families), host_keys=list(range(count)),
        support={CANDIDATE: support}, returns=list(returns), gains={},
        groups=list(groups), host_episodes=list(host_episodes), cut_off=cut_off,
    )  # fmt: skip
    report = ValidationReport(
        **OWN, ordinal=1, policy_digest="1" * 64, champion_digest=None, snapshot_digest="0" * 64, trials=trials,
        differences={}, training_metrics={}, figures={}, log=log,
    )  # fmt: skip
    judgement = Judgement(ordinal=1, attempts=1, budget=0.025, alpha=0.01, spent=0.01)
    case = Case(report, GateConfig(), TrialConfig(), judgement, 0.0, "0" * 64)
    return list(log_contradiction.judge(case))


def around(mean: float, count: int = 100) -> list[float]:
    return (mean + np.linspace(-5.0, 5.0, count)).tolist()


@pytest.mark.parametrize(
    ("mean", "verdict", "side"),
    [(45.3, Verdict.PASS, "below"), (50.0, Verdict.FAIL, "below"), (40.0, Verdict.FAIL, "above")],
)
def test_only_intervals_that_do_not_touch_contradict(mean: float, verdict: Verdict, side: str) -> None:
    (found,) = judged(around(mean), FAMILIES * 50)
    assert found.verdict is verdict
    assert f"the trials are {side}" in found.evidence


def test_families_weigh_as_in_the_log() -> None:
    """The second family earns 20 points more, and is rare in the log: the plain mean of the trials is 55."""
    families = [FAMILIES[0]] * 90 + [FAMILIES[1]] * 10
    (found,) = judged(around(47.0), families, offsets=(0, 20))
    assert found.verdict is Verdict.PASS


def test_a_family_weighs_by_its_episodes_and_not_by_its_hosts() -> None:
    """The second family earns 20 points more, and each of its hosts was logged nine times."""
    families, often = FAMILIES * 50, [1, 9] * 50
    (found,) = judged(around(63.0), families, offsets=(0, 20), host_episodes=often)
    assert found.verdict is Verdict.PASS
    (by_hosts,) = judged(around(63.0), families, offsets=(0, 20))
    assert by_hosts.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("cut_off", "groups"),
    [(0.02, (group(1.0),)), (None, (group(1.0),)), (0.01, (group(1.0, cut_off=0.02),))],
    ids=["of a set", "not counted", "of a controller"],
)
def test_a_log_of_survivors_contradicts_nothing(cut_off: float | None, groups: Sequence[LogGroup]) -> None:
    assert judged(around(60.0), FAMILIES * 50, cut_off=cut_off, groups=groups) == []


def test_a_log_that_says_too_little_adds_no_line() -> None:
    poor = ENOUGH.model_copy(update={"effective_hosts": 20.0})
    assert judged(around(20.0), FAMILIES * 50, poor) == []
    assert judged(around(20.0), ["unknown"] * 100) == []


@pytest.mark.parametrize(
    "groups",
    [(group(1.0), group(0.8)), (group(1.0), group(None)), (group(1.0), group(1.0, 49)), ()],
    ids=["lacks actions", "says nothing", "too few hosts", "none"],
)
def test_a_log_in_which_one_controller_lacks_the_actions_adds_no_line(groups: Sequence[LogGroup]) -> None:
    assert judged(around(20.0), FAMILIES * 50, groups=groups) == []
    assert len(judged(around(20.0), FAMILIES * 50)) == 1
