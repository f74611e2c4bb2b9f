"""What a line of the parts ledger says, and what all of them together come to.

A line either tells of a part that landed, or it is an operation on parts: merged into one, dropped, found damaged,
forgotten. Each is one line, hence one commit: readers see the state before it or the state after it. ``fold`` is a
pure function from the lines to the live parts, in the order in which their rows landed.
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
from simic.lake.ledger import Ledger

__all__ = [
    "MOST_SOURCES",
    "PARTS_LEDGER",
    "Damaged",
    "Dropped",
    "Forgotten",
    "Input",
    "LedgerState",
    "Located",
    "Part",
    "Remembered",
    "Replaced",
    "committed_digests",
    "committed_parts",
    "fold",
    "landings",
    "ledger_digest",
    "read_state",
]

PARTS_LEDGER = "ingest.jsonl"
"""Name of the ledger that lists parts."""
MOST_SOURCES = 1000
"""Deliveries that a merged part names; the lines of what went into it name all, see ``landings``."""

PartName = Annotated[str, Field(pattern=r"^day=\d{4}-\d{2}-\d{2}/part-[0-9a-z]+-[0-9a-f]{16}\.parquet$")]
IdsName = Annotated[str, Field(pattern=r"^dropped-[0-9a-f]{16}\.parquet$")]


class Part(Contract):
    """A committed part; a line that is just this says that it landed."""

    schema_version: Literal[1] = 1
    part: PartName
    """Path below the experience directory, or below the prefix of the store."""
    rows: Count
    size_bytes: Count
    sha256: Digest
    """Of the file."""
    sources: list[str]
    """Deliveries it holds rows of; of a merged part, the first thousand."""
    schema_digest: Digest
    """Of the columns' names and types."""
    landed_at: UtcDatetime
    """Of its newest row."""
    code_version: str


class _Operation(Contract):
    schema_version: Literal[1] = 1
    at: UtcDatetime
    code_version: str


class Input(Contract):
    """A part that went into a merge."""

    part: PartName
    rows: Count
    sha256: Digest


class Replaced(_Operation):
    """Small parts, neighbours in the order of the lake, became one: the same rows in the same order."""

    op: Literal["replaced"] = "replaced"
    part: Part
    inputs: Annotated[list[Input], Field(min_length=1)]


class Remembered(Contract):
    """Ids of dropped reports, with content digest, source and line, in a file below ``data/ids``."""

    file: IdsName
    rows: Count
    sha256: Digest
    dropped_at: UtcDatetime


class Dropped(_Operation):
    """Parts left the lake by retention."""

    op: Literal["dropped"] = "dropped"
    reason: Literal["age", "bytes"]
    parts: Annotated[list[PartName], Field(min_length=1)]
    rows: Count
    size_bytes: Count
    remembered: Remembered


class Damaged(_Operation):
    """A part was lost or is not what was committed; its rows are out of the lake until their reports land again."""

    op: Literal["damaged"] = "damaged"
    part: PartName
    rows: Count
    found: str
    requeued: list[str]
    """Deliveries that were put back on the bus."""
    missing: list[str]
    """Deliveries that are no longer at hand."""


class Forgotten(_Operation):
    """Files of remembered ids have served their time."""

    op: Literal["forgotten"] = "forgotten"
    files: Annotated[list[IdsName], Field(min_length=1)]


class Located(_Operation):
    """The store of all parts, named before the first of them; without such a line it is ``data/experience``."""

    op: Literal["located"] = "located"
    url: str


Operation = Replaced | Dropped | Damaged | Forgotten | Located
_OPERATION: TypeAdapter[Operation] = TypeAdapter(Annotated[Operation, Field(discriminator="op")])


class LedgerState(NamedTuple):
    """What the lines come to."""

    parts: tuple[Part, ...]
    """Live parts, in the order of the lake."""
    retired: dict[str, datetime]
    """Parts that were merged or dropped, and when; their files stay for a while."""
    remembered: tuple[Remembered, ...]
    """Ids of dropped reports that are still known."""
    damaged: tuple[Damaged, ...]
    url: str | None
    """Of the store, if it is not the home's own directory."""

    @property
    def named(self) -> set[str]:
        """Every part that a line ever added; other files are orphans."""
        return {part.part for part in self.parts} | self.retired.keys() | {line.part for line in self.damaged}


def read_state(ledger: Ledger) -> LedgerState:
    """The committed state; raises IntegrityError for a line that cannot be true, naming its number."""
    return fold(ledger.read(), str(ledger.path))


