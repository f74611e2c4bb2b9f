"""Training on another device than the CPU, imitated where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot
from support.checks.other_device import OTHER, OtherDevice

from simic.contracts.errors import ConfigError
from simic.contracts.settings.continual import CurriculumConfig, EwcConfig, LoraConfig
from simic.contracts.settings.karn import KarnConfig, KarnNetworkConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.policy_files import describe, save_policy
from simic.hosts.plugins import blueprint_names
from simic.learning.checkpoints import Checkpoints, StoredTensors
from simic.learning.devices import choose_device, pinned_numerics, place_on
from simic.learning.history import History
from simic.learning.karn import KarnTraining
from simic.learning.learner_state import write_state
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.trust.keys import load_signer

CONFIG = TrainConfig(
    network=NetworkConfig(hidden=16, layers=1),
    start="scratch",
    batch_sequences=8,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=1,
    q_updates=2,
    distil_passes=1,
    min_commit_rate=0.0,
)
KINDS = {
    "vtrace": {},
    "ppo": {"objective": "ppo"},
    "awr": {"objective": "awr", "entropy_bonus": 0.01},
    "prioritised": {"sampling": "prioritised"},
    "parts": {"micro_batch_sequences": 5},
    "fitted_q": {"objective": "fitted_q"},
    "distil": {"start": "distil"},
    "curriculum": {
        "vtrace_passes": 3,
        "curriculum": CurriculumConfig(enabled=True, min_episodes=(4, 4, 4, 4), max_episodes=(16, 16, 16, 16)),
    },
}
ONE_READ = ("vtrace", "ppo", "awr")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    root = tmp_path_factory.mktemp("devices")
    reports = bandit_branches(range(20)) + bandit_episodes(range(90, 114))
    keys = sorted({report.host.key for report in reports})
    difficulty = {key: rank / (len(keys) - 1) for rank, key in enumerate(keys)}
    write_snapshot(root / "s", reports, split="train", difficulty=difficulty)
    return GraphDataset.load(root / "s", blueprints=blueprint_names())


def finish(training: TrainingRun) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    records = [record.metrics for record in training.run()]
    return list(training.policy().state_dict().values()), records


@pytest.mark.parametrize(
    ("kind", "is_resident"), [*((kind, True) for kind in KINDS), ("vtrace", False), ("distil", False)]
)
def test_med4_everything_follows_the_device_of_the_batches(store: GraphDataset, kind: str, is_resident: bool) -> None:
    """Weights, moments, normaliser, noise and targets; the oracle is the training on the CPU, bit for bit."""
    config = CONFIG.model_copy(update=KINDS[kind])
    expected, metrics = finish(TrainingRun.begin(store, config, None, 0))
    with OtherDevice():
        training = TrainingRun.begin(store.to(OTHER, is_resident=is_resident), config, None, 0)
        found, other = finish(training)
        assert all(buffer.device == OTHER for buffer in training.learner.network.buffers())
    assert all(type(tensor) is torch.Tensor and tensor.device.type == "cpu" for tensor in found)
    assert all(torch.equal(one, same) for one, same in zip(expected, found, strict=True))
    assert other == metrics


@pytest.mark.parametrize("kind", [*ONE_READ, "prioritised"])
def test_c6_an_update_reads_the_device_once(store: GraphDataset, kind: str) -> None:
    """One transfer for loss, metrics and norms; prioritised replay reads two columns more, errors and validity."""
    config = CONFIG.model_copy(update=KINDS[kind])
    with OtherDevice() as device:
        training, reads = TrainingRun.begin(store.to(OTHER), config, None, 0), []
        for record in training.run():
            reads.append((record.phase, device.reads.total()))
            device.reads.clear()
    counts = [count for phase, count in reads[1:] if phase in (*ONE_READ, "cloning", "value_fit")]
    first = next(number for number, (phase, _) in enumerate(reads) if phase in ONE_READ)
    del counts[first - 1]  # its reads include the advantage scale
    assert len(counts) >= 4
    assert set(counts) == ({1} if kind in ONE_READ else {1, 3})


@pytest.mark.parametrize("changes", [{}, {"lora": LoraConfig(rank=2)}, {"ewc": EwcConfig(weight=100.0, samples=40)}])
def test_a_start_from_a_policy_follows_the_device(store: GraphDataset, tmp_path: Path, changes: dict[str, Any]) -> None:
    """A later round with its stored moments, adapters with their dropout, and a penalty with its Fisher information."""
    training = TrainingRun.begin(store, CONFIG, None, 0)
    finish(training)
    card = describe(
        training.policy(),
        CONFIG.network,
        set_name="+".join(store.sets),
        snapshot_digest="0" * 64,
        code_version="test",
        config_digest="0" * 64,
        germinated=training.germinated,
        feature_ranges=training.feature_ranges,
    )
    save_policy(tmp_path / "policy", training.policy(), card)
    write_state(tmp_path / "policy", training.state("0" * 64), training.learner.network, training.learner.optimizer)
    start = WarmStart(tmp_path / "policy", is_continuation=not changes)
    config = CONFIG.model_copy(update=changes)
    expected, _ = finish(TrainingRun.begin(store, config, start, 0))
    with OtherDevice():
        found, _ = finish(TrainingRun.begin(store.to(OTHER), config, start, 0))
    assert all(torch.equal(one, same) for one, same in zip(expected, found, strict=True))


def test_gaps_karn_learns_on_the_cpu_beside_a_training_on_another_device(store: GraphDataset) -> None:
    """It has no device of its own, so neither the setting nor the place of the batches is to change a bit."""
    small = KarnConfig(network=KarnNetworkConfig(hidden=8, layers=1), passes=2, min_examples=1)
    found = []
    for changes in ({}, {"device": "cuda", "precision": "float16"}):
        with OtherDevice() as device:
            training = KarnTraining(store, small, CONFIG.model_copy(update=changes), 0)
            metrics = [record.metrics for record in training.run()]
        assert not device.reads, "nothing lies on the other device"
        found.append((list(training.network.state_dict().values()), metrics))
    assert all(torch.equal(one, same) for one, same in zip(found[0][0], found[1][0], strict=True))
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_m6_a_checkpoint_holds_cpu_tensors_and_loading_it_needs_the_memory_of_one(
    store: GraphDataset, tmp_path: Path, precision: str
) -> None:
    """Written on another device, read on the CPU."""
    config = CONFIG.model_copy(update={"precision": precision})
    curves = tmp_path / "curves.jsonl"
    curves.touch()
    kept = Checkpoints(tmp_path / "kept", curves, "0" * 64, load_signer(tmp_path / "keys", {}), str)
    kept.begin(None)
    history = History()
    if precision == "float32":
        with OtherDevice():
            finish(TrainingRun.begin(store.to(OTHER), config, None, 0, history))
            kept.write(history, 0.0)
    else:
        finish(TrainingRun.begin(store, config, None, 0, history))
        kept.write(history, 0.0)
    newest = kept.newest()
    assert newest is not None
    assert isinstance(newest.content.tensors, StoredTensors)
    assert all(tensor.device.type == "cpu" for tensor in newest.content.tensors.values())
    assert any(name.startswith("learner/policy/scaler/") for name in newest.content.tensors) is (precision == "float16")


def anonymous_bytes() -> int:
    """Return the memory of this process that no file backs."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


