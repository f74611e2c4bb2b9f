"""The live buffer: bounded in steps, seconds and bytes; what is in it is what came in; it goes on from its state."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders.batches import assert_same_batch, small_store
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.settings.training import ReplayConfig, TrainConfig
from simic.replay.dataset import GraphDataset
from simic.replay.live.buffer import LiveBuffer


class Time:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 6, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Heard:
    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.last |= metrics


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return small_store(tmp_path_factory.mktemp("live") / "snapshot", 12)


def buffer(time: Time, *, seed: int = 0, sink: Heard | None = None, **config: Any) -> LiveBuffer:
    return LiveBuffer(ReplayConfig(**{"capacity": 1000, "max_mb": 8, **config}), seed=seed, clock=time, sink=sink)


def run_ids(live: LiveBuffer) -> list[str]:
    return live._sequences.run_ids(live._sequences.slots())


def test_pd2_the_defaults_are_the_designs() -> None:
    config = TrainConfig().replay
    assert (config.capacity, config.ttl_s, config.max_mb) == (100_000, 3600.0, 6144)
    assert (config.alpha, config.beta, config.eps) == (0.6, 0.4, 0.01)


def test_batches_are_those_of_the_store_they_came_from(store: GraphDataset) -> None:
    """Also after the rows have moved: some have left, others came, and memory was allocated anew."""
    live = buffer(Time(), capacity=260)
    ids = [live.extend(store), live.extend(store)]
    picks = np.array([7, 0, 3, 3, 11])
    assert_same_batch(live.batch(ids[1][picks]), store.batch(picks))
    assert live.steps == 2 * store.step_count
    for _ in range(5):
        ids.append(live.extend(store))
        assert live.steps <= 260
    assert live.evicted["capacity"] == 7 * 12 - len(live)
    assert live._columns is not None and live._columns.used["row"] < 3 * 280
    held = live.ids
    for given in ids:
        rows = np.flatnonzero(np.isin(given, held))
        if len(rows):
            assert_same_batch(live.batch(given[rows]), store.batch(rows))


def test_capacity_holds_where_one_sequence_alone_fills_it(tmp_path: Path) -> None:
    """And what it wrote down as its state then is one that it takes back."""
    for index, lasts in enumerate(((0, None), (None, 0))):
        reports = [r for key, last in enumerate(lasts) for r in episode(key, truncate_at=last)]
        write_snapshot(tmp_path / str(index), reports, split="train")
        uneven = GraphDataset.load(tmp_path / str(index), blueprints=BLUEPRINTS)
        assert sorted(uneven.sequences.lengths.tolist()) == [1, 20]
        live, again = buffer(Time(), capacity=20), buffer(Time(), capacity=20)
        ids = live.extend(uneven)
        assert live.steps <= 20 and live.ids.tolist() == ids[-1:].tolist()
        again.set_state(live.get_state())
        assert_same_batch(again.batch(ids[-1:]), uneven.batch(np.array([1])))


def test_what_acted_is_remembered(store: GraphDataset) -> None:
    live = buffer(Time())
    slots = live._sequences.slots_of(live.extend(store))
    assert live._sequences.run_ids(slots) == list(store.sequences.run_ids)
    assert live._sequences.policy_versions(slots) == list(store.sequences.policy_versions)


def test_capacity_lets_the_oldest_go_first_and_counts_them(store: GraphDataset) -> None:
    live = buffer(Time(), capacity=store.step_count + 3)
    first, second = live.extend(store), live.extend(store)
    assert live.steps <= store.step_count + 3
    assert live.evicted["capacity"] == 24 - len(live) == live.evicted["unseen"]
    assert live.ids.tolist() == [*first, *second][-len(live) :]


def test_a_sequence_is_drawn_before_capacity_takes_it_while_others_were_drawn(store: GraphDataset) -> None:
    """Ten old ones nobody drew outlive younger ones that were: every new sequence gets its turn."""
    live = buffer(Time(), capacity=2 * store.step_count)
    unseen, seen = live.extend(store), live.extend(store)
    live._sequences.mark_seen(live._sequences.slots_of(seen))
    live.extend(store)
    assert set(unseen.tolist()) <= set(live.ids.tolist())
    assert live.evicted == {"ttl": 0, "capacity": 12, "bytes": 0, "unseen": 0}


def test_ttl_is_by_the_wall_clock_and_takes_everything_that_old(store: GraphDataset) -> None:
    time, heard = Time(), Heard()
    live = buffer(time, ttl_s=60, sink=heard)
    live.extend(store)
    time.pass_s(40)
    young = live.extend(store)
    time.pass_s(19.9)
    assert live.expire() == 0
    time.pass_s(0.1)
    assert live.expire() == 12
    assert live.ids.tolist() == young.tolist()
    time.pass_s(-1e6)
    assert live.expire() == 0 and len(live) == 12
    time.pass_s(1e6 + 3600)
    with pytest.raises(ContractError, match="empty"):
        live.draw(4)
    assert live.evicted["ttl"] == 24 and len(live) == live.steps == 0
    assert heard.last["simic.buffer.ttl_cleanups"] == 2
    assert heard.last["simic.buffer.expired_removed"] == 24
    assert heard.last["simic.buffer.size"] == 0
    assert_same_batch(live.batch(live.extend(store)), store.batch(np.arange(12)))


def test_buffer001_the_byte_budget_is_measured_from_the_arrays_and_held(store: GraphDataset) -> None:
    """What does not fit leaves, counted; the budget holds at every moment, and the buffer still serves."""
    heard = Heard()
    live = buffer(Time(), capacity=50_000, max_mb=16, sink=heard)
    arrays = 0
    for _ in range(150):
        live.extend(store)
        assert live.size_bytes <= 16 << 20
        arrays = max(arrays, live._columns.size_bytes if live._columns else 0)
    assert live._columns is not None
    assert live._columns.size_bytes == sum(values.nbytes for values in live._columns._arrays.values())
    assert live.evicted["bytes"] > 0 == live.evicted["capacity"]
    assert arrays > (16 << 20) // 4
    assert heard.last["simic.buffer.memory_mb"] == live.size_bytes / (1 << 20)
    assert live.sample(16).batch.valid.any()


def test_buffer001_memory_is_flat_however_much_passes_through(store: GraphDataset) -> None:
    """Arrays only, and no more of them after 60,000 steps than after 6,000."""
    live = buffer(Time(), capacity=2000)
    for _ in range(600):
        live.extend(store)
        if live._sequences.entered == 60 * 12:
            settled = live.size_bytes
    assert live.size_bytes <= settled
    assert live._sequences.entered * store.step_count / 12 > 50_000


def test_too_small_is_said_at_once(store: GraphDataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replay\.max_mb 1 is too small for the index"):
        buffer(Time(), capacity=100_000, max_mb=1)
    with pytest.raises(ContractError, match=r"20 steps exceeds replay\.capacity 19"):
        buffer(Time(), capacity=19).extend(store)
    write_snapshot(tmp_path / "long", [r for key in range(4) for r in episode(key, horizon=900)], split="train")
    long = GraphDataset.load(tmp_path / "long", blueprints=store.blueprints)
    with pytest.raises(ContractError, match=r"replay\.max_mb 1 even alone"):
        buffer(Time(), capacity=3000, max_mb=1).extend(long)


def test_a_store_that_is_refused_displaces_nobody(store: GraphDataset, tmp_path: Path) -> None:
    """Also when only its last piece does not fit."""
    live = buffer(Time(), capacity=3000, max_mb=1)
    live.extend(store)
    held, before = live.ids.tolist(), live.evicted
    reports = [r for key in range(5) for r in episode(key, horizon=900 if key == 4 else 4)]
    write_snapshot(tmp_path / "long", reports, split="train")
    with pytest.raises(ContractError, match=r"replay\.max_mb 1 even alone"):
        live.extend(GraphDataset.load(tmp_path / "long", blueprints=store.blueprints))
    assert live.ids.tolist() == held and live.evicted == before
    assert_same_batch(live.batch(live.ids), store.batch(np.arange(12)))


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphDataset, GraphDataset]:
    """Few graphs with many edges, and many graphs with one edge each."""
    directory = tmp_path_factory.mktemp("sizes")

    def connects(count: int) -> Any:
        def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            for state in (row[name] for row in rows for name in ("state", "final_state")):
                if state is not None:
                    state["graph"]["connects"] = (state["graph"]["connects"] * count)[:count]
            return rows

        return change

    stores = []
    for name, count, episodes in (("dense", 300, 8), ("sparse", 1, 40)):
        reports = [r for key in range(episodes) for r in episode(key, horizon=20)]
        write_snapshot(directory / name, reports, split="train", change=connects(count))
        stores.append(GraphDataset.load(directory / name, blueprints=BLUEPRINTS))
    return stores[0], stores[1]


def test_buffer001_what_was_allocated_for_graphs_of_another_size_makes_room(
    two_sizes: tuple[GraphDataset, GraphDataset],
) -> None:
    """Either fits, the rows of one beside the edges of the other do not."""
    live = buffer(Time(), capacity=2400, max_mb=1)
    for given in (*two_sizes, *two_sizes):
        ids = live.extend(given)
        assert live.size_bytes <= 1 << 20
        assert_same_batch(live.batch(ids[-1:]), given.batch(np.array([len(given) - 1])))


def test_d23_a_priority_for_what_has_left_finds_nobody(store: GraphDataset) -> None:
    """Also when another sequence has taken the place since."""
    time = Time()
    live = buffer(time, ttl_s=60)
    old = live.extend(store)
    time.pass_s(60)
    new = live.extend(store)
    assert live._sequences.slots_of(new).tolist() == live._sequences.slots_of(old).tolist()
    before = live.probabilities()
    assert live.update(np.concatenate([old[:3], new[:1]]), np.array([50.0, 50.0, 50.0, 2.0])) == 3
    assert live.stale_updates == 3
    after = live.probabilities()
    assert after[0] > before[0] and len(set(after[1:].tolist())) == 1
    with pytest.raises(ContractError, match="has left the buffer"):
        live.batch(old[:1])
    for ids in (np.array([-1]), np.array([10**15])):
        assert live.update(ids, np.ones(1)) == 1
    with pytest.raises(ContractError, match="NaN, negative"):
        live.update(old[:1], np.array([np.nan]))
    with pytest.raises(ContractError, match="magnitudes"):
        live.update(old[:2], np.ones(1))


def test_conservative_mode_disregards_priorities_and_gives_them_back(store: GraphDataset) -> None:
    live = buffer(Time())
    ids = live.extend(store)
    live.update(ids, np.where(ids == ids[4], 1e6, 0.0))
    assert (live.draw(200)[0] == ids[4]).mean() > 0.9
    live.conservative = True
    drawn, weights = live.draw(6000)
    counts = np.bincount(np.searchsorted(ids, drawn), minlength=12)
    assert weights.tolist() == [1.0] * 6000
    assert abs(counts - 500).max() < 120
    live.conservative = False
    assert (live.draw(200)[0] == ids[4]).mean() > 0.9


def test_sampling_time_is_told_by_the_injected_clock(store: GraphDataset) -> None:
    heard, time = Heard(), Time()
    live = buffer(time, sink=heard)
    live.extend(store)
    ticking = iter(range(100))
    live._clock = lambda: time.now + timedelta(milliseconds=7 * next(ticking))
    sample = live.sample(5)
    assert heard.last["simic.sampling.batch_time_ms"] == pytest.approx(14.0)
    assert sample.batch.valid.shape[1] == len(sample.ids) == len(sample.weights) == 5


def test_nothing_changes_when_nobody_listens(store: GraphDataset) -> None:
    told, untold = buffer(Time(), sink=Heard()), buffer(Time())
    for live in (told, untold):
        live.extend(store)
    assert [told.draw(9)[0].tolist() for _ in range(3)] == [untold.draw(9)[0].tolist() for _ in range(3)]


def used(time: Time, store: GraphDataset, seed: int = 0) -> LiveBuffer:
    """With every kind of history behind it."""
    live = buffer(time, seed=seed, capacity=150, ttl_s=100)
    for _ in range(4):
        live.extend(store)
        ids, _ = live.draw(6)
        live.update(ids, ids / 7.0)
        time.pass_s(30)
    live.conservative = True
    live.draw(3)
    live.conservative = False
    return live


def go_on(live: LiveBuffer, store: GraphDataset, time: Time) -> list[Any]:
    seen: list[Any] = []
    for step in range(6):
        live.conservative = step % 3 == 2
        sample = live.sample(7)
        seen += [sample.ids.tolist(), sample.weights.tolist(), sample.batch.rewards.tolist()]
        live.update(sample.ids, sample.ids / 3.0)
        live.extend(store)
        time.pass_s(20)
        seen += [live.ids.tolist(), live.evicted, live.probabilities().tolist()]
    return seen


def test_its_state_goes_on_with_the_same_bits(store: GraphDataset) -> None:
    """Arrays and JSON; the one that is restored had another seed and another past."""
    time = Time()
    live = used(time, store)
    state, moment = live.get_state(), time.now
    expected = go_on(live, store, time)
    other = used(Time(), store, seed=5)
    other._clock = time
    time.now = moment
    other.set_state(_through_json(state))
    assert go_on(other, store, time) == expected


def test_its_state_goes_on_with_the_same_evictions_under_the_byte_budget(
    two_sizes: tuple[GraphDataset, GraphDataset],
) -> None:
    """What was allocated beyond need, for graphs of either size, is as much a part of it as what is held."""
    dense, sparse = two_sizes
    time = Time()
    for given in ((sparse,), (dense, sparse), (sparse, dense), (sparse, dense, sparse)):
        live, again = (buffer(time, capacity=1000, max_mb=1) for _ in range(2))
        for some in given:
            live.extend(some)
        again.set_state(_through_json(live.get_state()))
        for some in (dense, sparse, sparse, dense, dense, sparse):
            assert again.extend(some).tolist() == live.extend(some).tolist()
            assert (again.ids.tolist(), again.evicted) == (live.ids.tolist(), live.evicted)
            assert again.size_bytes == live.size_bytes
        assert live.evicted["bytes"]


def test_an_empty_buffers_state_goes_on_too(store: GraphDataset) -> None:
    time = Time()
    one, other = buffer(time), buffer(time, seed=3)
    other.extend(store)
    other.set_state(_through_json(one.get_state()))
    assert len(other) == 0
    assert other.extend(store).tolist() == one.extend(store).tolist()
    assert other.draw(8)[0].tolist() == one.draw(8)[0].tolist()


def _through_json(state: Any) -> Any:
    """Whatever is no array must survive JSON; arrays are copied."""
    if isinstance(state, dict):
        return {name: _through_json(value) for name, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else json.loads(json.dumps(state))


SPOILERS: dict[str, Any] = {
    "no roster": lambda s: s.pop("roster"),
    "another capacity": lambda s: s["roster"].update(generation=s["roster"]["generation"][:-1]),
    "twice the same slot": lambda s: s["roster"]["slots"].__setitem__(0, s["roster"]["slots"][1]),
    "slot out of range": lambda s: s["roster"]["slots"].__setitem__(0, 10_000),
    "an empty sequence": lambda s: s["roster"]["lengths"].__setitem__(0, 0),
    "a longer sequence": lambda s: s["roster"]["lengths"].__setitem__(0, 9),
    "never issued": lambda s: s["roster"]["generation"].__setitem__(slice(None), 0),
    "priority of nobody": lambda s: s["priorities"]["leaves"].__setitem__(s["roster"]["slots"][0], 0.0),
    "priorities not finite": lambda s: s["priorities"]["leaves"].__setitem__(s["roster"]["slots"][0], np.inf),
    "texts of another width": lambda s: s["roster"].update(run_ids=s["roster"]["run_ids"][:, 1:]),
    "a column missing": lambda s: s["experience"].pop("rewards"),
    "a column short": lambda s: s["experience"].update(rewards=s["experience"]["rewards"][:-1]),
    "an edge elsewhere": lambda s: s["experience"]["connects"].__setitem__((0, 0), 99),
    "offsets fall": lambda s: s["experience"]["slot_ptr"].__setitem__(1, 10**6),
    "no experience": lambda s: s.update(experience=None),
    "no sizes": lambda s: s.pop("allocated"),
    "too little allocated": lambda s: s["allocated"].update(row=1),
    "more allocated than there may be": lambda s: s["allocated"].update(row=10**9),
    "no generator": lambda s: s.update(uniform={"bit_generator": "MT19937"}),
}


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS.keys())
def test_a_foreign_state_is_refused_and_changes_nothing(store: GraphDataset, spoil: Any) -> None:
    time = Time()
    live, same = used(time, store), used(Time(), store)
    same._clock = time
    state = copy.deepcopy(live.get_state())
    spoil(state)
    with pytest.raises(ContractError):
        live.set_state(state)
    assert live.ids.tolist() == same.ids.tolist()
    assert live.draw(20)[0].tolist() == same.draw(20)[0].tolist()


def test_experience_of_another_vocabulary_is_refused(store: GraphDataset, tmp_path: Path) -> None:
    live = buffer(Time())
    live.extend(store)
    write_snapshot(tmp_path / "other", episode(3), split="train")
    before = live.get_state()
    for names in ((*store.blueprints, "unheard_of"), store.blueprints[::-1]):
        with pytest.raises(ContractError, match="one vocabulary"):
            live.extend(GraphDataset.load(tmp_path / "other", blueprints=names))
    assert live.get_state()["roster"]["counters"] == before["roster"]["counters"]
