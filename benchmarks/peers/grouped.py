"""Peer (c): ``torch.func`` again, seeds gathered per slot and blueprint; ``grad`` over a sum of vmapped pieces.

Nothing is computed to be masked: once an epoch the seeds of each slot and blueprint are gathered, and a step is the
gradient of one function that vmaps the stem, blocks and head over rows and each blueprint over its own seeds. Paths
beside a host (a seed that learns in isolation; in validation, the host without a seed) are further rows that branch
off in front of their slot, with everything but their own seed detached.
Shapes: N hosts, R rows (the hosts, then those further paths in the order of their slots), S slots, T steps, B batch,
D width, n seeds of a group. Functions that are vmapped show the shapes of one row or seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from peers.scene import KINDS, SET, Cast, Shown, birth, noise_of
from peers.universal import Tensors
from peers.vmapped import Vmapped, descend
from simic.hosts.batched.sizes import BLOCKS, CLIP_NORM, SLOTS, WIDTH

__all__ = ["Grouped"]

Cell = tuple[int, str]
"""Slot and blueprint."""

_UNITS = {"bottleneck": 4, "dense": 12, "gate": 4, "heavy": 32}


def residual(seed: Tensors, h: Tensor) -> Tensor:
    """``bottleneck`` and ``dense`` of one seed on h [B, D]."""
    return (h @ seed["down"] + seed["down_bias"]).relu() @ seed["up"] + seed["up_bias"]


def heavy(seed: Tensors, h: Tensor) -> Tensor:
    return residual(seed, functional.layer_norm(h, (WIDTH,)) * (1.0 + seed["scale"]) + seed["shift"])


def gate(seed: Tensors, h: Tensor) -> Tensor:
    return h * (torch.sigmoid(2.0 * residual(seed, functional.layer_norm(h, (WIDTH,)))) * 2.0 - 1.0)


def norm(seed: Tensors, h: Tensor) -> Tensor:
    log_size = (h.square().mean(dim=1, keepdim=True) + 1e-6).log() * 0.5
    return h * ((log_size * (seed["exponent"] * -0.35)).exp() - 1.0) + seed["up_bias"]


_DELTAS: dict[str, Callable[[Tensors, Tensor], Tensor]] = {
    "bottleneck": vmap(residual),
    "dense": vmap(residual),
    "gate": vmap(gate),
    "heavy": vmap(heavy),
    "norm": vmap(norm),
}


def stem(weight: Tensor, inputs: Tensor, floor: Tensor) -> Tensor:
    return torch.maximum(inputs @ weight, floor)


def block(down: Tensor, up: Tensor, x: Tensor) -> Tensor:
    return x + (x @ down).relu() @ up


def head(weight: Tensor, x: Tensor) -> Tensor:
    return x @ weight.T


class Group(NamedTuple):
    """Seeds of one blueprint in one slot."""

    hosts: Tensor
    """int64 [n]: felt ones first."""
    active: int
    """How many their hosts feel."""
    shared_row: Tensor
    """int64: the seed of each further row that passes through one."""
    rows: Tensor
    """int64 [n + shared rows]: where they act."""
    alpha: Tensor
    """[n + shared rows, 1, 1]"""


class Layout(NamedTuple):
    """Rows and groups of an epoch or of a validation pass."""

    counts: list[int]
    """[S + 1]: rows in front of the first slot, then behind each."""
    hosts: Tensor
    """int64 [R]"""
    starts: list[Tensor]
    """Per slot: the hosts whose paths branch off there."""
    groups: dict[Cell, Group]

    def per_row(self, values: Tensor, slot: int) -> Tensor:
        """Values of hosts for the rows in front of a slot; further rows teach nothing."""
        extra = self.hosts[self.counts[0] : self.counts[slot]]
        return values if not len(extra) else torch.cat([values, values.detach().index_select(0, extra)])


def lay_out(cast: Cast, branching: NDArray[np.bool_], *, in_training: bool) -> Layout:
    """Paths branch off where ``branching`` [N, S] says so."""
    starts = [np.flatnonzero(column) for column in branching.T]
    hosts = np.concatenate([np.arange(len(branching)), *starts])
    counts = np.cumsum([len(branching), *map(len, starts)]).tolist()
    groups: dict[Cell, Group] = {}
    for slot in range(SLOTS):
        for index in np.unique(cast.kind[:, slot]).tolist():
            is_mine = cast.kind[:, slot] == index
            active = np.flatnonzero(is_mine & (cast.alpha[:, slot] > 0))
            beside = np.flatnonzero(is_mine & cast.is_incubating[:, slot]) if in_training else active[:0]
            if index < 0 or not len(active) + len(beside):
                continue
            earlier = hosts[counts[0] : counts[slot]]
            riding = np.flatnonzero(np.isin(earlier, active))
            shared_row = np.searchsorted(active, earlier[riding])
            own = counts[slot] + np.searchsorted(starts[slot], beside)
            alpha = np.concatenate([cast.alpha[active, slot], np.ones(len(beside)), cast.alpha[earlier[riding], slot]])
            groups[slot, KINDS[index]] = Group(
                torch.from_numpy(np.concatenate([active, beside])),
                len(active),
                torch.from_numpy(shared_row),
                torch.from_numpy(np.concatenate([active, own, riding + counts[0]])),
                torch.from_numpy(alpha.astype(np.float32))[:, None, None],
            )
    return Layout(counts, torch.from_numpy(hosts), [torch.from_numpy(one) for one in starts], groups)


def run(
    layout: Layout, weights: Tensors, seeds: dict[Cell, Tensors], batch: Tensors, noise: dict[int, Tensor]
) -> Tensor:
    """Logits [R, B, 10]."""
    x = vmap(stem)(weights["stem"], batch["inputs"], batch["floor"])
    for slot in range(SLOTS):
        if len(layout.starts[slot]):
            x = torch.cat([x, x.detach().index_select(0, layout.starts[slot])])
        mine = {cell: group for cell, group in layout.groups.items() if cell[0] == slot}
        if mine:
            rows = torch.cat([group.rows for group in mine.values()])
            parts = torch.split(x.index_select(0, rows), [len(group.rows) for group in mine.values()])
            changes = [
                change(cell[1], group, seeds.get(cell, {}), h, noise.get(slot))
                for (cell, group), h in zip(mine.items(), parts, strict=True)
            ]
            x = x.index_add(0, rows, torch.cat(changes))
        if slot < BLOCKS:
            down, up = (layout.per_row(weights[f"{part}{slot}"], slot + 1) for part in ("down", "up"))
            x = vmap(block)(down, up, x)
            if f"gain{slot}" in batch:
                x = x * layout.per_row(batch[f"gain{slot}"], slot + 1)
    return vmap(head)(layout.per_row(weights["head"], SLOTS), x)


def change(kind: str, group: Group, seed: Tensors, h: Tensor, noise: Tensor | None) -> Tensor:
    """Return the term that a group of seeds adds to h [n + shared rows, B, D]; ``noise`` is the factor of dropout."""
    if kind == "dropout":
        if noise is None:
            return torch.zeros_like(h)
        return group.alpha * h * torch.cat([noise, noise.index_select(0, group.shared_row)])
    if len(group.shared_row):
        seed = {n: torch.cat([v, v.detach().index_select(0, group.shared_row)]) for n, v in seed.items()}
    return group.alpha * _DELTAS[kind](seed, h)


def total_loss(
    learning: tuple[Tensors, dict[Cell, Tensors]], layout: Layout, batch: Tensors, noise: dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Summed loss of all rows; also that of each host, [N]."""
    logits = run(layout, *learning, batch, noise)
    labels = batch["labels"].index_select(0, layout.hosts)
    loss = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(dim=1)
    return loss.sum(), loss[: layout.counts[0]].detach()


