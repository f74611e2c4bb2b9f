"""The search for plans and rules, on a made-up world whose best ones are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from simic.contracts.controllers import ControllerSpec, HeuristicRules, Plan, PlanBook, PlannedSeed
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.hosts import host_sets as keys_module
from simic.hosts.host_sets import host_set
from simic.runtime.seeds import generator
from simic.trust.canonical import digest_of
from simic.validation.baselines import halving
from simic.validation.baselines.halving import EpisodeRunner, Rung, Scores, halve
from simic.validation.baselines.plan_book import searched_world, write_book
from simic.validation.baselines.search import SearchSettings, search_plans
from simic.validation.baselines.symptom_tree import TreeSettings, add_tree
from simic.validation.episodes import Episodes

WORLD = WorldConfig(workers=1, chunk=16)
SETTINGS = SearchSettings(
    plan_rungs=(Rung(1_000, 3), Rung(30, 6), Rung(8, 12)),
    rule_candidates=60,
    rule_rungs=(Rung(1_000, 2), Rung(8, 4, 3), Rung(4, 12)),
    extension_rungs=(Rung(1_000, 2), Rung(8, 12)),
    duel_hosts=20,
    exchange_hosts=20,
    confirm_hosts=20,
    tree=TreeSettings(hosts=4, depth=2, leaf_hosts=2),
)
HOSTS_OF_PLANS, HOSTS_OF_RULES = 5 * (3 + 6 + 12 + 20), 5 * (2 + 4 + 12)
TREE_WORTH = 1.25
"""Over never growing, whatever plans the tree chooses."""
HEAVY = ("heavy", 0)
Worth = Callable[[Plan, str], float]
RulesWorth = Callable[[HeuristicRules], float]
Install = Callable[..., "Played"]


class Played:
    """What the made-up world was asked for."""

    def __init__(self) -> None:
        self.hosts: list[HostIdentity] = []
        self.rules: list[HeuristicRules] = []
        self.plans: list[Plan] = []


def worthless(rules: HeuristicRules) -> float:
    return -1.0


def patient(rules: HeuristicRules) -> float:
    """Gate first, kept easily, is worth most; by hand it is worth little."""
    return 4.0 * (rules.blueprints[:1] == ["gate"]) + 2.0 * (rules.keep <= 0.005) - 1.0


def specialised(plan: Plan, family: str) -> float:
    """Each family has one blueprint and slot of its own; ``gate`` is a fair compromise everywhere."""
    wanted = {"cap": ("heavy", 0), "select": ("gate", 1), "gain": ("norm", 2), "noisy": ("dropout", 0)}
    return sum(_worth_of(seed, wanted.get(family), family) for seed in plan.seeds)


def _worth_of(seed: PlannedSeed, wanted: tuple[str, int] | None, family: str) -> float:
    late = 0.5 * seed.epoch
    if wanted == (seed.blueprint, seed.slot):
        return 12.0 - late
    return 3.0 - late if (seed.blueprint, seed.slot) == ("gate", 1) and family != "fine" else -4.0


def harmful(plan: Plan, family: str) -> float:
    return -2.0 if plan.seeds else 0.0


def noise(host: HostIdentity, spec: ControllerSpec) -> float:
    return float(generator(host.key, spec.model_dump_json()).normal(0.0, 3.0))


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replace growing by a table of worths, a level per host and noise per (host, candidate)."""

    def install(worth: Worth, rules_worth: RulesWorth = worthless, *, is_noisy: bool = True) -> Played:
        played = Played()

        def value(spec: ControllerSpec, host: HostIdentity) -> float:
            level = 50.0 + host.key % 40
            if spec.name == "wait":
                return level
            if spec.tree is not None:
                return level + TREE_WORTH
            if spec.rules is not None:
                played.rules.append(spec.rules)
                own = rules_worth(spec.rules)
            else:
                assert spec.plan is not None
                played.plans.append(spec.plan)
                own = worth(spec.plan, host.family)
            return level + own + (noise(host, spec) if is_noisy else 0.0)

        def run(job: halving._Job) -> Episodes:
            played.hosts.extend(job.trial.hosts)
            returns = [value(job.specs[which], host) for which, host in zip(job.which, job.trial.hosts, strict=True)]
            nothing = np.zeros(len(returns))
            none = nothing.astype(np.int64)
            return Episodes(
                returns=np.array(returns),
                validation_accuracy=nothing,
                test_accuracy=nothing,
                committed_parameters=none,
                seed_epochs=none,
                rents=nothing,
                panicked=nothing.astype(np.bool_),
                validation_loss=nothing,
                test_returns=np.array(returns),
                illegal_actions=none,
                kept=none.astype(object),
                flags=np.zeros((len(returns), 3), dtype=np.int64),
                effort=np.zeros((len(returns), 6), dtype=np.int64),
            )

        monkeypatch.setattr(halving, "_grow_mixed", run)
        return played

    return install


