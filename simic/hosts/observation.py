"""Observations of hosts, as columns of ``Observations``.

Shapes: N hosts, S slots per host, L layers per host, H history epochs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.contracts.batches import LAYER_COLUMNS, LAYER_KINDS, SLOT_COLUMNS, SYSTEM_COLUMNS, Observations
from simic.contracts.state import HISTORY_EPOCHS
from simic.hosts.interfaces import HostBatch, HostTopology
from simic.hosts.lifecycle import Slots

__all__ = ["Readings", "observe"]


_HISTORIES = ("train_loss", "validation_loss", "validation_accuracy")


class Readings(NamedTuple):
    """The latest measurements of N hosts; NaN before the first."""

    train_loss: NDArray[np.float32]
    """[N, H]: the last column is the present epoch, as in every history."""
    train_accuracy: NDArray[np.float32]
    """[N]"""
    validation_loss: NDArray[np.float32]
    """[N, H]"""
    validation_accuracy: NDArray[np.float32]
    """[N, H]"""
    activation_spread: NDArray[np.float32]
    """[N, L]"""
    weight_norm: NDArray[np.float32]
    """[N, L]"""
    gradient_norm: NDArray[np.float32]
    """[N, L]"""
    effective_dimension: NDArray[np.float32]
    """[N, L]"""
    train_samples: NDArray[np.float64]
    """[N]"""

    @staticmethod
    def empty(hosts: int, layers: int) -> Readings:
        """Return readings without any measurement."""
        shapes = {
            **dict.fromkeys(Readings._fields, (hosts, layers)),
            **dict.fromkeys(_HISTORIES, (hosts, HISTORY_EPOCHS)),
            **dict.fromkeys(("train_accuracy", "train_samples"), (hosts,)),
        }
        dtypes = {"train_samples": np.float64}
        return Readings(*(np.full(shapes[name], np.nan, dtypes.get(name, np.float32)) for name in Readings._fields))

    def write(self, rows: NDArray[np.bool_], **values: NDArray[Any]) -> None:
        """Overwrite the present values of the hosts ``rows`` [N]."""
        for name, value in values.items():
            column = getattr(self, name)
            if name in _HISTORIES:
                column[rows, -1] = value[rows]
            else:
                column[rows] = value[rows]

    def shift(self, rows: NDArray[np.bool_]) -> None:
        """Shift the histories of the hosts ``rows`` [N] by one epoch; the last value repeats until overwritten."""
        for history in (self.train_loss, self.validation_loss, self.validation_accuracy):
            history[rows, :-1] = history[rows, 1:]


def observe(
    batch: HostBatch, slots: Slots, readings: Readings, epoch: NDArray[np.int32], horizon: int, seeds_max: int,
    blueprints: tuple[str, ...],
) -> Observations:  # fmt: skip
    """Return observations of all hosts, as copies that later epochs do not change."""
    topology, hosts = batch.topology, len(epoch)
    connects, monitors = (
        np.array(edges, dtype=np.int64).reshape(-1, 2) for edges in (topology.connects, topology.monitors)
    )
    paying = slots.is_paying
    system = {
        "epoch": epoch,
        "horizon": np.full(hosts, horizon),
        "seeds_alive": paying.sum(axis=1),
        "seeds_max": np.full(hosts, seeds_max),
        "seed_parameters": (slots["parameters"] * paying).sum(axis=1),
        "host_parameters": batch.parameters(),
        "train_samples": readings.train_samples,
        "train_loss": readings.train_loss[:, -1],
        "train_accuracy": readings.train_accuracy,
        "validation_loss": readings.validation_loss[:, -1],
        "validation_accuracy": readings.validation_accuracy[:, -1],
    }
    columns = {name: _absent_below_zero(slots[name], dtype) for name, dtype in SLOT_COLUMNS.items()}
    return Observations(
        system={name: np.array(system[name], dtype=dtype) for name, dtype in SYSTEM_COLUMNS.items()},
        history={
            "train_loss_history": readings.train_loss.copy(),
            "validation_loss_history": readings.validation_loss.copy(),
            "validation_accuracy_history": readings.validation_accuracy.copy(),
        },
        slots=columns,
        slot_ptr=_pointers(hosts, len(topology.sites)),
        layers=_layers(topology, batch.layers(), readings),
        layer_ptr=_pointers(hosts, len(topology.kinds)),
        connects=np.tile(connects.T, hosts),
        connects_ptr=_pointers(hosts, len(connects)),
        monitors=np.tile(monitors.T, hosts),
        monitors_ptr=_pointers(hosts, len(monitors)),
        blueprints=blueprints,
    )


def _layers(topology: HostTopology, fixed: dict[str, NDArray[Any]], readings: Readings) -> dict[str, NDArray[Any]]:
    hosts = len(readings.train_accuracy)
    values: dict[str, ArrayLike] = {
        "kind": np.tile([LAYER_KINDS.index(kind) for kind in topology.kinds], hosts),
        "width": np.tile(topology.widths, hosts),
        **{name: column.reshape(-1) for name, column in fixed.items()},
        "activation_spread": readings.activation_spread.reshape(-1),
        "effective_dimension": readings.effective_dimension.reshape(-1),
        "weight_norm": readings.weight_norm.reshape(-1),
        "gradient_norm": readings.gradient_norm.reshape(-1),
    }
    return {name: np.array(values[name], dtype=dtype) for name, dtype in LAYER_COLUMNS.items()}


def _absent_below_zero(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return a flat copy; -1 of an integer that is optional on the wire becomes NaN."""
    flat = values.reshape(-1).astype(dtype)
    if values.dtype.kind == "i" and flat.dtype.kind == "f":
        flat[flat < 0] = np.nan
    return flat


def _pointers(hosts: int, each: int) -> NDArray[np.int64]:
    return np.arange(hosts + 1, dtype=np.int64) * each
