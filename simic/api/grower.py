"""A growth controller at work in a training loop of one's own.

Shapes: n samples, B batch, C classes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from simic.api.grower_arguments import (
    Data,
    Network,
    NetworkArguments,
    Rules,
    check_counts,
    identity_of,
    known_blueprints,
    network_of,
    world_of,
)
from simic.api.grower_passes import OwnPasses
from simic.api.grower_policy import OutOfRangeUse, decider_of
from simic.api.grower_reports import GrowerReports
from simic.api.grower_state import (
    VERSION,
    Decision,
    as_arrays,
    from_arrays,
    read_state,
    seeds_of,
    to_tensors,
)
from simic.api.home import Home
from simic.api.policy import Policy, TrustedKeys
from simic.api.processes import unwrapped
from simic.api.reports import FieldReportWriter
from simic.collection.reporting import Source, field_reports
from simic.contracts.actions import Action
from simic.contracts.batches import STAGE_INDEX, action_of
from simic.contracts.errors import ConfigError
from simic.contracts.feature_ranges import OutOfRange
from simic.contracts.field_report import GovernorEvent
from simic.contracts.lifecycle import SeedStage
from simic.contracts.names import CHAMPION
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HardwareContext, HostIdentity, SystemState
from simic.hosts.blueprints import STANDARD
from simic.hosts.custom import Layer
from simic.hosts.custom.attached import LOST, AttachedHost
from simic.hosts.custom.causality import looking_ahead
from simic.hosts.custom.plain import append_seed, plain_seed
from simic.hosts.ensemble import Ensemble, GivenHosts
from simic.hosts.factory import offered_blueprints
from simic.hosts.host_sets import MODULES, HostSet
from simic.hosts.plugins import load_blueprint
from simic.hosts.rollout import Step, controller_uniforms
from simic.runtime.clock import utc_now

__all__ = ["Grower", "Growth"]

_LOG = logging.getLogger(__name__)

_FOSSILIZED = STAGE_INDEX[SeedStage.FOSSILIZED]
_GROWING: WeakSet[nn.Module] = WeakSet()
"""Models with a Grower that is not finalised."""


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
    out_of_range: tuple[OutOfRange, ...]
    """Measurements, as the decision read them, that are unlike those of the networks that the policy learned from."""


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
        out_of_range: OutOfRangeUse = "warn",
        test: Data | None = None,
        head: str | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        logits: Callable[[Any], Tensor] | None = None,
        blueprints: Sequence[str] = STANDARD,
        seeds_max: int = 1,
        lifecycle: Rules = None,
        governor: Rules = None,
        name: str = "own",
        seed: int = 0,
        report_to: FieldReportWriter | Home | str | os.PathLike[str] | None = None,
        home: Home | None = None,
        trusted_keys: TrustedKeys | None = None,
    ) -> None:
        """Attach to a model that maps one tensor [B, ...] to logits, and take the first decision.

        Labels tell the task: classes int64 [n], with logits [B, C]; classes of positions int64 [n, T], with logits
        [B, T, C] and -100 where no class counts; or numbers float32 [n, ...], with outputs of their shape. If these are
        0 and 1, and ``loss`` is torch's binary cross-entropy of logits, they are two classes.

        Samples are moved to the device of the model. If several processes train it, each makes a Grower with the same
        arguments and calls its methods together with the others; the first one loads the policy and reports.

        Args:
            model: The network, on its device, or its ``DistributedDataParallel``. The network holds the seeds as
                parameters, such as ``grown_seed_0``.
            optimizer: The optimiser of its parameters, any but LBFGS. Seeds join the parameter group of their layer.
            slots: Names of submodules on whose outputs seeds may grow; their outputs are tensors of one shape. Or all
                layers of the graph in the order in which they run, as ``Layer``.
            validation: Samples of all measurements; a few hundred suffice.
            epochs: Epochs of the whole training, 4 to 1,000; a controller decides once before each.
            policy: A policy, a name or directory as for ``load_policy``, or ``heuristic``, ``wait``, ``explore``
                or ``random``.
            out_of_range: What to do while measurements of the network are unlike those of all networks that the policy
                learned from: ``warn`` says so once, ``wait`` also lets no seed begin.
            test: Samples for the test accuracy in the last report; nothing else reads them.
            head: Name of the layer that gives the logits; by default the last submodule with parameters that runs.
            loss: Function of logits and labels, a mean over the batch; by default the cross-entropy, or the mean
                squared error if labels are numbers. With another one of numbers, the governor judges no loss.
            logits: Function that takes the logits out of an output that is no tensor, as ``lambda out: out.logits``.
            blueprints: Blueprints that may grow; one that does not suit every slot is left out, widening ones too. In a
                causal model with a label per position, one that lets earlier positions see later ones is left out too.
            seeds_max: Most seeds that live or are kept; with 1, no further seed begins once one is kept.
            lifecycle: Settings of ``world.lifecycle`` that differ from their defaults, such as
                ``{"embargo_epochs": 4}``.
            governor: Settings of ``world.governor`` that differ from their defaults.
            name: Name of this kind of network in the reports, as the host's set and family.
            seed: Seed of initial weights and noise of the seeds, and the host's key in the reports.
            report_to: Where field reports go: a writer, a home, or a spool folder.
            home: Home of a policy's name.
            trusted_keys: Keys for a policy's directory, as for ``load_policy``.

        Raises:
            ConfigError: if the model, an argument or the policy cannot be used; the message says what to change.
            DatasetError: if samples are invalid.
        """
        check_counts(epochs, seeds_max)
        module, self._processes = unwrapped(model)
        _check_alone(module)
        self.model = module
        self._passes = OwnPasses(module, logits)
        self._is_detached = False
        self._run_id = uuid4().hex
        identity = identity_of(name, seed)
        chosen = HostSet((name,), seeds_max, MODULES, known_blueprints(blueprints))
        world = world_of(name, epochs, lifecycle, governor)
        is_first = self._processes.is_first
        with ExitStack() as undo, self._passes.run():
            with self._processes.together():
                given = NetworkArguments(slots, validation, test, head, loss, logits)
                network = network_of(module, given, warns=is_first)
                self._loss = network.loss
                self._reports = GrowerReports(report_to if is_first else None)
                self._decider = decider_of(
                    policy if is_first else "wait", identity, network.spec.layers, home, trusted_keys, out_of_range
                )
                self._host = self._attach(network, identity, optimizer, chosen)
                undo.callback(_remove, self._host)
                ahead = looking_ahead(self._host.host, {name: load_blueprint(name) for name in chosen.blueprints})
            self._made_for = self._check_equal(identity, chosen, world, out_of_range)
            self._ensemble = Ensemble([identity], world, GivenHosts(self._leave_out(ahead, chosen), self._host))
            self._pending = self._decide(0)
            self.growth = self._growth(None)
            """What the latest step found and decided; before the first one, the decision before the first epoch."""
            undo.pop_all()
        _GROWING.add(module)

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
            ConfigError: if the model did not run in training mode before, or logits and labels do not fit each other.
        """
        logits = self._passes.to_logits(logits)
        if not isinstance(logits, Tensor):
            raise ConfigError(f"expected logits as a tensor, found {type(logits).__name__}; give the Grower logits=")
        if self.is_finished or not torch.is_grad_enabled():
            return self._loss(logits, labels)
        self._host.check_batch(logits, labels)
        value = self._loss(logits, labels)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"{tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"loss: expected a tensor of one number, such as the mean over the batch, found {found}; give "
                "reduction='mean'"
            )
        self._host.note(logits, labels, value)
        return value

    def step(self) -> Growth:
        """Measure the model after an epoch, report the last decision, take the next one and act on it.

        If the governor finds a loss that is not finite, has diverged or collapsed, the model is set back to the start
        of the epoch, the optimiser's state is cleared, live seeds are removed, and growing ends.

        Raises:
            ConfigError: if the epoch had no batch, or no optimiser step.
            TransientError: if reports cannot be written now. The step is done: ``growth`` holds what it found, and
                training may go on. The reports are written with those of the next step, or by ``finalize``, or by a
                repeated call in this process, which then returns the same.
        """
        if self._reports.is_behind and (self.is_finished or not self._host.has_batches):
            self._reports.write()
            if not self._is_detached:
                return self.growth
        if self.is_finished:
            return self._growth(None)
        with self._passes.run():
            step = self._step()
        self._report(step)
        return self.growth

    def _step(self) -> Step:
        decision = self._pending
        outcome = self._ensemble.end_epoch(self._host.finish())
        after = self._ensemble.observe()
        if not self.is_finished:
            self._pending = self._decide(decision.epoch + 1)
        if (event := outcome.governor[0]) is not None:
            _LOG.warning(
                "growing ends after epoch %d: %s; the model is set back to the start of that epoch, and the state of "
                "the optimiser is cleared",
                decision.epoch,
                event.message,
            )
        self.growth = self._growth(outcome.governor[0])._replace(
            validation_accuracy=float(outcome.validation_accuracy_after[0]),
            validation_loss=float(outcome.validation_loss_after[0]),
        )
        return Step(
            decision.epoch,
            outcome.live,
            observations=decision.observations,
            masks=decision.masks,
            decisions=decision.decisions,
            outcome=outcome,
            after=after,
        )

    def finalize(self) -> nn.Module:
        """Return the model with every kept seed as a plain module behind its layer, and detach from it.

        Layers with a kept seed become a ``torch.nn.Sequential`` of layer and seed. Seeds that were not fossilised are
        removed, and so are those that act in training only. The parameters of kept seeds stay in the optimiser, in the
        order of the model. Growing is over then, also if epochs are left; a second call does not change the model.
        Before the last epoch, the reports of the episode get no end, because its outcome is unknown, and curation
        leaves the episode out.

        Raises:
            ConfigError: if a kept seed of a blueprint of your own cannot become a plain module; nothing has changed.
            TransientError: if reports cannot be written now; the model is plain, and a second call writes them.
        """
        if not self._is_detached:
            self._detach()
        if self._reports.is_behind:
            self._reports.write()
        return self.model

    def _detach(self) -> None:
        """Put kept seeds into the model as plain modules, and remove everything else."""
        slots = self._ensemble.observe().slots
        kept = np.array([[stage == _FOSSILIZED for stage in slots["stage"].tolist()]])
        hooks = [hook for hook in self._host.host.layout.hooks if hook.slot is not None]
        plain = {
            slot: plain_seed(
                self._host.blueprints[seed.blueprint], seed.parameters, float(slots["alpha"][slot]), hooks[slot]
            )
            for slot, seed in self._host.seeds.items()
            if seed.learns and kept[0, slot]
        }
        names, seeds = self._ensemble.blueprints, self._host.seeds
        lost = [
            f"{names[seed.blueprint]} behind {hooks[slot].name}" for slot, seed in seeds.items() if not kept[0, slot]
        ]
        if lost and self._processes.is_first:
            _LOG.warning("finalize removes what was not fossilised: %s", ", ".join(lost))
        self._is_detached = True
        _GROWING.discard(self.model)
        self._host.clear(~kept)
        self._host.detach()
        # A layer inside another one comes first, because a layer that is replaced has another name afterwards.
        for slot in sorted(plain, key=lambda index: -hooks[index].name.count(".")):
            append_seed(self.model, hooks[slot].name, plain[slot])
        self._host.attached.put_in_order()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed training needs beside the state dicts of model and optimiser.

        It is taken between ``step`` and the next epoch, and ``torch.load`` reads it with ``weights_only``.

        Raises:
            ConfigError: if growing is over: call ``finalize`` and save the model.
        """
        if self.is_finished:
            raise ConfigError("growing is over, so there is nothing to resume: call finalize and save the model")
        return {
            "version": VERSION,
            "run_id": self._run_id,
            "made_for": self._made_for,
            "stride": self._host.stride,
            "layers": self._layers,
            "ensemble": to_tensors(self._ensemble.state()),
            "seeds": seeds_of(self._host, self._ensemble.blueprints),
            "decision": self._pending.to_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state_dict``, in a Grower that was created with the same arguments.

        Call it before the state dicts of model and optimiser are loaded, which then hold the seeds.

        Raises:
            ConfigError: if growing is over by ``finalize``: the model is plain; nothing has changed.
            ContractError: if the state is damaged, of another version, or of a Grower with other arguments: layers,
                epochs, ``name``, ``seed``, ``seeds_max``, blueprints, rules or policy; nothing has changed.
        """
        if self._is_detached:
            raise ConfigError(
                "growing is over and the model is plain, so no state can be loaded; make a Grower of a new model"
            )
        ensemble, host = self._ensemble, self._host
        # Read as a whole first, so that a state that cannot be read changes nothing.
        saved = read_state(state, self._layers, self._made_for, self._pending, ensemble.world.horizon, host)
        assignment = ensemble.restore_state(saved.ensemble)
        _clear(host)
        for slot, seed in saved.seeds.items():
            host.place(slot, seed)
        self._run_id, self._pending = saved.run_id, saved.decision
        host.begin(assignment, saved.decision.epoch)
        host.stride = saved.stride
        self._reports.go_back(saved.run_id, saved.decision.epoch)
        self.growth = self._growth(None)

    @property
    def _layers(self) -> list[str]:
        """Names of the layers of the graph."""
        return [hook.name for hook in self._host.host.layout.hooks]

    @property
    def _hardware(self) -> HardwareContext:
        device = str(self._host.host.spec.validation.inputs.device)
        return HardwareContext(device=device, threads=torch.get_num_threads())

    def _attach(self, network: Network, identity: HostIdentity, optimizer: Optimizer, chosen: HostSet) -> AttachedHost:
        """Return the host of the network, attached to its module and optimiser."""
        return self._processes.attach(
            network.spec,
            identity.key,
            optimizer,
            self._plain_loss,
            offered_blueprints(chosen.blueprints),
            has_test=network.has_test,
            chunk=network.chunk,
            who=f"model {identity.family!r}",
        )

    def _check_equal(
        self, identity: HostIdentity, chosen: HostSet, world: WorldConfig, out_of_range: OutOfRangeUse
    ) -> dict[str, Any]:
        """Check that all processes got the same arguments; return those that a resumed training must repeat."""
        name, seed, layers = identity.family, identity.key, self._host.host.spec.layers
        seeds_max, blueprints = chosen.seeds_max, chosen.blueprints
        self._processes.check_equal((world.horizon, name, seed, seeds_max, blueprints, layers, world.rules))
        return self._processes.broadcast_json(
            {
                "name": name,
                "seed": seed,
                "seeds_max": seeds_max,
                "blueprints": list(blueprints),
                "rules": world.rules,
                "controller": self._decider.controller.name,
                "policy": self._decider.controller.policy_version,
                "out_of_range": out_of_range,
            }
        )

    def _leave_out(self, ahead: Sequence[str], chosen: HostSet) -> HostSet:
        """Return the set without the blueprints through which the first process finds that positions see later ones."""
        ahead = self._processes.broadcast_json({"ahead": ahead})["ahead"]
        if ahead and self._processes.is_first:
            _LOG.warning(
                "blueprints left out: %s; this model is causal, and through them earlier positions would see "
                "later ones",
                ", ".join(ahead),
            )
        return chosen._replace(blueprints=tuple(name for name in chosen.blueprints if name not in ahead))

    def _decide(self, epoch: int) -> Decision:
        """Take the decision before an epoch and act on it."""
        observations, masks = self._ensemble.observe(), self._ensemble.masks()
        key = np.array([self._host.host.key], dtype=np.int64)
        uniforms = controller_uniforms(key, 0, epoch)
        arrays = self._processes.broadcast(lambda: as_arrays(*self._decider.decide(observations, masks, uniforms)))
        decisions, outside = from_arrays(arrays)
        self._host.begin(self._ensemble.begin_epoch(decisions.actions), epoch)
        return Decision(epoch, observations, masks, decisions, outside)

    def _plain_loss(self, output: Any, labels: Tensor) -> Tensor:
        """Return the loss of what the model gave, which is no tensor if a seed learns within the owner's epoch."""
        return self._loss(self._passes.to_logits(output), labels)

    def _growth(self, event: GovernorEvent | None) -> Growth:
        """Return the present measurements, with the decision before the next epoch if there is one."""
        seen, pending = self._ensemble.observe(), None if self.is_finished else self._pending
        action = None if pending is None else action_of(pending.decisions.actions[0], seen.blueprints)
        accuracy, loss = (float(seen.system[name][0]) for name in ("validation_accuracy", "validation_loss"))
        outside = () if pending is None else pending.out_of_range
        return Growth(int(seen.system["epoch"][0]), accuracy, loss, action, event, outside)

    def _report(self, step: Step) -> None:
        source = Source(
            controller=self._decider.controller.name,
            policy_version=self._decider.controller.policy_version,
            hosts=self._ensemble.identities,
            run_ids=[self._run_id],
            hardware=self._hardware,
            issued_at=utc_now(),
        )
        self._reports.write(report for _, report in field_reports(step, source))


def _clear(host: AttachedHost) -> None:
    """Remove all seeds."""
    host.clear(np.ones((1, len(host.topology.sites)), dtype=bool))


def _remove(host: AttachedHost) -> None:
    """Leave the model and its optimiser as they were before the host was attached."""
    _clear(host)
    host.detach()


def _check_alone(model: nn.Module) -> None:
    """Raise ConfigError if a part of the model grows, or something that the model is a part of."""
    parts = set(model.modules())
    if any(other in parts or any(part is model for part in other.modules()) for other in _GROWING):
        raise ConfigError(f"a part of the model, or what holds it, grows under another Grower; {LOST}")
