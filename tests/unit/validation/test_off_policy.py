"""The judgement of a log: verdicts, and every way in which evidence is insufficient."""

from __future__ import annotations

import measure_log_gate as world
import numpy as np
import pytest
from numpy.typing import NDArray

from simic.contracts.results.off_policy import EvaluationVerdict
from simic.numerics.off_policy import LoggedEpisodes
from simic.validation import off_policy
from simic.validation.off_policy import GROUPS, LEAST_HOSTS, Group, OffPolicyJudgement, lower_bounds, no_judgement


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_policy, "SAMPLES", 300)


def bandit(
    n: int = 400,
    target: float = 0.7,
    behaviour: float = 0.5,
    gain: float = 4.0,
    *,
    supported: float = 1.0,
    seed: int = 0,
) -> LoggedEpisodes:
    """One step and two arms: arm 1, which the behaviour pulls with probability ``behaviour``, pays ``gain`` more.

    The target's probabilities of both arms sum to ``supported``; the rest is an arm that the log never has.
    """
    generator = np.random.default_rng(seed)
    arms = generator.random(n) < behaviour
    own, logged = np.where(arms, target, supported - target), np.where(arms, behaviour, 1.0 - behaviour)
    return LoggedEpisodes.of(
        log_prob_target=np.log(np.maximum(own, 0.0), where=own > 0, out=np.full(n, -np.inf))[None],
        log_prob_behaviour=np.log(logged)[None],
        rewards=(gain * arms + generator.normal(size=n))[None],
        valid=np.ones((1, n), dtype=bool),
    )


def judge(episodes: LoggedEpisodes, hosts: NDArray[np.int64], groups: list[Group] | None = None) -> OffPolicyJudgement:
    """Judge a log from which nothing was cut off, of one controller unless ``groups`` are given."""
    return off_policy.judge(episodes, hosts, groups or [("benchmark", "explore")] * len(hosts), 0, 0.0)


def verdict_of(episodes: LoggedEpisodes) -> tuple[EvaluationVerdict, list[str]]:
    found = judge(episodes, np.arange(episodes.rewards.shape[1]))
    return found.verdict, [check.name for check in found.checks if not check.passes]


def test_better_worse_and_equal_policies_are_told_apart() -> None:
    assert verdict_of(bandit(target=0.7)) == (EvaluationVerdict.BETTER, [])
    assert verdict_of(bandit(target=0.3)) == (EvaluationVerdict.WORSE, [])
    assert verdict_of(bandit(target=0.7, gain=0.0)) == (EvaluationVerdict.NOT_SHOWN, [])
    same = judge(bandit(target=0.5), np.arange(400))
    assert same.verdict is EvaluationVerdict.NOT_SHOWN
    assert same.rows[-1].difference.value == pytest.approx(0.0, abs=1e-9)
    assert same.rows[-1].effective_sample_size == pytest.approx(400)


@pytest.mark.parametrize(
    ("episodes", "failed"),
    [
        (bandit(n=40), {"hosts", "effective number of hosts"}),
        (bandit(n=2000, target=0.99, behaviour=0.01), {"effective number of hosts"}),
        (bandit(n=2000, target=0.5, supported=0.5), {"mean weight"}),
        (
            bandit(n=400, target=0.0, behaviour=1.0),
            {"effective number of hosts", "largest share of one host", "mean weight"},
        ),
    ],
)
def test_too_little_evidence_is_no_verdict(episodes: LoggedEpisodes, failed: set[str]) -> None:
    verdict, names = verdict_of(episodes)
    assert verdict is EvaluationVerdict.INSUFFICIENT
    assert failed <= set(names)


@pytest.mark.parametrize(("n", "shift"), [(400, 0.1), (400, 0.15), (1000, 0.15), (4000, 0.05)])
@pytest.mark.parametrize("missing", [0.1, 0.2])
def test_a_policy_with_actions_that_the_log_lacks_is_never_better(n: int, shift: float, missing: float) -> None:
    """20 binary choices, of which the first one pays; noisy weights must not hide what is missing.

    With probability ``missing`` the target begins with an action that the log never has, whatever that one costs.
    """
    generator = np.random.default_rng(n)
    first = generator.random((20, n)) < 0.5
    log_prob = np.log(np.where(first, 0.5 + shift, 0.5 - shift))
    log_prob[0] += np.log(1.0 - missing)
    episodes = LoggedEpisodes.of(
        log_prob_target=log_prob,
        log_prob_behaviour=np.full(first.shape, np.log(0.5)),
        rewards=first.astype(np.float64),
        valid=np.ones(first.shape, dtype=bool),
    )
    verdict, failed = verdict_of(episodes)
    assert verdict is EvaluationVerdict.INSUFFICIENT
    assert "mean weight" in failed


def test_one_dominant_host_is_insufficient() -> None:
    weights = np.full((1, 600), 0.0)
    weights[0, 0] = np.log(80.0)
    episodes = bandit(n=600)._replace(log_weights=weights)
    assert "largest share of one host" in verdict_of(episodes)[1]


def test_episodes_of_one_host_count_as_one_unit() -> None:
    episodes = bandit(n=400)
    verdict = judge(episodes, np.arange(400) % 20)
    assert verdict.verdict is EvaluationVerdict.INSUFFICIENT
    assert verdict.checks[0].found == 20
    assert judge(episodes, np.zeros(400, dtype=int)).rows == [], "one host has no spread"