def search(settings: SearchSettings = SETTINGS, world: WorldConfig = WORLD, seed: int = 0) -> PlanBook:
    return search_plans(world, RewardConfig(), settings, seed=seed)


def places(plan: Plan) -> list[tuple[str, int]]:
    return [(seed.blueprint, seed.slot) for seed in plan.seeds]


def test_the_best_plan_of_each_family_and_the_best_compromise_are_found(pretend: Install) -> None:
    pretend(specialised)
    book = search()
    assert {family: places(plan) for family, plan in book.by_family.items()} == {
        "cap": [("heavy", 0)], "select": [("gate", 1)], "gain": [("norm", 2)], "noisy": [("dropout", 0)], "fine": [],
    }  # fmt: skip
    assert places(book.blind) == [("gate", 1)]
    nothing = book.family_over_wait["fine"]
    assert (nothing.mean, nothing.lower, nothing.upper) == (0.0, 0.0, 0.0)
    assert book.family_over_wait["cap"].mean == pytest.approx(11.5, abs=2.5)
    assert (book.family_over_wait["cap"].n, book.blind_over_wait.n) == (20, 100)
    assert book.blind_over_wait.lower < book.blind_over_wait.mean < book.blind_over_wait.upper
    assert book.candidates == 145


def test_where_growing_hurts_never_growing_wins(pretend: Install) -> None:
    pretend(harmful)
    book = search()
    assert [plan.seeds for plan in (book.blind, *book.by_family.values())] == [[]] * 6
    assert book.blind_over_wait.mean == 0.0


def test_plans_that_were_only_lucky_lose_to_never_growing(pretend: Install) -> None:
    """Enough of 145 slightly harmful plans look good on three hosts to push never growing out of the field."""
    pretend(lambda plan, _family: -1.5 if plan.seeds else 0.0)
    settings = SearchSettings(
        plan_rungs=(Rung(1_000, 3), Rung(20, 80)), rule_candidates=1, rule_rungs=(Rung(2, 1),), confirm_hosts=2
    )
    book = search(settings)
    assert all(plan.seeds == [] for plan in (book.blind, *book.by_family.values()))


def test_only_training_hosts_are_used_and_the_last_ones_selected_nothing(pretend: Install) -> None:
    played = pretend(specialised)
    book = search()
    assert book.symptom is not None
    parts = (book.host_keys, book.heuristic.host_keys, book.confirm_keys, book.symptom.host_keys)
    used = [key for part in parts for key in part]
    assert [len(part) for part in parts] == [HOSTS_OF_PLANS, HOSTS_OF_RULES, 100, 20]
    assert len(set(used)) == len(used)
    assert {host.key for host in played.hosts} == set(used)
    assert {split_of("benchmark", key) for key in used} == {Split.TRAIN}


def test_a_lucky_winner_is_not_reported_at_its_luck(pretend: Install) -> None:
    """Nothing is worth anything: the winners of many noisy candidates are measured again on new hosts."""
    pretend(lambda _plan, _family: 0.0, lambda _rules: 0.0)
    book = search()
    assert all(abs(worth.mean) < 2.5 for worth in book.family_over_wait.values())
    assert abs(book.heuristic.over_wait.mean) < 1.2


