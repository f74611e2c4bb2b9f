"""Peer (b): ``torch.func``; one host as a plain function, ``vmap(grad(loss))`` over stacked parameters.

What no seed of a slot needs in an epoch (the gate, the norm, units beyond the widest seed's, the whole slot) is left
out, and seeds learning beside their host, like leave-one-out passes, run for the hosts concerned alone, from the
states that the full pass left in front of the slot.
Shapes: N hosts or the n of them concerned, S slots, T steps, B batch, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional
from torch.utils._pytree import tree_map

from peers.scene import KINDS, SET, Cast, Samples, Shown, birth, host_of, noise_of, order_of
from peers.universal import Plan, Tensors, host_loss, run, run_from, seed_loss
from simic.hosts.batched.sizes import BATCH, BLOCKS, CLIP_NORM, LEARNING_RATE, MOMENTUM, SAMPLES, SLOTS, STEPS, WIDTH

__all__ = ["Vmapped", "descend"]

_UNITS = {"bottleneck": 4, "dense": 12, "gate": 4, "heavy": 32}
_UNIT_DIM = {"down": 2, "up": 1, "down_bias": 1}
_OWNERS = {"scale": ("heavy",), "shift": ("heavy",), "exponent": ("norm",), "up_bias": (*_UNITS, "norm")}
"""Parameters whose gradients must be masked, and the kinds that own them. Spare units stay zero by themselves."""


class Pack(NamedTuple):
    """Seeds of one slot, gathered for an epoch."""

    plan: Plan
    rows: Tensor
    """int64 [n]: their hosts."""
    is_learning: NDArray[np.bool_]
    """[n]: the others are here because a vmapped function wants all hosts; what happens to them is dropped."""
    seed: Tensors
    momentum: Tensors
    masks: Tensors
    """[n, 1] per parameter that not every kind has."""
    traits: Tensors
    """[n] alpha, [n] is_gate, [n] is_normed."""
    noise: Tensor | None
    """[T, n, B, D]: dropout's factor."""

    def active(self, step: int | None) -> Tensors:
        """Everything that ``delta`` wants, [n, ...]; step None is evaluation."""
        drawn = {} if self.noise is None or step is None else {"noise": self.noise[step]}
        return {**self.seed, **self.traits, **drawn}

    def descend(self, gradient: Tensors, factor: Tensor) -> None:
        """SGD with momentum, gradients scaled by factor [n]."""
        descend(self.seed, self.momentum, gradient, factor)


