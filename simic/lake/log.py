"""The log of operations on the lake: records of the parts ledger, and the state that results from them.

A line is either a part that landed or an operation on parts: merged into one, dropped, damaged, tombstones expired,
store bound. One line is one commit: readers see the state before it or after it. ``fold`` is a pure function from the
lines to the live parts, in the order in which their rows landed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from simic.contracts.base import Contract, Count, Digest, UtcDatetime
from simic.contracts.errors import IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.results.lake import Span
from simic.ledgers.ledger import Ledger

__all__ = [
    "MOST_SOURCES",
    "Damaged",
    "Dropped",
    "Input",
    "LedgerState",
    "Part",
    "Replaced",
    "StoreBound",
    "TombstoneFile",
    "TombstonesExpired",
    "committed_digests",
    "committed_parts",
    "fold",
    "landings",
    "ledger_digest",
    "read_state",
]

MOST_SOURCES = 1000
"""Most deliveries that a merged part names; the lines of its inputs name all, see ``landings``."""

PartName = Annotated[str, Field(pattern=r"^(day=)?\d{4}-\d{2}-\d{2}/part-[0-9a-z]+-[0-9a-f]{16}\.parquet$")]
IdsName = Annotated[str, Field(pattern=r"^dropped-[0-9a-f]{16}\.parquet$")]


class Part(Contract):
    """A committed part; as a line of its own, a part that landed."""

    schema_version: Literal[1] = 1
    part: PartName
    """Path below the experience directory, or below the prefix of the store."""
    rows: Count
    size_bytes: Count
    sha256: Digest
    """SHA-256 of the file."""
    sources: list[str]
    """Deliveries of its rows; for a merged part, the first thousand."""
    spans: dict[str, Span] = Field(default_factory=dict)
    """Lines read for it from deliveries whose names may come again with other lines; none for a merged part."""
    schema_digest: Digest
    """SHA-256 over names, types and nullability of the columns."""
    landed_at: UtcDatetime
    """Time at which its newest row landed."""
    code_version: str


class _Operation(Contract):
    schema_version: Literal[1] = 1
    at: UtcDatetime
    code_version: str


class Input(Contract):
    """A part that was merged into another."""

    part: PartName
    rows: Count
    sha256: Digest


class Replaced(_Operation):
    """Adjacent small parts were merged into one with the same rows in the same order."""

    op: Literal["replaced"] = "replaced"
    part: Part
    inputs: Annotated[list[Input], Field(min_length=1)]


class TombstoneFile(Contract):
    """A file below ``data/ids`` with the tombstones of dropped reports: id, content digest, source and line."""

    file: IdsName
    rows: Count
    sha256: Digest
    dropped_at: UtcDatetime


class Dropped(_Operation):
    """Retention dropped parts from the lake."""

    op: Literal["dropped"] = "dropped"
    reason: Literal["age", "bytes"]
    parts: Annotated[list[PartName], Field(min_length=1)]
    rows: Count
    size_bytes: Count
    remembered: TombstoneFile


class Damaged(_Operation):
    """A missing or changed part was removed; its rows are missing until their reports land again."""

    op: Literal["damaged"] = "damaged"
    part: PartName
    rows: Count
    found: str
    requeued: list[str]
    """Deliveries that were put back on the bus."""
    missing: list[str]
    """Deliveries that no longer exist."""


class TombstonesExpired(_Operation):
    """Files of tombstones expired."""

    op: Literal["forgotten"] = "forgotten"
    files: Annotated[list[IdsName], Field(min_length=1)]


class StoreBound(_Operation):
    """Binds the lake to a store before its first part; without this line the store is ``data/experience``."""

    op: Literal["located"] = "located"
    url: str


Operation = Replaced | Dropped | Damaged | TombstonesExpired | StoreBound
_OPERATION: TypeAdapter[Operation] = TypeAdapter(Annotated[Operation, Field(discriminator="op")])


class LedgerState(NamedTuple):
    """State of the lake after some lines of its log."""

    parts: tuple[Part, ...]
    """Live parts, in the order of the lake."""
    retired: dict[str, datetime]
    """Parts that were merged or dropped, with the time; their files are deleted later."""
    tombstones: tuple[TombstoneFile, ...]
    """Tombstones that have not expired."""
    damaged: tuple[Damaged, ...]
    url: str | None
    """Address of the store; None for the home's own directory."""

    @property
    def named(self) -> set[str]:
        """Names of all parts that a line added; other files are orphans."""
        return {part.part for part in self.parts} | self.retired.keys() | {line.part for line in self.damaged}


def read_state(ledger: Ledger) -> LedgerState:
    """Return the committed state. Raises IntegrityError for an invalid line, with its number."""
    return fold(ledger.read(), str(ledger.path))


def committed_parts(ledger: Ledger) -> list[Part]:
    """Return every live part, in the order of the lake; readers use no other list."""
    return list(read_state(ledger).parts)