def test_the_rules_written_down_by_hand_are_tried_and_better_ones_are_found(pretend: Install) -> None:
    played = pretend(harmful, patient)
    book = search()
    by_hand = HeuristicRules()
    assert by_hand in played.rules
    assert book.heuristic.rules.blueprints[0] == "gate"
    assert book.heuristic.rules.keep <= 0.005
    assert book.heuristic.over_wait.mean == pytest.approx(5.0, abs=1.2)
    assert book.heuristic.by_hand_over_wait.mean == pytest.approx(patient(by_hand), abs=1.2)
    assert book.heuristic.candidates == len({rules.model_dump_json() for rules in played.rules}) > 60


def test_rules_written_down_by_hand_stay_when_others_were_only_lucky(pretend: Install) -> None:
    """They are in the last field although the luckiest of many on a few hosts pushed them out of the first."""
    pretend(harmful, lambda rules: 0.5 if rules == HeuristicRules() else 0.0)
    settings = SearchSettings(
        plan_rungs=(Rung(1_000, 1),), rule_candidates=60, rule_rungs=(Rung(1_000, 1), Rung(3, 80)), confirm_hosts=2
    )
    book = search(settings)
    assert book.heuristic.rules == HeuristicRules()
    assert book.heuristic.over_wait == book.heuristic.by_hand_over_wait


def test_the_same_seed_finds_the_same_book_and_another_seed_tries_other_rules(pretend: Install, tmp_path: Path) -> None:
    played = pretend(specialised, patient)
    first, second = search(), search()
    assert digest_of(first) == digest_of(second)
    tried = {rules.model_dump_json() for rules in played.rules}
    other = search(seed=1)
    assert other.seed == 1
    assert (other.blind, other.host_keys) == (first.blind, first.host_keys)
    assert {rules.model_dump_json() for rules in played.rules} != tried
    path = tmp_path / "benchmark.json"
    write_book(first, path)
    content = path.read_bytes()
    write_book(second, path)
    assert path.read_bytes() == content
    assert PlanBook.model_validate_json(content) == first
    assert [item.name for item in tmp_path.iterdir()] == ["benchmark.json"]


def test_a_tree_of_the_books_plans_is_fitted_and_can_be_fitted_again_alone(pretend: Install) -> None:
    """It begins every plan after the first epoch, and alone it changes nothing else in the book."""
    pretend(specialised)
    book = search()
    fitted = book.symptom
    assert fitted is not None
    assert {*map(tuple, map(places, fitted.tree.plans))} == {
        (), (("gate", 1),), (("heavy", 0),), (("norm", 2),), (("dropout", 0),),
    }  # fmt: skip
    assert fitted.tree.plans[0].seeds == []
    assert (fitted.over_wait.mean, fitted.over_wait.n) == (TREE_WORTH, 100)
    assert (fitted.depth, fitted.leaf_hosts) == (2, 2)
    without = book.model_copy(update={"symptom": None})
    assert add_tree(WORLD, without, SETTINGS.tree) == book


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> WorldConfig:
    """A set of two families whose hosts take three seeds."""
    of_two = host_set("benchmark")._replace(families=("cap", "gain"), seeds_max=3)
    monkeypatch.setitem(keys_module.SETS, "roomy", of_two)
    return WORLD.model_copy(update={"set": "roomy"})


def paired(plan: Plan, family: str) -> float:
    """Hosts of ``gain`` want two seeds together; for ``cap`` one is enough; a third is always too much."""
    wanted = [("heavy", 0)] if family == "cap" else [("gate", 0), ("norm", 2)]
    hits = sum(place in wanted for place in places(plan))
    return (20.0 if family == "gain" and hits == 2 else 8.0 * min(hits, 1)) - 3.0 * (len(plan.seeds) - hits)


def test_plans_grow_seed_by_seed_as_long_as_that_pays(pretend: Install, roomy: WorldConfig) -> None:
    played = pretend(paired)
    book = search(world=roomy)
    assert sorted(places(book.by_family["gain"])) == [("gate", 0), ("norm", 2)]
    assert places(book.by_family["cap"]) == [("heavy", 0)], "a second seed that does not pay was kept"
    assert max(len(plan.seeds) for plan in played.plans) == 3, "the pair was never extended"
    assert book.family_over_wait["gain"].mean == pytest.approx(20.0, abs=2.5)
    assert len({*book.host_keys, *book.confirm_keys}) == len(book.host_keys) + len(book.confirm_keys)
    for plan in (book.blind, *book.by_family.values()):
        assert len({seed.epoch for seed in plan.seeds}) == len({seed.slot for seed in plan.seeds}) == len(plan.seeds)


