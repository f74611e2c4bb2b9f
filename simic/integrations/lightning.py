"""A growth controller in Lightning's ``Trainer`` (extra ``lightning``).

Shapes: B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from simic.api.grower import Grower
from simic.api.grower_arguments import Data
from simic.api.processes import WrappedPart
from simic.contracts.errors import ConfigError
from simic.hosts.custom import Layer
from simic.hosts.custom.attached import SEED_PREFIX
from simic.hosts.custom.tasks import Task, kind_of
from simic.integrations.training import GrownTraining

__all__ = ["GrowerCallback"]


class GrowerCallback(GrownTraining, Callback):
    """Grows the model of a fit; ``training_step`` computes its loss with ``loss``.

    Checkpoints of the trainer hold the Grower. One that was saved at the end of an epoch is resumed to the bit, if the
    order of the batches is.
    """

    def __init__(
        self,
        *,
        slots: Sequence[str | Layer],
        validation: Data,
        model: str | None = None,
        epochs: int | None = None,
        **settings: Any,
    ) -> None:
        """Take what a Grower needs; it is made when a fit begins.

        Args:
            slots: Names of submodules, as for ``simic.Grower``.
            validation: Samples of all measurements, as for ``simic.Grower``.
            model: Name of the submodule that grows, which maps inputs to logits; by default the whole module does.
            epochs: Epochs of the training; by default ``max_epochs`` of the trainer.
            **settings: Further arguments of ``simic.Grower``, such as ``policy``.
        """
        super().__init__()
        self._model, self._epochs = model, epochs
        self._settings = {"slots": slots, "validation": validation, **settings}
        self._saved: dict[str, Any] = {}
        self._handles: list[Any] = []

    def loss(self, output: Any, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch, and count it if it is trained on; see ``simic.Grower.loss``.

        Raises:
            ConfigError: if the module trains without this callback in its trainer.
        """
        if self.grower is None and not torch.is_grad_enabled():
            logits, loss = self._settings.get("logits"), self._settings.get("loss") or Task(kind_of(labels)).loss
            value: Tensor = loss(output if logits is None or isinstance(output, Tensor) else logits(output), labels)
            return value
        return self.counted_loss(output, labels)

    def setup(self, _trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let a fit load a checkpoint with seeds, which it gets from the Grower's own state; others refuse it."""
        self._release()
        network, load = self._grown_module(pl_module), _leave_out_seeds if stage == "fit" else self._refuse_seeds
        self._handles = [network.register_load_state_dict_pre_hook(load)]  # type: ignore[no-untyped-call]
        if stage == "fit":
            # A validation of a checkpoint loads its state too, which no later fit may resume.
            self._saved = {}
            self.forget_batches()

    def teardown(self, *_: Any, **__: Any) -> None:
        """Let go of the module."""
        self._release()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the Grower, and resume it if the trainer resumes.

        Raises:
            ConfigError: if the trainer has several optimisers, several processes with another strategy than ``ddp``,
                one like DeepSpeed's in any number of processes, or a callback that averages weights; or the model
                cannot grow.
        """
        self._release()
        _check_callbacks(trainer)
        model, strategy, wrapper = self._grown_module(pl_module), trainer.strategy, trainer.strategy.model
        # Strategies that train in another way, such as DeepSpeed's, inherit from DDPStrategy too.
        is_ddp = isinstance(strategy, DDPStrategy) and isinstance(wrapper, DistributedDataParallel)
        is_alone = trainer.world_size == 1 and not isinstance(strategy, DDPStrategy)
        if not (is_alone or is_ddp) or len(trainer.optimizers) != 1:
            processes = f"{trainer.world_size} process{'es' if trainer.world_size > 1 else ''}"
            raise ConfigError(
                f"GrowerCallback: expected one process, or several with strategy='ddp', and one optimiser, found "
                f"{processes} with {type(strategy).__name__} and {len(trainer.optimizers)} optimisers"
            )
        if trainer.world_size > 1 and isinstance(wrapper, DistributedDataParallel):
            model = cast(nn.Module, WrappedPart(wrapper, model))
        if trainer.ckpt_path and not self._saved:
            raise ConfigError(
                f"GrowerCallback: {trainer.ckpt_path} holds no network that grows: its training had no GrowerCallback, "
                "or growing was over; go on without the callback"
            )
        epochs = self._epochs or trainer.max_epochs
        optimizer = trainer.optimizers[0]
        self._handles = [optimizer.register_step_pre_hook(_call_closure)]
        self.grower = Grower(model, optimizer, epochs=epochs or -1, **self._settings)
        if self._saved:
            self.grower.load_state_dict(self._saved)
            self._saved = {}

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the epoch after its last batch, before any validation and checkpoint."""
        if trainer.is_last_batch:
            self._end_epoch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """End an epoch that stopped before its last batch."""
        self._end_epoch(trainer)

    def on_fit_end(self, *_: Any) -> None:
        """Make the model plain."""
        self.end()
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the Grower; nothing if growing is over."""
        return {} if self.grower is None or self.grower.is_finished else self.grower.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a state for the fit that is about to start."""
        self._saved = state_dict

    def _end_epoch(self, trainer: Trainer) -> None:
        grows, strategy = not self.known_grower().is_finished, trainer.strategy
        self.end_epoch()
        is_wrapped = isinstance(strategy.model, DistributedDataParallel)
        if grows and self.known_grower().is_finished and is_wrapped and isinstance(strategy, DDPStrategy):
            # A wrapper averages the gradients of the parameters that it found when it was made: of no seed.
            strategy.model = trainer.lightning_module
            strategy.configure_ddp()

    def _grown_module(self, module: LightningModule) -> nn.Module:
        try:
            network: nn.Module = module if self._model is None else module.get_submodule(self._model)
        except AttributeError as error:
            raise ConfigError(f"GrowerCallback: model: expected the name of a submodule; {error}") from error
        return network

    def _refuse_seeds(self, module: nn.Module, state: dict[str, Any], prefix: str, *_others: Any) -> None:
        """Raise ConfigError if a state holds seeds that the module does not have."""
        seeds = [name for name in state if name.startswith(prefix + SEED_PREFIX)]
        if missing := [name for name in seeds if not hasattr(module, name.removeprefix(prefix))]:
            self._release()
            raise ConfigError(
                f"GrowerCallback: expected a checkpoint of a plain network, found {', '.join(missing)}: the network of "
                "this checkpoint still grows, and only fit(ckpt_path=...) goes on with it; without ckpt_path the "
                "trainer takes the module as it is"
            )

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _check_callbacks(trainer: Trainer) -> None:
    """Raise ConfigError if a callback averages weights."""
    averaging = (StochasticWeightAveraging, WeightAveraging)
    names = [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, averaging)]
    if names:
        raise ConfigError(
            f"GrowerCallback: expected no callback that averages weights, found {', '.join(names)}: its copy of the "
            "module does not get the parameters of seeds; average the weights in a fit after the end of growing"
        )


def _leave_out_seeds(_module: nn.Module, state: dict[str, Any], prefix: str, *_others: Any) -> None:
    for name in [name for name in state if name.startswith(prefix + SEED_PREFIX)]:
        del state[name]


def _call_closure(
    _optimizer: Optimizer, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Compute the gradients before the step, because Lightning does so in a closure of it, which a Grower cannot see.

    All optimisers but LBFGS, which a Grower refuses, call the closure once and first.
    """
    for closure in (*arguments[1:], *named.values()):
        if closure is not None:
            with torch.enable_grad():
                closure()
    return arguments[:1], {}