def fold(lines: Iterable[Mapping[str, Any]], place: str = "the ledger") -> LedgerState:
    """Return the state after ``lines``; pure. ``place`` names the ledger in messages."""
    folding = _LogReplay()
    for number, line in enumerate(lines, 1):
        try:
            folding.take(_OPERATION.validate_python(line) if "op" in line else Part.model_validate(line))
        except ValidationError as error:
            raise IntegrityError(f"{place}, line {number}: not a part: {describe_faults(error, 'line')}") from error
        except InvalidLogEntryError as error:
            raise IntegrityError(f"{place}, line {number}: {error}; restore the ledger from a backup") from error
    return folding.state()


def ledger_digest(parts: Iterable[Part]) -> str:
    """Return the SHA-256 over one line ``<part> <rows> <sha256>`` per live part, in the order of the lake."""
    lines = [f"{part.part} {part.rows} {part.sha256}\n" for part in parts]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def landings(ledger: Ledger, name: str) -> tuple[Part, ...]:
    """Return the parts, as they landed, whose rows the live part ``name`` has, through any number of merges.

    A merged part names only some of its deliveries; the parts that landed name all.

    Raises:
        IntegrityError: for an invalid line.
    """
    merged_from: dict[str, tuple[Part, ...]] = {}
    lines = ledger.read()
    fold(lines, str(ledger.path))
    for line in lines:
        if "op" not in line:
            part = Part.model_validate(line)
            merged_from[part.part] = (part,)
        elif line["op"] == "replaced":
            merged_from[line["part"]["part"]] = tuple(
                part for taken in line["inputs"] for part in merged_from[taken["part"]]
            )
    return merged_from.get(name, ())


def committed_digests(ledger: Ledger) -> dict[str, set[str]]:
    """Return by name every SHA-256 with which a part was committed; a damaged part may be committed again."""
    digests: dict[str, set[str]] = defaultdict(set)
    for line in ledger.read():
        part = line["part"] if line.get("op") == "replaced" else line
        if "sha256" in part:
            digests[part["part"]].add(part["sha256"])
    return digests


class InvalidLogEntryError(Exception):
    """A line contradicts those before it."""


class _LogReplay:
    """Applies lines in order. A merged part takes the position of its first input."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[int, Part]] = {}
        self._count = 0
        self._retired: dict[str, datetime] = {}
        self._tombstones: dict[str, TombstoneFile] = {}
        self._damaged: list[Damaged] = []
        self._url: str | None = None

    def take(self, line: Part | Operation) -> None:
        match line:
            case Part():
                self._count += 1
                self._add(self._count, line)
            case Replaced():
                self._replace(line)
            case Dropped():
                for name in line.parts:
                    self._retire(name, line.at)
                self._tombstones[line.remembered.file] = line.remembered
            case Damaged():
                self._take(line.part)
                self._damaged.append(line)
            case TombstonesExpired():
                for name in line.files:
                    if self._tombstones.pop(name, None) is None:
                        raise InvalidLogEntryError(f"expires tombstones {name}, which are not there")
            case StoreBound():
                if self._live or self._retired or self._url is not None:
                    raise InvalidLogEntryError(f"moves the lake to {line.url} after its first line")
                self._url = line.url

    def state(self) -> LedgerState:
        return LedgerState(
            parts=tuple(part for _, part in sorted(self._live.values(), key=lambda entry: entry[0])),
            retired=dict(self._retired),
            tombstones=tuple(self._tombstones.values()),
            damaged=tuple(self._damaged),
            url=self._url,
        )

    def _add(self, position: int, part: Part) -> None:
        if part.part in self._live:
            raise InvalidLogEntryError(f"adds {part.part}, which is live already")
        self._live[part.part] = (position, part)
        self._retired.pop(part.part, None)  # the same batch landed again after its part had been found damaged

    def _replace(self, line: Replaced) -> None:
        positions = []
        for taken in line.inputs:
            position, part = self._retire(taken.part, line.at)
            if (part.rows, part.sha256) != (taken.rows, taken.sha256):
                raise InvalidLogEntryError(f"merges another {taken.part} than the one committed")
            positions.append(position)
        if positions != sorted(positions):
            raise InvalidLogEntryError("merges parts out of order")
        if any(positions[0] < position < positions[-1] for position, _ in self._live.values()):
            raise InvalidLogEntryError("merges parts that are no neighbours")
        if line.part.rows != sum(taken.rows for taken in line.inputs):
            raise InvalidLogEntryError(f"makes {line.part.rows} rows of {sum(taken.rows for taken in line.inputs)}")
        self._add(positions[0], line.part)

    def _retire(self, name: str, at: datetime) -> tuple[int, Part]:
        taken = self._take(name)
        self._retired[name] = at
        return taken

    def _take(self, name: str) -> tuple[int, Part]:
        if name not in self._live:
            raise InvalidLogEntryError(f"takes out {name}, which is not live")
        return self._live.pop(name)
