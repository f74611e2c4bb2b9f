"""Check of field reports without a home: every line as ingestion judges it, and whether episodes are whole.

Memory is bounded for any number of lines, episodes and report ids.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from simic.bus.protocol import Line
from simic.contracts.config import IngestConfig
from simic.ingestion.episode_order import MOST_ENDED, MOST_OPEN, EpisodeOrder, Link, read_link
from simic.ingestion.validate import Accepted, Refused, Validator
from simic.lake.quarantine import Reason
from simic.runtime.clock import Clock

__all__ = ["ORDER", "Fault", "ReportCheck"]

ORDER = "order"
"""Reason of a report that ingestion lands and that does not continue its episode, which curation leaves out."""
MOST_IDS = 200_000
"""Report ids that are remembered, the newest; about 200 bytes each."""
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
    ORDER: "write every report of an episode once, in the order of the steps, and another episode under another run_id",
}


class Fault(NamedTuple):
    """A line that is refused, and why."""

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


class ReportCheck:
    """Checks the lines of one file, or of several in a row."""

    def __init__(self, config: IngestConfig, known_blueprints: frozenset[str], clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._validator = Validator(config, known_blueprints)
        self._refusals = 0
        """Lines that ingestion refuses; it lands those that only break the order."""
        self._order = EpisodeOrder(MOST_OPEN, MOST_ENDED)
        self._ids: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        """Digest and line of the first report of each id."""
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
    def forgotten(self) -> dict[str, int]:
        """Return how many open episodes, ended episodes and report ids were forgotten to bound the memory."""
        order = self._order
        return {
            "open_episodes": order.forgotten_open,
            "ended_episodes": order.forgotten_ended,
            "report_ids": self._forgotten_ids,
        }

    def faults(self, lines: Iterable[Line]) -> Iterator[Fault]:
        """Check lines in order and yield the refused ones; as an ingest, stop after too many of them."""
        most = self._config.max_file_refusals
        for line in lines:
            fault = self._fault(line)
            if fault is None:
                continue
            yield self._counted(fault)
            if self._refusals > most:
                text = (
                    f"expected at most {most} refused lines (ingest.max_file_refusals), found more; what follows line "
                    f"{line.number} was not read"
                )
                remedy = "correct these lines, then check again"
                yield self._counted(Fault(0, None, None, Reason.GIVEN_UP.value, text, None, remedy))
                return

    def _counted(self, fault: Fault) -> Fault:
        self.reasons[fault.reason] += 1
        return fault

    def _fault(self, line: Line) -> Fault | None:
        now = self._clock()
        self._validator.begin(now, now)
        found = self._validator.validate(line)
        if isinstance(found, Refused):
            self._refusals += 1
            return self._refusal(line, found)
        link = read_link(found.data)
        if (first := self._first(found, line.number)) is not None:
            digest, number = first
            if digest == found.content_digest[:_DIGEST_CHARACTERS]:
                self.duplicates += 1
                return None
            self._order.record_unread(link.run_id)
            text = f"report_id: expected one that no other report has, found that of line {number}"
            return self._explained(line, link, Reason.CONFLICT.value, text)
        fault = self._order.check(link)
        self._order.record(link, is_faulty=fault is not None)
        if fault is not None:
            return self._explained(line, link, ORDER, fault)
        self.accepted += 1
        if link.state.horizon in self.horizons or len(self.horizons) < MOST_HORIZONS:
            self.horizons[link.state.horizon] += 1
        return None

    def _first(self, report: Accepted, number: int) -> tuple[str, int] | None:
        """Return digest and line of the first report with this id; None if this is the first."""
        key = bytes.fromhex(report.report_id)
        if (first := self._ids.get(key)) is not None:
            return first
        self._ids[key] = report.content_digest[:_DIGEST_CHARACTERS], number
        if len(self._ids) > MOST_IDS:
            self._ids.popitem(last=False)
            self._forgotten_ids += 1
        return None

    def _refusal(self, line: Line, refused: Refused) -> Fault:
        report = _parsed(line, refused.reason)
        run_id, step = report.get("run_id"), report.get("step")
        run_id = run_id if isinstance(run_id, str) and _ID.fullmatch(run_id) else None
        if run_id is not None:
            self._order.record_unread(run_id)
        reason = refused.reason.value
        return Fault(
            line.number,
            run_id,
            step if type(step) is int else None,
            reason,
            refused.message,
            _shown(report, refused.place) if refused.place else None,
            _REMEDIES[reason],
        )

    @staticmethod
    def _explained(line: Line, link: Link, reason: str, message: str) -> Fault:
        return Fault(line.number, link.run_id, link.step, reason, message, None, _REMEDIES[reason])


def _parsed(line: Line, reason: Reason) -> Mapping[str, Any]:
    """Return the object of a refused line, or what of its episode can be read without parsing it."""
    if line.defect is None and reason not in (Reason.TOO_DEEP, Reason.MALFORMED_JSON):
        try:
            found = json.loads(line.data)
        except ValueError:  # a number of thousands of digits, which the contract's parser takes
            return {}
        return found if isinstance(found, dict) else {}
    run_id = _RUN_ID.search(line.data)
    return {} if run_id is None else {"run_id": run_id.group(1).decode()}


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