class Vmapped:
    """Stacked hosts."""

    def __init__(self, keys: Sequence[int], world_set: str = SET) -> None:
        hosts = [host_of(key, world_set) for key in keys]
        self.keys = np.array(keys)
        self.gains = [host.gain_blocks for host in hosts]
        self.weights = {"stem": torch.stack([host.stem for host in hosts])}
        for block in range(BLOCKS):
            self.weights[f"down{block}"] = torch.stack([host.down[block] for host in hosts])
            self.weights[f"up{block}"] = torch.stack([host.up[block] for host in hosts])
        self.weights["head"] = torch.stack([host.head for host in hosts])
        self.momentum = {name: torch.zeros_like(values) for name, values in self.weights.items()}
        self.seeds = [_no_seeds(len(hosts)) for _ in range(SLOTS)]
        self.seed_momentum = [_no_seeds(len(hosts)) for _ in range(SLOTS)]
        self.kind = np.full((len(hosts), SLOTS), -1)
        self.floor = torch.tensor([-torch.inf if host.is_linear else 0.0 for host in hosts])
        self.samples = [len(host.train.labels) for host in hosts]
        self.train = self._stack([host.train for host in hosts], SAMPLES)
        self.validation = self._stack([host.validation for host in hosts], len(hosts[0].validation.labels))

    def _stack(self, parts: Sequence[Samples], rows: int) -> Tensors:
        def stack(values: Sequence[Tensor]) -> Tensor:
            whole = values[0].new_zeros(len(values), rows, *values[0].shape[1:])
            for row, value in zip(whole, values, strict=True):
                row[: len(value)] = value
            return whole

        stacked = {"inputs": stack([one.inputs for one in parts]), "labels": stack([one.labels for one in parts])}
        for block in {block for mine in self.gains for block in mine}:
            pairs = zip(parts, self.gains, strict=True)
            stacked[f"gain{block}"] = stack([p.gain if block in mine else torch.ones_like(p.gain) for p, mine in pairs])
        return stacked

    def epoch(self, number: int, cast: Cast) -> Shown:
        """See ``Contender``."""
        for host, slot in np.argwhere((cast.kind >= 0) & (self.kind < 0)).tolist():
            kind = KINDS[cast.kind[host, slot]]
            if kind in _UNITS:
                values = birth(int(self.keys[host]), slot, kind)[: WIDTH * _UNITS[kind]]
                self.seeds[slot]["down"][host, :, : _UNITS[kind]] = values.view(WIDTH, -1)
        self.kind = cast.kind
        is_active = cast.alpha > 0
        everybody = np.ones(len(self.keys), dtype=bool)
        active = {
            s: self._pack(s, number, cast, everybody, is_active[:, s]) for s in range(SLOTS) if is_active[:, s].any()
        }
        beside = {
            slot: self._pack(slot, number, cast._replace(alpha=np.ones_like(cast.alpha)), rows, rows[rows])
            for slot, rows in enumerate(cast.is_incubating.T)
            if rows.any()
        }
        loss = self._train(number, active, beside)
        for slot, pack in (*active.items(), *beside.items()):
            self._unpack(slot, pack)
        return self._evaluate(loss, active)

    def _pack(
        self, slot: int, number: int, cast: Cast, chosen: NDArray[np.bool_], is_learning: NDArray[np.bool_]
    ) -> Pack:
        rows = np.flatnonzero(chosen)
        names = np.array([KINDS[kind] if kind >= 0 else "" for kind in cast.kind[rows, slot]])
        names[~is_learning] = ""
        units = max((_UNITS.get(name, 0) for name in names), default=0)
        has = {kind: bool((names == kind).any()) for kind in KINDS}
        plan = Plan(units, has["gate"] or has["heavy"], has["heavy"], has["gate"], has["norm"])
        wanted = ["up_bias", *(_UNIT_DIM if units else ())]
        wanted += ["scale", "shift"] if plan.has_affine else []
        wanted += ["exponent"] if plan.has_norm else []
        index = torch.from_numpy(rows)
        seed, momentum = (
            {name: _narrow(name, store[slot][name], units)[index] for name in wanted}
            for store in (self.seeds, self.seed_momentum)
        )
        masks = {n: torch.from_numpy(np.isin(names, _OWNERS[n]))[:, None].float() for n in wanted if n in _OWNERS}
        traits = {
            "alpha": torch.from_numpy(np.where(is_learning, cast.alpha[rows, slot], np.float32(0.0))),
            "is_gate": torch.from_numpy(names == "gate").float(),
            "is_normed": torch.from_numpy(np.isin(names, ("gate", "heavy"))),
        }
        noise = None
        if has["dropout"]:
            noise = torch.zeros(STEPS, len(rows), BATCH, WIDTH)
            drawn = noise_of(self.keys[rows[names == "dropout"]], slot, number)
            noise[:, torch.from_numpy(names == "dropout")] = ((drawn >= 0.6) / 0.4 - 1.0).transpose(0, 1)
        return Pack(plan, index, is_learning, seed, momentum, masks, traits, noise)

    def _unpack(self, slot: int, pack: Pack) -> None:
        mine = torch.from_numpy(pack.is_learning)
        for store, values in ((self.seeds, pack.seed), (self.seed_momentum, pack.momentum)):
            for name, value in values.items():
                _narrow(name, store[slot][name], pack.plan.units)[pack.rows[mine]] = value[mine]

    def steps(self, number: int) -> Iterator[Tensors]:
        """The batches of an epoch, [N, B, ...] each."""
        order = order_of(self.keys, self.samples, number)
        rows = torch.arange(len(order))[:, None]
        batches = {
            name: values[rows, order].unflatten(1, (STEPS, BATCH)).transpose(0, 1).contiguous()
            for name, values in self.train.items()
        }
        for step in range(STEPS):
            yield {"floor": self.floor, **{name: values[step] for name, values in batches.items()}}

    def _train(self, number: int, active: dict[int, Pack], beside: dict[int, Pack]) -> Tensor:
        """Mean training loss, [N]."""
        total = torch.zeros(len(self.keys))
        plans = {slot: pack.plan for slot, pack in active.items()}
        differentiate = vmap(grad(partial(host_loss, plans), has_aux=True))
        for step, batch in enumerate(self.steps(number)):
            assignment = {slot: pack.active(step) for slot, pack in active.items()}
            learning = self.weights, {slot: pack.seed for slot, pack in active.items()}
            (own, seeds), (loss, states) = differentiate(learning, assignment, batch)
            updates = [
                (pack, *self._beside(slot, pack, plans, assignment, states[slot], batch))
                for slot, pack in beside.items()
            ]
            for slot, pack in active.items():
                _mask(seeds[slot], pack.masks)
            factor = _clip([*own.values(), *(value for mine in seeds.values() for value in mine.values())])
            descend(self.weights, self.momentum, own, factor)
            for slot, pack in active.items():
                pack.descend(seeds[slot], factor)
            for pack, gradient, shrink in updates:
                pack.descend(gradient, shrink)
            total += loss
        return total / STEPS

    def _beside(
        self, slot: int, pack: Pack, plans: dict[int, Plan], assignment: dict[int, Tensors], x: Tensor, batch: Tensors
    ) -> tuple[Tensors, Tensor]:
        """Gradients of seeds that learn beside their hosts, and what clips them, [n]."""
        later = {index: mine for index, mine in assignment.items() if index > slot}
        weights, later, x, batch = _take((_behind(slot, self.weights), later, x, _behind(slot, batch)), pack.rows)
        loss = partial(seed_loss, slot, {**plans, slot: pack.plan})
        gradient = vmap(grad(loss))(pack.seed, weights, {**later, slot: pack.traits}, x, batch)
        _mask(gradient, pack.masks)
        return gradient, _clip(list(gradient.values()))

    def _evaluate(self, train_loss: Tensor, active: dict[int, Pack]) -> Shown:
        plans = {slot: pack.plan for slot, pack in active.items()}
        assignment = {slot: pack.active(None) for slot, pack in active.items()}
        labels, without = self.validation["labels"], np.full((len(self.keys), SLOTS), np.nan)
        with torch.no_grad():
            batch = {**self.validation, "floor": self.floor}
            logits, states = vmap(partial(run, plans))(self.weights, assignment, batch)
            loss = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(dim=1)
            accuracy = (logits.argmax(dim=2) == labels).float().mean(dim=1)
            for slot, pack in active.items():
                rows = torch.from_numpy(np.flatnonzero(pack.is_learning))
                later = {index: mine for index, mine in assignment.items() if index > slot}
                scene = _behind(slot, self.weights), later, states[slot], _behind(slot, _gains(self.validation))
                off, _ = vmap(partial(run_from, slot, plans))(*_take(scene, rows))
                hits = off.argmax(dim=2) == labels[rows]
                without[rows.numpy(), slot] = hits.float().mean(dim=1).numpy()
        return Shown(*(one.numpy().astype(np.float64) for one in (train_loss, loss, accuracy)), without)


