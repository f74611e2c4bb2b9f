"""A batch of lines on its way: what will land, what is refused, what may be acknowledged afterwards."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from simic.bus.protocol import Delivery, Line
from simic.ingestion.check import Accepted, Refused
from simic.lake.columns import Landings
from simic.lake.quarantine import RAW_LIMIT_BYTES, QuarantineEntry, Reason
from simic.lake.seen import Landed, SeenReports

__all__ = ["Batch"]


@dataclass
class Batch:
    """Grows line by line until it is committed."""

    began_at: datetime
    """When its first line was read; the time of everything in it."""
    candidates: Landings = field(default_factory=Landings)
    """Valid reports."""
    refused: list[QuarantineEntry] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    """Deliveries whose last line is in this batch or an earlier one."""
    lines: int = 0
    size_bytes: int = 0
    """Of the normal forms held, which may be longer than the lines they came as, and of the refused lines."""

    def add(self, source: str, line: Line, result: Accepted | Refused) -> None:
        """Takes up one checked line."""
        self.lines += 1
        if isinstance(result, Accepted):
            self.size_bytes += len(result.data)
            self.candidates.add(*result, source, line.number)
        else:
            self.size_bytes += len(line.data)
            self.refused.append(
                _entry(result.reason, result.message, source, line.number, result.report_id, line.data, self.began_at)
            )

    def settle(self, seen: SeenReports) -> tuple[Landings, int]:
        """Sorts candidates into rows to land and repetitions; returns the rows and the number of duplicates.

        The first report of an id stays. Another of equal content is a duplicate, of other content a conflict.
        Both are recorded, except for the very line that landed: that is a redelivery after a crash.
        """
        candidates = self.candidates
        landed = seen.find(candidates.report_ids)
        if not landed and len(set(candidates.report_ids)) == len(candidates):
            return candidates, 0
        rows, duplicates = [], 0
        for row, report_id in enumerate(candidates.report_ids):
            here = Landed(candidates.content_digests[row], candidates.sources[row], candidates.lines[row])
            first = landed.setdefault(report_id, here)
            if first is here:
                rows.append(row)
                continue
            is_equal = first.content_digest == here.content_digest
            duplicates += is_equal
            if not is_equal or (first.source, first.line) != (here.source, here.line):
                repetition = _repetition(report_id, candidates.data[row], here, first, is_equal, self.began_at)
                self.refused.append(repetition)
        return candidates.take(rows), duplicates

    def reasons(self) -> Counter[str]:
        """Refusals per reason; duplicates are none."""
        return Counter(entry.reason.value for entry in self.refused if entry.reason is not Reason.DUPLICATE)


def _repetition(
    report_id: str, data: bytes, here: Landed, first: Landed, is_equal: bool, now: datetime
) -> QuarantineEntry:
    place = f"{first.source}, line {first.line}"
    if is_equal:
        reason, message = Reason.DUPLICATE, f"landed before from {place}"
    else:
        reason, message = Reason.CONFLICT, f"this id landed before with other content from {place}; that one stays"
    return _entry(reason, message, here.source, here.line, report_id, data, now)


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
