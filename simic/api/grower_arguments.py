"""What the arguments of a ``Grower`` mean. Shapes: n samples."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from simic.api.home import Home
from simic.api.reports import FieldReportWriter
from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError, DatasetError
from simic.contracts.faults import describe_faults
from simic.contracts.settings.lifecycle import GovernorConfig, LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity, LayerKind
from simic.hosts.custom import Layer, ModuleHost, Samples
from simic.hosts.custom.forward import forked_rng
from simic.hosts.custom.host import MOST_SAMPLES
from simic.hosts.custom.interface import Loss
from simic.hosts.custom.run_order import SEVERAL_INPUTS, last_leaf, run_order
from simic.hosts.custom.tasks import Kind, task_of
from simic.hosts.plugins import blueprint_names

__all__ = [
    "Data",
    "Network",
    "NetworkArguments",
    "Rules",
    "check_counts",
    "identity_of",
    "known_blueprints",
    "network_of",
    "world_of",
    "writer_of",
]

_LOG = logging.getLogger(__name__)
_SHORT_INTEGERS = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

_CONVERT = "convert arrays with torch.from_numpy"
_PLURAL: dict[type, str] = {str: "names", Layer: "Layers"}

T = TypeVar("T", bound=Contract)
Data: TypeAlias = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
"""Inputs [n, ...] and labels [n, ...], or batches of them, such as a ``DataLoader``."""


Rules: TypeAlias = Mapping[str, float] | None
"""Settings by name; None for the defaults of all."""


class NetworkArguments(NamedTuple):
    """The arguments of a Grower that describe its network."""

    slots: Sequence[str | Layer]
    validation: Data
    test: Data | None
    head: str | None
    loss: Loss | None
    logits: Callable[[Any], Tensor] | None


class Network(NamedTuple):
    """A network with its layers and samples."""

    spec: ModuleHost
    loss: Loss
    """Loss of a training batch."""
    chunk: int
    """Most samples for a pass."""
    has_test: bool
    """Whether ``spec.test`` are samples of their own, or those for validation."""


def network_of(module: nn.Module, given: NetworkArguments, *, warns: bool) -> Network:
    """Read all samples onto the device of the module and find its layers.

    Args:
        module: The network.
        given: What its owner says about it.
        warns: Whether to warn of numbers that look like classes.

    Raises:
        ConfigError: if the layers or the loss cannot be used, or samples are no tensors.
        DatasetError: if labels are invalid.
    """
    for what, function in (("loss", given.loss), ("logits", given.logits)):
        if function is not None and not callable(function):
            raise ConfigError(f"{what}: expected a function, found {type(function).__name__}")
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    own, chunk = _joined("validation", given.validation, device)
    task = task_of(own.labels, "validation", given.loss)
    if warns and task.kind is Kind.NUMBERS:
        _warn_of_one_hot(own.labels)
    layers = tuple(_layers_of(module, given.slots, given.head, own.inputs))
    last = own
    if given.test is not None:
        last, other = _joined("test", given.test, device)
        chunk = min(chunk, other)
    few = min(chunk, ModuleHost.batch)
    spec = ModuleHost(module, layers, own, own, last, batch=few, loss=given.loss, logits=given.logits)
    return Network(spec, given.loss or task.loss, chunk, has_test=given.test is not None)


def check_counts(epochs: int, seeds_max: int) -> None:
    """Raise ConfigError for numbers of epochs or seeds that are not whole or out of their range."""
    for what, value, least, most in (("epochs", epochs, 4, 1000), ("seeds_max", seeds_max, 1, 1024)):
        if type(value) is not int or not least <= value <= most:
            raise ConfigError(f"{what}: expected a whole number from {least} to {most:,}, found {value!r}")


def world_of(name: str, epochs: int, lifecycle: Rules, governor: Rules) -> WorldConfig:
    """Return the world of a network, with the defaults of the settings that are not given.

    Raises:
        ConfigError: for an unknown setting, or a value out of its range.
    """
    return WorldConfig(
        set=name,
        horizon=epochs,
        threads=min(64, torch.get_num_threads()),
        snapshot_mb=1_000_000,
        lifecycle=_settings(LifecycleConfig, "lifecycle", lifecycle),
        governor=_settings(GovernorConfig, "governor", governor),
    )


def _settings(kind: type[T], what: str, given: Rules) -> T:
    known = f"settings of {what}: {', '.join(kind.model_fields)}"
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{what}: expected settings by name, found {given!r:.100}; {known}")
    try:
        return kind.model_validate(dict(given or {}))
    except ValidationError as error:
        raise ConfigError(f"{describe_faults(error, what, within=what)}; found {given!r}; {known}") from error


class _Joined(NamedTuple):
    """All samples on one device."""

    samples: Samples
    chunk: int
    """Most samples for a pass."""


def _joined(what: str, data: Data, device: torch.device) -> _Joined:
    """Return inputs and labels of all batches on a device; a loader's random numbers are not the caller's.

    Passes are no larger than the largest batch, because the memory may have no room for more. They have at least two
    samples.

    Raises:
        ConfigError: for anything but two tensors or batches of two.
        DatasetError: for labels in an integer type of fewer bits.
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(element, Tensor) for element in data):
        inputs, labels = cast(tuple[Tensor, Tensor], tuple(data))
        chunk = MOST_SAMPLES
    else:
        batches = _batches(what, data, device)
        inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        chunk = min(MOST_SAMPLES, max(2, *(len(few) for few, _ in batches)))
    if labels.dtype in _SHORT_INTEGERS:
        found = f"{labels.dtype} {list(labels.shape)}"
        wanted = "labels as int64 for classes or float32 for numbers"
        raise DatasetError(f"{what}: expected {wanted}, found {found}; convert them")
    return _Joined(Samples(inputs.to(device), labels.to(device)), chunk)


