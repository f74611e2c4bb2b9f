"""The text format of Prometheus, in a file that the textfile collector of its node exporter reads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from simic.runtime.files import atomic_write

__all__ = ["Sample", "render", "write_textfile"]

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]")


class Sample(NamedTuple):
    """One value of a gauge."""

    name: str
    """With dots, as in the design; in the text they are underscores."""
    meaning: str
    value: float
    labels: Mapping[str, str] = {}


def render(samples: Iterable[Sample]) -> str:
    """Return the samples in the text exposition format, version 0.0.4: gauges, grouped by name, without timestamps."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(_NOT_IN_A_NAME.sub("_", sample.name), []).append(sample)
    lines = []
    for name, members in groups.items():
        meaning = members[0].meaning.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(member.labels)} {_number(member.value)}" for member in members]
    return "".join(f"{line}\n" for line in lines)


def write_textfile(path: Path, samples: Iterable[Sample]) -> None:
    """Replace the file by the samples at once, so that a reader never finds half of them."""
    atomic_write(path, render(samples).encode(), durable=False)


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{_NOT_IN_A_NAME.sub("_", name)}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
