"""Redis buses for tests: quick to give up, with names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simic.bus.protocol import Delivery
from simic.bus.redis.bus import RedisStreamsBus
from simic.bus.redis.connection import RedisServer
from simic.contracts.settings.run import BusConfig
from simic.runtime.clock import utc_now
from support.servers.redis_server import RedisProcess

__all__ = ["TOPIC", "datas", "drain", "stream_bus"]

TOPIC = "tamiyo.field_reports"


def stream_bus(
    server: RedisProcess | str, consumer: str = "one", clock: Any = utc_now, **settings: Any
) -> RedisStreamsBus:
    """A bus on a test's server."""
    config = BusConfig(**{"connect_attempts": 3, **settings})
    url = server if isinstance(server, str) else server.url
    return RedisStreamsBus(RedisServer(url, config.connect_attempts, config.deadline_s), config, consumer, clock)


def datas(delivery: Delivery, limit: int = 1 << 20) -> list[bytes]:
    """Its lines' bytes."""
    return [line.data for line in delivery.open(limit)]


def drain(bus: Any, topic: str = TOPIC) -> Iterator[bytes]:
    """Every line there is, acknowledged delivery by delivery."""
    for delivery in bus.claim(topic):
        yield from datas(delivery)
        bus.ack(delivery)
