"""Hosts of several topologies as one ensemble: one ``Ensemble`` per family, with all rows in the order of the hosts.

Families with modules or trunks of their own differ in layers and slots, which one ``Ensemble`` cannot hold.
Shapes: N hosts, S slots of all hosts, A heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.batches import Masks, Observations
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.ensemble import Ensemble, StepOutcome
from simic.hosts.host_sets import host_set

__all__ = ["MixedEnsemble", "ensemble_of"]


def ensemble_of(hosts: Sequence[HostIdentity], world: WorldConfig) -> Ensemble | MixedEnsemble:
    """Return the ensemble of any hosts of ``world.set``; raise ConfigError as ``Ensemble`` does."""
    if host_set(world.set).is_mixed and len({host.family for host in hosts}) > 1:
        return MixedEnsemble(hosts, world)
    return Ensemble(hosts, world)


class _Group(NamedTuple):
    rows: NDArray[np.int64]
    """Positions of the group's hosts among all hosts."""
    ensemble: Ensemble


class MixedEnsemble:
    """N hosts of several families; what ``rollout`` needs of an ``Ensemble``."""

    def __init__(self, hosts: Sequence[HostIdentity], world: WorldConfig) -> None:
        self.identities = tuple(hosts)
        families = np.array([host.family for host in hosts])
        self._groups = [
            _Group(rows, Ensemble([hosts[row] for row in rows.tolist()], world))
            for rows in (np.flatnonzero(families == family) for family in dict.fromkeys(families.tolist()))
        ]
        self._order = np.argsort(np.concatenate([group.rows for group in self._groups]))
        """[N]: position of each host among the concatenated groups."""
        self._slot_ptr = Observations.join(self._observed()).slot_ptr

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """Return bool [N]: the episode is over."""
        finished: NDArray[np.bool_] = self._joined([group.ensemble.is_finished for group in self._groups])
        return finished

    def observe(self) -> Observations:
        """Return the present observations; hosts may differ in their numbers of layers and slots."""
        return Observations.join(self._observed()).take(self._order)

    def masks(self) -> Masks:
        """Return the present action masks."""
        own = [group.ensemble.masks() for group in self._groups]
        joined = Masks(
            np.concatenate([masks.op for masks in own]),
            np.concatenate([masks.slot for masks in own]),
            np.concatenate([masks.blueprint for masks in own]),
        )
        return joined.take(self._order, self._slot_ptr)

    def step(self, actions: NDArray[np.int16]) -> StepOutcome:
        """Apply ``actions`` int16 [N, A], train one epoch and measure.

        Raises:
            IllegalActionError: if an action is illegal; nothing is changed then.
        """
        for group in self._groups:
            group.ensemble.check(actions[group.rows])
        outcomes = [group.ensemble.step(actions[group.rows]) for group in self._groups]
        return StepOutcome(*(self._joined(parts) for parts in zip(*outcomes, strict=True)))

    def cut_off(self, where: NDArray[np.bool_]) -> None:
        """End the episodes of the hosts ``where`` [N] between two steps; what they would have kept is not measured."""
        for group in self._groups:
            group.ensemble.cut_off(where[group.rows])

    def _observed(self) -> list[Observations]:
        return [group.ensemble.observe() for group in self._groups]

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Return the rows of all groups, arrays or lists, in the order of the hosts."""
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)[self._order]
        rows = [row for part in parts for row in part]
        return [rows[place] for place in self._order.tolist()]