class Grouped(Vmapped):
    """Stacked hosts; see ``Vmapped`` for what they share."""

    def __init__(self, keys: Sequence[int], world_set: str = SET) -> None:
        super().__init__(keys, world_set)
        self.stores: dict[Cell, tuple[Tensors, Tensors]] = {}

    def epoch(self, number: int, cast: Cast) -> Shown:
        """See ``Contender``."""
        for host, slot in np.argwhere((cast.kind >= 0) & (self.kind < 0)).tolist():
            self._plant(host, slot, KINDS[cast.kind[host, slot]])
        self.kind = cast.kind
        layout = lay_out(cast, cast.is_incubating, in_training=True)
        seeds, momenta = ({c: self._gather(c, g, kind) for c, g in layout.groups.items()} for kind in (0, 1))
        noise = {}
        for (slot, kind), group in layout.groups.items():
            if kind == "dropout":
                drawn = noise_of(self.keys[group.hosts.numpy()], slot, number)
                noise[slot] = ((drawn >= 0.6) / 0.4 - 1.0).transpose(0, 1).contiguous()
        loss = self._grow(number, layout, seeds, momenta, noise)
        for cell, group in layout.groups.items():
            for store, values in zip(self.stores.get(cell, ()), (seeds[cell], momenta[cell]), strict=False):
                for name, value in values.items():
                    store[name][group.hosts] = value
        return self._validate(loss, cast)

    def _plant(self, host: int, slot: int, kind: str) -> None:
        if (slot, kind) not in self.stores and kind != "dropout":
            self.stores[slot, kind] = tuple(_empty(kind, len(self.keys)) for _ in range(2))
        if kind in _UNITS:
            values = birth(int(self.keys[host]), slot, kind)[: WIDTH * _UNITS[kind]]
            self.stores[slot, kind][0]["down"][host] = values.view(WIDTH, -1)

    def _gather(self, cell: Cell, group: Group, which: int) -> Tensors:
        return {n: v[group.hosts] for n, v in self.stores[cell][which].items()} if cell in self.stores else {}

    def _grow(
        self, number: int, layout: Layout, seeds: dict[Cell, Tensors], momenta: dict[Cell, Tensors],
        noise: dict[int, Tensor],
    ) -> Tensor:  # fmt: skip
        """Mean training loss, [N]."""
        total = torch.zeros(len(self.keys))
        differentiate = grad(total_loss, has_aux=True)
        for step, batch in enumerate(self.steps(number)):
            drawn = {slot: values[step] for slot, values in noise.items()}
            (own, grown), loss = differentiate((self.weights, seeds), layout, batch, drawn)
            squares = _squares(own)
            of_seeds = {cell: _squares(gradient) for cell, gradient in grown.items() if gradient}
            for cell, values in of_seeds.items():
                group = layout.groups[cell]
                squares.index_add_(0, group.hosts[: group.active], values[: group.active])
            factor = _factor(squares)
            descend(self.weights, self.momentum, own, factor)
            for cell, values in of_seeds.items():
                group = layout.groups[cell]
                shrink = torch.cat([factor[group.hosts[: group.active]], _factor(values[group.active :])])
                descend(seeds[cell], momenta[cell], grown[cell], shrink)
            total += loss
        return total / (step + 1)

    @torch.no_grad()
    def _validate(self, train_loss: Tensor, cast: Cast) -> Shown:
        hosts = len(self.keys)
        layout = lay_out(cast, cast.alpha > 0, in_training=False)
        seeds = {cell: self._gather(cell, group, 0) for cell, group in layout.groups.items()}
        logits = run(layout, self.weights, seeds, {**self.validation, "floor": self.floor}, {})
        labels = self.validation["labels"]
        loss = functional.cross_entropy(logits[:hosts].transpose(1, 2), labels, reduction="none").mean(dim=1)
        accuracy = (logits.argmax(dim=2) == labels.index_select(0, layout.hosts)).float().mean(dim=1)
        without = np.full((hosts, SLOTS), np.nan)
        for slot, rows in enumerate(layout.starts):
            without[rows.numpy(), slot] = accuracy[layout.counts[slot] : layout.counts[slot + 1]].numpy()
        return Shown(*(one.numpy().astype(np.float64) for one in (train_loss, loss, accuracy[:hosts])), without)


def _empty(kind: str, hosts: int) -> Tensors:
    if kind == "norm":
        return {name: torch.zeros(hosts, WIDTH) for name in ("exponent", "up_bias")}
    units = _UNITS[kind]
    shapes = {"down": (WIDTH, units), "up": (units, WIDTH), "down_bias": (units,), "up_bias": (WIDTH,)}
    shapes |= {"scale": (WIDTH,), "shift": (WIDTH,)} if kind == "heavy" else {}
    return {name: torch.zeros(hosts, *shape) for name, shape in shapes.items()}


def _squares(gradients: Tensors) -> Tensor:
    norms = torch.stack([torch.linalg.vector_norm(one.flatten(1), dim=1) for one in gradients.values()])
    return norms.square().sum(dim=0)


def _factor(squares: Tensor) -> Tensor:
    return CLIP_NORM / squares.sqrt().clamp(min=CLIP_NORM)
