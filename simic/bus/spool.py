"""The embedded bus: a directory of files that move from ``incoming`` over ``claimed`` to ``done``.

Layout: ``<root>/<topic>/{tmp,incoming,claimed,done}``. A producer writes into ``tmp`` and renames, so whatever
lies in ``incoming`` is whole. One consumer at a time (its caller holds a lock) claims by renaming. Files that a
person drops into ``incoming`` are taken too: ``*.jsonl`` or ``*.jsonl.zst``; copy them there under another
name (such as ``*.tmp``, which is never read) and rename, or they may be taken half-written.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import zstandard

from simic.bus.lines import COMPRESSED_SUFFIX, PLAIN_SUFFIX, read_lines
from simic.bus.protocol import BusCounters, DeadLetter, Delivery, Line, TopicStatus
from simic.contracts.errors import ContractViolation, TransientError
from simic.runtime.durable import sync_folder

__all__ = ["SpoolBus", "check_name", "check_topic", "spill_lock"]

_LOG = logging.getLogger(__name__)
_TOPIC = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_LEVEL = 3
ABANDONED_S = 24 * 3600.0
"""Age of a producer's unfinished file from which on its producer is taken for dead."""


class SpoolBus:
    """Bus on a directory; survives kill -9 of any party at any moment."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._retried: Counter[str] = Counter()

    @property
    def locks(self) -> Path:
        """Lock files of those who forward what lies here."""
        return self._root / ".locks"

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        """Publishes lines as ``<name>-<digest>.jsonl.zst``; put again before it is claimed, it is one delivery."""
        check_name(name)
        folder = self._folder(topic, "incoming")
        unfinished = self._folder(topic, "tmp") / f"{name}.{os.urandom(6).hex()}.tmp"
        with _storage(f"put {name} on {topic}"):
            digest = _write_lines(unfinished, lines)
            source = f"{name}-{digest[:16]}{COMPRESSED_SUFFIX}"
            unfinished.replace(folder / source)
            sync_folder(folder)
        return source

    def claim(self, topic: str) -> Iterator[Delivery]:
        """Own leftovers first, then new files, each in the order of their names."""
        _sweep(self._folder(topic, "tmp"))
        incoming, claimed, done = (self._folder(topic, folder) for folder in ("incoming", "claimed", "done"))
        self._retried[topic] = 0
        for name in _listing(claimed):
            self._retried[topic] += 1
            yield self._delivery(topic, claimed / name)
        for name in _listing(incoming):
            target = claimed / _free_name(name, claimed, done)
            with _storage(f"claim {name} of {topic}"):
                (incoming / name).rename(target)
            yield self._delivery(topic, target)

    def ack(self, delivery: Delivery) -> None:
        """Moves the file to ``done``; acknowledging twice changes nothing."""
        claimed, done = self._folder(delivery.topic, "claimed"), self._folder(delivery.topic, "done")
        path = claimed / delivery.source
        with _storage(f"acknowledge {delivery.source} of {delivery.topic}"):
            if path.exists():
                path.rename(done / _free_name(delivery.source, done))
                sync_folder(done)
                sync_folder(claimed)

    def requeue(self, topic: str, source: str) -> bool:
        """Puts a delivery that was taken back to ``incoming``; false where it is no longer at hand.

        For a caller who knows that no consumer is at work. What has landed of it is recognised as told before.
        """
        if Path(source).name != source:
            return False
        incoming, claimed, done = (self._folder(topic, folder) for folder in ("incoming", "claimed", "done"))
        for folder in (claimed, done):
            if (folder / source).is_file():
                with _storage(f"put {source} of {topic} back"):
                    (folder / source).rename(incoming / _free_name(source, incoming))
                    sync_folder(incoming)
                    sync_folder(folder)
                return True
        return (incoming / source).is_file()

    def claimed(self, topic: str) -> list[str]:
        """Deliveries taken and not acknowledged."""
        return _listing(self._folder(topic, "claimed"))

    def pending(self, topic: str) -> int:
        """Files in ``incoming`` and ``claimed``."""
        return sum(len(_listing(self._folder(topic, folder))) for folder in ("incoming", "claimed"))

    def counters(self, topic: str) -> BusCounters:
        """A spool has no dead letters and loses nothing."""
        try:
            lag = self.pending(topic)
        except TransientError:
            lag = None
        return BusCounters(self._retried[topic], reclaimed=0, dead_lettered=0, lost=0, lag=lag)

    def status(self, topic: str) -> TopicStatus:
        """Files by folder."""
        undelivered, pending = (len(_listing(self._folder(topic, folder))) for folder in ("incoming", "claimed"))
        return TopicStatus(topic, f"spool {self._root}", undelivered + pending, undelivered, pending, 0, 0)

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """None: whatever is in the spool can be delivered."""
        check_topic(topic)
        return iter(())

    def replay(self, topic: str) -> int:
        """There is nothing to put back."""
        check_topic(topic)
        return 0

    def topics(self) -> list[str]:
        """Those that anything was ever put on."""
        with _storage(f"list {self._root}"):
            return sorted(path.name for path in self._root.glob("*") if path.is_dir() and _TOPIC.fullmatch(path.name))

    def newest(self, topic: str) -> str | None:
        """The last name that waits, in the order of names; None if nothing does."""
        names = [name for folder in ("incoming", "claimed") for name in _listing(self._folder(topic, folder))]
        return max(names, default=None)

    def discard(self, delivery: Delivery) -> None:
        """The delivery has gone elsewhere, durably: remove it and keep no copy."""
        claimed = self._folder(delivery.topic, "claimed")
        with _storage(f"discard {delivery.source} of {delivery.topic}"):
            (claimed / delivery.source).unlink(missing_ok=True)
            sync_folder(claimed)

    def _folder(self, topic: str, folder: str) -> Path:
        check_topic(topic)
        path = self._root / topic / folder
        with _storage(f"open the spool {self._root}"):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def _delivery(self, topic: str, path: Path) -> Delivery:
        return Delivery(topic, path.name, partial(_read, path))


def spill_lock(locks: Path, topic: str) -> Path:
    """Held by whoever forwards a topic to Redis: until then, what is claimed is in the midst of it."""
    return locks / f"spill-{topic}"


def check_topic(topic: str) -> None:
    """Refuses what could lead elsewhere as a directory."""
    if not _TOPIC.fullmatch(topic) or ".." in topic:
        raise ContractViolation(f"{topic!r} is not a topic")


def check_name(name: str) -> None:
    """Refuses what could lead elsewhere as a file name."""
    if not _NAME.fullmatch(name):
        raise ContractViolation(f"{name!r} is not a plain file name")


def _read(path: Path, max_line_bytes: int) -> Iterator[Line]:
    with _storage(f"read {path}"):
        yield from read_lines(path, max_line_bytes)


def _write_lines(path: Path, lines: Iterable[bytes]) -> str:
    """Compresses lines into a synced file and returns the SHA-256 of what they hold."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        with zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as writer:
            for line in lines:
                if b"\n" in line:
                    raise ContractViolation(f"a line must not contain a line end: {line[:80]!r}")
                record = line + b"\n"
                digest.update(record)
                writer.write(record)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _listing(folder: Path) -> list[str]:
    """Names of the readable files, sorted; whatever else lies there is left alone and mentioned."""
    with _storage(f"list {folder}"):
        return sorted(entry.name for entry in os.scandir(folder) if _is_delivery(entry))


