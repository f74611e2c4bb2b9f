"""A Grower in Lightning's trainer: it changes what it decided alone, and goes on from a checkpoint."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from support.builders.grown_loops import ARCHITECTURES
from support.builders.trained_elsewhere import digest_of, landed_and_quarantined, loss_of, run_examples
from support.fakes.custom_hosts import blobs
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import simic
from simic.contracts.lifecycle import SeedStage
from simic.hosts.custom.attached import SEED_PREFIX
from simic.integrations.lightning import GrowerCallback
from simic.runtime.home import Home

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")

CASE = ARCHITECTURES["residual"]
TRAIN, VALIDATION = tuple(blobs(0, 44, CASE.shape)), tuple(blobs(1, 60, CASE.shape))
EPOCHS = 10
"""In which the heuristic keeps a seed."""


class Module(LightningModule):
    """A residual network of which a submodule gives the logits."""

    optimizers_made = 1

    def __init__(self, loss: Any = cross_entropy) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.loss = CASE.network(), loss

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        value: Tensor = self.loss(self.net(batch[0]), batch[1])
        return value

    def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        self.log("loss", self.loss(self.net(batch[0]), batch[1]))

    def test_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        self.net(batch[0])

    def predict_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        logits: Tensor = self.net(batch[0])
        return logits

    def configure_optimizers(self) -> Any:
        made = [torch.optim.SGD(self.parameters(), lr=0.03, momentum=0.9) for _ in range(self.optimizers_made)]
        return made, [torch.optim.lr_scheduler.StepLR(made[0], 4, 0.9)]


def growing(policy: str = "heuristic", **settings: Any) -> GrowerCallback:
    blueprints = ["norm", "gate", "bottleneck", "dense", "heavy"]
    return GrowerCallback(
        model="net", slots=CASE.slots, validation=VALIDATION, policy=policy, blueprints=blueprints, **settings
    )


def fit(
    callback: GrowerCallback | None, *others: Any, ckpt_path: Path | None = None, batch: int = 11, **settings: Any
) -> Module:
    """Train a fresh module."""
    module = Module(cross_entropy if callback is None else callback.loss)
    trainer = Trainer(
        **{"max_epochs": EPOCHS, **settings},
        callbacks=[*([] if callback is None else [callback]), *others],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=bool(others),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train, validation = (DataLoader(TensorDataset(*data), batch_size=batch) for data in (TRAIN, VALIDATION))
    trainer.fit(module, train, validation, ckpt_path=ckpt_path)
    return module


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[GrowerCallback, Module, Path]:
    """A training with the heuristic, its checkpoints after each epoch, and its reports in a home."""
    folder = tmp_path_factory.mktemp("grown")
    Home(folder / "home").create()
    callback = growing(report_to=simic.Home(folder / "home"))
    module = fit(callback, ModelCheckpoint(folder, "{epoch}", save_top_k=-1))
    return callback, module, folder


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}])
def test_without_growth_training_is_the_same_to_the_bit(settings: dict[str, Any]) -> None:
    plain, watched = (fit(callback, max_epochs=4, **settings) for callback in (None, growing("wait")))
    assert digest_of(plain) == digest_of(watched)


def test_the_fitted_module_is_plain_and_the_one_that_was_measured(
    grown: tuple[GrowerCallback, Module, Path],
) -> None:
    callback, module, _ = grown
    assert callback.growth is not None
    assert callback.grower is not None
    assert SeedStage.FOSSILIZED in [slot.stage for slot in callback.grower.state.slots]
    assert callback.network is module.net
    assert callback.growth.epoch == EPOCHS
    assert loss_of(module.net, VALIDATION) == pytest.approx(callback.growth.validation_loss, abs=1e-6)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert not [name for name in module.state_dict() if SEED_PREFIX in name]
    assert callback.state_dict() == {}


def test_a_checkpoint_is_resumed_to_the_bit(grown: tuple[GrowerCallback, Module, Path]) -> None:
    """One in which a seed learns alone."""
    _, module, folder = grown
    checkpoint = folder / "epoch=2.ckpt"
    held = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert [name for name in held if SEED_PREFIX in name], "the case must hold a seed"
    again = fit(growing(), ckpt_path=checkpoint)
    assert digest_of(again) == digest_of(module)


def test_a_state_that_was_loaded_for_something_else_is_not_resumed(
    grown: tuple[GrowerCallback, Module, Path], tmp_path: Path
) -> None:
    callback = growing("wait", report_to=tmp_path)
    callback.load_state_dict(torch.load(grown[2] / "epoch=2.ckpt", weights_only=True)["callbacks"]["GrowerCallback"])
    fit(callback, max_epochs=4)
    assert len(list(tmp_path.rglob("*.jsonl.zst"))) == 4


def test_reports_land_without_a_quarantined_line(grown: tuple[GrowerCallback, Module, Path]) -> None:
    assert landed_and_quarantined(grown[2] / "home") == (EPOCHS, 0)


def test_a_training_that_stops_early_leaves_a_plain_module() -> None:
    callback = growing()
    module = fit(callback, max_steps=4 * 4 + 2)
    assert callback.growth is not None
    assert callback.growth.epoch == 5
    assert not [name for name in module.state_dict() if SEED_PREFIX in name]


def test_what_cannot_grow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(None, ModelCheckpoint(tmp_path, "plain"), max_epochs=1)
    with pytest.raises(simic.ConfigError, match="no network that grows"):
        fit(growing(), ckpt_path=tmp_path / "plain.ckpt")
    with pytest.raises(simic.ConfigError, match="name of a submodule"):
        fit(GrowerCallback(model="nett", slots=["layer1"], validation=VALIDATION))
    forgotten = growing()
    module = Module(forgotten.loss)
    with torch.no_grad():
        assert module.loss(module.net(TRAIN[0]), TRAIN[1]) == cross_entropy(module.net(TRAIN[0]), TRAIN[1])
    with pytest.raises(simic.ConfigError, match="among the callbacks"):
        module.training_step(TRAIN, 0)
    monkeypatch.setattr(Module, "optimizers_made", 2)
    monkeypatch.setattr(Module, "automatic_optimization", False)
    with pytest.raises(simic.ConfigError, match="1 process with SingleDeviceStrategy and 2 optimisers"):
        fit(growing())


@pytest.mark.parametrize("averaging", [StochasticWeightAveraging(1e-3), EMAWeightAveraging()])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_callback_that_averages_weights_is_refused(averaging: Any, is_first: bool) -> None:
    callbacks = [growing("wait"), averaging] if is_first else [averaging, growing("wait")]
    trainer = Trainer(max_epochs=4, callbacks=callbacks, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(simic.ConfigError, match=f"found {type(averaging).__name__}: .*after the end of growing"):
        trainer.fit(Module(), DataLoader(TensorDataset(*TRAIN), batch_size=11))


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_only_a_fit_takes_a_checkpoint_of_a_network_that_grows(
    grown: tuple[GrowerCallback, Module, Path], stage: str
) -> None:
    """The other stages take the module as it is; they leave nothing in it."""
    module = Module()

    def run(**how: Any) -> None:
        trainer = Trainer(callbacks=[growing("wait")], accelerator="cpu", logger=False, enable_checkpointing=False)
        getattr(trainer, stage)(module, DataLoader(TensorDataset(*VALIDATION), batch_size=11), **how)

    with pytest.raises(simic.ConfigError, match=rf"found net\.{SEED_PREFIX}\d: .* only fit\(ckpt_path"):
        run(ckpt_path=grown[2] / "epoch=2.ckpt")
    assert not module.net._load_state_dict_pre_hooks
    run()
    assert not module.net._load_state_dict_pre_hooks


class Sharding(DDPStrategy):
    """Wraps the model in no DistributedDataParallel, as DeepSpeed's strategy does."""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_strategy_that_only_inherits_from_ddp_is_refused(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert issubclass(DeepSpeedStrategy, DDPStrategy), "then the case tells of DeepSpeed"
    monkeypatch.setattr(Trainer, "world_size", processes)
    trainer = Trainer(max_epochs=1, accelerator="cpu", strategy=Sharding(), logger=False, enable_checkpointing=False)
    callback, module = growing("wait"), Module()
    trainer.strategy.connect(module)
    trainer.strategy.optimizers = module.configure_optimizers()[0]
    callback.setup(trainer, module, "fit")
    with pytest.raises(simic.ConfigError, match=f"several with strategy='ddp'.* found {processes} .*with Sharding"):
        callback.on_fit_start(trainer, module)


