"""A growth controller in the ``Trainer`` of Hugging Face's transformers (extra ``transformers``).

Shapes: B batch, C classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import isclose, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from simic.api.grower import Grower
from simic.api.grower_arguments import Data
from simic.contracts.errors import ConfigError
from simic.hosts.custom import Layer, Samples
from simic.hosts.custom.autocast import with_plain_forward, without_autocast
from simic.hosts.custom.forward import forked_rng, preserve_state
from simic.hosts.custom.tasks import IGNORED, Kind, Task, kind_of
from simic.integrations.training import GrownTraining

__all__ = ["GrowerCallback"]

_MOST_COMPARED = 8
"""Validation samples on which the model's own loss is compared."""
_TOLERANCE = 1e-3
"""Largest relative difference of two losses, and of their gradients, that counts as rounding."""
STATE = "simic_grower"
"""Key of the Grower's state in the optimiser's. A trainer loads the optimiser before any callback may act."""


class GrowerCallback(GrownTraining, TrainerCallback):
    """Grows the model of a trainer; ``attach`` makes it.

    Checkpoints of the trainer hold the Grower, in the file of the optimiser. One that was saved at the end of an epoch
    is resumed to the bit.
    """

    def __init__(self, grower: Grower) -> None:
        """Take a Grower of the trainer's model and optimiser; use ``attach``."""
        self.grower = grower
        self._handles: list[Any] = []
        self._shifts_labels = False

    @classmethod
    def attach(
        cls,
        trainer: Trainer,
        *,
        slots: Sequence[str | Layer],
        validation: Data,
        epochs: int | None = None,
        logits: Callable[[Any], Tensor] | None = None,
        **settings: Any,
    ) -> GrowerCallback:
        """Make a Grower of the trainer's model and optimiser, and let the trainer use its loss.

        Args:
            trainer: The trainer, before ``train``; it creates its optimiser here, unless it was given one.
            slots: Names of submodules, as for ``simic.Grower``.
            validation: Samples of all measurements, as for ``simic.Grower``; the model gets their inputs alone.
            epochs: Epochs of the training; by default ``num_train_epochs``.
            logits: Function that takes the logits out of an output; by default its entry ``logits``.
            **settings: Further arguments of ``simic.Grower``, such as ``policy``.

        Raises:
            ConfigError: if the trainer does something that a Grower cannot follow, the model cannot grow, or it has a
                loss of its own that is not the default one, and no ``loss`` is given.
            DatasetError: if samples are invalid.
        """
        _check(trainer)
        grower = Grower(
            trainer.model,
            trainer.create_optimizer(),
            slots=slots,
            validation=validation,
            epochs=_epochs(trainer.args) if epochs is None else epochs,
            logits=logits or _logits,
            **settings,
        )
        if settings.get("loss") is None:
            try:
                _compare_loss(grower, logits or _logits)
            except BaseException:
                grower.finalize()
                raise
        callback = cls(grower)
        callback._shifts_labels = getattr(trainer, "_loss_shifts_labels", False)
        optimizer = trainer.optimizer
        callback._handles = [
            optimizer.register_state_dict_post_hook(callback._add_state),
            optimizer.register_load_state_dict_pre_hook(callback._take_state),
        ]
        trainer.compute_loss_func = callback.loss
        trainer.add_callback(callback)
        return callback

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss of a batch as a share of the mean over all batches of an optimiser step."""
        value = self.counted_loss(outputs, labels)
        if num_items_in_batch is None:
            return value
        # The trainer counts the labels of a step in the same way: of a language model, those that follow a token.
        counted = labels[..., 1:] if self._shifts_labels else labels
        return value * (counted.ne(IGNORED).sum() / num_items_in_batch)

    def on_step_end(self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """End the epoch after its last step, before any evaluation and checkpoint."""
        if state.epoch is not None and float(state.epoch).is_integer():
            self.end_epoch()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """End an epoch that stopped before its last step, or whose length the trainer does not know."""
        self.end_epoch()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Make the model plain."""
        self.end()

    def end(self) -> None:
        super().end()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _add_state(self, _optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, STATE: self.known_grower().state_dict()}

    def _take_state(self, _optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Put the seeds of a checkpoint in their places; the state of the optimiser then fits its parameters."""
        if STATE not in state:
            raise ConfigError(
                "GrowerCallback: the checkpoint holds no network that grows: its training had no GrowerCallback, or "
                "growing was over; go on without the callback"
            )
        self.known_grower().load_state_dict(state[STATE])
        return {name: value for name, value in state.items() if name != STATE}


class _Compared(NamedTuple):
    """A loss of some samples, and its gradient for the logits if the logits lead to it."""

    value: float
    gradient: Tensor | None


def _compare_loss(grower: Grower, logits: Callable[[Any], Tensor]) -> None:
    """Raise ConfigError if the model computes another loss from labels than the Grower does by default.

    A model that takes no labels, or gives no loss for these, is not compared.
    """
    spec = grower._host.host.spec  # noqa: SLF001 - the samples as the Grower has read them
    few = min(spec.batch, _MOST_COMPARED)
    samples = Samples(spec.validation.inputs[:few], spec.validation.labels[:few])
    losses = _losses_of(grower.model, samples, logits)
    if losses is None or not all(isfinite(loss.value) for loss in losses):
        return
    own, default = losses
    is_same = isclose(own.value, default.value, rel_tol=_TOLERANCE, abs_tol=1e-6)
    # Two losses of a fresh network may be nearly equal, as log(C) is for all labels; their gradients then are not.
    if own.gradient is not None and default.gradient is not None:
        difference, size = torch.linalg.vector_norm(own.gradient - default.gradient), default.gradient.norm()
        is_same &= bool(difference <= _TOLERANCE * size + 1e-6)
    if not is_same:
        name = "squared error" if kind_of(samples.labels) is Kind.NUMBERS else "cross-entropy"
        raise ConfigError(
            f"GrowerCallback: expected a model whose own loss is the mean {name} of logits and labels, because the "
            f"trainer would minimise that instead; on {len(samples.labels)} validation samples found {own.value:.6g} "
            f"for the loss of the model, {default.value:.6g} for the {name}, with other gradients; give the loss of "
            "the model as loss=, a function of logits and labels"
        )


def _losses_of(
    model: nn.Module, samples: Samples, logits: Callable[[Any], Tensor]
) -> tuple[_Compared, _Compared] | None:
    """Return the model's own loss and the default one of samples, or None if the model has no own one."""
    taken = inspect.signature(model.forward).parameters.values()
    if not any(one.name == "labels" or one.kind is one.VAR_KEYWORD for one in taken):  # a wrapper passes labels on
        return None
    inputs, labels = samples
    exact, plain = without_autocast(inputs.device), with_plain_forward(model)
    with exact, plain, preserve_state(model, training=False), forked_rng(inputs.device), torch.enable_grad():
        try:
            output = model(inputs, labels=labels)
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return None  # labels for the default loss alone
        own, output = _without_loss(output)
        if not isinstance(own, Tensor) or own.numel() != 1:
            return None
        found = logits(output)
        default = Task(kind_of(labels)).loss(found, labels)
        return _with_gradient(own, found), _with_gradient(default, found)


def _without_loss(output: Any) -> tuple[Any, Any]:
    """Return the loss of an output, as the trainer finds it, and the output as it is without labels.

    The loss has a name, or is first in a tuple. A ``logits`` that takes an entry by its place expects no loss there.
    """
    if isinstance(output, tuple):
        return output[0], output[1:]
    if not isinstance(output, Mapping):
        return None, output
    return output.get("loss"), type(output)(**{name: value for name, value in output.items() if name != "loss"})


def _with_gradient(loss: Tensor, logits: Tensor) -> _Compared:
    gradient = None
    if loss.requires_grad and logits.requires_grad:
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)
    return _Compared(float(loss.detach()), gradient)


