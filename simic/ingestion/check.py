"""Check of field reports without a home: every line as ingestion judges it, and whether episodes are whole.

Memory is bounded for any number of lines, episodes and report ids.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from pydantic import BaseModel

from simic.bus.protocol import Line
from simic.contracts.base import contracts_in
from simic.contracts.field_report import FieldReport
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.any_order import MOST_HELD, AnyOrder, Judged
from simic.ingestion.episode_order import MOST_ENDED, MOST_OPEN, EpisodeOrder, Link, read_link
from simic.ingestion.validate import Accepted, Refused, Validator
from simic.lake.quarantine import Reason
from simic.runtime.clock import Clock
from simic.runtime.nearest_name import FIELD_LIKENESS, suggestion

__all__ = ["ORDER", "Fault", "ReportCheck", "fault_of"]

ORDER = "order"
"""Reason of a report that ingestion lands and that does not continue its episode, which curation leaves out."""
MOST_IDS = 200_000
"""Report ids that are remembered, the newest; about 200 bytes each."""
MOST_NAMED = 5
"""Episodes without an end that are named."""
MOST_HORIZONS = 100
"""Different horizons that are counted."""
_VALUE_LIMIT = 80
"""Most characters of a value that is shown."""
_DIGEST_CHARACTERS = 16
"""Hex characters of a content digest that are compared."""
_ID = re.compile("[0-9a-f]{32}")
_RUN_ID = re.compile(rb'"run_id"\s*:\s*"([0-9a-f]{32})"')
_REMEDIES = {
    Reason.MALFORMED_JSON.value: "write one JSON object per line, without line ends in it, and end the line",
    Reason.TORN.value: "compress the file again, from its beginning to its end",
    Reason.GIVEN_UP.value: "split the file at ends of lines, or raise the setting that the message names",
    Reason.TOO_LONG.value: "describe the network by fewer layers and edges, or raise ingest.max_report_bytes",
    Reason.TOO_DEEP.value: "write the fields as `simic schema FieldReport --example` shows them",
    Reason.SCHEMA_VERSION.value: "write schema_version 1 as a whole number",
    Reason.UNKNOWN_FIELD.value: "remove the field",
    Reason.DUPLICATE_KEY.value: "write each field once in an object",
    Reason.NON_FINITE.value: "write null for a value that was not measured; end an episode whose loss is not finite",
    Reason.CONTRACT.value: "correct the field; `simic schema FieldReport` prints its rule",
    Reason.UNKNOWN_BLUEPRINT.value: "correct the name, or declare it in ingest.declared_blueprints",
    Reason.CONTRADICTION.value: "correct the field that is wrong, or the one that it is compared with",
    Reason.ISSUED_AT.value: "write the UTC time at which the report was made",
    Reason.CONFLICT.value: "give each report an id of its own",
    ORDER: "correct the field here or in the report before, or write another episode under another run_id",
}
_BETWEEN_FIELDS = "correct the fields; docs/reports.md, section 'What must hold', has the rule"
"""Remedy of fields that do not fit each other, for the reason ``contract``."""
_STEP_REMEDY = (
    "write every report of an episode once, in the order of the steps, and another episode under another run_id"
)
"""Remedy of a step that is not the next one, for the reason ``order``."""


class Fault(NamedTuple):
    """A line that is refused, and why."""

    file: str | None
    """Its file, if there are several."""
    line: int
    """From 1, counting blank lines; 0 for too many refused lines. Of ``given_up`` the line at which reading ended."""
    run_id: str | None
    """Its episode; None if it is not readable. So is ``step``."""
    step: int | None
    reason: str
    """A reason of the quarantine, or ``order``."""
    message: str
    """Field and rule, as the quarantine has them."""
    found: str | None
    """The value of the field, if the message does not say it."""
    remedy: str

    @property
    def sentence(self) -> str:
        """Return reason, field, rule, what was found, and what to do."""
        first, semicolon, rest = self.message.partition("; ")  # what was found is of the first of several faults
        found = "" if self.found is None else f", found {self.found}"
        return f"{self.reason}: {first}{found}{semicolon}{rest}; {self.remedy}"


class _Place(NamedTuple):
    """Where a report stands."""

    file: str | None
    line: int

    def __str__(self) -> str:
        return f"line {self.line}" if self.file is None else f"line {self.line} of {self.file}"


class ReportCheck:
    """Checks the lines of one file, or of several; those of several may hold an episode in any order."""

    def __init__(
        self, config: IngestConfig, known_blueprints: frozenset[str], clock: Clock, *, has_several: bool = False
    ) -> None:
        self._config, self._clock = config, clock
        self._validator = Validator(config, known_blueprints)
        self._refusals = 0
        """Lines that ingestion refuses; it lands those that only break the order."""
        self._order = EpisodeOrder(MOST_OPEN, MOST_ENDED)
        self._sorter: AnyOrder[_Place] | None = AnyOrder(self._order, MOST_HELD) if has_several else None
        self._file: str | None = None
        self._ids: OrderedDict[bytes, tuple[str, _Place]] = OrderedDict()
        """Digest and place of the first report of each id."""
        self._forgotten_ids = 0
        self.accepted = 0
        """Reports that land and continue their episodes."""
        self.duplicates = 0
        """Reports that came before with the same id and content; they are dropped, and nothing is lost."""
        self.reasons: Counter[str] = Counter()
        """Number of refused lines per reason."""
        self.horizons: Counter[int] = Counter()
        """Accepted reports per horizon, of the first ``MOST_HORIZONS`` horizons."""

    @property
    def refused(self) -> int:
        """Return the number of refused lines."""
        return self.reasons.total()

    @property
    def complete(self) -> int:
        """Return the number of episodes that are complete, from step 0 to their end."""
        return self._order.complete

    @property
    def incomplete(self) -> int:
        """Return the number of all other episodes of which a report came."""
        return self._order.incomplete

    @property
    def without_end(self) -> list[tuple[str, int]]:
        """Return run id and last step of the first ``MOST_NAMED`` episodes whose end did not come."""
        return list(islice(self._order.without_end(), MOST_NAMED))

    @property
    def has_more_without_end(self) -> bool:
        """Return whether the end of further episodes did not come."""
        return any(islice(self._order.without_end(), MOST_NAMED, MOST_NAMED + 1))

    @property
    def forgotten(self) -> dict[str, int]:
        """Return how many open episodes, ended episodes and report ids were forgotten to bound the memory."""
        order = self._order
        return {
            "open_episodes": order.forgotten_open + (0 if self._sorter is None else self._sorter.forgotten),
            "ended_episodes": order.forgotten_ended,
            "report_ids": self._forgotten_ids,
        }

    def faults(self, lines: Iterable[Line], file: str | None = None) -> Iterator[Fault]:
        """Check the lines of a file in order and yield the refused ones; as an ingest, stop after too many of them.

        ``file`` is named in faults. After the last of several files ``rest`` yields what is left.
        """
        most, self._file, self._refusals = self._config.max_file_refusals, file, 0
        lines = iter(lines)
        begin = list(islice(lines, 2))
        if (remedy := _remedy_of_layout(begin)) is not None:
            text = "report: expected one JSON object per line, found JSON over several lines; the rest was not read"
            yield self._counted(
                Fault(file, begin[0].number, None, None, Reason.MALFORMED_JSON.value, text, None, remedy)
            )
            return
        for line in chain(begin, lines):
            for fault in self._found(line):
                yield self._counted(fault)
            if self._refusals > most:
                text = (
                    f"expected at most {most} refused lines (ingest.max_file_refusals), found more; what follows line "
                    f"{line.number} was not read"
                )
                remedy = "correct these lines, then check again"
                yield self._counted(Fault(file, 0, None, None, Reason.GIVEN_UP.value, text, None, remedy))
                return

    def rest(self) -> Iterator[Fault]:
        """Yield the faults of reports that waited for earlier steps, which no file had."""
        for judged in () if self._sorter is None else self._sorter.end():
            yield from map(self._counted, self._settled(judged))

    def _counted(self, fault: Fault) -> Fault:
        self.reasons[fault.reason] += 1
        return fault

    def _found(self, line: Line) -> Iterator[Fault]:
        """Yield the faults that a line shows, in itself or in those that waited for it."""
        now = self._clock()
        self._validator.begin(now, now)
        result = self._validator.validate(line)
        if isinstance(result, Refused):
            self._refusals += 1
            yield from self._refusal(line, result)
            return
        link = read_link(result.data)
        place = _Place(self._file, line.number)
        if (first := self._first(result, place)) is not None:
            digest, earlier = first
            if digest == result.content_digest[:_DIGEST_CHARACTERS]:
                self.duplicates += 1
                return
            text = f"report_id: expected one that no other report has, found that of {earlier}"
            yield self._explained(place, link, Reason.CONFLICT.value, text)
            yield from self._lost(link.run_id)
        elif self._sorter is not None:
            for judged in self._sorter.take(place, link):
                yield from self._settled(judged)
        else:
            fault = self._order.check(link)
            self._order.record(link, is_faulty=fault is not None)
            yield from self._settled(Judged(place, link, fault))

    def _lost(self, run_id: str) -> Iterator[Fault]:
        """Note that a report of an episode cannot be used; yield the faults of those that waited for it."""
        if self._sorter is None:
            self._order.record_unread(run_id)
            return
        for judged in self._sorter.lose(run_id):
            yield from self._settled(judged)

    def _settled(self, judged: Judged[_Place]) -> Iterator[Fault]:
        """Count a report that lands; yield why it does not continue its episode."""
        place, link, fault = judged
        if fault is not None:
            yield self._explained(place, link, ORDER, fault)
            return
        self.accepted += 1
        if link.state.horizon in self.horizons or len(self.horizons) < MOST_HORIZONS:
            self.horizons[link.state.horizon] += 1

    def _first(self, report: Accepted, place: _Place) -> tuple[str, _Place] | None:
        """Return digest and place of the first report with this id; None if this is the first."""
        key = bytes.fromhex(report.report_id)
        if (first := self._ids.get(key)) is not None:
            return first
        self._ids[key] = report.content_digest[:_DIGEST_CHARACTERS], place
        if len(self._ids) > MOST_IDS:
            self._ids.popitem(last=False)
            self._forgotten_ids += 1
        return None

    def _refusal(self, line: Line, refused: Refused) -> Iterator[Fault]:
        fault = fault_of(line, refused, self._file)
        yield fault
        if fault.run_id is not None:
            yield from self._lost(fault.run_id)

    @staticmethod
    def _explained(place: _Place, link: Link, reason: str, message: str) -> Fault:
        is_step = reason == ORDER and message.startswith("step: ")
        remedy = _STEP_REMEDY if is_step else _REMEDIES[reason]
        return Fault(*place, link.run_id, link.step, reason, message, None, remedy)


def fault_of(line: Line, refused: Refused, file: str | None = None) -> Fault:
    """Return why a line is refused, with what was found and what to do."""
    report = _parsed(line, refused.reason)
    run_id, step = report.get("run_id"), report.get("step")
    return Fault(
        file,
        line.number,
        run_id if isinstance(run_id, str) and _ID.fullmatch(run_id) else None,
        step if type(step) is int else None,
        refused.reason.value,
        refused.message,
        _shown(report, refused.place) if refused.place else None,
        _remedy(report, refused),
    )


def _parsed(line: Line, reason: Reason) -> Mapping[str, Any]:
    """Return the object of a refused line, or what of its episode can be read without parsing it."""
    if line.defect is None and reason not in (Reason.TOO_DEEP, Reason.MALFORMED_JSON):
        try:
            parsed = json.loads(line.data)
        except ValueError:  # a number of thousands of digits, which the contract's parser takes
            return {}
        return parsed if isinstance(parsed, dict) else {}
    run_id = _RUN_ID.search(line.data)
    return {} if run_id is None else {"run_id": run_id.group(1).decode()}


def _remedy_of_layout(begin: Sequence[Line]) -> str | None:
    """Return what to do about a file whose first lines are those of one JSON text over many lines; None for others."""
    match [line.data.strip() for line in begin if line.defect is None]:
        case [b"{", second] if second.startswith(b'"'):
            return "write each report on a line of its own, as `jq -c .` does"
        case [b"[", second] if second.startswith(b"{"):
            return "write each report on a line of its own, as `jq -c '.[]'` does"
    return None


def _remedy(report: Mapping[str, Any], refused: Refused) -> str:
    if refused.is_value_error and isinstance(_value(report, refused.place), dict):
        return _BETWEEN_FIELDS
    remedy = _REMEDIES[refused.reason.value]
    if refused.reason is Reason.UNKNOWN_FIELD:
        hint = suggestion(str(refused.place[-1]), _known(refused.place), FIELD_LIKENESS)
        return f"{remedy}, or correct its name.{hint}" if hint else remedy
    return remedy


def _known(place: tuple[int | str, ...]) -> list[str]:
    """Return the fields that the contract has where a report has an unknown one."""
    contracts: list[type[BaseModel]] = [FieldReport]
    for key in place[:-1]:
        if isinstance(key, str):
            fields = [contract.model_fields[key] for contract in contracts if key in contract.model_fields]
            contracts = [inner for field in fields for inner in contracts_in(field.annotation)]
    return [name for contract in contracts for name in contract.model_fields]


def _value(report: Any, place: tuple[int | str, ...]) -> Any:
    """Return the value at a place of a report; None if the report has no such place."""
    try:
        for key in place:
            report = report[key]
    except (KeyError, IndexError, TypeError):
        return None
    return report


def _shown(report: Any, place: tuple[int | str, ...]) -> str | None:
    """Return the value at a place of a report, cut; None if the place is none of the report."""
    for depth, key in enumerate(place, start=1):
        try:
            report = report[key]
        except (KeyError, IndexError, TypeError):
            return "nothing" if depth == len(place) else None
    if isinstance(report, (dict, list)):
        return None
    text = json.dumps(report)
    return text if len(text) <= _VALUE_LIMIT else f"{text[:_VALUE_LIMIT]}..."
