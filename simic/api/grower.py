"""A growth controller at work in a training loop of one's own.

Shapes: n samples, B batch, C classes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from simic.api.home import Home
from simic.api.policy import Policy, TrustedKeys, controller_of, load_policy
from simic.api.reports import FieldReportWriter
from simic.collection.reporting import Source, field_reports
from simic.contracts.actions import Action
from simic.contracts.batches import STAGE_INDEX, Decisions, Masks, Observations, action_of
from simic.contracts.config import WorldConfig
from simic.contracts.controllers import ControllerSpec, HeuristicRules
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.field_report import GovernorEvent
from simic.contracts.lifecycle import SeedStage
from simic.contracts.names import CHAMPION
from simic.contracts.state import HardwareContext, HostIdentity, LayerKind, SystemState
from simic.controllers.factory import controller_names, make
from simic.controllers.protocol import Controller
from simic.hosts.blueprints import STANDARD
from simic.hosts.custom import Layer, ModuleHost, Samples
from simic.hosts.custom.attached import AttachedHost, AttachedSeed
from simic.hosts.custom.plain import append_seed, plain_seed
from simic.hosts.custom.run_order import last_leaf, run_order
from simic.hosts.ensemble import Ensemble, GivenHosts
from simic.hosts.factory import offered_blueprints
from simic.hosts.host_sets import MODULES, HostSet
from simic.hosts.rollout import Step, controller_uniforms
from simic.runtime.clock import utc_now

__all__ = ["Grower", "Growth"]

_LOG = logging.getLogger("simic.grower")

Data: TypeAlias = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
"""Inputs [n, ...] and labels int64 [n], or batches of them, such as a ``DataLoader``."""

RULES = {
    "wait": ControllerSpec(name="wait"),
    "heuristic": ControllerSpec(name="heuristic", rules=HeuristicRules()),
    "random": ControllerSpec(name="random"),
}
"""Controllers that need neither a policy nor a plan book."""
_TABLES = ("system", "history", "slots", "layers")
"""Tables of ``Observations`` that change from epoch to epoch."""
_FOSSILIZED = STAGE_INDEX[SeedStage.FOSSILIZED]
_GROWING: WeakSet[nn.Module] = WeakSet()
"""Models with a Grower that is not finalised."""
VERSION = 1
"""Version of ``state_dict``."""


class Growth(NamedTuple):
    """What a step found and decided."""

    epoch: int
    """Epochs trained so far."""
    validation_accuracy: float
    """At the end, that of the network that ``finalize`` returns."""
    validation_loss: float
    action: Action | None
    """What changes before the next epoch; None if growing is over."""
    governor: GovernorEvent | None
    """Why the epoch was undone and growing ended early, or None."""


class _Decision(NamedTuple):
    """A decision of which the outcome is not known yet."""

    epoch: int
    observations: Observations
    masks: Masks
    decisions: Decisions


class Grower:
    """Grows seeds in a model while its owner trains it; one thread may use it.

    Create it, compute the loss with ``loss``, call ``step`` after each epoch, and take the network from ``finalize``.
    All random numbers of Simic are its own: while nothing grows, training is the same to the bit as without it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        slots: Sequence[str | Layer],
        validation: Data,
        epochs: int,
        policy: Policy | str | os.PathLike[str] = CHAMPION,
        test: Data | None = None,
        head: str | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        logits: Callable[[Any], Tensor] | None = None,
        blueprints: Sequence[str] = STANDARD,
        seeds_max: int = 1,
        name: str = "own",
        seed: int = 0,
        report_to: FieldReportWriter | Home | str | os.PathLike[str] | None = None,
        home: Home | None = None,
        trusted_keys: TrustedKeys | None = None,
    ) -> None:
        """Attach to a model that maps one tensor [B, ...] to logits [B, C], and take the first decision.

        Samples are moved to the device of the model.

        Args:
            model: The network, on its device. It holds the seeds as parameters, such as ``grown_seed_0``.
            optimizer: The optimiser of its parameters, any but LBFGS. Seeds join the parameter group of their layer.
            slots: Names of submodules on whose outputs seeds may grow; their outputs are tensors of one shape. Or all
                layers of the graph in the order in which they run, as ``Layer``.
            validation: Samples of all measurements; a few hundred suffice.
            epochs: Epochs of the whole training, 4 to 1,000; a controller decides once before each.
            policy: A policy, a name or directory as for ``load_policy``, or ``heuristic``, ``wait`` or ``random``.
            test: Samples for the test accuracy in the last report; nothing else reads them.
            head: Name of the layer that gives the logits; by default the last submodule with parameters that runs.
            loss: Function of logits and labels, a mean over the batch; by default the cross-entropy.
            logits: Function that takes the logits out of an output that is no tensor, as ``lambda out: out.logits``.
            blueprints: Blueprints that may grow; one that does not suit every slot is left out, widening ones too.
            seeds_max: Most seeds at a time.
            name: Name of this kind of network in the reports, as the host's set and family.
            seed: Seed of initial weights and noise of the seeds, and the host's key in the reports.
            report_to: Where field reports go: a writer, a home, or a spool folder.
            home: Home of a policy's name.
            trusted_keys: Keys for a policy's directory, as for ``load_policy``.

        Raises:
            ConfigError: if the model, an argument or the policy cannot be used; the message says what to change.
            DatasetError: if samples are invalid.
        """
        if not 4 <= epochs <= 1000:
            raise ConfigError(f"epochs: expected 4 to 1,000, found {epochs}")
        _check_alone(model)
        self.model = model
        self._loss, self._logits = loss or cross_entropy, logits
        self._is_detached = False
        self._run_id = uuid4().hex
        own = self._samples(validation)
        with self._own_passes():
            layers = tuple(_layers(model, slots, head, own.inputs))
        spec = ModuleHost(model, layers, own, own, own if test is None else self._samples(test))
        chosen = HostSet((name,), seeds_max, MODULES, tuple(blueprints))
        identity = _identity(name, seed)
        world = WorldConfig(set=name, horizon=epochs, threads=min(64, torch.get_num_threads()), snapshot_mb=1_000_000)
        self._writer, self._is_own_writer = _writer(report_to)
        self._controller = _controller(policy, identity, home, trusted_keys)
        with self._own_passes():
            self._host = AttachedHost(
                spec,
                seed,
                optimizer,
                self._plain_loss,
                offered_blueprints(chosen.blueprints),
                has_test=test is not None,
                who=f"model {name!r}",
            )
            try:
                self._ensemble = Ensemble([identity], world, GivenHosts(chosen, self._host))
                self._pending = self._decide(0)
            except BaseException:
                self._host.clear(np.ones((1, len(self._host.topology.sites)), dtype=bool))
                self._host.detach()
                raise
        _GROWING.add(model)

    @property
    def is_finished(self) -> bool:
        """Return whether growing is over, by all epochs, ``finalize`` or the governor; later steps change nothing."""
        return self._is_detached or bool(self._ensemble.is_finished[0])

    @property
    def state(self) -> SystemState:
        """Return the present state, as the controller sees it and reports hold it."""
        return self._ensemble.observe().to_states(self._hardware)[0]

    def loss(self, logits: Any, labels: Tensor) -> Tensor:
        """Return the loss of a training batch and count the batch; call it once for each pass in training mode.

        ``logits`` are those of the model, or its output, if the Grower has a function ``logits``. Without gradients, as
        in a validation of the owner's, nothing is counted.

        Raises:
            ConfigError: if the model did not run in training mode before, or shapes are not [B, C] and [B].
        """
        logits = self._to_logits(logits)
        if not isinstance(logits, Tensor):
            raise ConfigError(f"expected logits as a tensor, found {type(logits).__name__}; give the Grower logits=")
        if self.is_finished or not torch.is_grad_enabled():
            return self._loss(logits, labels)
        self._host.check_batch(logits, labels)
        value = self._loss(logits, labels)
        self._host.note(logits, labels, value)
        return value

    def step(self) -> Growth:
        """Measure the model after an epoch, report the last decision, take the next one and act on it.

        If the governor finds a loss that is not finite, has diverged or collapsed, the model is set back to the start
        of the epoch, the optimiser's state is cleared, live seeds are removed, and growing ends.

        Raises:
            ConfigError: if the epoch had no batch, or no optimiser step.
            TransientError: if reports cannot be written now; the step is done, and they are written with the next one.
        """
        if self.is_finished:
            return self._growth(None, None)
        with self._own_passes():
            return self._step()

    def _step(self) -> Growth:
        decision = self._pending
        outcome = self._ensemble.end_epoch(self._host.finish())
        after = self._ensemble.observe()
        action = None
        if not self.is_finished:
            self._pending = self._decide(decision.epoch + 1)
            action = action_of(self._pending.decisions.actions[0], after.blueprints)
        if (event := outcome.governor[0]) is not None:
            _LOG.warning(
                "growing ends after epoch %d: %s; the model is set back to the start of that epoch, and the state of "
                "the optimiser is cleared",
                decision.epoch,
                event.message,
            )
        self._report(Step(decision.epoch, outcome.live, *decision[1:], outcome, after))
        committed = float(outcome.validation_accuracy_after[0])
        return self._growth(action, outcome.governor[0])._replace(
            validation_accuracy=committed, validation_loss=float(outcome.validation_loss_after[0])
        )

    def finalize(self) -> nn.Module:
        """Return the model with every kept seed as a plain module behind its layer, and detach from it.

        Layers with a kept seed become a ``torch.nn.Sequential`` of layer and seed. Seeds that were not fossilised are
        removed, and so are those that act in training only. The parameters of kept seeds stay in the optimiser. Growing
        is over then, also if epochs are left; a second call changes nothing.
        """
        if self._is_detached:
            return self.model
        self._is_detached = True
        _GROWING.discard(self.model)
        slots = self._ensemble.observe().slots
        kept = [stage == _FOSSILIZED for stage in slots["stage"].tolist()]
        self._host.clear(~np.array([kept]))
        hooks = [hook for hook in self._host.host.layout.hooks if hook.slot is not None]
        self._host.detach()
        # A layer inside another one comes first, because a layer that is replaced has another name afterwards.
        for slot, seed in sorted(self._host.seeds.items(), key=lambda one: -hooks[one[0]].name.count(".")):
            blueprint = self._host.blueprints[seed.blueprint]
            if seed.learns:
                alpha = float(slots["alpha"][slot])
                append_seed(self.model, hooks[slot].name, plain_seed(blueprint, seed.parameters, alpha, hooks[slot]))
        if self._is_own_writer and self._writer is not None:
            self._writer.flush()
        return self.model

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed training needs beside the state dicts of model and optimiser.

        It is taken between ``step`` and the next epoch, and ``torch.load`` reads it with ``weights_only``.

        Raises:
            ConfigError: if growing is over: call ``finalize`` and save the model.
        """
        if self.is_finished:
            raise ConfigError("growing is over, so there is nothing to resume: call finalize and save the model")
        names = self._ensemble.blueprints
        return {
            "version": VERSION,
            "run_id": self._run_id,
            "steps": self._host.steps,
            "layers": [hook.name for hook in self._host.host.layout.hooks],
            "ensemble": _to_tensors(self._ensemble.state()),
            "seeds": {
                slot: {
                    "blueprint": names[seed.blueprint],
                    "number": seed.number,
                    "parameters": seed.parameters.detach(),
                }
                for slot, seed in self._host.seeds.items()
            },
            "decision": {
                "epoch": self._pending.epoch,
                "decisions": _to_tensors(vars(self._pending.decisions)),
                "masks": _to_tensors(vars(self._pending.masks)),
                "tables": {name: _to_tensors(getattr(self._pending.observations, name)) for name in _TABLES},
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state_dict``, in a Grower that was created with the same arguments.

        Call it before the state dicts of model and optimiser are loaded, which then hold the seeds.

        Raises:
            ContractError: if the state is of another version, or of other layers, blueprints or epochs.
        """
        layers, names = [hook.name for hook in self._host.host.layout.hooks], self._ensemble.blueprints
        if state.get("version") != VERSION or state.get("layers") != layers:
            found = f"version {state.get('version')} and layers {state.get('layers')}"
            raise ContractError(f"state of a Grower: expected version {VERSION} and layers {layers}, found {found}")
        if unknown := {seed["blueprint"] for seed in state["seeds"].values()} - set(names):
            raise ContractError(f"state of a Grower: unknown blueprints {sorted(unknown)}; known: {', '.join(names)}")
        horizon, epochs = self._ensemble.world.horizon, int(state["decision"]["tables"]["system"]["horizon"][0])
        if epochs != horizon:
            wanted = f"expected one of {horizon} epochs, found {epochs}; give epochs={epochs}"
            raise ContractError(f"state of a Grower: {wanted}")
        self._host.clear(np.ones((1, len(self._host.topology.sites)), dtype=bool))
        device = self._host.host.spec.validation.inputs.device
        for slot, seed in state["seeds"].items():
            parameters = nn.Parameter(seed["parameters"].clone().to(device))
            self._host.place(slot, AttachedSeed(names.index(seed["blueprint"]), seed["number"], parameters))
        assignment = self._ensemble.restore_state(_to_arrays(state["ensemble"]))
        self._run_id = state["run_id"]
        decision = state["decision"]
        tables = {name: _to_arrays(decision["tables"][name]) for name in _TABLES}
        self._pending = _Decision(
            decision["epoch"],
            replace(self._ensemble.observe(), **cast(Any, tables)),
            Masks(**_to_arrays(decision["masks"])),
            Decisions(**_to_arrays(decision["decisions"])),
        )
        self._host.steps = state["steps"]
        self._host.begin(assignment, decision["epoch"])

    @property
    def _hardware(self) -> HardwareContext:
        device = str(self._host.host.spec.validation.inputs.device)
        return HardwareContext(device=device, threads=torch.get_num_threads())

    def _decide(self, epoch: int) -> _Decision:
        """Take the decision before an epoch and act on it."""
        observations, masks = self._ensemble.observe(), self._ensemble.masks()
        key = np.array([self._host.host.key], dtype=np.int64)
        decisions = self._controller.decide(observations, masks, controller_uniforms(key, 0, epoch))
        self._host.begin(self._ensemble.begin_epoch(decisions.actions), epoch)
        return _Decision(epoch, observations, masks, decisions)

    def _samples(self, data: Data) -> Samples:
        device = next((one.device for one in self.model.parameters()), None)
        return Samples(*(one.to(device) for one in _joined(data)))

    @contextmanager
    def _own_passes(self) -> Iterator[None]:
        """Let the model give logits, in passes that are not its owner's."""
        if self._logits is None:
            yield
            return
        handle = self.model.register_forward_hook(lambda _model, _arguments, output: self._to_logits(output))
        try:
            yield
        finally:
            handle.remove()

    def _to_logits(self, output: Any) -> Tensor:
        return cast(Tensor, output) if self._logits is None or isinstance(output, Tensor) else self._logits(output)

    def _plain_loss(self, output: Any, labels: Tensor) -> Tensor:
        """Return the loss of what the model gave, which is no tensor if a seed learns within the owner's epoch."""
        return self._loss(self._to_logits(output), labels)

    def _growth(self, action: Action | None, event: GovernorEvent | None) -> Growth:
        system = self._ensemble.observe().system
        accuracy, loss = (float(system[name][0]) for name in ("validation_accuracy", "validation_loss"))
        return Growth(int(system["epoch"][0]), accuracy, loss, action, event)

    def _report(self, step: Step) -> None:
        if self._writer is None:
            return
        source = Source(
            controller=self._controller.name,
            policy_version=self._controller.policy_version,
            hosts=self._ensemble.identities,
            run_ids=[self._run_id],
            hardware=self._hardware,
            issued_at=utc_now(),
        )
        for _, report in field_reports(step, source):
            self._writer.write(report)
        if self._is_own_writer:
            self._writer.flush()


