"""One module that its owner trains: the ``HostBatch`` of a training loop that Simic does not run.

Seeds act through hooks on the module's layers and learn with its optimiser. A seed joins the parameter group of its
slot's layer, so it has that group's learning rate, schedule and weight decay.
Shapes: S slots, L layers, B samples, C classes, P parameters of a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from simic.contracts.errors import ConfigError
from simic.hosts.batched.weights import initial_seed
from simic.hosts.custom.attached_seeds import SEED_PREFIX, AttachedSeed, AttachedSeeds
from simic.hosts.custom.checks import check_labels, check_layers, check_samples
from simic.hosts.custom.epoch_sums import EpochSums
from simic.hosts.custom.evaluation import measure
from simic.hosts.custom.forward import ActiveSeed, LayerHook, check_output, generator_states, grow_output
from simic.hosts.custom.host import MOST_SAMPLES, CustomHost, norm_of
from simic.hosts.custom.inspect import inspect_module, layer_columns
from simic.hosts.custom.interface import Loss, ModuleHost
from simic.hosts.custom.isolated import KeptPass, cloned, isolated_gradient
from simic.hosts.custom.optimiser_state import complete_momentum, group_of, is_skipped, scaled
from simic.hosts.custom.owner_pass import OwnerPasses
from simic.hosts.custom.owner_snapshot import OwnerSnapshot, clear_state, trained
from simic.hosts.custom.owner_step import Batch, OwnerStep
from simic.hosts.custom.plain import check_replaceable
from simic.hosts.custom.tasks import IGNORED
from simic.hosts.custom.training import seed_noise
from simic.hosts.interfaces import Blueprint, DataSplit, Measurement, Memory, SeedAssignment, TrainingRecord

__all__ = ["SEED_PREFIX", "AttachedHost", "AttachedSeed"]

MEASURED_STEPS = 32
"""Steps of an epoch at which the gradient norms of layers are measured, so that large epochs cost no more."""
LOST = "finalize that one first, or make the model again if it is lost"
"""What to do about another Grower of a model."""

_ATTACHED: WeakSet[nn.Module] = WeakSet()


class AttachedHost:
    """A ``HostBatch`` of one host, whose owner calls ``note`` for every batch and then steps the optimiser.

    ``begin`` opens an epoch and ``finish`` closes it; ``train`` does not exist here.
    """

    def __init__(
        self,
        spec: ModuleHost,
        key: int,
        optimiser: Optimizer,
        loss: Loss,
        blueprints: Sequence[Blueprint],
        *,
        has_test: bool,
        who: str,
        chunk: int = MOST_SAMPLES,
    ) -> None:
        """Inspect the module of ``spec``, which stays the one that is trained, and attach to it.

        ``spec.train`` is only used for the dry run and for the probe of a seed before the first batch. Measurements
        take ``chunk`` samples at a time.

        Raises:
            ConfigError: if the layers, the module or the optimiser cannot be used.
            DatasetError: if samples are invalid.
        """
        check_layers(spec.module, spec.layers, who)
        for name, samples in (("validation", spec.validation), ("test", spec.test)):
            check_samples(samples, f"{who}, {name}")
        if spec.module in _ATTACHED:
            raise ConfigError(f"{who}: the module grows under another Grower already; {LOST}")
        layout = inspect_module(spec.module, spec, key, who)
        check_labels({"validation": spec.validation, "test": spec.test}, layout.topology.classes, who)
        slots = [hook.name for hook in layout.hooks if hook.slot is not None]
        check_replaceable(spec.module, slots, spec.train.inputs[: spec.batch], who)
        self.host = CustomHost(key, spec, spec.module, layout, {}, chunk)
        self.topology, self.blueprints = layout.topology, blueprints
        self._task = self.host.task
        self._loss, self._optimiser, self._has_test, self._who = loss, optimiser, has_test, who
        groups = [group_of(optimiser, spec.module, hook, who) for hook in self._slot_hooks()]
        self.attached = AttachedSeeds(spec.module, optimiser, groups)
        self._assignment = self._nothing()
        self._sums = self._no_sums()
        self.stride = 1
        """Gradient norms are measured in every step of this number; a resumed loop sets it after ``begin``."""
        self._epoch, self._seen = 0, 0
        self._first = 0
        """Samples of the epoch before the latest pass; a checkpoint computes that again in the backward pass."""
        self._is_paused, self._alone = False, -1
        self._is_measured_step = True
        self._snapshot = OwnerSnapshot()
        self._passes = OwnerPasses(self._task, len(slots), spec.logits, who)
        self._probe_batch: Batch | None = None
        self._step = OwnerStep(lambda: self.host.trained.values())
        self._handles: list[Any] = []
        self._watched: dict[tuple[str, nn.Parameter], Any] = {}
        """Handles of the hooks of layers' parameters; one that several layers share has several names."""
        try:
            self._attach()
        except BaseException:
            self.detach()
            raise
        _ATTACHED.add(spec.module)

    # Between epochs

    @property
    def seeds(self) -> dict[int, AttachedSeed]:
        """Return the seeds by slot, in the order of germination."""
        return self.attached.by_slot

    def layers(self) -> dict[str, NDArray[Any]]:
        return layer_columns([self.host.spec.layers])

    def parameters(self) -> NDArray[np.int64]:
        mine = self._ids_of_seeds()
        count = sum(one.numel() for one in self.host.trained.values() if id(one) not in mine)
        return np.array([count], dtype=np.int64)

    def germinate(self, _host: int, slot: int, number: int, blueprint: int) -> None:
        site = self.topology.sites[slot]
        born = initial_seed(self.host.key, slot, number, self.blueprints[blueprint], site).unsqueeze(0)
        self.place(slot, AttachedSeed(blueprint, number, nn.Parameter(born.to(self._device))))

    def place(self, slot: int, seed: AttachedSeed) -> None:
        """Put a seed into an empty slot: its parameters join the module, and the parameter group of the layer."""
        self.attached.put(slot, seed)
        if seed.learns:
            self.attached.watch(slot, partial(self._keep_norm, f"{SEED_PREFIX}{slot}"))

    def clear(self, where: NDArray[np.bool_]) -> None:
        for slot in np.flatnonzero(where[0]).tolist():
            self.attached.remove(slot)

    def is_clear(self) -> NDArray[np.bool_]:
        return np.array([[slot not in self.seeds for slot in range(len(self.topology.sites))]])

    def probe(self, assignment: SeedAssignment, _epoch: int) -> NDArray[np.float64]:
        """Return gradient norms [1, S] on the latest training batch, or on validation samples before the first."""
        self._assignment = assignment
        norms = np.full(assignment.alpha.shape, np.nan)
        samples = self.host.spec.train
        first = KeptPass((samples.inputs[: self.host.batch],), {}, None, 0)
        batch, labels = self._probe_batch or (first, samples.labels[: self.host.batch])
        for slot in np.flatnonzero(assignment.is_incubating[0]).tolist():
            if self.seeds[slot].learns:
                norms[0, slot] = norm_of(self._isolated_gradient(slot, batch, labels))
        return norms

    def train(self, assignment: SeedAssignment, epoch: int) -> TrainingRecord:  # noqa: ARG002
        raise RuntimeError("an attached module is trained by its owner, between begin and finish")

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        """Measure the module; without test samples, their measurements are NaN."""
        if part is DataSplit.TEST and not self._has_test:
            return _unmeasured(len(self.topology.sites), len(self.topology.kinds))
        active = {
            slot: ActiveSeed(self.blueprints[seed.blueprint], seed.parameters.detach(), float(alpha))
            for slot, seed in self.seeds.items()
            if (alpha := assignment.alpha[0, slot]) > 0
        }
        with self._paused():
            return measure(self.host, active, part, leave_one_out=leave_one_out)

    def weight_norms(self) -> NDArray[np.float64]:
        return np.array([self.host.weight_norms()])

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        mine = self._ids_of_seeds()
        # A parameter that nothing trains may hold infinities on purpose, as a mask does.
        whole = {id(parameter): parameter for parameter in (*self.host.module.parameters(), *trained(self._optimiser))}
        own = [one for one in whole.values() if one.requires_grad and id(one) not in mine]
        good = all(bool(tensor.isfinite().all()) for tensor in self._with_state(own))
        seeds = np.ones((1, len(self.topology.sites)), dtype=bool)
        for slot, seed in self.seeds.items():
            seeds[0, slot] = all(bool(tensor.isfinite().all()) for tensor in self._with_state([seed.parameters]))
        return np.array([good]), seeds

    def _ids_of_seeds(self) -> set[int]:
        return {id(seed.parameters) for seed in self.seeds.values()}

    def memory(self) -> Memory:
        own = list(self.host.module.parameters())
        size = sum(tensor.nbytes for tensor in [*self._with_state(own), *self.host.module.buffers()])
        return Memory(self.host.sample_bytes, size, snapshot=size)

    def snapshot(self) -> OwnerSnapshot:
        """Return what will hold a copy of parameters, buffers and optimiser state, on their device.

        The owner may load a checkpoint before the epoch begins, so the copy is taken at its first training pass.
        """
        self._snapshot = OwnerSnapshot()
        return self._snapshot

    def restore(self, snapshot: OwnerSnapshot, rows: NDArray[np.bool_]) -> None:
        if rows[0]:
            snapshot.restore(self.host.module, self._optimiser)

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        if rows[0]:
            clear_state(self._optimiser)

    # During an epoch

    @property
    def has_batches(self) -> bool:
        """Return whether a batch was noted in this epoch."""
        return self._sums.samples > 0

    def begin(self, assignment: SeedAssignment, epoch: int) -> None:
        """Open an epoch in which the assigned seeds take part."""
        self.stride = max(1, -(-self._sums.steps // MEASURED_STEPS))
        self._assignment, self._epoch, self._seen, self._first = assignment, epoch, 0, 0
        self._sums, self._is_measured_step = self._no_sums(), True
        self._step.batches.clear()

    def check_batch(self, logits: Tensor, labels: Tensor) -> None:
        """Raise ConfigError unless a training pass gave these logits, which fit the labels."""
        self._passes.check(logits, labels, is_training=self.host.module.training)

    def note(self, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Count a training batch, which ``check_batch`` passed, and the loss that is about to be minimised."""
        batch = self._passes.take(logits)
        self._sums.add(logits, labels)
        self._seen += len(labels)
        self._probe_batch = (batch, labels if batch.random_states is None else labels.clone())
        if loss.requires_grad:
            teaches = batch.random_states is not None
            self._step.watch(loss, logits, self._probe_batch if teaches else None, self._is_measured)

    def finish(self) -> TrainingRecord:
        """Close the epoch and return its measurements.

        Raises:
            ConfigError: if no batch was noted, or the optimiser took no step.
        """
        sums = self._sums
        if not sums.samples or not sums.steps:
            missing, remedy = "the optimiser took no step", "step the optimiser after each backward pass"
            if not sums.samples:
                missing, remedy = "no loss was computed with `loss`", "compute that of each batch with grower.loss"
            raise ConfigError(
                f"{self._who}: {missing} in this epoch, so there is nothing to measure; {remedy}, and call step once "
                "after each epoch"
            )
        learned = np.array([slot in self.seeds and self.seeds[slot].learns for slot in range(len(sums.seed_good))])
        learned &= (self._assignment.alpha[0] > 0) | self._assignment.is_incubating[0]
        if not sums.counted:
            raise ConfigError(f"{self._who}: all labels of this epoch are {IGNORED}, so there is nothing to measure")
        loss, accuracy = sums.means()
        return TrainingRecord(
            loss=np.array([loss]),
            accuracy=np.array([accuracy]),
            layer_gradient=sums.layer_norms()[None],
            seed_gradient=np.where(learned, sums.seed_norms(), np.nan)[None],
            seed_health=np.where(learned, sums.seed_good / sums.steps, np.nan)[None],
            samples=np.array([float(sums.samples)]),
        )

    def detach(self) -> None:
        """Remove all hooks, and the seeds' parameters from the module; the seeds stay in ``seeds``, and copies go."""
        for handle in (*self._handles, *self._watched.values()):
            handle.remove()
        self.attached.detach()
        _ATTACHED.discard(self.host.module)
        self._snapshot.clear()
        self._step.forget()
        self._passes.forget()
        self._probe_batch = None

    # Hooks

    def _attach(self) -> None:
        _keep_hooks_uncompiled()
        module, handles = self.host.module, self._handles
        handles.append(self._optimiser.register_step_pre_hook(self._before_step))
        handles.append(module.register_forward_pre_hook(self._see_pass, with_kwargs=True))
        handles.append(module.register_forward_hook(self._see_output))
        for hook in self._slot_hooks():
            layer = module.get_submodule(hook.name)
            handles.append(layer.register_forward_hook(partial(self._pass_layer, hook)))
        self._watch_layers()

    def _watch_layers(self) -> None:
        """Watch the gradients of layers; their owner may have unfrozen, replaced or moved some since."""
        present = {
            (name, parameter)
            for hook in self.host.layout.hooks
            for name, parameter in self.host.module.get_submodule(hook.name).named_parameters(prefix=hook.name)
            if parameter.requires_grad
        }
        for gone in self._watched.keys() - present:
            self._watched.pop(gone).remove()
        for name, parameter in present - self._watched.keys():
            keep = partial(self._keep_layer_norm, name)
            handle = parameter.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
            self._watched[name, parameter] = handle

    def _see_pass(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._is_training_pass(module):
            return
        if self._snapshot.tensors is None:
            self._snapshot.take(self.host.module, self._optimiser)
            self._watch_layers()
        alone = any(self.seeds[slot].learns for slot in self._incubating())
        self._first = self._seen
        if alone:  # Copies, because the module may work in place on its inputs, and its owner reuse them.
            kept = KeptPass(cloned(arguments), cloned(named), generator_states(self._device), self._seen)
        else:
            kept = KeptPass(arguments, named, None, self._seen)
        self._passes.begin(kept)

    def _see_output(self, module: nn.Module, _arguments: Any, output: Any) -> None:
        if self._is_training_pass(module):
            self._passes.end(output)

    def _is_training_pass(self, module: nn.Module) -> bool:
        """Return whether the owner trains on the present pass."""
        # Within a backward pass, a checkpoint of the whole module computes the latest pass again.
        is_again = torch._C._current_graph_task_id() >= 0  # noqa: SLF001
        return module.training and torch.is_grad_enabled() and not (self._is_paused or self._alone >= 0 or is_again)

    def _pass_layer(self, hook: LayerHook, _module: nn.Module, _arguments: Any, output: Any) -> Tensor | None:
        slot = hook.slot
        self._passes.meet(hook, output)
        if self._is_paused or slot is None or slot not in self.seeds:
            return None
        alpha = 1.0 if slot == self._alone else float(self._assignment.alpha[0, slot])
        if alpha == 0.0:
            return None
        check_output(hook, output, len(output))
        seed = self.seeds[slot]
        blueprint, noise = self.blueprints[seed.blueprint], None
        if blueprint.is_noisy and self.host.module.training:
            site = self.topology.sites[slot]
            noise = seed_noise(self.host.key, slot, self._epoch, self._first, len(output), site).to(output.device)
        return grow_output(hook, ActiveSeed(blueprint, seed.parameters, alpha, noise), output)

    def _keep_layer_norm(self, name: str, parameter: Tensor) -> None:
        # For every parameter in every step, so whether the step is measured is not computed here.
        if self._is_measured_step:
            self._keep_norm(name, parameter)
        else:
            self._step.accumulated += 1

    def _keep_norm(self, name: str, parameter: Tensor) -> None:
        if not self._is_paused:
            self._step.keep_norm(name, parameter)

    def _before_step(self, optimiser: Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Take the gradient norms of a step, and give seeds that learn alone their gradients."""
        if any(given is not None for given in (*arguments[1:], *named.values())):  # the first is the optimiser itself
            raise ConfigError(
                f"{self._who}: a step with a closure computes the loss too late; call backward, then step()"
            )
        # Asked only where something is measured, because the answer may have to come from an accelerator.
        is_step = self._step.is_empty or not is_skipped(optimiser)
        if is_step:
            self._measure_step()
            self._teach_alone(optimiser)
        for seed in self.seeds.values():
            complete_momentum(optimiser, seed.parameters)
        self._step.forget()
        self._passes.forget()  # the step changed what their gradients need
        sums = self._sums
        sums.steps += is_step
        self._is_measured_step = sums.steps % self.stride == 0 and sums.measured < MEASURED_STEPS

    def _measure_step(self) -> None:
        sums, scale, norms = self._sums, self._step.scale(), self._step.norms()
        if self._is_measured_step:
            layers = np.array(self.host.layer_norms(norms)) / scale
            if np.isfinite(layers).all():
                sums.layers += layers
                sums.measured += 1
        for slot in filter(self._is_active, self.seeds):
            sums.count_seed(slot, norms.get(f"{SEED_PREFIX}{slot}", 0.0) / scale)

    def _teach_alone(self, optimiser: Optimizer) -> None:
        """Give each seed that learns alone the mean gradient of its own passes on the batches of the step."""
        for slot in self._incubating():
            seed = self.seeds[slot]
            if seed.learns and self._step.batches:
                gradients = [self._isolated_gradient(slot, batch, labels) for batch, labels in self._step.batches]
                gradient = torch.stack(gradients).mean(dim=0)
                norm = norm_of(gradient)
                self._sums.count_seed(slot, norm)
                gradient = gradient * (1.0 / max(1.0, norm / self.host.spec.clip_norm))
                if seed.parameters.requires_grad:
                    seed.parameters.grad = scaled(gradient, optimiser)

    def _isolated_gradient(self, slot: int, batch: KeptPass, labels: Tensor) -> Tensor:
        """Return the gradient [1, P] of the loss with the slot's seed at alpha 1, and all active seeds.

        It is 0 if the owner froze the seed.
        """
        module, parameters = self.host.module, self.seeds[slot].parameters
        if not parameters.requires_grad:
            return torch.zeros_like(parameters)
        first, self._first = self._first, batch.first
        self._alone = slot
        try:
            like = self.host.spec.validation.inputs
            return isolated_gradient(module, batch, labels, self._loss, parameters, like)
        finally:
            self._alone, self._first = -1, first

    # Parts

    @property
    def _device(self) -> torch.device:
        return self.host.spec.validation.inputs.device

    def _slot_hooks(self) -> Iterator[LayerHook]:
        return (hook for hook in self.host.layout.hooks if hook.slot is not None)

    def _incubating(self) -> list[int]:
        return [slot for slot in self.seeds if self._assignment.is_incubating[0, slot]]

    def _is_measured(self) -> bool:
        """Return whether the gradients of the present step are measured, or those of a seed in it."""
        return self._is_measured_step or any(self._is_active(slot) for slot in self.seeds)

    def _is_active(self, slot: int) -> bool:
        """Return whether the seed of a slot learns with the owner's loss."""
        return self.seeds[slot].learns and bool(self._assignment.alpha[0, slot] > 0)

    def _nothing(self) -> SeedAssignment:
        shape = (1, len(self.topology.sites))
        return SeedAssignment(np.full(shape, -1, np.int16), np.zeros(shape, np.float32), np.zeros(shape, dtype=bool))

    def _no_sums(self) -> EpochSums:
        return EpochSums(self._task, len(self.topology.sites), len(self.topology.kinds))

    def _with_state(self, parameters: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield parameters and their optimiser state."""
        for parameter in parameters:
            yield parameter
            state = self._optimiser.state.get(parameter, {})
            yield from (value for value in state.values() if isinstance(value, Tensor))

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Leave the module without seeds and unobserved."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False


def _unmeasured(slots: int, layers: int) -> Measurement:
    host, slot = np.full(1, np.nan), np.full((1, slots), np.nan)
    layer = np.full((1, layers), np.nan)
    return Measurement(host, host, slot, slot, layer, layer, slot, host)


@cache
def _keep_hooks_uncompiled() -> None:
    """Keep torch.compile out of the hooks. A decorator would load ``torch._dynamo`` with this module, for seconds."""
    for name in ("_see_pass", "_see_output", "_pass_layer"):
        setattr(AttachedHost, name, torch.compiler.disable(getattr(AttachedHost, name)))  # type: ignore[no-untyped-call]