def _logits(output: Any) -> Tensor:
    logits: Tensor = output["logits"] if isinstance(output, Mapping) else output[0]
    return logits


def _check(trainer: Trainer) -> None:
    """Raise ConfigError if the trainer does something that a Grower cannot follow."""
    args = trainer.args
    wrong = {
        "several devices; write the loop around simic.Grower and DistributedDataParallel yourself": (
            args.world_size > 1 or args.n_gpu > 1
        ),
        "DeepSpeed or FSDP": trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled,
        "torch_compile": args.torch_compile,
        "load_best_model_at_end, whose seeds may be others": args.load_best_model_at_end,
        "restore_callback_states_from_checkpoint, which makes new callbacks": (
            args.restore_callback_states_from_checkpoint
        ),
        "model_init": trainer.model_init is not None,
        "compute_loss_func; give a Grower's `loss=` instead": trainer.compute_loss_func is not None,
        "label_smoothing_factor; give a Grower's `loss=` instead": args.label_smoothing_factor != 0,
    }
    if unsupported := [name for name, is_so in wrong.items() if is_so]:
        raise ConfigError(f"GrowerCallback: expected a trainer of one process without {' and '.join(unsupported)}")


def _epochs(args: TrainingArguments) -> int:
    if args.max_steps > 0 or not float(args.num_train_epochs).is_integer():
        raise ConfigError(
            f"GrowerCallback: max_steps {args.max_steps} and num_train_epochs {args.num_train_epochs} give no whole "
            "number of epochs; say how many there are with epochs="
        )
    return int(args.num_train_epochs)