def _check_alone(model: nn.Module) -> None:
    """Raise ConfigError if a part of the model grows, or something that the model is a part of."""
    parts = set(model.modules())
    if any(other in parts or any(part is model for part in other.modules()) for other in _GROWING):
        raise ConfigError("a part of the model, or what holds it, grows under another Grower; finalize that one first")


def _joined(data: Data) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of all batches; a loader's random numbers are not the caller's."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(one, Tensor) for one in data):
        return cast(tuple[Tensor, Tensor], tuple(data))
    owners = (data, getattr(data, "sampler", None))
    own = [one for one in (getattr(owner, "generator", None) for owner in owners) if isinstance(one, torch.Generator)]
    states = [(one, one.get_state()) for one in own]
    with torch.random.fork_rng(devices=[]):
        batches = [tuple(batch) for batch in data]
    for generator, before in states:
        generator.set_state(before)
    if not batches or any(len(batch) != 2 or not all(isinstance(one, Tensor) for one in batch) for batch in batches):
        raise ConfigError("samples: expected (inputs, labels) or batches of them, as tensors; found something else")
    inputs, labels = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(labels)


def _layers(model: nn.Module, slots: Sequence[str | Layer], head: str | None, inputs: Tensor) -> list[Layer]:
    """Return the layers of the graph: those with a slot in the order in which they run, then the head."""
    if isinstance(slots, str):
        raise ConfigError(f"slots: expected a list of names, found the text {slots!r}")
    given = [slot for slot in slots if isinstance(slot, Layer)]
    if given:
        if len(given) != len(slots) or head is not None:
            raise ConfigError("slots: give names, or all layers as Layer with the head among them; not both")
        return given
    names = [slot for slot in slots if isinstance(slot, str)]
    if not names:
        raise ConfigError("slots: expected at least one name of a submodule, found none")
    few = inputs[:2]
    last = last_leaf(model, few) if head is None else head
    order = [name for name in run_order(model, [*names, last], few) if name != last]
    kinds = [LayerKind.STEM, *[LayerKind.BLOCK] * (len(order) - 1)]
    rest = [Layer(name, kind, has_slot=True) for name, kind in zip(order, kinds, strict=True)]
    return [*rest, Layer(last, LayerKind.HEAD)]


