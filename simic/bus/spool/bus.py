"""The embedded bus: a directory of files that move from ``incoming`` through ``claimed`` to ``done``.

Layout: ``<root>/<topic>/{tmp,incoming,claimed,done,aside}``. A producer writes into ``tmp`` and renames, so every file
in ``incoming`` is complete. One consumer at a time claims files by renaming them; its caller holds a lock. An operator
may add files ``*.jsonl`` or ``*.jsonl.zst`` to ``incoming``: copy them there under a name that begins with a dot or
ends in ``.tmp`` or ``.part``, then rename, so that they are not taken half-written.

A file begins with the envelope of its put, in a frame that decompressors pass over (``simic.bus.envelopes``). Files
without it are read in the same way.

A bad file does not stop the others. A file that cannot be claimed or read to its end is delivered as a line with the
flag UNREADABLE, GIVEN_UP or TORN and the reason. On acknowledgement it moves to ``aside`` and is never deleted. Once
repaired, it can be moved back to ``incoming``; lines that landed before are recognised as duplicates.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import zstandard

from simic.bus.envelopes import HEADER_LIMIT_BYTES, LINES_ARE_ENVELOPES, envelope_around, pack_header, read_header
from simic.bus.protocol import ENDS, BusCounters, DeadLetter, Defect, Delivery, Line, TopicStatus
from simic.bus.spans import has_spans
from simic.bus.spool.files import Entrant, free_name, is_own_fault, listing, named_after
from simic.bus.spool.lines import COMPRESSED_SUFFIX, FileLimits, read_lines, read_start
from simic.contracts.errors import ContractError, TransientError
from simic.contracts.results.lake import Span
from simic.contracts.settings.run import BusConfig, IngestConfig
from simic.runtime.clock import Clock, utc_now
from simic.runtime.files import durable_file, fsync_dir, rename_durably

__all__ = ["SpoolBus", "StuckDelivery", "check_name", "check_topic", "spill_lock"]

_LOG = logging.getLogger(__name__)
_TOPIC = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_CONTENT_NAME = re.compile(r"-[0-9a-f]{16}" + re.escape(COMPRESSED_SUFFIX) + r"\Z")
"""End of the names that ``put`` gives, which tell the content."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_LEVEL = 3
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES})
ABANDONED_S = 24 * 3600.0
"""Age in seconds after which an unfinished file counts as abandoned by its producer."""


class StuckDelivery(Delivery):
    """A file that could not be claimed: it stays in ``incoming``, and every claim reports the error."""


