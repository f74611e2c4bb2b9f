"""``redis``: Redis Streams, with the spool in front for the time Redis does not answer."""

from __future__ import annotations

import hashlib
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from simic.bus.codec import MAX_PAYLOAD_BYTES
from simic.bus.factory import URL_VARIABLE, BusSpec
from simic.bus.plugins.spool import open_spool
from simic.contracts.errors import ConfigError

if TYPE_CHECKING:
    from simic.bus.protocol import Bus

__all__ = ["NAME", "SCHEMES", "consumer_name", "open_bus"]

NAME = "redis"
SCHEMES = ("redis", "rediss")


def open_bus(url: str, spec: BusSpec) -> Bus:
    """Open Redis at ``url``; no request is sent yet.

    Raises:
        ConfigError: the URL is not usable, the redis package is missing, or ``ingest.max_report_bytes`` allows reports
            that are longer than an entry.
    """
    if spec.ingest.max_report_bytes > MAX_PAYLOAD_BYTES:
        raise ConfigError(
            f"ingest.max_report_bytes: expected at most {MAX_PAYLOAD_BYTES}, the longest report that Redis carries, "
            f"found {spec.ingest.max_report_bytes}: lower the setting, or unset {URL_VARIABLE} to use the spool"
        )
    if find_spec("redis") is None:
        raise ConfigError(
            f"{URL_VARIABLE} is set, but Python's redis package is missing: pip install -e '.[redis]' in a checkout "
            "of Simic, or unset it to use the spool"
        )
    # These import the redis package, which the extra installs.
    from simic.bus.redis.bus import RedisStreamsBus
    from simic.bus.redis.connection import RedisServer
    from simic.bus.redis.fallback import SpoolFallbackBus

    spool, config = open_spool(spec), spec.config
    server = RedisServer(url, config.connect_attempts, config.deadline_s)
    stream = RedisStreamsBus(server, config, consumer_name(spec.spool))
    if not spec.has_fallback:
        return stream
    return SpoolFallbackBus(spool, stream, spool.locks, is_renewed=spec.conversation is None)


def consumer_name(spool: Path) -> str:
    """Return a name that is stable across restarts and unique per home and machine."""
    place = hashlib.sha256(str(spool.absolute()).encode()).hexdigest()[:8]
    return f"{socket.gethostname()}-{place}"
