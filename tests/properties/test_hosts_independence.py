"""A host's history is a function of its own key and actions, bit for bit, whoever trains beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.builders.ensembles import ensemble, random_actions, stack, waits

from simic.contracts.batches import STAGE_INDEX, Observations
from simic.contracts.lifecycle import SeedStage
from simic.hosts import rng
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import SETS, STANDARD, HostSet
from simic.hosts.plugins import blueprint_names
from simic.hosts.rng import Purpose

HORIZON = 10
KEYS = list(range(100, 164))
History = dict[int, list[bytes]]


def _uniforms(grown: Ensemble, epoch: int) -> NDArray[np.float64]:
    keys = np.array([host.key for host in grown.identities])
    return rng.uniforms(rng.streams(keys, Purpose.CONTROLLER, 5, epoch), 7)


def _bits(grown: Ensemble) -> list[list[bytes]]:
    """Everything each host is and shows."""
    shown = grown.observe()
    tensors = [*stack(grown).weights.parts, *stack(grown).momentum.parts, *stack(grown).seeds]
    return [
        [column.tobytes() for column in _columns(shown.take(np.array([host])))]
        + [tensor[host].numpy().tobytes() for tensor in tensors]
        for host in range(len(grown))
    ]


def _differing(one: Ensemble, other: Ensemble) -> list[int]:
    """Rows of the hosts whose bits are not the same in both."""
    return [row for row, (mine, theirs) in enumerate(zip(_bits(one), _bits(other), strict=True)) if mine != theirs]


def _columns(observed: Observations) -> list[NDArray[Any]]:
    tables = (observed.system, observed.history, observed.slots, observed.layers)
    return [column for table in tables for column in table.values()]


def _history(keys: Sequence[int], world_set: str = "benchmark", **laws: Any) -> tuple[History, set[tuple[int, int]]]:
    """Bits after every step, by key, under random legal actions; also which (stage, blueprint) were seen."""
    grown = ensemble(keys, HORIZON, world_set, **laws)
    history: History = {key: [] for key in keys}
    seen: set[tuple[int, int]] = set()
    for epoch in range(HORIZON):
        outcome = grown.step(random_actions(grown.masks(), _uniforms(grown, epoch)))
        slots = grown.observe().slots
        seen |= set(zip(slots["stage"].tolist(), slots["blueprint"].tolist(), strict=True))
        for row, (key, bits) in enumerate(zip(keys, _bits(grown), strict=True)):
            history[key] += bits + [c[row].tobytes() for c in outcome if isinstance(c, np.ndarray)]
    return history, seen


@pytest.fixture(scope="module")
def together() -> tuple[History, set[tuple[int, int]]]:
    """All 64 hosts side by side."""
    return _history(KEYS)


@pytest.mark.parametrize("count", [1, 2, 7, 33, 64])
def test_bits_do_not_depend_on_neighbours_or_position(
    together: tuple[History, set[tuple[int, int]]], count: int
) -> None:
    chosen = np.random.default_rng(count).permutation(KEYS)[:count].tolist()
    alone, _ = _history(chosen)
    for key in chosen:
        assert alone[key] == together[0][key], f"host {key} differs among {count}"


def test_the_histories_compared_exercise_every_blueprint_and_pruning(
    together: tuple[History, set[tuple[int, int]]],
) -> None:
    trained = {blueprint for stage, blueprint in together[1] if stage == STAGE_INDEX[SeedStage.TRAINING]}
    kept = {blueprint for stage, blueprint in together[1] if stage == STAGE_INDEX[SeedStage.FOSSILIZED]}
    assert trained == set(map(blueprint_names().index, STANDARD))
    assert len(kept) >= 3
    stages = {stage for stage, _ in together[1]}
    assert stages >= {STAGE_INDEX[stage] for stage in (SeedStage.EMBARGOED, SeedStage.RESETTING, SeedStage.BLENDING)}


def test_bits_do_not_depend_on_neighbours_when_hosts_hold_several_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "crowded", HostSet(SETS["benchmark"].families, seeds_max=3))
    together, _ = _history(KEYS[:12], "crowded")
    for chosen in (KEYS[4:5], KEYS[11:2:-2]):
        alone, _ = _history(chosen, "crowded")
        for key in chosen:
            assert alone[key] == together[key]


@pytest.fixture(scope="module")
def varied_together() -> tuple[History, set[tuple[int, int]]]:
    """33 hosts of regions side by side: no two of them have the same causes."""
    return _history(KEYS[:33], "varied")


@pytest.mark.parametrize("count", [1, 2, 33])
def test_bits_of_varied_hosts_do_not_depend_on_neighbours_or_position(
    varied_together: tuple[History, set[tuple[int, int]]], count: int
) -> None:
    chosen = np.random.default_rng(count).permutation(KEYS[:33])[:count].tolist()
    alone, _ = _history(chosen, "varied")
    for key in chosen:
        assert alone[key] == varied_together[0][key], f"host {key} differs among {count}"


@pytest.fixture(scope="module")
def images_together() -> tuple[History, set[tuple[int, int]]]:
    """33 convolutional hosts side by side."""
    return _history(KEYS[:33], "images")


@pytest.mark.parametrize("count", [1, 2, 7, 33])
def test_bits_of_convolutional_hosts_do_not_depend_on_neighbours_or_position(
    images_together: tuple[History, set[tuple[int, int]]], count: int
) -> None:
    chosen = np.random.default_rng(count).permutation(KEYS[:33])[:count].tolist()
    alone, _ = _history(chosen, "images")
    for key in chosen:
        assert alone[key] == images_together[0][key], f"host {key} differs among {count}"


def test_the_convolutional_histories_exercise_every_blueprint_and_pruning(
    images_together: tuple[History, set[tuple[int, int]]],
) -> None:
    trained = {blueprint for stage, blueprint in images_together[1] if stage == STAGE_INDEX[SeedStage.TRAINING]}
    assert trained == set(map(blueprint_names().index, SETS["images"].blueprints))
    stages = {stage for stage, _ in images_together[1]}
    assert stages >= {STAGE_INDEX[stage] for stage in (SeedStage.EMBARGOED, SeedStage.BLENDING, SeedStage.FOSSILIZED)}


@pytest.mark.parametrize(("world_set", "hosts"), [("benchmark", 64), ("compound", 64), ("images", 12), ("images", 1)])
def test_bits_do_not_depend_on_the_number_of_threads(world_set: str, hosts: int) -> None:
    """One thread or two; more may round otherwise. Of a few hosts, some blueprints grow in one alone."""
    keys = KEYS[:hosts]
    one, two = ensemble(keys, world_set=world_set), ensemble(keys, world_set=world_set, threads=2)
    for epoch in range(3):
        actions = random_actions(one.masks(), _uniforms(one, epoch), patience=0.0)
        one.step(actions)
        two.step(actions)
    assert _differing(one, two) == []
    assert torch.get_num_threads() == 1, "the process keeps its own setting"


@pytest.mark.parametrize("blend", ["own", "gate", "multiply"])
def test_every_blueprint_keeps_its_bits_under_every_law(monkeypatch: pytest.MonkeyPatch, blend: str) -> None:
    """Those that no MLP set offers as well, several seeds at a time, fading prunes."""
    families, names = SETS["compound"].families, tuple(blueprint_names())
    monkeypatch.setitem(SETS, "everything", HostSet(families, seeds_max=3, blueprints=names))
    laws = {"blend": blend, "prune_epochs": 2}
    together, seen = _history(KEYS[:24], "everything", **laws)
    for chosen in (KEYS[5:6], KEYS[23:2:-5]):
        alone, _ = _history(chosen, "everything", **laws)
        for key in chosen:
            assert alone[key] == together[key]
    assert blueprint_names().index("low_rank") in {blueprint for _, blueprint in seen}


def test_l7_who_looks_changes_nothing() -> None:
    """Every measurement is taken whether or not somebody reads it; reading more of them moves no bit."""
    alone, watched = ensemble(KEYS[:6], 6, "compound"), ensemble(KEYS[:6], 6, "compound")
    for epoch in range(6):
        actions = random_actions(alone.masks(), _uniforms(alone, epoch), patience=0.0)
        for _ in range(2):
            watched.observe()
            watched.masks()
            watched.attribute()
        alone.step(actions)
        watched.step(actions)
        assert _differing(alone, watched) == []
    health = alone.observe().slots["gradient_health"]
    assert np.isfinite(health).any(), "gates have their evidence although nobody asked for it"


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_l4_a_diverged_host_harms_no_neighbour(poison: float) -> None:
    healthy, sick = ensemble(KEYS[:5], 4), ensemble(KEYS[:5], 4)
    for epoch in range(4):
        actions = random_actions(healthy.masks(), _uniforms(healthy, epoch))
        healthy.step(actions)
        if epoch == 1:
            stack(sick).weights.parts[0][2] = poison
        mine = actions if epoch <= 1 else np.where(np.arange(5)[:, None] == 2, waits(5), actions)
        outcome = sick.step(mine)
        assert [event is not None for event in outcome.governor] == [epoch == 1 and row == 2 for row in range(5)]
        assert set(_differing(sick, healthy)) <= {2}