class SpoolBus:
    """Bus on a directory; survives kill -9 of any party at any moment."""

    def __init__(
        self,
        root: Path,
        limits: FileLimits = FileLimits(),  # noqa: B008 - a constant
        ttl_s: int = BusConfig().ttl_s,
        clock: Clock = utc_now,
    ) -> None:
        """``ttl_s`` is written into envelopes; on the spool nothing expires."""
        self._root, self._limits, self._ttl_s, self._clock = root, limits, ttl_s, clock
        self._retried: Counter[str] = Counter()
        self._bad: set[tuple[str, str]] = set()
        """Topic and source of deliveries that were not read completely."""

    @property
    def locks(self) -> Path:
        """Return the folder of lock files for forwarding."""
        return self._root / ".locks"

    def put(self, topic: str, name: str, lines: Iterable[bytes], *, correlation_id: str | None = None) -> str:
        """Publish lines as ``<name>-<digest>.jsonl.zst``; the same lines put again before a claim are one delivery.

        ``correlation_id`` is that of the envelope, by default ``name``.
        """
        check_name(name)
        folder = self._made(topic, "incoming")
        unfinished = self._made(topic, "tmp") / f"{name}.{os.urandom(6).hex()}.tmp"
        envelope = envelope_around(topic, correlation_id or name, self._clock(), self._ttl_s)
        header = b"" if topic in LINES_ARE_ENVELOPES else pack_header(envelope)
        with _storage(f"put {name} on {topic}"):
            digest = _write_lines(unfinished, header, lines)
            source = f"{name}-{digest[:16]}{COMPRESSED_SUFFIX}"
            rename_durably(unfinished, folder / source)
        return source

    def claim(self, topic: str) -> Iterator[Delivery]:
        """Yield unacknowledged files first, then new ones, each group sorted by name."""
        _sweep(self.folder(topic, "tmp"))
        incoming, claimed = self._made(topic, "incoming"), self._made(topic, "claimed")
        self._retried[topic] = 0
        for entrant in self._listing(claimed):
            self._retried[topic] += 1
            if entrant.name != entrant.source:  # no file that this process claimed has such a name
                yield from self._take(topic, entrant, claimed)
            else:
                yield self._delivery(topic, entrant.source, entrant.fault)
        for entrant in self._listing(incoming):
            yield from self._take(topic, entrant, incoming)

    def ack(self, delivery: Delivery) -> None:
        """Move the file to ``done``, or to ``aside`` if it was not read completely. Idempotent."""
        topic, source = delivery.topic, delivery.source
        self._move_on(topic, source, "aside" if (topic, source) in self._bad else "done")

    def requeue(
        self,
        topic: str,
        source: str,
        spans: Sequence[Span] = (),
        limit_bytes: int = IngestConfig().max_report_bytes,
    ) -> bool:
        """Move a delivery back to ``incoming``; return whether it still exists.

        The caller ensures that no consumer is running. Lines that landed before are recognised as duplicates.

        Args:
            topic: its topic.
            source: its name.
            spans: lines that it has; another file of its name stays where it is.
            limit_bytes: longest line that was read whole, for spans that do not say it.
        """
        if Path(source).name != source:
            return False
        incoming, *folders = (self.folder(topic, folder) for folder in ("incoming", "claimed", "done", "aside"))
        for folder in folders:
            for path in self._same(folder, source, spans, limit_bytes):
                self._made(topic, "incoming")
                with _storage(f"put {path.name} of {topic} back"):
                    path.rename(incoming / free_name(path.name, incoming))
                    fsync_dir(incoming)
                    fsync_dir(folder)
                return True
        return any(True for _ in self._same(incoming, source, spans, limit_bytes))

    def _same(self, folder: Path, source: str, spans: Sequence[Span], limit_bytes: int) -> Iterator[Path]:
        """Yield the files of a delivery; with ``spans`` also those that had to take another name than ``source``."""
        with _storage(f"list {folder}"):
            paths = named_after(source, folder) if spans else [folder / source]
        return (path for path in paths if self._is_same(path, spans, limit_bytes))

    def _is_same(self, path: Path, spans: Sequence[Span], limit_bytes: int) -> bool:
        """Return whether ``path`` is a file with the lines of ``spans``."""
        if not path.is_file():
            return False
        try:
            return not spans or has_spans(lambda limit: read_lines(path, limit, self._limits), spans, limit_bytes)
        except OSError as error:
            if not is_own_fault(error, path.parent):
                raise _transient(f"read {path}", error) from error
            return False

    def release(self, topic: str, name: str) -> bool:
        """Move a claimed entry of any type back to ``incoming``; return whether it could be moved.

        The caller ensures that no consumer is running.
        """
        claimed, incoming = self.folder(topic, "claimed"), self._made(topic, "incoming")
        with _storage(f"put {name} of {topic} back"):
            try:
                (claimed / name).rename(incoming / free_name(name, incoming))
            except OSError as error:
                if not is_own_fault(error, claimed, incoming):
                    raise
                return False
            fsync_dir(incoming)
            fsync_dir(claimed)
        return True

    def claimed(self, topic: str) -> list[str]:
        """Return the deliveries claimed and not acknowledged."""
        return [entrant.name for entrant in self._listing(self.folder(topic, "claimed"))]

    def set_aside(self, topic: str) -> list[str]:
        """Return the names in ``aside``, sorted: files that were not read completely and are never deleted."""
        folder = self.folder(topic, "aside")
        with _storage(f"list {folder}"):
            try:
                return sorted(path.name for path in folder.iterdir())
            except FileNotFoundError:  # nothing was ever set aside
                return []

    def pending(self, topic: str) -> int:
        """Return the number of files in ``incoming`` and ``claimed``."""
        return sum(len(self._listing(self.folder(topic, folder))) for folder in ("incoming", "claimed"))

    def counters(self, topic: str) -> BusCounters:
        """Return counters of files; a spool has no dead letters and loses nothing."""
        try:
            lag = self.pending(topic)
        except TransientError:
            lag = None
        return BusCounters(self._retried[topic], reclaimed=0, dead_lettered=0, lost=0, lag=lag)

    def status(self, topic: str) -> TopicStatus:
        """Return the number of files by folder."""
        undelivered, pending = (len(self._listing(self.folder(topic, folder))) for folder in ("incoming", "claimed"))
        aside = len(self.set_aside(topic))
        return TopicStatus(topic, f"spool {self._root}", undelivered + pending, undelivered, pending, 0, 0, aside)

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """Return no letters: every file of the spool can be delivered."""
        check_topic(topic)
        return iter(())

    def replay(self, topic: str) -> int:
        """Return 0: there is nothing to put back."""
        check_topic(topic)
        return 0

    def topics(self) -> list[str]:
        """Return every topic with a folder."""
        with _storage(f"list {self._root}"):
            return sorted(path.name for path in self._root.glob("*") if path.is_dir() and _TOPIC.fullmatch(path.name))

    def newest(self, topic: str) -> str | None:
        """Return the last waiting name in sort order, if any."""
        folders = (self.folder(topic, folder) for folder in ("incoming", "claimed"))
        return max((entrant.name for folder in folders for entrant in self._listing(folder)), default=None)

    def discard(self, delivery: Delivery) -> None:
        """Remove a forwarded delivery; one that was not read completely moves to ``aside``."""
        if (delivery.topic, delivery.source) in self._bad:
            self._move_on(delivery.topic, delivery.source, "aside")
            return
        claimed = self.folder(delivery.topic, "claimed")
        with _storage(f"discard {delivery.source} of {delivery.topic}"):
            (claimed / delivery.source).unlink(missing_ok=True)
            fsync_dir(claimed)

    def folder(self, topic: str, folder: str) -> Path:
        """Return the path of a folder without creating it."""
        check_topic(topic)
        return self._root / topic / folder

    def _made(self, topic: str, folder: str) -> Path:
        path = self.folder(topic, folder)
        with _storage(f"open the spool {self._root}"):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # a read-only spool is empty where the folder does not exist
                if error.errno not in _READ_ONLY:
                    raise
        return path

    def _listing(self, folder: Path) -> list[Entrant]:
        with _storage(f"list {folder}"):
            try:
                return listing(folder, time.time() - ABANDONED_S)
            except FileNotFoundError:  # nothing was put there yet
                return []

    def _take(self, topic: str, entrant: Entrant, folder: Path) -> Iterator[Delivery]:
        """Claims files by renaming them; skips one that vanished, and reports one that cannot be renamed."""
        claimed, *others = (self.folder(topic, name) for name in ("claimed", "done", "aside"))
        source = free_name(entrant.source, claimed, *others)
        try:
            (folder / entrant.name).rename(claimed / source)
        except OSError as error:
            if not os.path.lexists(folder / entrant.name):
                _LOG.warning("%s of %s vanished before it could be claimed", entrant.source, topic)
                return
            if not is_own_fault(error, folder, claimed):
                raise _transient(f"claim {entrant.source} of {topic}", error) from error
            yield StuckDelivery(topic, source, partial(_stuck, f"{topic}/{folder.name}/{entrant.source}", error))
            return
        yield self._delivery(topic, source, entrant.fault)

    def _delivery(self, topic: str, source: str, fault: str | None) -> Delivery:
        abandon = partial(self._bad.add, (topic, source))
        if fault is not None:
            abandon()
        return Delivery(
            topic,
            source,
            partial(self._read, topic, source, fault),
            abandon=abandon,
            has_own_name=_CONTENT_NAME.search(source) is not None,
        )

    def _read(self, topic: str, source: str, fault: str | None, max_line_bytes: int) -> Iterator[Line]:
        """Yield the lines; the line that reports an early end also names the new location of the file."""
        path, place = self._root / topic / "claimed" / source, f"{topic}/aside/{source}"
        if fault is not None:
            yield Line(0, b"", Defect.UNREADABLE, f"{fault}; set aside as {place}")
            return
        try:
            envelope = read_header(read_start(path, HEADER_LIMIT_BYTES))
            for line in read_lines(path, max_line_bytes, self._limits):
                line = line._replace(envelope=envelope)
                if line.defect in ENDS:
                    self._bad.add((topic, source))
                    line = line._replace(note=f"{line.note}; set aside as {place}")
                yield line
        except OSError as error:
            if not is_own_fault(error, path.parent):
                raise _transient(f"read {path}", error) from error
            self._bad.add((topic, source))
            is_gone = isinstance(error, FileNotFoundError)
            outcome = "it vanished" if is_gone else f"set aside as {place}"
            yield Line(0, b"", Defect.UNREADABLE, f"it cannot be read: {error.strerror or error}; {outcome}")

    def _move_on(self, topic: str, source: str, folder: str) -> None:
        claimed, target = self.folder(topic, "claimed"), self._made(topic, folder)
        with _storage(f"acknowledge {source} of {topic}"):
            if not os.path.lexists(claimed / source):
                return
            try:
                (claimed / source).rename(target / free_name(source, target))
            except OSError as error:
                if not is_own_fault(error, claimed, target):
                    raise
                # It will be delivered again, as duplicates. Raising here would stop every later ingest too.
                _LOG.error("%s of %s cannot leave claimed: %s; remove it by hand", source, topic, error.strerror)
            self._bad.discard((topic, source))
            fsync_dir(target)
            fsync_dir(claimed)


