"""Where an epoch of the ensemble goes: its own functions, timed from outside, each less what is timed inside it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from peers.scene import STEERED_EPOCHS, EnsembleContender, sound_keys, validate

__all__ = ["PARTS", "profile"]

PARTS: dict[str, tuple[str, ...]] = {
    "batches and noise": ("batched.dataset:HostDataset.batches", "batched.dataset:HostDataset.noise"),
    "hosts forward and backward": ("batched.training:_Epoch.backward",),
    "seeds forward, training": ("batched.seeds:SlotSeeds.apply",),
    "seeds backward (autograd)": ("batched.residual:backpropagate_seeds",),
    "clipping and SGD step": ("batched.training:_Epoch.sgd_step", "batched.training:_Epoch._count_seeds"),
    "loss, accuracy and gradient means": ("batched.training:_Epoch.record",),
    "packing and unpacking of seeds": ("batched.host_batch:pack_seeds", "batched.host_batch:unpack_seeds"),
    "validation": ("batched.host_batch:CompactedHosts.evaluate",),
    "snapshot": ("batched.host_batch:BatchedHosts.snapshot",),
    "governor and finiteness": ("ensemble:Ensemble._judge",),
    "records, gates and moves": ("ensemble:Ensemble._record", "ensemble:Ensemble._roll_back"),
    "actions: check, germination, seed ids": ("ensemble:check_actions", "ensemble:Ensemble._act"),
    "legality": ("ensemble:legal_masks",),
    "observation": ("ensemble:observe",),
}
"""Functions by what they are for: module of ``simic.hosts``, then the name its callers look up."""
VALIDATION, PLAIN, ROWS = "validation", "validation, hosts and active seeds", "validation, leave-one-out rows"
REST, WHOLE = "the rest", "whole epoch"


class Clock:
    """CPU seconds by name; what runs inside a timed function is taken out of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._inside: list[float] = []
        self._names: list[str] = []

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with a clock on it."""

        def run(*arguments: Any, **named: Any) -> Any:
            # Validation is one piece here: what seeds do in it is no part of training.
            if name != VALIDATION and self._names and self._names[-1] == VALIDATION:
                return call(*arguments, **named)
            self._inside.append(0.0)
            self._names.append(name)
            start = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                spent = time.process_time() - start
                self._names.pop()
                self.seconds[name] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        return run

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While this holds, the functions of ``PARTS`` are on the clock."""
        before: list[tuple[Any, str, Any]] = []
        try:
            for name, paths in PARTS.items():
                for path in paths:
                    owner, attribute = _owner(path)
                    before.append((owner, attribute, getattr(owner, attribute)))
                    setattr(owner, attribute, self.timed(name, getattr(owner, attribute)))
            yield
        finally:
            for owner, attribute, value in reversed(before):
                setattr(owner, attribute, value)


def _owner(path: str) -> tuple[Any, str]:
    module, names = path.split(":")
    *classes, attribute = names.split(".")
    owner: Any = importlib.import_module(f"simic.hosts.{module}")
    for name in classes:
        owner = getattr(owner, name)
    return owner, attribute


def profile(hosts: int, seeds: int, epochs: int, repetitions: int = 5) -> dict[str, float]:
    """CPU milliseconds per epoch, medians over repetitions, after the epochs that are steered."""
    keys = sound_keys(hosts, seeds, STEERED_EPOCHS + epochs)
    rows = [_run(keys, seeds, epochs) for _ in range(repetitions)]
    return {name: 1e3 / epochs * float(np.median([row[name] for row in rows])) for name in rows[0]}


def _run(keys: list[int], seeds: int, epochs: int) -> dict[str, float]:
    contender = EnsembleContender(keys, seeds)
    for number in range(STEERED_EPOCHS):
        contender.step(contender.actions(number))
    clock, whole, plain = Clock(), 0.0, 0.0
    for number in range(STEERED_EPOCHS, STEERED_EPOCHS + epochs):
        actions = contender.actions(number)
        with clock.attached():
            start = time.process_time()
            contender.step(actions)
            whole += time.process_time() - start
        start = time.process_time()
        validate(contender, leave_one_out=False)
        plain += time.process_time() - start
    parts = dict(clock.seconds)
    validation = parts.pop(VALIDATION)
    parts[REST] = whole - validation - sum(parts.values())
    plain = min(plain, validation) if seeds else validation
    return {**parts, PLAIN: plain, ROWS: validation - plain, WHOLE: whole}
