"""What a training in progress has done, and its repetition after a kill.

The phases of a training are generators. What they draw depends on seeds and on the metrics of earlier updates, never on
anything else, so a resumed training runs them again from the beginning: an update that a checkpoint covers returns its
recorded metrics and computes nothing. Behind the last one, weights, moments and random generators take the values of
the checkpoint, and the training goes on as if it had never stopped. What a phase computes from weights on its way, such
as an advantage scale or a copy of the network, is kept by name and not computed again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from simic.contracts.errors import ContractError, DivergenceError
from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import PolicyNetwork
from simic.learning.safety.guard import GUARD_METRICS, Guard

__all__ = ["History", "Resumed", "optimizer_tensors", "put_moment", "restore_optimizer"]

Tensors = dict[str, Tensor]
Metrics = dict[str, float]
T = TypeVar("T")

_SCALES = ("scale", "growth_factor", "backoff_factor")
"""What a scaler's state holds as a float; the rest are counts."""


class Sampler(Protocol):
    """A sampler whose state a checkpoint stores: its random generator and the counts of its draws."""

    def get_state(self) -> dict[str, Any]:
        """Return the state as arrays and plain JSON."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""


class Trainee(Protocol):
    """A learner whose weights, moments, loss scale and counter of updates a checkpoint stores."""

    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    updates: int

    @property
    def network(self) -> nn.Module:
        """Return the network that learns."""


@dataclass(frozen=True)
class Resumed:
    """The content of a checkpoint."""

    metrics: Sequence[Metrics]
    """Of every update that it covers, in order."""
    tensors: Mapping[str, Tensor]
    """By ``learner/<name>/...``, ``generator/<name>`` and ``kept/<name>/...``."""
    updates: Mapping[str, int]
    """Update counter of each learner."""
    values: Mapping[str, Metrics]
    """Numbers by name."""
    samplers: Mapping[str, str]
    """States of samplers by name, as JSON."""


@dataclass
class History:
    """The learners and random generators of a training, what it has kept, and how many updates it has made."""

    resumed: Resumed | None = None
    guard: Guard = field(default_factory=lambda: Guard(TrainConfig()))
    """Says what the next update may do; one that watches no training, as outside of one, restricts nothing."""
    done: int = 0
    """Updates of all learners, repeated ones included."""
    _learners: dict[str, Trainee] = field(default_factory=dict)
    _generators: dict[str, torch.Generator] = field(default_factory=dict)
    _samplers: dict[str, Sampler] = field(default_factory=dict)
    _kept: dict[str, Tensors] = field(default_factory=dict)
    _values: dict[str, Metrics] = field(default_factory=dict)

    @property
    def covered(self) -> int:
        """Return the number of updates that are repeated from a checkpoint."""
        return 0 if self.resumed is None else len(self.resumed.metrics)

    def add_learner(self, name: str, learner: Trainee) -> None:
        """Make a learner part of the following checkpoints."""
        self._learners[name] = learner

    def drop_learner(self, name: str) -> None:
        """Leave a learner that makes no more updates out of the following checkpoints."""
        del self._learners[name]

    def generator(self, name: str, seed: int) -> torch.Generator:
        """Return a new random generator that is part of the following checkpoints."""
        self._generators[name] = torch.Generator().manual_seed(seed)
        return self._generators[name]

    def add_sampler(self, name: str, sampler: Sampler) -> None:
        """Make a sampler whose draws depend on weights part of the following checkpoints."""
        self._samplers[name] = sampler

    @property
    def is_repeating(self) -> bool:
        """Return whether the next update is one that a checkpoint covers."""
        return self.done < self.covered

    def next_update(self, learner: Trainee) -> Metrics | None:
        """Count an update, and return its recorded metrics if a checkpoint covers it; the last one restores all state.

        Metrics of the guard are left out.

        Raises:
            ContractError: if the repetition did not lead to the learners of the checkpoint.
            DivergenceError: ahead of an update that is to be made, if the loss has risen for too long.
            HopelessError: ahead of one, if the training will not come to anything.
        """
        if not self.is_repeating:
            self.guard.require_stable()
            self.guard.require_hope()
        self.done += 1
        if self.resumed is None or self.done > self.covered:
            return None
        learner.updates += 1
        if self.done == self.covered:
            self._restore(self.resumed, learner)
        return {name: value for name, value in self.recorded.items() if name not in GUARD_METRICS}

    @property
    def recorded(self) -> Metrics:
        """Return what a checkpoint recorded of the last repeated update, the guard's metrics included."""
        return dict(self.resumed.metrics[self.done - 1]) if self.resumed is not None else {}

    def value(self, name: str, compute: Callable[[], Metrics]) -> Metrics:
        """Return numbers that depend on weights: computed, or those of the checkpoint while updates are repeated.

        Raises:
            ContractError: if the checkpoint has none under ``name``.
        """
        repeated = self._repeated
        self._values[name] = compute() if repeated is None else self._known(name, repeated.values.get(name))
        return self._values[name]

    def keep(self, name: str, compute: Callable[[], Tensors]) -> Tensors:
        """Return tensors that depend on weights, as ``value`` does; a later call with the same name replaces them."""
        repeated = self._repeated
        if repeated is None:
            self._kept[name] = {key: tensor.detach().clone() for key, tensor in compute().items()}
        else:
            kept = self._known(name, _below(repeated, f"kept/{name}/") or None)
            self._kept[name] = {key: tensor.clone() for key, tensor in kept.items()}
        return self._kept[name]

    def frozen(self, name: str, network: PolicyNetwork) -> PolicyNetwork:
        """Return a copy of the network as it is at this point of the training."""
        weights = self.keep(name, network.state_dict)
        frozen = copy.deepcopy(network)
        frozen.load_state_dict(weights)
        return frozen

    def state(self) -> Resumed:
        """Return what a checkpoint holds at this point, without metrics.

        Raises:
            DivergenceError: if a weight or a moment is not finite.
        """
        self.require_finite()
        tensors = {
            f"learner/{name}/{key}": tensor
            for name, learner in self._learners.items()
            for key, tensor in _learner_tensors(learner).items()
        }
        tensors |= {f"generator/{name}": generator.get_state() for name, generator in self._generators.items()}
        tensors |= {f"kept/{name}/{key}": tensor for name, kept in self._kept.items() for key, tensor in kept.items()}
        updates = {name: learner.updates for name, learner in self._learners.items()}
        samplers = {name: _text(sampler.get_state()) for name, sampler in self._samplers.items()}
        return Resumed([], tensors, updates, dict(self._values), samplers)

    def require_finite(self) -> None:
        """Raise DivergenceError if a weight or a moment of a learner is not finite."""
        for name, learner in self._learners.items():
            tensors = _learner_tensors(learner)
            are_finite = torch.stack([tensor.isfinite().all().to(_device(learner)) for tensor in tensors.values()])
            broken = [key for key, is_finite in zip(tensors, are_finite.cpu().tolist(), strict=True) if not is_finite]
            if broken:
                raise DivergenceError(
                    f"{len(broken)} tensors of learner {name} are not finite after update {learner.updates}, such as "
                    f"{broken[0]}"
                )

    @property
    def _repeated(self) -> Resumed | None:
        """Return the checkpoint as long as updates are repeated from it; weights have their first values then."""
        return self.resumed if self.is_repeating else None

    def _known(self, name: str, stored: T | None) -> T:
        if stored is None:
            raise ContractError(
                f"a checkpoint does not fit its training: expected {name!r} before update {self.done + 1} of "
                f"{self.covered}, found none"
            )
        return stored

    def _restore(self, resumed: Resumed, last: Trainee) -> None:
        """Give all learners and generators their state; ``last`` is the learner of the last repeated update."""
        generators = {key.removeprefix("generator/") for key in resumed.tensors if key.startswith("generator/")}
        expected = sorted({*resumed.updates, *resumed.samplers, *generators})
        found = sorted({*self._learners, *self._samplers, *self._generators})
        updates = [resumed.updates.get(name) for name, trainee in self._learners.items() if trainee is last]
        if (expected, updates) != (found, [last.updates]):
            raise ContractError(
                f"a checkpoint does not fit its training: after {self.covered} repeated updates expected {expected} "
                f"with update {updates}, found {found} with update {last.updates}"
            )
        for name, learner in self._learners.items():
            _restore_learner(learner, _below(resumed, f"learner/{name}/"))
        for name, generator in self._generators.items():
            generator.set_state(resumed.tensors[f"generator/{name}"])
        for name, sampler in self._samplers.items():
            sampler.set_state(json.loads(resumed.samplers[name]))