def _is_delivery(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name.endswith(".tmp"):
        return False
    try:
        is_file = stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False  # moved on by its consumer while we were looking
    is_named = entry.name.endswith((PLAIN_SUFFIX, COMPRESSED_SUFFIX)) and _is_text(entry.name)
    if is_file and is_named and os.access(entry.path, os.R_OK):
        return True
    place = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
    _LOG.warning("left alone: %s is not a readable %s or %s", place, PLAIN_SUFFIX, COMPRESSED_SUFFIX)
    return False


def _is_text(name: str) -> bool:
    """Whether it can be a source: those are kept as UTF-8, and a file's name may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sweep(folder: Path) -> None:
    """Removes what killed producers left unfinished; no producer writes a file for as long as a day."""
    oldest = time.time() - ABANDONED_S
    with _storage(f"tidy {folder}"):
        for path in folder.glob("*.tmp"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _free_name(name: str, *folders: Path) -> str:
    """A name that none of the folders holds: overwriting would lose a file, and a source names one delivery only."""
    stem, dot, suffix = name.partition(PLAIN_SUFFIX)
    free, number = name, 1
    while any((folder / free).exists() for folder in folders):
        number += 1
        free = f"{stem}~{number}{dot}{suffix}"
    return free


@contextmanager
def _storage(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransientError(f"cannot {what}: {error.strerror or error}; check space and permissions") from error
