"""Read a stream with XRANGE, outside every group: nothing is claimed, acknowledged or trimmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from simic.bus.history import Entry
from simic.bus.redis.connection import RedisServer
from simic.bus.redis.entries import Fields, envelope_of, key_of
from simic.contracts.errors import ContractError, TransientError

__all__ = ["RedisHistory"]

_DEADLINE_S = 5.0
_PAGE = 16
"""Entries per request; each may hold a payload of the size that the server allows."""
_BEGINNING = "0-0"


class RedisHistory:
    """The events of a stream; the position is the id of the last entry that was read."""

    def __init__(self, url: str, topic: str) -> None:
        """Raise ConfigError for a URL that cannot be used; no request is sent."""
        self._url, self._topic = url, topic
        self._server: RedisServer | None = RedisServer(url, 1, _DEADLINE_S)
        self.position: list[str] = []
        self.place = f"redis {self._server.address}"

    def unread(self) -> Iterator[Entry]:
        """Yield the entries after the position; raises TransientError while the server does not answer.

        A stream that was created again begins anew, even if its ids are lower than the position.
        """
        if self._server is None:  # the deadline of a server that was silent is used up
            self._server = RedisServer(self._url, 1, _DEADLINE_S)
        try:
            last = self._last(self._server)
            if last is None:
                return
            if not self.position or key_of(last.encode()) < key_of(self.position[0].encode()):
                self.position = [_BEGINNING]
            while page := self._page(self._server, self.position[0]):
                for entry_id, fields in page:
                    self.position = [entry_id.decode()]
                    yield self._entry(entry_id, fields)
        except TransientError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _last(self, server: RedisServer) -> str | None:
        """Return the id of the newest entry ever added; None without a stream."""

        def look(client: redis.Redis) -> str | None:
            if not client.exists(self._topic):
                return None
            return bytes(client.xinfo_stream(self._topic)["last-generated-id"]).decode()

        return server.call(f"look at {self._topic}", look)

    def _page(self, server: RedisServer, after: str) -> Sequence[tuple[bytes, Fields]]:
        def read(client: redis.Redis) -> Any:  # bytes, because this client decodes nothing
            return client.xrange(self._topic, f"({after}", "+", _PAGE)

        page: Sequence[tuple[bytes, Fields]] = server.call(f"read {self._topic}", read)
        return page

    def _entry(self, entry_id: bytes, fields: Fields) -> Entry:
        place = f"redis/{self._topic} {entry_id.decode()}"
        try:
            return Entry(place, envelope_of(fields), "")
        except ContractError as error:
            return Entry(place, None, str(error))
