"""Spans of deliveries: which lines of a file a batch read, so that another file of the same name is told from it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from simic.bus.protocol import Line
from simic.contracts.lake import Span

__all__ = ["SpanDigest", "has_spans"]


class SpanDigest:
    """Digest of the lines of one delivery, in their order."""

    def __init__(self) -> None:
        self._first = self._last = 0
        self._digest = hashlib.sha256()

    def add(self, line: Line) -> None:
        """Add the next line. One that stands for the delivery as a whole has no content."""
        if line.number:
            self._first = self._first or line.number
            self._last = line.number
            self._digest.update(line.data + b"\n")

    def span(self) -> Span:
        """Return what was added so far."""
        return Span(first=self._first, last=self._last, sha256=self._digest.hexdigest())


def has_spans(lines: Iterable[Line], spans: Sequence[Span]) -> bool:
    """Return whether ``lines``, in their order, have the content of every span."""
    found, last = [SpanDigest() for _ in spans], max((span.last for span in spans), default=0)
    for line in lines:
        if line.number > last:
            break
        for span, digest in zip(spans, found, strict=True):
            if span.first <= line.number <= span.last:
                digest.add(line)
    return [digest.span() for digest in found] == list(spans)