def test_reports_that_cannot_be_written_do_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise simic.TransientError("no bus")

    callback = growing("wait")
    monkeypatch.setattr("simic.api.grower.Grower._report", fail)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(callback, max_epochs=4)
    assert sum("written with those of the next epoch: no bus" in str(one.message) for one in found) == 4
    assert callback.grower is not None
    assert callback.grower.state.epoch == 4
    assert callback.growth is not None
    assert callback.growth.epoch == 4


@pytest.mark.parametrize(
    ("shape", "labels"),
    [((6, 3), torch.arange(6) % 3), ((6, 3, 3), torch.arange(18).view(6, 3) % 3), ((6, 3), torch.ones(6, 3))],
    ids=["classes", "positions", "numbers"],
)
def test_before_a_fit_the_loss_is_that_of_the_kind_of_the_labels(shape: tuple[int, ...], labels: Tensor) -> None:
    """As in ``trainer.validate`` of a process that trains nothing; numbers may all be alike in a batch."""
    output = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    wanted = (
        mse_loss(output, labels)
        if labels.is_floating_point()
        else cross_entropy(output.flatten(0, -2), labels.flatten())
    )
    with torch.no_grad():
        assert float(growing("wait").loss(output, labels)) == pytest.approx(float(wanted))


PROCESSES = """
import json, sys
from pathlib import Path
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from support.builders.trained_elsewhere import digest_of
from test_lightning import Module, fit, growing

torch.set_num_threads(1)
folder = Path(sys.argv[1])
both = {"strategy": "ddp", "devices": 2, "max_epochs": 12, "batch": 4}
callback = growing(report_to=folder / "reports", epochs=10)
module = fit(callback, ModelCheckpoint(folder, "{epoch}", save_top_k=-1), **both)
kept = digest_of(module.net)
again = fit(growing(epochs=10), ckpt_path=folder / "epoch=3.ckpt", **both)
stages = [slot.stage.value for slot in callback.grower.state.slots]
found = [kept, digest_of(again.net), stages, callback.growth.epoch, sorted(module.state_dict())]
rank = torch.distributed.get_rank()
Path(folder, f"{rank}.json").write_text(json.dumps(found))
"""
"""A training in two processes in which growing ends two epochs before the training, and one from a checkpoint of it."""


