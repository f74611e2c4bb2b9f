"""The search for fixed plans, on a made-up world whose best plans are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec, Plan, PlanBook, PlannedSeed
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.controllers.plans import load_plans
from simic.hosts.keys import identify
from simic.runtime.seeds import generator
from simic.validation import search as search_module
from simic.validation.episodes import Episodes, TrialJob, grow
from simic.validation.search import Rung, SearchSettings, plans_in_reach, search_plans, write_book

WORLD = WorldConfig(workers=1, chunk=16)
SETTINGS = SearchSettings(rungs=(Rung(1_000, 3), Rung(30, 6), Rung(8, 12)), confirm_hosts=20)
Worth = Callable[[Plan, str], float]


def seed_of(plan: Plan) -> PlannedSeed | None:
    return plan.seeds[0] if plan.seeds else None


def specialised(plan: Plan, family: str) -> float:
    """Each family has one blueprint and slot of its own; ``gate`` is a fair compromise everywhere."""
    wanted = {"cap": ("heavy", 0), "select": ("gate", 1), "gain": ("norm", 2), "noisy": ("dropout", 0)}
    seed = seed_of(plan)
    if seed is None:
        return 0.0
    late = 0.5 * seed.epoch
    if wanted.get(family) == (seed.blueprint, seed.slot):
        return 12.0 - late
    return 3.0 - late if (seed.blueprint, seed.slot) == ("gate", 1) and family != "fine" else -4.0


def harmful(plan: Plan, family: str) -> float:
    return -2.0 if plan.seeds else 0.0


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Worth], list[HostIdentity]]:
    """Replace growing by a table of worths, a level per host and noise per (host, plan); returns the hosts grown."""

    def install(worth: Worth) -> list[HostIdentity]:
        grown: list[HostIdentity] = []

        def play(job: search_module._Job) -> Episodes:
            grown.extend(job.trial.hosts)
            returns = [
                50.0 + host.key % 40 + worth(plan, host.family) + (noise(host, plan) if plan.seeds else 0.0)
                for plan, host in zip(job.plans, job.trial.hosts, strict=True)
            ]
            nothing = np.zeros(len(returns))
            none = nothing.astype(np.int64)
            return Episodes(np.array(returns), nothing, nothing, none, nothing.astype(np.bool_), none)

        monkeypatch.setattr(search_module, "_grow_planned", play)
        return grown

    return install


def noise(host: HostIdentity, plan: Plan) -> float:
    return float(generator(host.key, plan.model_dump_json()).normal(0.0, 3.0))


def found(worth: Worth, pretend: Callable[[Worth], list[HostIdentity]]) -> PlanBook:
    pretend(worth)
    return search_plans(WORLD, RewardConfig(), SETTINGS)


def test_never_growing_comes_first_and_every_single_seed_is_in_reach() -> None:
    plans = plans_in_reach(20)
    assert plans[0] == Plan(seeds=[])
    assert len(plans) == 1 + 6 * 3 * 4 * 2
    assert len({plan.model_dump_json() for plan in plans}) == len(plans)
    assert all(seed.epoch < 4 for plan in plans_in_reach(4) for seed in plan.seeds)


def test_the_best_plan_of_each_family_and_the_best_compromise_are_found(
    pretend: Callable[[Worth], list[HostIdentity]],
) -> None:
    book = found(specialised, pretend)
    chosen = {
        family: None if (seed := seed_of(plan)) is None else (seed.blueprint, seed.slot)
        for family, plan in book.by_family.items()
    }
    assert chosen == {
        "cap": ("heavy", 0), "select": ("gate", 1), "gain": ("norm", 2), "noisy": ("dropout", 0), "fine": None,
    }  # fmt: skip
    blind = seed_of(book.blind)
    assert blind is not None
    assert (blind.blueprint, blind.slot) == ("gate", 1)
    assert book.family_over_wait["fine"] == 0.0
    assert book.family_over_wait["cap"] == pytest.approx(11.5, abs=2.5)
    assert book.candidates == 145


def test_where_growing_hurts_never_growing_wins(pretend: Callable[[Worth], list[HostIdentity]]) -> None:
    book = found(harmful, pretend)
    assert book.blind == Plan(seeds=[])
    assert set(map(Plan.model_dump_json, book.by_family.values())) == {Plan(seeds=[]).model_dump_json()}
    assert book.blind_over_wait == 0.0


def test_plans_that_were_only_lucky_lose_to_never_growing(pretend: Callable[[Worth], list[HostIdentity]]) -> None:
    """Enough of 145 slightly harmful plans look good on three hosts to push never growing out of the field."""
    pretend(lambda plan, _family: -1.5 if plan.seeds else 0.0)
    book = search_plans(WORLD, RewardConfig(), SearchSettings(rungs=(Rung(1_000, 3), Rung(20, 80)), confirm_hosts=2))
    assert all(plan == Plan(seeds=[]) for plan in (book.blind, *book.by_family.values()))


def test_only_training_hosts_are_used_and_the_last_ones_selected_nothing(
    pretend: Callable[[Worth], list[HostIdentity]],
) -> None:
    grown = pretend(specialised)
    book = search_plans(WORLD, RewardConfig(), SETTINGS)
    assert {host.key for host in grown} == set(book.host_keys)
    assert len(set(book.host_keys)) == len(book.host_keys) == 5 * (3 + 6 + 12 + 20)
    assert {split_of("benchmark", key) for key in book.host_keys} == {Split.TRAIN}


def test_a_lucky_plan_is_not_reported_at_its_luck(pretend: Callable[[Worth], list[HostIdentity]]) -> None:
    """Nothing is worth anything: the winner of 145 noisy plans is measured again on new hosts."""
    book = found(lambda _plan, _family: 0.0, pretend)
    assert all(abs(value) < 2.5 for value in book.family_over_wait.values())


def test_the_same_search_finds_the_same_book(pretend: Callable[[Worth], list[HostIdentity]], tmp_path: Path) -> None:
    pretend(specialised)
    first, second = (search_plans(WORLD, RewardConfig(), SETTINGS) for _ in range(2))
    assert first == second
    path = tmp_path / "benchmark.json"
    write_book(first, path)
    content = path.read_bytes()
    write_book(second, path)
    assert path.read_bytes() == content
    assert PlanBook.model_validate_json(content) == first
    assert [item.name for item in tmp_path.iterdir()] == ["benchmark.json"]


def test_hosts_grow_each_under_a_plan_of_its_own() -> None:
    """The same key twice in one ensemble, once growing and once not, as if each were alone."""
    world = WorldConfig(horizon=6, workers=1)
    plan = Plan(seeds=[PlannedSeed(epoch=0, slot=1, blueprint="gate")])
    hosts = identify("benchmark", [7, 7, 12])
    trial = TrialJob("schedule", ControllerSpec(name="schedule"), hosts, world, RewardConfig(), 0)
    together = search_module._grow_planned(search_module._Job((Plan(seeds=[]), plan, plan), trial))
    for row, own in enumerate((Plan(seeds=[]), plan, plan)):
        spec = ControllerSpec(name="schedule", plan=own)
        alone = grow(TrialJob("schedule", spec, (hosts[row],), world, RewardConfig(), 0))
        assert together.returns[row] == alone.returns[0]


def test_the_shipped_book_holds_no_test_host_and_a_plan_for_each_family() -> None:
    book = load_plans("benchmark")
    assert {split_of("benchmark", key) for key in book.host_keys} == {Split.TRAIN}
    assert set(book.by_family) == {"cap", "select", "gain", "noisy", "fine"}
    assert 0 < book.blind_over_wait < np.mean(list(book.family_over_wait.values()))


def test_the_shipped_plans_were_searched_on_the_shipped_hosts() -> None:
    """A change in the hosts makes another world; then `simic plans search --set benchmark --out ...` has to follow."""
    assert load_plans("benchmark").world_digest == search_module._world_digest(WorldConfig(), RewardConfig())
