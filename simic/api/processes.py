"""A Grower in several processes that train one model: the first one measures and decides, the others follow.

Every process runs the same lifecycle on what the first one found, so their seeds are equal without being sent.
Shapes: P parameters of a seed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from simic.contracts.errors import ConfigError
from simic.hosts.custom.attached import SEED_PREFIX, AttachedHost, AttachedSeed
from simic.hosts.interfaces import DataSplit, Measurement, SeedAssignment, TrainingRecord

__all__ = ["Processes", "SharedHost", "WrappedPart", "unwrapped"]

Arrays = Mapping[str, NDArray[Any]]
_GROUPS: WeakKeyDictionary[Any, dict[tuple[int, ...], dist.ProcessGroup]] = WeakKeyDictionary()
"""The group of some ranks for messages, by torch's group of all processes and by the ranks."""


class WrappedPart(NamedTuple):
    """A part of what several processes train, which grows."""

    wrapper: DistributedDataParallel
    module: nn.Module


class Processes:
    """The processes of a ``DistributedDataParallel``, or this one alone.

    The messages go through a group of their own, so that they never meet those of the backward pass. All Growers of the
    same processes share it, because a group has sockets and threads that stay until ``dist.destroy_process_group()``.
    So Growers that are used at the same time need the same order of calls in all processes. After an interrupted call
    new Growers need ``dist.destroy_process_group()`` and ``dist.init_process_group()``: a new group of the same
    processes would share the interrupted one.
    """

    def __init__(self, wrapper: DistributedDataParallel | None) -> None:
        self._group: dist.ProcessGroup | None = None
        self.is_first, self.count, self._device = True, 1, torch.device("cpu")
        if wrapper is None:
            return
        ranks = dist.get_process_group_ranks(wrapper.process_group)
        self._group = _group_of(tuple(ranks))
        self._source, self.count = ranks[0], len(ranks)
        self.is_first = dist.get_rank() == self._source
        if dist.get_backend(self._group) != "gloo":
            self._device = next(wrapper.module.parameters()).device

    def broadcast(self, make: Callable[[], Arrays]) -> dict[str, NDArray[Any]]:
        """Return what ``make`` returns in the first process; the others do not call it.

        Raises:
            ConfigError: in the others, if ``make`` raised an error in the first one.
        """
        if self._group is None:
            return dict(make())
        data = b""
        try:
            if self.is_first:
                data = _encoded(make())
        finally:
            # Without a message the others would wait for ever.
            data = self._broadcast_bytes(data)
        if not data:
            raise ConfigError("the first process failed in this step of its Grower; its error says why")
        return _decoded(data)

    def attach(self, *arguments: Any, **named: Any) -> AttachedHost:
        """Return an ``AttachedHost`` with these arguments, which its processes share."""
        return AttachedHost(*arguments, **named) if self.count == 1 else SharedHost(self, *arguments, **named)

    def check_equal(self, arguments: object) -> None:
        """Check that all processes gave their Growers arguments of the same ``repr``.

        Raises:
            ConfigError: if they did not.
        """
        mine = repr(arguments)
        with self.together():
            if (first := self.broadcast_json({"arguments": mine})["arguments"]) != mine:
                raise ConfigError(f"all processes need the same arguments: expected {first}, found {mine}")

    def broadcast_json(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the first process, which JSON can hold."""
        arrays = self.broadcast(lambda: {"json": np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)})
        mine: dict[str, Any] = json.loads(arrays["json"].tobytes())
        return mine

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block that all processes run; if it fails in one of them, it fails in all.

        Raises:
            ConfigError: if the block failed in another process only.
        """
        is_done = False
        try:
            yield
            is_done = True
        finally:
            failed = torch.tensor([float(not is_done)], device=self._device)
            self._sum(failed)
        if float(failed) > 0:
            raise ConfigError("another process failed in this step of its Grower; its error says why")

    def mean_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its mean over the processes."""
        self._sum(tensor)
        return tensor if self.count == 1 else tensor.div_(self.count)

    def sum_of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums of values over the processes."""
        total = torch.from_numpy(values).to(self._device, copy=True)
        self._sum(total)
        return np.asarray(total.cpu().numpy())

    def _sum(self, tensor: Tensor) -> None:
        if self._group is not None:
            dist.all_reduce(tensor, group=self._group)

    def _broadcast_bytes(self, data: bytes) -> bytes:
        size = torch.tensor([len(data)], device=self._device)
        dist.broadcast(size, self._source, group=self._group)
        if not int(size):
            return b""
        content = torch.zeros(int(size), dtype=torch.uint8, device=self._device)
        if self.is_first:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(content, self._source, group=self._group)
        return content.cpu().numpy().tobytes()


class SharedHost(AttachedHost):
    """An attached host that several processes train, each on its share of the samples.

    ``DistributedDataParallel`` reduces the gradients of the parameters that it found when it was made. A seed's
    gradients are averaged here instead: at the end of each backward pass, or after the pass of its own.
    """

    def __init__(self, processes: Processes, *arguments: Any, **named: Any) -> None:
        """Attach as an ``AttachedHost`` with these further arguments does, in all processes."""
        self._processes = processes
        self._unreduced: list[int] = []
        super().__init__(*arguments, **named)

    def place(self, slot: int, seed: AttachedSeed) -> None:
        super().place(slot, seed)
        if seed.learns:
            self.attached.watch(slot, partial(self._reduce_later, slot))

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        measure = super().evaluate
        arrays = self._processes.broadcast(lambda: measure(part, assignment, leave_one_out=leave_one_out)._asdict())
        return Measurement(**arrays)

    def finish(self) -> TrainingRecord:
        with self._processes.together():
            own = super().finish()
        # Each process trains on a share of the samples.
        whole = own._replace(samples=self._processes.sum_of(own.samples))
        return TrainingRecord(**self._processes.broadcast(whole._asdict))

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        hosts, seeds = super().is_finite()
        finite = self._processes.broadcast(lambda: {"hosts": hosts, "seeds": seeds})
        return finite["hosts"], finite["seeds"]

    def _isolated_gradient(self, slot: int, *batch: Any) -> Tensor:
        return self._processes.mean_(super()._isolated_gradient(slot, *batch))

    def _reduce_later(self, slot: int, _parameter: Tensor) -> None:
        """Reduce at the end of the backward pass, when all processes have sent what they send within it."""
        if not self._unreduced:
            Variable._execution_engine.queue_callback(self._reduce)  # noqa: SLF001
        self._unreduced.append(slot)

    def _reduce(self) -> None:
        slots, self._unreduced = sorted(set(self._unreduced)), []
        for slot in slots:
            gradient = self.seeds[slot].parameters.grad
            if gradient is not None:
                self._processes.mean_(gradient)
                self._step.set_norm(f"{SEED_PREFIX}{slot}", torch.linalg.vector_norm(gradient))


def unwrapped(model: nn.Module | WrappedPart) -> tuple[nn.Module, Processes]:
    """Return the module in a ``DistributedDataParallel``, or the model itself, and the processes that train it.

    Trainers that wrap more than what grows give a ``WrappedPart``.

    Raises:
        ConfigError: if several processes run, and the model is not in a ``DistributedDataParallel``; if it is the
            result of ``torch.compile``; or if it is no module.
    """
    for candidate in (model, getattr(model, "module", None)):
        if isinstance(getattr(candidate, "_orig_mod", None), nn.Module):
            raise ConfigError(
                "model: found the result of torch.compile, of which no layer can be replaced; give the Grower the "
                "module itself, and compile it afterwards"
            )
    if isinstance(model, WrappedPart):
        return model.module, Processes(model.wrapper)
    if isinstance(model, DistributedDataParallel):
        module: nn.Module = model.module
        return module, Processes(model)
    if dist.is_available() and dist.is_initialized() and (count := dist.get_world_size()) > 1:
        raise ConfigError(
            f"model: {count} processes train together; expected their torch.nn.parallel.DistributedDataParallel, "
            f"found {type(model).__name__}; wrap the model first, and give the Grower the wrapper"
        )
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a torch.nn.Module, found {type(model).__name__}")
    return model, Processes(None)


def _group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """Return the group for the messages of these processes.

    A Grower that ends does not destroy it: torch names such a group by the number of groups that exist, so the next one
    could get the name of another group, and with it stale addresses.
    """
    groups = _GROUPS.setdefault(dist.group.WORLD, {})
    if ranks not in groups:
        groups[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return groups[ranks]


def _encoded(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **dict(arrays))  # type: ignore[arg-type]
    return buffer.getvalue()


def _decoded(data: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