def _text(state: Mapping[str, Any]) -> str:
    return json.dumps(
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state.items()}
    )


def _below(resumed: Resumed, prefix: str) -> Tensors:
    """Return the tensors whose names begin with ``prefix``, without it."""
    names = [name for name in resumed.tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): resumed.tensors[name] for name in names}


def _learner_tensors(learner: Trainee) -> Tensors:
    weights = {f"weight/{key}": tensor.detach() for key, tensor in learner.network.state_dict().items()}
    moments = {f"moment/{key}": tensor for key, tensor in optimizer_tensors(learner).items()}
    scaler = {f"scaler/{key}": torch.tensor(float(value)) for key, value in learner.scaler.state_dict().items()}
    return weights | moments | scaler


def _device(learner: Trainee) -> torch.device:
    return next(learner.network.parameters()).device


def _restore_learner(learner: Trainee, tensors: Tensors) -> None:
    parts: dict[str, Tensors] = {"weight": {}, "moment": {}, "scaler": {}}
    for key, tensor in tensors.items():
        kind, _, rest = key.partition("/")
        parts[kind][rest] = tensor
    learner.network.load_state_dict(parts["weight"])
    restore_optimizer(learner, parts["moment"])
    if learner.scaler.is_enabled():
        learner.scaler.load_state_dict(_scaler_state(parts["scaler"]))


def _scaler_state(tensors: Tensors) -> dict[str, float | int]:
    values = {key: float(tensor) for key, tensor in tensors.items()}
    return {key: value if key in _SCALES else int(value) for key, value in values.items()}


def optimizer_tensors(learner: Trainee) -> Tensors:
    """Return the moments by ``<parameter>/<kind>``; parameters that were never stepped have none."""
    return {
        f"{name}/{kind}": value
        for name, parameter in learner.network.named_parameters()
        for kind, value in learner.optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(learner: Trainee, tensors: Mapping[str, Tensor]) -> None:
    """Replace all moments by copies of ``tensors``, as ``optimizer_tensors`` returns them."""
    learner.optimizer.state.clear()
    parameters = dict(learner.network.named_parameters())
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition("/")
        put_moment(learner.optimizer, parameters[name], kind, tensor)


def put_moment(optimizer: Optimizer, parameter: Tensor, kind: str, tensor: Tensor) -> None:
    """Give a parameter a copy of a moment, where the optimiser reads it.

    Moments lie with their parameter, and so does the number of steps of a fused optimiser; others count on the CPU.
    """
    lies_there = kind != "step" or bool(optimizer.defaults["fused"])
    device = parameter.device if lies_there else torch.device("cpu")
    optimizer.state[parameter][kind] = tensor.detach().clone().to(device)
