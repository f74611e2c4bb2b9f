"""Spans of deliveries: which lines of a file a batch read, so that another file of the same name is told from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from simic.bus.protocol import ENDS, Line
from simic.contracts.lake import Span

__all__ = ["SpanDigest", "has_spans"]


class SpanDigest:
    """Digest of the lines of one delivery, in their order."""

    def __init__(self, limit_bytes: int) -> None:
        """Begin with no line; longer ones than ``limit_bytes`` were cut."""
        self._limit_bytes = limit_bytes
        self._first = self._last = 0
        self._digest = hashlib.sha256()

    def add(self, line: Line) -> None:
        """Add the next line.

        One that stands for the delivery as a whole has no content. A later reader may see more of one at which reading
        ended.
        """
        if line.number and line.defect not in ENDS:
            self._first = self._first or line.number
            self._last = line.number
            self._digest.update(line.data + b"\n")

    def span(self) -> Span:
        """Return what was added so far."""
        return Span(first=self._first, last=self._last, limit_bytes=self._limit_bytes, sha256=self._digest.hexdigest())


def has_spans(read: Callable[[int], Iterable[Line]], spans: Sequence[Span]) -> bool:
    """Return whether a source has the content of every span; ``read(limit_bytes)`` gives its lines in their order."""
    limits = {span.limit_bytes for span in spans}
    return all(_have(read(limit), [span for span in spans if span.limit_bytes == limit]) for limit in limits)


def _have(lines: Iterable[Line], spans: Sequence[Span]) -> bool:
    found, last = [SpanDigest(span.limit_bytes) for span in spans], max(span.last for span in spans)
    for line in lines:
        if line.number > last:
            break
        for span, digest in zip(spans, found, strict=True):
            if span.first <= line.number <= span.last:
                digest.add(line)
    return [digest.span() for digest in found] == list(spans)