def test_a_second_seed_that_is_only_lucky_is_not_kept(pretend: Install, roomy: WorldConfig) -> None:
    """Of many extensions worth nothing the luckiest wins its field, and then has to beat the single seed elsewhere."""
    pretend(lambda plan, _family: 5.0 if ("heavy", 0) in places(plan) else 0.0)
    book = search(world=roomy)
    chosen: Sequence[Plan] = [book.blind, *book.by_family.values()]
    assert [places(plan) for plan in chosen] == [[("heavy", 0)]] * 3


def test_where_one_seed_does_not_pay_none_is_added(pretend: Install, roomy: WorldConfig) -> None:
    played = pretend(harmful)
    book = search(world=roomy)
    assert book.blind.seeds == []
    assert max(len(plan.seeds) for plan in played.plans) == 1


def test_lf41_the_winner_of_one_group_can_be_that_of_another(pretend: Install, roomy: WorldConfig) -> None:
    """For hosts of ``gain`` no single seed pays, so their own search never comes to the pair that does."""

    def together(plan: Plan, family: str) -> float:
        hits = {("heavy", 0), ("norm", 2)} & {*places(plan)}
        if family == "gain":
            return {1: -2.0, 2: 20.0}.get(len(hits), -2.0 * len(plan.seeds))
        return 8.0 * len(hits) - 3.0 * len(plan.seeds)

    pretend(together)
    book = search(world=roomy)
    assert [sorted(places(plan)) for plan in book.by_family.values()] == [[("heavy", 0), ("norm", 2)]] * 2


def test_lf41_a_plan_of_another_group_must_beat_the_groups_own(pretend: Install, roomy: WorldConfig) -> None:
    """For hosts of ``cap`` the second seed of the pair that ``gain`` wants costs too little to be seen on few hosts."""

    def nearly_shared(plan: Plan, family: str) -> float:
        hits = {("heavy", 0), ("norm", 2)} & {*places(plan)}
        others = -3.0 * (len(plan.seeds) - len(hits))
        if family == "gain":
            return 10.0 * len(hits) + others
        return others + 10.0 * (("heavy", 0) in hits) - 0.3 * (("norm", 2) in hits)

    pretend(nearly_shared)
    books = [search(replace(SETTINGS, first_key=2**30 + 50_000 * turn), roomy) for turn in range(8)]
    assert [places(book.by_family["cap"]) for book in books] == [[("heavy", 0)]] * len(books)
    assert all(len(book.by_family["gain"].seeds) == 2 for book in books)


def test_a_variation_of_one_seed_does_not_pay_for_another(pretend: Install, roomy: WorldConfig) -> None:
    """An extension with a better alpha of its first seed beats its parent, but not itself without the second seed."""

    def partial_alpha(plan: Plan, _family: str) -> float:
        gains = [5.0 + 4.0 * (seed.alpha_target == 0.5) for seed in plan.seeds if (seed.blueprint, seed.slot) == HEAVY]
        return sum(gains) - 1.0 * len(plan.seeds)

    played = pretend(partial_alpha, is_noisy=False)
    book = search(replace(SETTINGS, extension_rungs=(Rung(1_000, 2), Rung(30, 2, 12))), roomy)
    assert any(len(plan.seeds) == 2 and plan.seeds[0].alpha_target == 0.5 for plan in played.plans)
    assert [places(plan) for plan in (book.blind, *book.by_family.values())] == [[HEAVY]] * 3


def test_most_variations_are_plans_that_were_not_tried_and_the_seed_draws_them(pretend: Install) -> None:
    played = pretend(harmful)
    rungs = (Rung(1_000, 2), Rung(8, 2, 3), Rung(4, 2))
    books, tried = [], []
    for seed in (0, 0, 1):
        played.plans.clear()
        books.append(search(replace(SETTINGS, plan_rungs=rungs), seed=seed))
        tried.append({plan.model_dump_json() for plan in played.plans})
    variations = [book.candidates - 145 for book in books]
    most = 6 * 8 * 3  # groups, survivors, variations of each
    assert 0.9 * most < min(variations) <= max(variations) <= most, variations
    assert digest_of(books[0]) == digest_of(books[1])
    assert tried[0] == tried[1] != tried[2]