def test_two_processes_grow_one_network(tmp_path: Path) -> None:
    file, tests = tmp_path / "processes.py", Path(__file__).parents[2]
    file.write_text(PROCESSES)
    done = subprocess.run(
        [sys.executable, file, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    whole, resumed, stages, epochs, names = first
    assert resumed == whole
    assert "FOSSILIZED" in stages
    assert epochs == 10
    assert not [name for name in names if SEED_PREFIX in name]
    assert len(list((tmp_path / "reports").rglob("*.jsonl.zst"))) == 10, "one process reports"
    held = torch.load(tmp_path / "epoch=3.ckpt", weights_only=True)["state_dict"]
    assert [name for name in held if SEED_PREFIX in name], "the case must hold a seed"


def test_the_surface_is_as_promised() -> None:
    """A change here is a change of the version (docs/api.md)."""
    assert str(inspect.signature(GrowerCallback)) == (
        "(*, slots: 'Sequence[str | Layer]', validation: 'Data', model: 'str | None' = None, "
        "epochs: 'int | None' = None, **settings: 'Any') -> 'None'"
    )
    assert str(inspect.signature(GrowerCallback.loss)) == "(self, output: 'Any', labels: 'Tensor') -> 'Tensor'"
    assert {"grower", "growth", "network"} <= set(dir(GrowerCallback))


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_examples("Lightning")
    growing = cast(GrowerCallback, names["growing"])
    assert growing.growth is not None and growing.growth.epoch == 12
    assert len(list((tmp_path / "reports").rglob("*.jsonl.zst"))) == 12
    assert "(1): KeptSeed()" in str(growing.network), "the page shows a seed that was kept"