def spill_lock(locks: Path, topic: str) -> Path:
    """Lock held while a topic is forwarded to Redis: its claimed files are in progress, not abandoned."""
    return locks / f"spill-{topic}"


def check_topic(topic: str) -> None:
    """Return the folder of a topic; refuse a name that would lead outside the spool."""
    if not _TOPIC.fullmatch(topic) or ".." in topic:
        raise ContractError(f"{topic!r} is not a topic")


def check_name(name: str) -> None:
    """Return a file name; refuse one that would lead outside its folder."""
    if not _NAME.fullmatch(name):
        raise ContractError(f"{name!r} is not a plain file name")


def _stuck(place: str, error: OSError, _max_line_bytes: int) -> Iterator[Line]:
    yield Line(0, b"", Defect.UNREADABLE, f"it cannot be claimed: {error.strerror or error}; it stays as {place}")


def _write_lines(path: Path, header: bytes, lines: Iterable[bytes]) -> str:
    """Compress lines into a synced file behind the header and return the SHA-256 of the lines."""
    digest = hashlib.sha256()
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    with durable_file(path) as file:
        file.write(header)
        with compressor.stream_writer(file, closefd=False) as writer:
            for line in lines:
                if b"\n" in line:
                    raise ContractError(f"a line must not contain a line end: {line[:80]!r}")
                record = line + b"\n"
                digest.update(record)
                writer.write(record)
    return digest.hexdigest()


def _sweep(folder: Path) -> None:
    """Remove unfinished files of killed producers; no producer writes one file for a day."""
    oldest = time.time() - ABANDONED_S
    with _storage(f"tidy {folder}"):
        for path in folder.glob("*.tmp"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


@contextmanager
def _storage(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _transient(what, error) from error


def _transient(what: str, error: OSError) -> TransientError:
    return TransientError(f"cannot {what}: {error.strerror or error}; check space and permissions")