def _no_seeds(hosts: int) -> Tensors:
    widest = max(_UNITS.values())
    shapes = {"down": (WIDTH, widest), "up": (widest, WIDTH), "down_bias": (widest,)}
    return {name: torch.zeros(hosts, *shapes.get(name, (WIDTH,))) for name in (*shapes, *_OWNERS)}


def _narrow(name: str, values: Tensor, units: int) -> Tensor:
    return values.narrow(_UNIT_DIM[name], 0, units) if name in _UNIT_DIM else values


def _behind(slot: int, values: Tensors) -> Tensors:
    """What a path that starts at a slot still needs."""
    passed = (
        "stem",
        "inputs",
        "floor",
        *(f"{part}{block}" for part in ("down", "up", "gain") for block in range(slot)),
    )
    return {name: value for name, value in values.items() if name not in passed}


def _gains(values: Tensors) -> Tensors:
    return {name: value for name, value in values.items() if name.startswith("gain")}


def _take(tree: Any, rows: Tensor) -> Any:
    return tree_map(lambda value: value.index_select(0, rows), tree)


def _mask(gradient: Tensors, masks: Tensors) -> None:
    for name, mask in masks.items():
        gradient[name].mul_(mask)


def _clip(gradients: Sequence[Tensor]) -> Tensor:
    """What to multiply each host's gradients with, [n]."""
    norms = torch.stack([torch.linalg.vector_norm(one.flatten(1), dim=1) for one in gradients])
    return CLIP_NORM / torch.linalg.vector_norm(norms, dim=0).clamp(min=CLIP_NORM)


def descend(values: Tensors, momentum: Tensors, gradient: Tensors, factor: Tensor) -> None:
    """SGD with momentum on stacked parameters, in place."""
    for name, value in values.items():
        scaled = gradient[name].mul_(factor.view(-1, *(1,) * (value.dim() - 1)))
        value.sub_(momentum[name].mul_(MOMENTUM).add_(scaled), alpha=LEARNING_RATE)
