"""Figures in the documents are those that recorded runs gave: benchmarks/results and the pages of the proof."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RATIO = re.compile(r"(\d+(?:,\d{3})*(?:\.\d+)?)(?=x| times| passes)")
ESTIMATE = re.compile(r"([+-]?[\d.]+)( %)?(?: points)? \[([+-]?[\d.]+), ([+-]?[\d.]+)\]")


class Published(NamedTuple):
    """A ratio of docs/speed.md, as it is written there."""

    benchmark: str
    row: str
    text: str


def published() -> Iterator[Published]:
    """Return the ratios of the rows; one without a command is of the same run as the row above it."""
    name = None
    for line in (ROOT / "docs" / "speed.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) < 4:
            name = None
            continue
        if command := re.search(r"python benchmarks/(\w+)\.py", line):
            name = command[1]
        if name is not None:
            yield from (Published(name, cells[0], text) for text in RATIO.findall(cells[2]))


def numbers(value: object) -> Iterator[float]:
    """Return all numbers of a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def test_d22_ratios_of_the_speed_page_are_recorded_ones() -> None:
    """Rounded as they are written; a benchmark may record the inverse."""
    found = list(published())
    assert len(found) > 25
    for benchmark, row, text in found:
        recorded = list(numbers(json.loads((ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_text("utf-8"))))
        digits, value = len(text.partition(".")[2]), float(text.replace(",", ""))
        either = [*recorded, *(1.0 / one for one in recorded if one)]
        assert value in [round(one, digits) for one in either], f"{row}: {text} is in no line of {benchmark}.json"


def test_d22_estimates_in_prose_are_those_of_a_proof() -> None:
    proofs = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("proof*.md"))
    readme = (ROOT / "README.md").read_text("utf-8")
    results = (ROOT / "docs" / "results.md").read_text("utf-8").partition("The sections below are single trainings")[0]
    prose = [line for line in (readme + results).splitlines() if not line.startswith("|")]
    found = list(ESTIMATE.finditer("\n".join(prose)))
    assert len(found) > 8
    for mean, percent, *bounds in (one.groups() for one in found):
        mean, lower, upper = (mean, *bounds) if percent else map(_signed, (mean, *bounds))
        text = f"{mean}{percent or ''} [{lower}, {upper}]"
        assert text in proofs, f"{text} is on no page of a proof"


def _signed(text: str) -> str:
    return text if text[0] in "+-" else f"+{text}"
