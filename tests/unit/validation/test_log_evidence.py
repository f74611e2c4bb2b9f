"""Evidence of a log for the gate: estimates and bounds by hand, and criteria that reject for each fault of a log."""

from __future__ import annotations

from typing import Any

import measure_log_gate as world
import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from simic.contracts.names import CANDIDATE, WAIT
from simic.contracts.results.gate import Criterion, Verdict
from simic.contracts.results.log_evidence import LogEvidence, LogGroup, MeanWeight
from simic.contracts.state import HostIdentity
from simic.numerics.off_policy import LoggedEpisodes
from simic.validation.criteria import log_cut_off, log_mean_weight
from simic.validation.log_evidence import BEHAVIOUR, ROUNDING, LogUse, gain_bound, log_differences, log_evidence
from simic.validation.off_policy import LEAST_HOSTS, group_margin

ALPHA = 0.01


def evidence(
    ratios: list[float], returns: list[float], keys: list[int], behaviours: list[str] | None = None
) -> LogEvidence:
    """Episodes of one step with the given weights; those of one key are of one host."""
    even = np.full((1, len(ratios)), 0.5)
    with np.errstate(divide="ignore"):
        episodes = LoggedEpisodes.of(
            log_prob_target=np.log(even * ratios), log_prob_behaviour=np.log(even),
            rewards=np.array([returns]), valid=np.ones((1, len(ratios)), dtype=bool),
        )  # fmt: skip
    hosts = [HostIdentity(set="graftnet", family="narrow", key=key) for key in keys]
    return log_evidence(LogUse("0" * 64, {}, hosts, behaviours or ["lab"] * len(keys), [1]), {CANDIDATE: episodes})


def test_a_gain_is_the_weighted_mean_less_the_plain_one_with_hosts_as_units() -> None:
    found = evidence([2.0, 0.0, 1.0, 1.0], [10.0, 2.0, 4.0, 6.0], [5, 3, 3, 9])
    assert (found.host_keys, found.episodes) == ([3, 5, 9], 4)
    gain = log_differences(found, 0.95)[BEHAVIOUR]
    assert gain.mean == pytest.approx((2 * 10 + 4 + 6) / 4 - (10 + 2 + 4 + 6) / 4)
    assert gain.n == 3
    assert np.mean(found.returns) == pytest.approx(7.5)
    assert found.support[CANDIDATE].effective_hosts == pytest.approx(16.0 / (4 + 1 + 1))
    assert found.support[CANDIDATE].overlap == 0.75
    # Host 3: (weight 1, 4 points weighted, 6 plain); mean weight 4/3 and 4/3 episodes per host.
    assert found.gains[BEHAVIOUR][0] == pytest.approx(2.0 + (4 - 7.5 * 1) / (4 / 3) - (6 - 5.5 * 2) / (4 / 3))


def test_rounding_is_no_gain_and_a_policy_without_weight_has_no_estimate() -> None:
    found = evidence([1.0] * 4, [1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4])
    bound = gain_bound(found, BEHAVIOUR, ALPHA)
    assert bound is not None
    assert bound.bound == pytest.approx(-ROUNDING)
    assert bound.bound < 0.0
    none = evidence([0.0] * 4, [1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4])
    assert (none.returns, none.gains) == ([], {})
    assert gain_bound(none, BEHAVIOUR, ALPHA) is None
    assert log_differences(evidence([1.0], [1.0], [1]), 0.95) == {}


@pytest.mark.parametrize(
    ("of_set", "of_groups", "verdict"),
    [
        (0.0, (0.0, 0.0), Verdict.PASS),
        (0.01, (0.01, 0.0), Verdict.PASS),
        (0.0101, (0.0, 0.0), Verdict.FAIL),
        (0.005, (0.0, 0.0101), Verdict.FAIL),
        (None, (0.0, 0.0), Verdict.MISSING),
        (0.0, (0.0, None), Verdict.MISSING),
        (0.0, (), Verdict.MISSING),
    ],
)
def test_a_log_lacks_at_most_one_in_a_hundred_episodes_of_every_set_and_controller(
    of_set: float | None, of_groups: tuple[float | None, ...], verdict: Verdict
) -> None:
    groups = [group(1.0).model_copy(update={"cut_off": share}) for share in of_groups]
    log = evidence([1.0, 1.0], [1.0, 2.0], [1, 2]).model_copy(update={"cut_off": of_set, "groups": groups})
    assert [line.verdict for line in log_cut_off.judge(world.case_of(log, ALPHA))] == [verdict]


def test_numbers_per_host_are_one_per_host() -> None:
    found = evidence([1.0, 1.0], [1.0, 2.0], [1, 2]).model_dump()
    with pytest.raises(ValidationError, match=r"expected 2 entries, one per host, found \{'behaviour': 1\}"):
        LogEvidence.model_validate({**found, "gains": {BEHAVIOUR: [1.0]}})


@pytest.mark.parametrize(
    ("pay", "policy", "expected"),
    [
        (world.flat(4.0), world.GROWS, (True, True)),
        (world.flat(0.0), world.GROWS, (True, False)),
        (world.flat(-4.0), world.GROWS, (True, False)),
        (world.flat(4.0), world.WAITING, (True, False)),
        (world.flat(4.0), world.GROWS._replace(unlogged=0.2), (False, True)),
        (world.flat(4.0), world.GROWS._replace(keep=0.2), (False, True)),
        (world.flat(4.0), world.GROWS._replace(keep=0.85), (False, True)),
    ],
    ids=["better", "level", "worse", "waits", "actions that the log lacks", "few hosts like it", "noisy weights"],
)
def test_only_a_gain_on_sufficient_evidence_passes(pay: Any, policy: world.Policy, expected: tuple[bool, bool]) -> None:
    found = world.judged(world.log_of(np.random.default_rng(5), pay), policy, ALPHA)
    assert found[0] == expected[0]
    assert not expected[0] or found[1] == expected[1]


