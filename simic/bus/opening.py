"""Which bus: Redis where ``REDIS_URL`` is set, else the spool. What it takes is plain data for other processes."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simic.bus.protocol import Bus
from simic.contracts.config import BusConfig
from simic.contracts.errors import ConfigError

if TYPE_CHECKING:
    from simic.bus.spilling import SpillingBus

__all__ = ["URL_VARIABLE", "BusSpec", "open_bus", "open_redis"]

URL_VARIABLE = "REDIS_URL"
"""Environment only, since it may hold a password: worker processes inherit it, nothing writes it down."""


class BusSpec(NamedTuple):
    """How to open a bus, anywhere on this machine."""

    spool: Path
    """Directory of the spool; with Redis, where lines wait while it is away."""
    config: BusConfig = BusConfig()
    is_redis: bool = False
    """Whether ``REDIS_URL`` names the bus."""


def open_bus(spec: BusSpec, environment: Mapping[str, str] = os.environ) -> Bus:
    """The bus of ``spec``; ConfigError if it is Redis and cannot be."""
    from simic.bus.spool import SpoolBus

    return open_redis(spec, environment) if spec.is_redis else SpoolBus(spec.spool)


def open_redis(spec: BusSpec, environment: Mapping[str, str] = os.environ) -> SpillingBus:
    """Redis as ``REDIS_URL`` names it, behind the spool; asks nothing of it yet. ConfigError if it cannot be."""
    from simic.bus.spool import SpoolBus

    url = environment.get(URL_VARIABLE)
    if not url:
        raise ConfigError(f"{URL_VARIABLE} is not set")
    if find_spec("redis") is None:
        raise ConfigError(
            f"{URL_VARIABLE} is set, but Python's redis package is missing: pip install 'simic[redis]', or unset it "
            "to use the spool"
        )
    from simic.bus.connection import RedisServer
    from simic.bus.redis_streams import RedisStreamsBus
    from simic.bus.spilling import SpillingBus

    spool = SpoolBus(spec.spool)
    stream = RedisStreamsBus(RedisServer(url, spec.config.connect_attempts), spec.config, consumer_name(spec.spool))
    return SpillingBus(spool, stream, spool.locks)


def consumer_name(spool: Path) -> str:
    """The same after every restart, so that a consumer finds what it left; another for each home and machine."""
    place = hashlib.sha256(str(spool.absolute()).encode()).hexdigest()[:8]
    return f"{socket.gethostname()}-{place}"