def test_m6_loading_takes_no_memory_for_what_is_not_asked_for(tmp_path: Path) -> None:
    """A file of 128 MB, of which one tensor of 4 MB is read at a time; reading it whole fails the bound."""
    save_file({f"t{number}": torch.full((1024, 1024), float(number)) for number in range(32)}, tmp_path / "tensors")
    before, most = anonymous_bytes(), 0
    tensors = StoredTensors(tmp_path / "tensors")
    for name in tensors:
        copy = tensors[name].clone()
        assert float(copy[0, 0]) == float(name[1:])
        most = max(most, anonymous_bytes() - before)
    assert most < 32e6
    with pytest.raises(KeyError):
        tensors["t99"]


def test_a_device_that_is_not_there_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"use train\.device = cpu or auto"):
        choose_device("cuda")
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")


@cuda
@pytest.mark.parametrize("kind", KINDS)
def test_every_objective_learns_on_cuda(store: GraphDataset, kind: str) -> None:
    assert choose_device("auto").type == "cuda"
    there = place_on(store, torch.device("cuda"))
    found, metrics = finish(TrainingRun.begin(there, CONFIG.model_copy(update=KINDS[kind]), None, 0))
    assert all(tensor.device.type == "cpu" and bool(tensor.isfinite().all()) for tensor in found)
    assert all(np.isfinite(list(record.values())).all() for record in metrics)


def test_threads_and_matrix_precision_are_restored() -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with pinned_numerics(CONFIG.model_copy(update={"threads": 3, "tf32": True}), torch.device("cpu")):
        assert torch.get_num_threads() == 3
        assert torch.get_float32_matmul_precision() == before[1], "the CPU ignores it"
    with pinned_numerics(CONFIG.model_copy(update={"tf32": True}), torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