def test_each_controller_of_a_log_has_its_own_mean_weight() -> None:
    found = evidence([2.0, 0.0, 1.0, 0.5, 1.5], [1.0] * 5, [5, 3, 3, 9, 5], ["a", "a", "a", "b", "b"])
    assert found.behaviours == {"a": 3, "b": 2}
    a, b = found.groups
    assert [(one.set, one.behaviour, one.episodes, one.hosts) for one in found.groups] == [
        ("graftnet", "a", 3, 2),
        ("graftnet", "b", 2, 2),
    ]
    assert a.weights[CANDIDATE].mean == pytest.approx((2.0 + 0.0 + 1.0) / 3)
    assert b.weights[CANDIDATE].mean == pytest.approx((0.5 + 1.5) / 2)
    # Residuals of the two hosts are -0.5 and 0.5, so the standard deviation is 1 / sqrt(2), over the root of 2 hosts.
    # Half of Student's interval with one degree of freedom that holds 68.27 % is 1.837 standard errors.
    assert b.weights[CANDIDATE].error == pytest.approx(0.5 * 1.837, rel=1e-3)


def groups_line(*groups: LogGroup) -> Criterion:
    log = evidence([1.0, 1.0], [1.0, 2.0], [1, 2]).model_copy(update={"groups": list(groups)})
    lines = {line.name: line for line in log_mean_weight.judge(world.case_of(log, ALPHA))}
    return lines["log_mean_weight_groups_candidate"]


def group(mean: float | None, hosts: int = LEAST_HOSTS, behaviour: str = "lab") -> LogGroup:
    weight = MeanWeight(mean=mean, error=None if mean is None else 0.1)
    return LogGroup(set="graftnet", behaviour=behaviour, episodes=hosts, hosts=hosts, weights={CANDIDATE: weight})


@pytest.mark.parametrize(("hosts", "comparisons"), [(50, 1), (50, 40), (1000, 2), (100_000, 1)])
def test_groups_share_the_tail_beyond_three_standard_errors(hosts: int, comparisons: int) -> None:
    """Student's quantiles by scipy; an error in the evidence is half of the interval that holds 68.27 %."""
    tail = stats.norm.sf(3.0) / comparisons
    expected = stats.t.isf(tail, hosts - 1) / stats.t.isf((1.0 - 0.6827) / 2.0, hosts - 1)
    assert group_margin(0.1, hosts, comparisons) == pytest.approx(0.1 * expected, rel=1e-6)
    assert group_margin(0.0, hosts, comparisons) == 1e-3


def test_honest_logs_of_many_controllers_are_not_refused_more_often() -> None:
    """With three standard errors for each of 20 groups of 50 hosts, a tenth of normal logs were refused."""
    random, refused = np.random.default_rng(8), 0
    for _ in range(1000):
        values = random.normal(1.0, 1.0, (20, LEAST_HOSTS))
        errors = values.std(axis=1, ddof=1) / np.sqrt(LEAST_HOSTS) * stats.t.ppf(0.84135, LEAST_HOSTS - 1)
        margins = [group_margin(error, LEAST_HOSTS, 20) for error in errors.tolist()]
        refused += bool((np.abs(values.mean(axis=1) - 1.0) > margins).any())
    assert refused <= 10, "the share is 0.27 %"


def test_the_worst_group_decides_and_one_that_says_nothing_rejects() -> None:
    passes = group_margin(0.1, LEAST_HOSTS, 4)  # two groups, for the candidate and for wait
    assert groups_line(group(1.0 + 0.99 * passes), group(1.0 - 0.99 * passes)).verdict is Verdict.PASS
    far = groups_line(group(1.0), group(1.0 - 1.01 * passes, behaviour="graftnet-random"))
    assert (far.verdict, far.value) == (Verdict.FAIL, pytest.approx(1.01))
    assert "2 groups for 2 policies" in far.evidence
    assert "the farthest is that of graftnet-random on graftnet" in far.evidence
    for groups in ([], [group(1.0), group(None, behaviour="guest")], [group(1.0, LEAST_HOSTS - 1)]):
        assert groups_line(*groups).verdict is Verdict.MISSING
    of_others = group(1.0).model_copy(update={"weights": {}})
    assert groups_line(of_others).verdict is Verdict.MISSING


@pytest.mark.parametrize(
    "begin",
    [
        "seeds gain 2 points; 10 % of the trainings",
        "the same, and 3,000 whole",
        "seeds change nothing; 5 % of the hosts",
    ],
)
def test_a_gain_that_only_the_log_makes_is_no_sufficient_evidence(begin: str) -> None:
    """Crashed episodes are missing, or those of poor hosts alone wait: the bounds pass, and no gain is true."""
    (scene,) = (scene for name, scene in world.NULLS.items() if name.startswith(begin))
    log = world.log_of(np.random.default_rng(5), scene.pay, scene.crashes, scene.other, scene.guests)
    assert world.judged(log, scene.policy, ALPHA) == (False, True)


def test_a_log_in_which_nothing_waits_says_nothing_about_never_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "LOGGER", world.Policy((0.0, 0.5, 0.5), 0.95))
    log = world.log_of(np.random.default_rng(5), world.flat(4.0))
    assert (log.first > 0).all()
    assert world.judged(log, world.Policy((0.0, 0.6, 0.4), 0.97), ALPHA) == (False, False)
    assert WAIT not in log_evidence(LogUse("0" * 64, {}, [], [], []), {}).support
