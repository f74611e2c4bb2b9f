"""Open the bus: Redis if ``REDIS_URL`` is set, else the spool. A ``BusSpec`` is plain data for other processes."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simic.bus.protocol import Bus
from simic.contracts.config import BusConfig, IngestConfig
from simic.contracts.errors import ConfigError

if TYPE_CHECKING:
    from simic.bus.redis.fallback import SpoolFallbackBus
    from simic.bus.spool.bus import SpoolBus

__all__ = ["URL_VARIABLE", "BusSpec", "open_bus", "open_redis"]

URL_VARIABLE = "REDIS_URL"
"""Environment variable only: it may hold a password. Worker processes inherit it; no file holds it."""


class BusSpec(NamedTuple):
    """How to open a bus, anywhere on this machine."""

    spool: Path
    """Directory of the spool; with Redis, lines wait here while it does not answer."""
    config: BusConfig = BusConfig()
    is_redis: bool = False
    """Whether ``REDIS_URL`` names the bus."""
    ingest: IngestConfig = IngestConfig()
    """Limits of one file of the spool."""
    conversation: str | None = None
    """Jobs with one name share one connection within a process: a Redis that does not answer is then waited for only
    once. None opens a connection each time."""

    def open_spool(self) -> SpoolBus:
        """Open the spool without Redis."""
        from simic.bus.spool.bus import SpoolBus
        from simic.bus.spool.lines import FileLimits

        return SpoolBus(self.spool, FileLimits(self.ingest.max_file_mb * 2**20, self.ingest.max_file_s))


_newest: dict[tuple[BusSpec, str], SpoolFallbackBus] = {}
"""The bus of the most recent named conversation in this process."""


def open_bus(spec: BusSpec, environment: Mapping[str, str] = os.environ) -> Bus:
    """Open the bus of ``spec``; raises ConfigError if it is Redis and cannot be opened."""
    return open_redis(spec, environment) if spec.is_redis else spec.open_spool()


def open_redis(spec: BusSpec, environment: Mapping[str, str] = os.environ) -> SpoolFallbackBus:
    """Open Redis at ``REDIS_URL`` with the spool as fallback; no request is sent yet.

    Raises:
        ConfigError: ``REDIS_URL`` is not set or not usable, or the redis package is missing.
    """
    url = environment.get(URL_VARIABLE)
    if not url:
        raise ConfigError(f"{URL_VARIABLE} is not set")
    if find_spec("redis") is None:
        raise ConfigError(
            f"{URL_VARIABLE} is set, but Python's redis package is missing: pip install 'simic[redis]', or unset it "
            "to use the spool"
        )
    if spec.conversation is None:
        return _open(spec, url)
    if (spec, url) not in _newest:
        _newest.clear()
        _newest[spec, url] = _open(spec, url)
    return _newest[spec, url]


def _open(spec: BusSpec, url: str) -> SpoolFallbackBus:
    from simic.bus.redis.bus import RedisStreamsBus
    from simic.bus.redis.connection import RedisServer
    from simic.bus.redis.fallback import SpoolFallbackBus

    spool, config = spec.open_spool(), spec.config
    server = RedisServer(url, config.connect_attempts, config.deadline_s)
    stream = RedisStreamsBus(server, config, consumer_name(spec.spool))
    return SpoolFallbackBus(spool, stream, spool.locks)


def consumer_name(spool: Path) -> str:
    """Return a name that is stable across restarts and unique per home and machine."""
    place = hashlib.sha256(str(spool.absolute()).encode()).hexdigest()[:8]
    return f"{socket.gethostname()}-{place}"
