"""The two forms of stacked hosts side by side, for tests that they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import HostIdentity
from simic.hosts.batched.host_batch import BatchedHosts, CompactedHosts
from simic.hosts.batched.masked.host_batch import MaskedHosts
from simic.hosts.batched.trunk import Trunk
from simic.hosts.factory import trunk_of
from simic.hosts.host_sets import host_set, identify
from simic.hosts.interfaces import DataSplit, Measurement, SeedAssignment, TrainingRecord
from simic.hosts.plugins import blueprint_names, load_blueprint

__all__ = ["Agreement", "masked", "memory_of", "planted", "roles_of", "state_of"]

Stacked = TypeVar("Stacked", bound=BatchedHosts)

BLUEPRINTS = [load_blueprint(name) for name in blueprint_names()]


def masked(hosts: Sequence[HostIdentity] | int, device: str = "cpu") -> MaskedHosts:
    """Hosts in masked form that may grow everything; a number stands for benchmark hosts from key 0 on."""
    chosen = identify("benchmark", list(range(hosts))) if isinstance(hosts, int) else hosts
    offered = range(len(BLUEPRINTS))
    return MaskedHosts(chosen, BLUEPRINTS, _kind(chosen), offered=offered, device=torch.device(device))


def _kind(hosts: Sequence[HostIdentity]) -> type[Trunk]:
    return trunk_of(hosts, host_set(hosts[0].set).kind)


def roles_of(*rows: Sequence[tuple[str, float] | None]) -> SeedAssignment:
    """Per host and slot a blueprint and its alpha; alpha 0 incubates, NaN does nothing at all."""
    cells = [[("norm", np.nan) if cell is None else cell for cell in row] for row in rows]
    alpha = np.array([[alpha for _, alpha in row] for row in cells], dtype=np.float32)
    names = [[blueprint_names().index(name) for name, _ in row] for row in cells]
    empty = np.array([[cell is None for cell in row] for row in rows])
    blueprint = np.where(empty, -1, np.array(names)).astype(np.int16)
    return SeedAssignment(blueprint, np.nan_to_num(alpha), alpha == 0)


def planted(hosts: Stacked, assignment: SeedAssignment) -> Stacked:
    """The same hosts with a seed in every slot whose role names a blueprint, none of them still an identity."""
    for host, slot in np.argwhere(assignment.blueprint >= 0).tolist():
        hosts.germinate(host, slot, 1, int(assignment.blueprint[host, slot]))
        width = BLUEPRINTS[assignment.blueprint[host, slot]].parameters(hosts.topology.sites[slot])
        hosts.seeds.parameters[host, slot, :width] += 0.02
    return hosts


def state_of(hosts: BatchedHosts) -> dict[str, Tensor]:
    """Copies of everything training changes."""
    snapshot = hosts.snapshot()
    return {
        "weights": torch.cat([part.flatten(1) for part in snapshot.weights.parts], dim=1),
        "momentum": torch.cat([part.flatten(1) for part in snapshot.momentum.parts], dim=1),
        "seeds": snapshot.seeds.parameters,
        "seed momentum": snapshot.seeds.momentum,
    }


def memory_of(hosts: MaskedHosts) -> dict[int, tuple[int, ...]]:
    """Address and shape of every tensor that the recorded passes use."""
    seen: dict[int, tuple[int, ...]] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            seen[value.data_ptr()] = tuple(value.shape)
        elif isinstance(value, (tuple, list)):
            for one in value:
                visit(one)

    visit([hosts._buffers, hosts._record, hosts._measured, hosts._probed, hosts._validation])
    visit(list(vars(hosts.trunk).values()))
    return seen


class Agreement(CompactedHosts):
    """Compacted hosts that let the masked form go first, from the same state, and note how far the two differ."""

    @staticmethod
    def of(hosts: Sequence[HostIdentity], device: str = "cpu") -> Agreement:
        """Both forms of the same hosts, which may grow everything."""
        both = Agreement(hosts, BLUEPRINTS, _kind(hosts))
        both.other = masked(hosts, device)
        both.worst = {}
        both.incubated, both.active, both.crossed = set(), set(), 0
        return both

    other: MaskedHosts
    worst: dict[str, float]
    """Largest difference by name, relative to max(|value|, 1e-3); of states absolute."""
    incubated: set[int]
    active: set[int]
    crossed: int
    """Epochs of hosts in which a side row met a seed that its host felt."""

    def probe(self, assignment: SeedAssignment, epoch: int) -> NDArray[np.float64]:
        """See ``HostBatch``."""
        theirs = self._same().probe(assignment, epoch)
        mine = super().probe(assignment, epoch)
        self._note("probe", mine, theirs)
        return mine

    def train(self, assignment: SeedAssignment, epoch: int) -> TrainingRecord:
        """See ``HostBatch``."""
        self.incubated |= set(assignment.blueprint[assignment.is_incubating].tolist())
        self.active |= set(assignment.blueprint[assignment.alpha > 0].tolist())
        behind = np.cumsum((assignment.alpha > 0)[:, ::-1], axis=1)[:, ::-1] - (assignment.alpha > 0)
        self.crossed += int((assignment.is_incubating & (behind > 0)).any(axis=1).sum())
        theirs = self._same().train(assignment, epoch)
        mine = super().train(assignment, epoch)
        for name, value in mine._asdict().items():
            self._note(f"train {name}", value, getattr(theirs, name))
        for name, state in state_of(self).items():
            difference = (state - state_of(self.other)[name]).abs().max()
            self.worst[name] = max(self.worst.get(name, 0.0), float(difference))
        return mine

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        """See ``HostBatch``."""
        theirs = self._same().evaluate(part, assignment, leave_one_out=leave_one_out)
        mine = super().evaluate(part, assignment, leave_one_out=leave_one_out)
        for name, value in mine._asdict().items():
            self._note(f"evaluate {name}", value, getattr(theirs, name))
        return mine

    def _same(self) -> MaskedHosts:
        self.other.restore(self.snapshot(), np.ones(len(self.keys), dtype=bool))
        return self.other

    def _note(self, name: str, mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
        """Absent numbers must be absent in both."""
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs), err_msg=name)
        there = ~np.isnan(mine)
        difference = np.abs(mine - theirs)[there] / np.maximum(np.abs(mine[there]), 1e-3)
        self.worst[name] = max(self.worst.get(name, 0.0), float(difference.max(initial=0.0)))
