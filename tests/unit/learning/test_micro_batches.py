"""Updates whose rows are processed in parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.errors import ResourceLimitError
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import ConservativeConfig, SafetyConfig, Trigger
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.distillation import branched_decisions
from simic.learning.history import History, Resumed
from simic.learning.learner import Learner
from simic.learning.losses import Loss, off_policyness
from simic.learning.micro_batches import add_up, split_rows
from simic.learning.phases import fresh_network
from simic.learning.prioritised_passes import PrioritisedPasses
from simic.learning.rates import LrSchedule
from simic.learning.safety.guard import Guard
from simic.learning.training_run import TrainingRun
from simic.replay.dataset import GraphDataset

FLAT = LrSchedule.constant(0, 1.0)
CONFIG = TrainConfig(
    network=NetworkConfig(hidden=16, layers=1),
    start="scratch",
    batch_sequences=16,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=1,
    min_commit_rate=0.0,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    root = tmp_path_factory.mktemp("parts")
    write_snapshot(root / "s", bandit_episodes(range(32)), split="train")
    return GraphDataset.load(root / "s", blueprints=blueprint_names())


@given(st.integers(1, 300), st.integers(1, 300))
def test_parts_hold_every_row_once_in_order_and_none_is_too_long(rows: int, most: int) -> None:
    parts = split_rows(rows, most)
    assert np.concatenate([np.arange(rows)[part.rows] for part in parts]).tolist() == list(range(rows))
    sizes = [part.rows.stop - part.rows.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= most
    assert sum(part.share for part in parts) == pytest.approx(1.0)
    assert len(parts) == -(-rows // most)


@pytest.mark.parametrize("most", [1, 64, 128, 256])
def test_one_large_ratio_is_as_large_in_parts_as_in_the_whole_batch(most: int) -> None:
    """Parts are small while something is wrong; what watches a training must not see less then."""
    ratios = 0.3 * torch.randn(256, generator=torch.Generator().manual_seed(0))
    ratios[70] = 16.0
    whole, found = off_policyness(ratios), dict[str, torch.Tensor]()
    for part in split_rows(len(ratios), most):
        add_up(found, off_policyness(ratios[part.rows]), part.share)
    assert found["max_log_ratio"] == 16.0
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_in_conservative_mode_an_update_processes_half_of_its_rows_at_once_until_the_mode_ends() -> None:
    safety = SafetyConfig(conservative=ConservativeConfig(healthy_updates=1))
    guard = Guard(TrainConfig(safety=safety, batch_sequences=32))
    weights, seen = torch.nn.Linear(1, 1), list[slice]()

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = weights

        def policy_parameters(self) -> list[torch.nn.Parameter]:
            return list(weights.parameters())

        def value_parameters(self) -> list[torch.nn.Parameter]:
            return []

    def loss_of(part: slice) -> Loss:
        seen.append(part)
        return Loss(weights(torch.ones(part.stop - part.start, 1)).mean(), {})

    learner = Learner(Line(), CONFIG, History(guard=guard))  # type: ignore[arg-type]
    guard.become_conservative(Trigger.MEMORY_PRESSURE)
    for _ in range(2):
        learner.update(32, loss_of, FLAT, 0)
        guard.observe("theirs", 0, {}, None, has_pressure=False)
    assert seen == [slice(0, 16), slice(16, 32), slice(0, 32)]


def changed(**changes: Any) -> TrainConfig:
    return CONFIG.model_copy(update=changes)


@pytest.mark.parametrize("most", [1, 3, 5])
def test_low_accumulated_gradients_are_those_of_the_whole_batch(store: GraphDataset, most: int) -> None:
    """LOW-1..7, gradient accumulation, with a loss that is a mean over rows; parts of 5 rows differ in length."""
    learners = [
        Learner(fresh_network(store, config, 0), config) for config in (CONFIG, changed(micro_batch_sequences=most))
    ]
    found, rows = [], store.sequences.starts[:13]
    for learner in learners:

        def loss_of(part: slice, learner: Learner = learner) -> Loss:
            values = learner.network.value(store.states(rows[part])[0])
            loss = (values - torch.arange(13.0)[part]).square().mean()
            return Loss(loss, {"seen": loss.detach(), "row_count": torch.tensor(float(len(values)))})

        found.append(learner.update(13, loss_of, FLAT, 0))
    whole, parts = found
    assert (whole.pop("micro_batch_rows"), parts.pop("micro_batch_rows")) == (13.0, float(most))
    assert parts == pytest.approx(whole, rel=1e-4)
    assert parts["row_count"] == 13.0
    gradients = [[one.optimizer.state[p]["exp_avg"] for p in one.network.value_parameters()] for one in learners]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def errors_of(store: GraphDataset, config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return what the first update of a training tells its sampler of all its rows."""
    seen: list[np.ndarray] = []
    real = PrioritisedPasses.update

    def update(self: PrioritisedPasses, rows: np.ndarray, magnitudes: np.ndarray) -> None:
        assert len(rows) == len(magnitudes)
        seen.append(magnitudes)
        real(self, rows, magnitudes)

    monkeypatch.setattr(PrioritisedPasses, "update", update)
    for _ in TrainingRun.begin(store, config, None, 0).run():
        pass
    monkeypatch.undo()
    return seen


