"""Spans of deliveries: which lines of a file a batch read, so that another file of the same name is told from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from simic.bus.protocol import Line
from simic.contracts.results.lake import Span

__all__ = ["SpanDigest", "has_spans"]


class SpanDigest:
    """Digest of the lines of one delivery, in their order, up to the last one that was accepted.

    What follows that line does not count, because the file may not have been whole: a later reader may see more of a
    line at which reading ended, or that its writer had not finished.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Begin with no line; longer ones than ``limit_bytes`` were cut."""
        self._limit_bytes = limit_bytes
        self._first = self._last = 0
        self._read, self._accepted = hashlib.sha256(), hashlib.sha256()

    def add(self, line: Line, *, is_accepted: bool) -> None:
        """Add the next line; one that stands for the delivery as a whole has no content."""
        if not line.number:
            return
        self._first = self._first or line.number
        self._read.update(line.data + b"\n")
        if is_accepted:
            self._last, self._accepted = line.number, self._read.copy()

    def span(self) -> Span:
        """Return the lines up to the last accepted one."""
        digest = self._accepted.hexdigest()
        return Span(first=self._first, last=self._last, limit_bytes=self._limit_bytes, sha256=digest)


def has_spans(read: Callable[[int], Iterable[Line]], spans: Sequence[Span], limit_bytes: int) -> bool:
    """Return whether a source has the content of every span; ``read(limit_bytes)`` gives its lines in their order.

    ``limit_bytes`` is meant by spans that do not say how long a line may be.
    """
    groups: dict[int, list[Span]] = {}
    for span in spans:
        groups.setdefault(limit_bytes if span.limit_bytes is None else span.limit_bytes, []).append(span)
    return all(_have(read(limit), group) for limit, group in groups.items())


def _have(lines: Iterable[Line], spans: Sequence[Span]) -> bool:
    """Return whether ``lines`` have every span; those of earlier ledgers may include a line at which reading ends."""
    digests, last = [hashlib.sha256() for _ in spans], max(span.last for span in spans)
    for line in lines:
        if line.number > last:
            break
        for span, digest in zip(spans, digests, strict=True):
            if span.first <= line.number <= span.last:
                digest.update(line.data + b"\n")
    return [digest.hexdigest() for digest in digests] == [span.sha256 for span in spans]