def test_candidates_and_their_variations_are_cut_by_the_same_hosts() -> None:
    """A candidate that was lucky before its variations joined is not kept for that."""

    class Runner:
        def run(self, label: str, pairs: set[tuple[int, int]], hosts: int) -> Scores:
            first = {(1, 0): [30.0, 0.0], (2, 0): [10.0, 0.0]}
            second = {(1, 0): [0.0, 0.0], (2, 0): [1.0, 0.0], (3, 0): [2.0, 0.0], (4, 0): [3.0, 0.0]}
            known = first if label == "plans 1/3" else second
            return Scores({pair: np.array([known[pair]] * hosts) for pair in pairs})

    rungs = (Rung(2, 4), Rung(2, 4, 1), Rung(2, 4))
    ranked = halve(cast("EpisodeRunner", Runner()), "plans", [[1, 2]], [(0,)], rungs, vary=lambda old: old + 2)
    assert ranked == [[4, 3]]


def test_lf43_partial_alpha_and_long_ramps_are_tried(pretend: Install) -> None:
    def gentle(plan: Plan, family: str) -> float:
        return specialised(plan, family) + sum(
            8.0 * (seed.alpha_target == 0.5) + 8.0 * (seed.alpha_speed == 8) for seed in plan.seeds
        )

    pretend(gentle)
    rungs = (Rung(1_000, 3), Rung(24, 6, 4), Rung(24, 6, 4), Rung(6, 12))
    seeds = [seed for plan in search(replace(SETTINGS, plan_rungs=rungs)).by_family.values() for seed in plan.seeds]
    assert len(seeds) == 5
    assert {(seed.alpha_target, seed.alpha_speed) for seed in seeds} == {(0.5, 8)}


def test_lf42_the_seeds_of_a_plan_have_ramps_of_their_own(pretend: Install, roomy: WorldConfig) -> None:
    def uneven(plan: Plan, family: str) -> float:
        slow = {seed.slot: 6.0 * (seed.alpha_speed == 5) for seed in plan.seeds}
        return paired(plan, family) + slow.get(2, 0.0) - slow.get(0, 0.0)

    pretend(uneven)
    settings = replace(SETTINGS, extension_rungs=(Rung(1_000, 4), Rung(12, 8, 6), Rung(6, 24)))
    ramps = {seed.slot: seed.alpha_speed for seed in search(settings, roomy).by_family["gain"].seeds}
    assert ramps[2] == 5
    assert ramps[0] != 5
    assert all(rung.hosts > 2 for rung in SearchSettings().extension_rungs)


def test_sets_of_one_seed_try_no_longer_plans(pretend: Install) -> None:
    played = pretend(paired)
    search()
    assert max(len(plan.seeds) for plan in played.plans) == 1


def test_lf52_a_book_holds_the_pruning_and_blending_it_was_searched_with(
    pretend: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree is fitted in the same world, whatever the settings of the one who asks for it."""
    pretend(specialised)
    run, worlds = halving._grow_mixed, []

    def watched(job: halving._Job) -> Episodes:
        world = job.trial.world
        worlds.append((world.prune_epochs, world.blend, world.lifecycle.embargo_epochs))
        return run(job)

    monkeypatch.setattr(halving, "_grow_mixed", watched)
    rules = LifecycleConfig(embargo_epochs=1)
    book = search(world=WORLD.model_copy(update={"prune_epochs": 2, "blend": "add", "lifecycle": rules}))
    assert (book.prune_epochs, book.blend, book.lifecycle) == (2, "add", rules)
    assert book.world_digest == searched_world(
        WorldConfig(prune_epochs=2, blend="add", lifecycle=rules), RewardConfig()
    )
    assert add_tree(WORLD, book.model_copy(update={"symptom": None}), SETTINGS.tree) == book
    assert set(worlds) == {(2, "add", 1)}