def test_prioritised_replay_gets_the_errors_of_all_parts(store: GraphDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """No value has moved before the first update, so its errors do not depend on the parts."""
    config = changed(sampling="prioritised", cloning_passes=0, value_passes=0)
    whole = errors_of(store, config, monkeypatch)
    parts = errors_of(store, config.model_copy(update={"micro_batch_sequences": 5}), monkeypatch)
    assert len(whole) == len(parts) == 2
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    assert len(set(whole[0].tolist())) > 8, "the errors differ, so their order is tested"


@pytest.mark.parametrize("objective", ["vtrace", "ppo", "awr", "fitted_q"])
def test_every_objective_learns_in_parts(store: GraphDataset, objective: str) -> None:
    config = changed(objective=objective, micro_batch_sequences=6, q_updates=2)
    records = list(TrainingRun.begin(store, config, None, 0).run())
    assert all(np.isfinite(list(record.metrics.values())).all() for record in records)


def test_a_distillation_in_parts_also_clones_the_steps_that_follow(tmp_path: Path) -> None:
    """The batch is 128 decisions; every part has a share of the steps to clone, at least one."""
    write_snapshot(tmp_path / "s", bandit_branches(range(30)) + bandit_episodes(range(90, 98)), split="train")
    store = GraphDataset.load(tmp_path / "s", blueprints=blueprint_names())
    split = branched_decisions(store)
    assert split is not None
    decisions = split.learned._replace(following=split.learned.rows[:3], predecessor=np.arange(3))
    split = split._replace(learned=decisions)
    for most in (None, 5):
        config = changed(start="distil", distil_passes=1, micro_batch_sequences=most)
        training = TrainingRun.begin(store, config, None, 0)
        training._decisions = split
        (first, *_rest) = list(training.run())
        assert np.isfinite(first.metrics["following_loss"])


def out_of_device_memory(_rows: int) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def out_of_memory(rows: int) -> None:
    """Ask the allocator of the CPU for more than any machine has."""
    torch.empty(rows << 50, dtype=torch.uint8)


def out_of_array_memory(rows: int) -> None:
    np.empty(rows << 50, dtype=np.uint8)


def needs(learner: Learner, store: GraphDataset, fits: int, run_out: Callable[[int], None]) -> Callable[[slice], Loss]:
    """Return a loss for which at most ``fits`` rows have memory; metrics are 1 per row."""

    def loss_of(part: slice) -> Loss:
        count = part.stop - part.start
        values = learner.network.value(store.states(store.sequences.starts[:16][part])[0])
        if count > fits:
            run_out(count)
        return Loss(values.square().mean(), {"row_count": torch.tensor(float(count))})

    return loss_of


@pytest.mark.parametrize("run_out", [out_of_device_memory, out_of_memory, out_of_array_memory])
def test_out_of_memory_repeats_the_update_in_halves_and_goes_on_with_them(
    store: GraphDataset, run_out: Callable[[int], None]
) -> None:
    """The weights are those of an update in such parts from the start."""
    one, small = (
        Learner(fresh_network(store, CONFIG, 0), config) for config in (CONFIG, changed(micro_batch_sequences=4))
    )
    first = one.update(16, needs(one, store, 5, run_out), FLAT, 0)
    assert (first["out_of_memory_count"], first["micro_batch_rows"], first["row_count"]) == (2.0, 4.0, 16.0)
    second = one.update(16, needs(one, store, 5, run_out), FLAT, 0)
    assert (second["out_of_memory_count"], second["micro_batch_rows"]) == (0.0, 4.0)
    for _ in range(2):
        small.update(16, needs(small, store, 16, run_out), FLAT, 0)
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, small.network.state_dict()[name]), name


def test_a_row_that_does_not_fit_alone_ends_the_training(store: GraphDataset) -> None:
    one = Learner(fresh_network(store, CONFIG, 0), CONFIG)
    before = {name: value.clone() for name, value in one.network.state_dict().items()}
    with pytest.raises(ResourceLimitError, match="for 1 of its 16 rows"):
        one.update(16, needs(one, store, 0, out_of_memory), FLAT, 0)
    assert all(torch.equal(before[name], value) for name, value in one.network.state_dict().items())
    assert all(parameter.grad is None for parameter in one.network.parameters())


def test_another_error_is_no_lack_of_memory(store: GraphDataset) -> None:
    def fail(_rows: int) -> None:
        raise RuntimeError("shapes do not fit")

    one = Learner(fresh_network(store, CONFIG, 0), CONFIG)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        one.update(16, needs(one, store, 5, fail), FLAT, 0)


def test_no_memory_for_the_step_is_typed_and_repeats_nothing(
    store: GraphDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that was made in part must not be made again."""
    one = Learner(fresh_network(store, CONFIG, 0), CONFIG)
    monkeypatch.setattr(one.optimizer, "step", lambda: out_of_memory(1))
    with pytest.raises(ResourceLimitError, match="moments of update 0"):
        one.update(16, needs(one, store, 16, out_of_memory), FLAT, 0)


def test_a_resumed_training_keeps_the_parts_that_fitted(store: GraphDataset) -> None:
    history = History()
    first = Learner(fresh_network(store, CONFIG, 0), CONFIG, history)
    done = [first.update(16, needs(first, store, 5, out_of_memory), FLAT, 0) for _ in range(2)]
    kept = {name: tensor.clone() for name, tensor in history.state().tensors.items()}
    again = Learner(fresh_network(store, CONFIG, 0), CONFIG, History(Resumed(done, kept, {"policy": 2}, {}, {})))
    assert [again.update(16, needs(again, store, 0, out_of_memory), FLAT, 0) for _ in done] == done
    for one in (first, again):
        found = one.update(16, needs(one, store, 5, out_of_memory), FLAT, 0)
        assert (found["out_of_memory_count"], found["micro_batch_rows"]) == (0.0, 4.0)
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])
