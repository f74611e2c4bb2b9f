"""Read a topic without taking anything from it: any number of readers see every event, consumed or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ConfigError

__all__ = ["Entry", "History", "is_url", "open_history"]


class Entry(NamedTuple):
    """One event of a topic, or what stands in its place."""

    source: str
    """Names its file, or the stream and the entry."""
    envelope: EventEnvelope | None
    """None if it cannot be read."""
    fault: str
    """Why it cannot be read; empty if it can."""


class History(Protocol):
    """The events of one topic, in no certain order, and a position in them."""

    position: list[str]
    """What was read so far; empty at the beginning. A reader stores it and sets it when it starts again."""
    place: str
    """Names the transport without user and password, such as ``spool <directory>``."""

    def unread(self) -> Iterator[Entry]:
        """Yield the events beyond the position, which moves; raises TransientError if the transport is away."""

    def close(self) -> None:
        """Close a connection."""


def is_url(source: str | os.PathLike[str]) -> bool:
    """Return whether ``source`` is an address and not a folder."""
    return isinstance(source, str) and "://" in source


def open_history(source: str | os.PathLike[str], topic: str) -> History:
    """Open a topic of a spool folder or of Redis at a URL; no request is sent yet.

    Raises:
        ConfigError: if the folder does not exist, or the URL is of another scheme or cannot be used.
    """
    if is_url(source):
        return _of_redis(str(source), topic)
    from simic.bus.spool.history import SpoolHistory

    return SpoolHistory(Path(source).expanduser().absolute(), topic)


def _of_redis(url: str, topic: str) -> History:
    if url.partition("://")[0].lower() not in {"redis", "rediss"}:
        raise ConfigError("expected a spool folder or a URL redis:// or rediss://, found a URL of another scheme")
    try:
        from simic.bus.redis.history import RedisHistory  # it imports the redis package, which the extra installs
    except ModuleNotFoundError as error:
        raise ConfigError(
            "Python's redis package is missing: pip install -e '.[redis]' in a checkout of Simic"
        ) from error
    return RedisHistory(url, topic)