def _warn_of_one_hot(labels: Tensor) -> None:
    """Warn of numbers that look like classes: float32 [n, C], a single 1 in every row."""
    if labels.dtype != torch.float32 or labels.dim() != 2 or labels.shape[1] < 2 or not len(labels):
        return
    if bool(((labels == 0) | (labels == 1)).all()) and bool((labels.sum(dim=1) == 1).all()):
        _LOG.warning(
            "validation: labels float32 %s are taken as numbers, so accuracies are those of a regression; if the "
            "columns are classes, give labels.argmax(1)",
            list(labels.shape),
        )


def _batches(what: str, data: Any, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return all batches, or raise ConfigError if they are none."""
    expected = f"{what}: expected (inputs, labels) as tensors, or batches of them such as a DataLoader"
    name = type(data).__name__
    if isinstance(data, (Tensor, Mapping, str)) or not (isinstance(data, Iterable) or hasattr(data, "__getitem__")):
        raise ConfigError(f"{expected}; found {name}")
    owners = (data, getattr(data, "sampler", None))
    own = [rng for rng in (getattr(owner, "generator", None) for owner in owners) if isinstance(rng, torch.Generator)]
    states = [(rng, rng.get_state()) for rng in own]
    try:
        with forked_rng(device):
            batches = [_batch(batch, f"{expected}; found {name}") for batch in data]
    finally:
        for generator, before in states:
            generator.set_state(before)
    if not batches:
        raise ConfigError(f"{expected}; found {name} without a batch")
    return batches


def _is_array(given: Any) -> bool:
    return hasattr(given, "__array__") and not isinstance(given, Tensor)


def _batch(given: Any, problem: str) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of one batch, or raise ConfigError, which begins with ``problem``."""
    if isinstance(given, (Tensor, Mapping, str)) or not isinstance(given, Iterable) or hasattr(given, "__array__"):
        raise ConfigError(f"{problem} of {type(given).__name__}{f'; {_CONVERT}' if _is_array(given) else ''}")
    batch = tuple(given)
    if len(batch) == 2 and all(isinstance(element, Tensor) for element in batch):
        inputs, labels = batch
        if labels.dim() and inputs.shape[:1] == labels.shape[:1]:
            return inputs, labels
    elements = ", ".join(
        f"Tensor {list(element.shape)}" if isinstance(element, Tensor) else type(element).__name__ for element in batch
    )
    hint = SEVERAL_INPUTS if len(batch) > 2 else "if these are single samples, give DataLoader(..., batch_size=256)"
    if any(map(_is_array, batch)):
        hint = _CONVERT
    raise ConfigError(f"{problem} with a batch of {elements}; {hint}")


def _layers_of(model: nn.Module, slots: Sequence[str | Layer], head: str | None, inputs: Tensor) -> list[Layer]:
    """Return the layers of the graph: those with a slot in the order in which they run, then the head."""
    _check_list("slots", slots, (str, Layer))
    given = [slot for slot in slots if isinstance(slot, Layer)]
    if given:
        if len(given) != len(slots) or head is not None:
            raise ConfigError("slots: give names, or all layers as Layer with the head among them; not both")
        return given
    names = [slot for slot in slots if isinstance(slot, str)]
    if not names:
        raise ConfigError("slots: expected at least one name of a submodule, found none")
    if len(set(names)) < len(names):
        raise ConfigError(f"slots: expected each submodule once, found {names}")
    few = inputs[:2]
    last = last_leaf(model, few) if head is None else head
    if last in names:
        raise ConfigError(
            f"slots: {last!r} gives the logits, so nothing can grow on it; if another layer does, name it as head"
        )
    order = [name for name in run_order(model, [*names, last], few) if name != last]
    kinds = [LayerKind.STEM, *[LayerKind.BLOCK] * (len(order) - 1)]
    rest = [Layer(name, kind, has_slot=True) for name, kind in zip(order, kinds, strict=True)]
    return [*rest, Layer(last, LayerKind.HEAD)]


def known_blueprints(blueprints: Sequence[str]) -> tuple[str, ...]:
    """Return names of blueprints that exist; raise ConfigError for others."""
    _check_list("blueprints", blueprints, (str,))
    known = blueprint_names()
    if not blueprints:
        raise ConfigError(f"blueprints: expected at least one name among {', '.join(known)}; found none")
    if unknown := [name for name in blueprints if name not in known]:
        raise ConfigError(f"blueprints: expected names among {', '.join(known)}; found {unknown}")
    return tuple(blueprints)


def _check_list(what: str, given: Any, kinds: tuple[type, ...]) -> None:
    """Raise ConfigError for anything but a list, or another sequence, of such elements; a text is no list of names."""
    wanted = f"{what}: expected a list of {' or '.join(_PLURAL[kind] for kind in kinds)}"
    if isinstance(given, str):
        raise ConfigError(f"{wanted}, found the text {given!r}")
    if not isinstance(given, Sequence):
        raise ConfigError(f"{wanted}, found {type(given).__name__}")
    if others := [element for element in given if not isinstance(element, kinds)]:
        raise ConfigError(f"{wanted}, found {others[0]!r} in it")


def identity_of(name: str, seed: int) -> HostIdentity:
    try:
        return HostIdentity(set=name, family=name, key=seed)
    except ValidationError as error:
        wanted = "expected a name of a-z, 0-9 and _ with at most 32 characters, and a seed from 0 to 2**31 - 1"
        raise ConfigError(f"name and seed: {wanted}, found {name!r} and {seed!r}") from error


def writer_of(
    report_to: FieldReportWriter | Home | str | os.PathLike[str] | None,
) -> tuple[FieldReportWriter | None, bool]:
    """Return the writer of the reports, and whether it is the Grower's own; raise TypeError for anything else."""
    if report_to is None or isinstance(report_to, FieldReportWriter):
        return report_to, False
    if not isinstance(report_to, (Home, str, os.PathLike)):
        wanted = "a simic.FieldReportWriter, a simic.Home, or the folder of a spool"
        raise TypeError(f"report_to: expected {wanted}, found {type(report_to).__name__}")
    return (FieldReportWriter(report_to) if isinstance(report_to, Home) else FieldReportWriter(spool=report_to)), True