def committed_parts(ledger: Ledger) -> list[Part]:
    """Every live part, in the order of the lake: the only list that readers use."""
    return list(read_state(ledger).parts)


def fold(lines: Iterable[Mapping[str, Any]], place: str = "the ledger") -> LedgerState:
    """Lines to state, a pure function; ``place`` is for messages."""
    folding = _Folding()
    for number, line in enumerate(lines, 1):
        try:
            folding.take(_OPERATION.validate_python(line) if "op" in line else Part.model_validate(line))
        except ValidationError as error:
            raise IntegrityError(f"{place}, line {number}: not a part: {error.errors()[0]['msg']}") from error
        except _ImpossibleError as error:
            raise IntegrityError(f"{place}, line {number}: {error}; restore the ledger from a backup") from error
    return folding.state()


def ledger_digest(parts: Iterable[Part]) -> str:
    """SHA-256 over one line ``<part> <rows> <sha256>`` per live part, in the order of the lake."""
    lines = [f"{part.part} {part.rows} {part.sha256}\n" for part in parts]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def landings(ledger: Ledger, name: str) -> tuple[Part, ...]:
    """Parts as they landed whose rows the live part of that name holds, through any number of merges.

    A merged part names only some of its deliveries; these lines name all. Raises IntegrityError as ``read_state`` does.
    """
    held: dict[str, tuple[Part, ...]] = {}
    lines = ledger.read()
    fold(lines, str(ledger.path))
    for line in lines:
        if "op" not in line:
            part = Part.model_validate(line)
            held[part.part] = (part,)
        elif line["op"] == "replaced":
            held[line["part"]["part"]] = tuple(part for taken in line["inputs"] for part in held[taken["part"]])
    return held.get(name, ())


def committed_digests(ledger: Ledger) -> dict[str, set[str]]:
    """SHA-256 of every part that a line ever added, by name; a part found damaged may have been added again."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in ledger.read():
        part = line["part"] if line.get("op") == "replaced" else line
        if "sha256" in part:
            found[part["part"]].add(part["sha256"])
    return found


class _ImpossibleError(Exception):
    """A line that contradicts those before it."""


class _Folding:
    """A part keeps the place at which its first row landed, through any number of merges."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[int, Part]] = {}
        self._count = 0
        self._retired: dict[str, datetime] = {}
        self._remembered: dict[str, Remembered] = {}
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
                self._remembered[line.remembered.file] = line.remembered
            case Damaged():
                self._take(line.part)
                self._damaged.append(line)
            case Forgotten():
                for name in line.files:
                    if self._remembered.pop(name, None) is None:
                        raise _ImpossibleError(f"forgets {name}, which is not remembered")
            case Located():
                if self._live or self._retired or self._url is not None:
                    raise _ImpossibleError(f"moves the lake to {line.url} after its first line")
                self._url = line.url

    def state(self) -> LedgerState:
        return LedgerState(
            parts=tuple(part for _, part in sorted(self._live.values(), key=lambda entry: entry[0])),
            retired=dict(self._retired),
            remembered=tuple(self._remembered.values()),
            damaged=tuple(self._damaged),
            url=self._url,
        )

    def _add(self, place: int, part: Part) -> None:
        if part.part in self._live:
            raise _ImpossibleError(f"adds {part.part}, which is live already")
        self._live[part.part] = (place, part)
        self._retired.pop(part.part, None)  # the same batch landed again after its part was found damaged

    def _replace(self, line: Replaced) -> None:
        places = []
        for taken in line.inputs:
            place, part = self._retire(taken.part, line.at)
            if (part.rows, part.sha256) != (taken.rows, taken.sha256):
                raise _ImpossibleError(f"merges another {taken.part} than the one committed")
            places.append(place)
        if places != sorted(places):
            raise _ImpossibleError("merges parts out of order")
        if any(places[0] < place < places[-1] for place, _ in self._live.values()):
            raise _ImpossibleError("merges parts that are no neighbours")
        if line.part.rows != sum(taken.rows for taken in line.inputs):
            raise _ImpossibleError(f"makes {line.part.rows} rows of {sum(taken.rows for taken in line.inputs)}")
        self._add(places[0], line.part)

    def _retire(self, name: str, at: datetime) -> tuple[int, Part]:
        taken = self._take(name)
        self._retired[name] = at
        return taken

    def _take(self, name: str) -> tuple[int, Part]:
        if name not in self._live:
            raise _ImpossibleError(f"takes out {name}, which is not live")
        return self._live.pop(name)
