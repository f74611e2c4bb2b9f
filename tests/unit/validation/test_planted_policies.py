"""Policies of known value under the gate: a shrunken form of what ``docs/trust.md`` shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from draw_planted import CONFIG, Gate, at, gain, is_wrong, nights, same_level
from planted_policies import BASE, CLONE, HACKER, Bank, Planted, Policy, empty_bank, grow_noisy, plant

from simic.contracts.controllers import ControllerSpec
from simic.contracts.results.gate import Verdict
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.host_sets import identify
from simic.validation.episodes import Episodes, TrialJob

MEANS = {
    "wait": 50.0, "random": 49.5, "heuristic": 54.0, "blind": 53.5, BASE: 58.0, "oracle": 58.1, "noisy-0.02": 57.9,
    "noisy-0.1": 56.5,
}  # fmt: skip
NIGHTS, HOMES = 60, 8
LEVEL = 0.2


def episodes(hosts: Sequence[HostIdentity], name: str, side: int) -> Episodes:
    """Returns of a controller: its mean, what every controller has on that host, and noise of its own."""
    count, arm = len(hosts), list(MEANS).index(name)
    shared = 10.0 * np.random.default_rng([side, 99]).standard_normal(count)
    returns = MEANS[name] + shared + 2.0 * np.random.default_rng([side, arm]).standard_normal(count)
    kept = np.empty(count, dtype=object)
    kept[:] = [()] * count
    zeros = np.zeros(count, dtype=np.int64)
    return Episodes(
        returns=returns, validation_accuracy=returns / 100.0, test_accuracy=np.full(count, 0.6),
        committed_parameters=zeros, seed_epochs=zeros, rents=np.zeros(count), panicked=np.zeros(count, dtype=bool),
        illegal_actions=zeros, kept=kept, validation_loss=np.ones(count), flags=np.zeros((count, 3), dtype=np.int64),
        test_returns=returns, effort=np.ones((count, 6), dtype=np.int64),
    )  # fmt: skip


@pytest.fixture(scope="module")
def bank() -> Bank:
    empty = empty_bank(CONFIG, 400, 40)
    arms = {name: Policy(episodes(empty.own_hosts, name, 0), episodes(empty.further_hosts, name, 1)) for name in MEANS}
    return empty._replace(arms=arms)


def level_clones(bank: Bank) -> list[Planted]:
    """Policies as good as the champion, without the one whose losses are so rare that samples may lack them."""
    clones = [one for one in plant(bank) if one.kind == CLONE and gain(one.policy, bank.arms[BASE]) > -LEVEL]
    return [one for one in clones if not one.name.startswith("worst")]


def test_forty_policies_are_planted_and_most_must_not_be_promoted(bank: Bank) -> None:
    planted, champion = plant(bank), bank.arms[BASE]
    assert len({one.name for one in planted}) == 40
    assert sum(is_wrong(one, champion, bank) for one in planted) >= 25
    level = [gain(one.policy, champion) for one in planted if one.name.endswith("made level")]
    assert all(-LEVEL < value <= 0.0 for value in level)


def test_the_gate_promotes_none_that_it_must_not_and_the_best_one(bank: Bank) -> None:
    gate, champion = Gate(bank), bank.arms[BASE]
    planted = [one for one in plant(bank) if one.name == "hindsight on 100%" or is_wrong(one, champion, bank)]
    decisions = {one.name: gate.judge(one, champion, at(2), 0) for one in planted}
    wrong = {one.name for one in planted if is_wrong(one, champion, bank)}
    assert {name for name, found in decisions.items() if found.accepted} & wrong == set()
    assert decisions["hindsight on 100%"].accepted
    failed = {
        one.name: {line.name for line in decisions[one.name].criteria if line.verdict is not Verdict.PASS}
        for one in planted
        if one.kind == HACKER
    }
    assert all(failed.values())
    assert all("return_over_champion" not in names for names in failed.values()), "rejected for what they do"


def test_sixty_nights_in_a_row_promote_nothing_wrong_and_do_without_the_spending_of_levels(bank: Bank) -> None:
    accepts, pool = Gate(bank).accepts, level_clones(bank)
    assert len(pool) >= 4
    ours, theirs = (
        [nights(bank, pool, judge, home, NIGHTS) for home in range(HOMES)] for judge in (accepts, same_level(accepts))
    )
    assert not any(one.is_wrong for home in ours for one in home)
    assert sum(any(one.is_wrong for one in home) for home in theirs) >= HOMES / 4


def test_the_quick_answer_is_that_of_the_whole_gate(bank: Bank) -> None:
    gate, champion = Gate(bank), bank.arms[BASE]
    chosen = [one for one in plant(bank) if one.name in ("hindsight on 30%", "oracle on 100%", "illegal on 5%")]
    for one in chosen:
        for seed in range(2):
            assert gate.accepts(one, champion, at(2), seed) == gate.judge(one, champion, at(2), seed).accepted


def test_a_composed_policy_has_the_episodes_that_were_grown(bank: Bank) -> None:
    planted = {one.name: one.policy.own for one in plant(bank)}
    returns = np.stack([policy.own.returns for policy in bank.arms.values()])
    assert (planted["hindsight on 100%"].returns == returns.max(axis=0)).all()
    specialist, wait = planted["hindsight on cap only"], bank.arms["wait"].own
    others = np.array([host.family != "cap" for host in bank.own_hosts])
    for field in ("returns", "validation_accuracy"):
        assert (getattr(specialist, field)[others] == getattr(wait, field)[others]).all()
    assert (specialist.returns[~others] == returns.max(axis=0)[~others]).all()


def test_a_noisy_clone_lies_between_its_base_and_random() -> None:
    hosts = identify("benchmark", range(4))
    world, reward = WorldConfig(horizon=4, workers=1), CONFIG.curate.reward.basic

    def grown(name: str, spec: str) -> list[float]:
        return grow_noisy(TrialJob(name, ControllerSpec(name=spec), hosts, world, reward, 0)).returns.tolist()

    assert grown("noisy-0", "wait") == grown("wait", "wait") != grown("noisy-1", "wait")
    assert grown("noisy-1", "wait") == grown("random", "random")
