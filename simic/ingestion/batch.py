"""A batch of lines on its way: what will land, what is refused, what may be acknowledged afterwards."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from simic.bus.protocol import Delivery, Line
from simic.ingestion.check import Accepted, Refused
from simic.lake.columns import Landing
from simic.lake.quarantine import RAW_LIMIT_BYTES, QuarantineEntry, Reason
from simic.lake.seen import Landed, SeenReports

__all__ = ["Batch", "Candidate"]


@dataclass(frozen=True)
class Candidate:
    """A valid report and the line it came in."""

    report: Accepted
    source: str
    line: int


@dataclass
class Batch:
    """Grows line by line until it is committed."""

    began_at: datetime
    """When its first line was read; the time of everything in it."""
    candidates: list[Candidate] = field(default_factory=list)
    refused: list[QuarantineEntry] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    """Deliveries whose last line is in this batch or an earlier one."""
    lines: int = 0
    size_bytes: int = 0

    def add(self, source: str, line: Line, result: Accepted | Refused) -> None:
        """Takes up one checked line."""
        self.lines += 1
        self.size_bytes += len(line.data)
        if isinstance(result, Accepted):
            self.candidates.append(Candidate(result, source, line.number))
        else:
            self.refused.append(
                _entry(result.reason, result.message, source, line.number, result.report_id, line.data, self.began_at)
            )

    def settle(self, seen: SeenReports) -> tuple[list[Landing], int]:
        """Sorts candidates into rows to land and repetitions; returns the rows and the number of duplicates.

        The first report of an id stays. Another of equal content is a duplicate, of other content a conflict.
        Both are recorded, except for the very line that landed: that is a redelivery after a crash.
        """
        landed = seen.find([candidate.report.report_id for candidate in self.candidates]) if self.candidates else {}
        rows, duplicates = [], 0
        for candidate in self.candidates:
            report = candidate.report
            first = landed.get(report.report_id)
            if first is None:
                landed[report.report_id] = Landed(report.content_digest, candidate.source, candidate.line)
                rows.append(Landing(report.data, report.content_digest, candidate.source, candidate.line))
                continue
            is_equal = first.content_digest == report.content_digest
            duplicates += is_equal
            if not is_equal or (first.source, first.line) != (candidate.source, candidate.line):
                self.refused.append(_repetition(candidate, first, is_equal, self.began_at))
        return rows, duplicates

    def reasons(self) -> Counter[str]:
        """Refusals per reason; duplicates are none."""
        return Counter(entry.reason.value for entry in self.refused if entry.reason is not Reason.DUPLICATE)


def _repetition(candidate: Candidate, first: Landed, is_equal: bool, now: datetime) -> QuarantineEntry:
    report, place = candidate.report, f"{first.source}, line {first.line}"
    if is_equal:
        reason, message = Reason.DUPLICATE, f"landed before from {place}"
    else:
        reason, message = Reason.CONFLICT, f"this id landed before with other content from {place}; that one stays"
    return _entry(reason, message, candidate.source, candidate.line, report.report_id, report.data, now)


def _entry(
    reason: Reason, message: str, source: str, line: int, report_id: str | None, raw: bytes, now: datetime
) -> QuarantineEntry:
    raw_digest = hashlib.sha256(raw).hexdigest()
    return QuarantineEntry(
        quarantine_id=hashlib.sha256(f"{source}\n{line}\n{raw_digest}".encode()).hexdigest(),
        reason=reason,
        message=message,
        source=source,
        line=line,
        report_id=report_id,
        size_bytes=len(raw),
        raw_sha256=raw_digest,
        raw=b"" if reason is Reason.DUPLICATE else raw[:RAW_LIMIT_BYTES],
        seen_at=now,
    )