def test_a_model_must_agree_before_there_is_a_verdict() -> None:
    episodes = bandit()
    noise = np.random.default_rng(1).normal(0.0, 200.0, size=episodes.rewards.shape)
    found = judge(episodes._replace(q_values=noise, state_values=noise), np.arange(400))
    assert found.judged_by == ["PDWIS", "WDR"]
    assert found.verdict is EvaluationVerdict.NOT_SHOWN, "the doubly robust interval is wide"
    assert {row.estimator for row in found.rows} == {"IS", "PDIS", "WIS", "PDWIS", "DR", "WDR", "MAGIC"}


def test_an_empty_log_is_insufficient() -> None:
    found = no_judgement(0)
    assert (found.verdict, found.checks[0].passes) == (EvaluationVerdict.INSUFFICIENT, False)


def test_false_verdicts_are_rare_where_the_target_equals_the_behaviour_in_value() -> None:
    """100 logs in which no policy is better: at a level of 5 % about 5 verdicts are false."""
    shown = [verdict_of(bandit(n=300, target=0.7, gain=0.0, seed=seed))[0] for seed in range(100)]
    false = sum(verdict in (EvaluationVerdict.BETTER, EvaluationVerdict.WORSE) for verdict in shown)
    assert false <= 5 + 3 * np.sqrt(100 * 0.05 * 0.95)
    assert EvaluationVerdict.NOT_SHOWN in shown


def test_lower_bounds_are_below_the_value_and_the_variance_helps() -> None:
    episodes = bandit(n=4000, gain=4.0)
    found = {bound.method: bound.value for bound in lower_bounds(episodes, np.arange(4000), -6.0, 10.0, 0.0)}
    assert -6.0 <= found["Hoeffding"] < found["empirical Bernstein"] < 2.8
    with pytest.raises(ValueError, match="returns must lie"):
        lower_bounds(episodes, np.arange(4000), 0.0, 1.0, 0.0)


def test_lower_bounds_count_what_was_cut_off_as_the_lowest_return() -> None:
    """The policy that logged is judged: two in five of its trainings crash, which is worth 0, and the others 90."""
    ends, true = 20_000, 0.6 * 90.0
    same, whole = np.full((1, ends), -1.0), np.ones((1, ends), dtype=bool)
    episodes = LoggedEpisodes.of(
        log_prob_target=same, log_prob_behaviour=same, rewards=np.full((1, ends), 90.0), valid=whole
    )
    survivors, all_of_it = (lower_bounds(episodes, np.arange(ends), 0.0, 100.0, share) for share in (0.0, 0.4))
    assert all(bound.value > true for bound in survivors)
    assert all(40.0 < bound.value < true for bound in all_of_it)


def two_controllers(seed: int, hosts: int) -> world.Log:
    """Planting changes nothing; a second controller only waits, on hosts that earn 20 points less."""
    other = world.Other(world.Policy((1.0, 0.0, 0.0), 0.95), hosts, 20.0)
    return world.log_of(np.random.default_rng(seed), world.flat(0.0), other=other)


def judged(log: world.Log) -> OffPolicyJudgement:
    groups = [(world.SET, behaviour) for behaviour in log.behaviours]
    return judge(world.weighted(log, world.GROWS), np.arange(len(log.first)), groups)


def test_hosts_of_a_controller_that_lacks_the_actions_make_no_policy_better() -> None:
    """Over the whole log alone most of these logs call a policy better that gains nothing."""
    found = [judged(two_controllers(seed, LEAST_HOSTS)) for seed in range(20)]
    assert {one.verdict for one in found} == {EvaluationVerdict.INSUFFICIENT}
    whole = [check for one in found for check in one.checks if check.name == "mean weight"]
    assert sum(check.passes for check in whole) > 10
    groups = [check for one in found for check in one.checks if check.name == GROUPS]
    assert not any(check.passes for check in groups)
    assert all("for that of other on graftnet, the farthest" in check.expected for check in groups)


def test_a_second_controller_with_the_actions_changes_no_verdict() -> None:
    found = [
        judged(world.log_of(np.random.default_rng(seed), world.flat(4.0), other=world.ALIKE)).verdict
        for seed in range(10)
    ]
    assert found.count(EvaluationVerdict.BETTER) >= 8


def test_a_group_of_few_hosts_or_of_one_is_insufficient() -> None:
    for hosts in (1, LEAST_HOSTS - 1):
        log = two_controllers(0, hosts)
        groups = [(world.SET, "other" if row < hosts else "logger") for row in range(len(log.first))]
        found = judge(world.weighted(log, world.LOGGER), np.arange(len(log.first)), groups)
        (check,) = (check for check in found.checks if check.name == GROUPS)
        assert (check.found, check.passes, found.verdict) == (None, False, EvaluationVerdict.INSUFFICIENT)
        assert f"each of {LEAST_HOSTS} hosts or more" in check.expected


@pytest.mark.parametrize(("share", "passes"), [(0.01, True), (0.0101, False), (None, False)])
def test_a_share_cut_off_that_is_large_or_unknown_does_not_pass(share: float | None, passes: bool) -> None:
    found = off_policy.judge(bandit(), np.arange(400), [("benchmark", "explore")] * 400, 0, share)
    assert found.checks[-1].passes is passes
    assert (found.verdict is EvaluationVerdict.INSUFFICIENT) is not passes