def _identity(name: str, seed: int) -> HostIdentity:
    try:
        return HostIdentity(set=name, family=name, key=seed)
    except ValidationError as error:
        wanted = "expected a name of a-z, 0-9 and _ with at most 32 characters, and a seed from 0 to 2**31 - 1"
        raise ConfigError(f"name and seed: {wanted}, found {name!r} and {seed!r}") from error


def _controller(
    policy: Policy | str | os.PathLike[str], host: HostIdentity, home: Home | None, trusted_keys: TrustedKeys | None
) -> Controller:
    if isinstance(policy, Policy):
        return controller_of(policy)
    if isinstance(policy, str) and policy in RULES:
        return make(RULES[policy], [host])
    if isinstance(policy, str) and policy in controller_names():
        raise ConfigError(
            f"policy: {policy!r} needs what only a set of hosts has; expected a policy, or one of {', '.join(RULES)}"
        )
    return controller_of(load_policy(policy, home=home, trusted_keys=trusted_keys))


def _writer(
    report_to: FieldReportWriter | Home | str | os.PathLike[str] | None,
) -> tuple[FieldReportWriter | None, bool]:
    """Return the writer of the reports, and whether it is the Grower's own."""
    if report_to is None or isinstance(report_to, FieldReportWriter):
        return report_to, False
    return (FieldReportWriter(report_to) if isinstance(report_to, Home) else FieldReportWriter(spool=report_to)), True


def _to_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def _to_arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.numpy().copy() if isinstance(value, Tensor) else value for name, value in values.items()}
