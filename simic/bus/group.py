"""A topic's stream as one consumer of the group sees it: one method per command of the server."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import redis

from simic.bus.connection import RedisServer
from simic.bus.entries import Entry, key_of, pack_command

__all__ = ["GROUP", "GroupStream"]

GROUP = "simic-trainer"


class GroupStream:
    """Reads, takes over and acknowledges; decides nothing."""

    def __init__(self, server: RedisServer, topic: str, consumer: str, batch: int) -> None:
        self._server, self.topic, self._consumer, self._batch = server, topic, consumer, batch

    def ensure(self) -> None:
        """Stream and group are there."""

        def create(client: redis.Redis) -> None:
            # A group on a new stream has read nothing of it; on an old one the server has to find out by itself.
            is_new = not client.exists(self.topic)
            try:
                client.xgroup_create(self.topic, GROUP, "0", mkstream=True, entries_read=0 if is_new else None)
            except redis.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # else it is there already
                    raise

        self._server.call(f"make the group {GROUP} of {self.topic}", create)

    def length(self) -> int:
        """Entries in the stream."""
        return self._server.call(f"look at {self.topic}", lambda client: int(client.xlen(self.topic)))

    def last_key(self) -> tuple[int, int]:
        """Of the newest entry ever added."""

        def look(client: redis.Redis) -> bytes:
            return bytes(client.xinfo_stream(self.topic)["last-generated-id"])

        return key_of(self._server.call(f"look at {self.topic}", look))

    def waiting(self) -> tuple[int, int]:
        """Entries not delivered, and entries not acknowledged."""

        def look(client: redis.Redis) -> Sequence[dict[str, Any]]:
            return client.xinfo_groups(self.topic) if client.exists(self.topic) else ()

        groups = self._server.call(f"look at the groups of {self.topic}", look)
        group = next((group for group in groups if group["name"] == GROUP.encode()), None)
        if group is None:
            return self.length(), 0
        # The server does not know how many wait when entries were deleted among them: then all may.
        undelivered = self.length() if group["lag"] is None else int(group["lag"])
        return undelivered, int(group["pending"])

    def read_new(self, block_ms: int) -> list[Entry]:
        """At most a batch that nobody got yet; waits for some, if ``block_ms`` is not 0."""

        def read(client: redis.Redis) -> Any:
            # No block at all for 0, which would be one without end.
            return client.xreadgroup(GROUP, self._consumer, {self.topic: ">"}, self._batch, block_ms or None)

        answer = self._server.call(f"read {self.topic}", read)
        return list(answer[0][1]) if answer else []

    def pending(self) -> Iterator[dict[bytes, int]]:
        """Deliveries so far of each entry that this consumer did not acknowledge, a batch at a time."""
        start = "-"
        while rows := self._pending_from(start):
            yield {row["message_id"]: int(row["times_delivered"]) for row in rows}
            start = "(" + rows[-1]["message_id"].decode()

    def _pending_from(self, start: str) -> list[dict[str, Any]]:
        return self._server.call(
            f"read what is pending of {self.topic}",
            lambda client: client.xpending_range(self.topic, GROUP, start, "+", self._batch, self._consumer),
        )

    def pending_of_others(self) -> int:
        """Entries that other consumers did not acknowledge."""
        summary = self._server.call(f"look at {self.topic}", lambda client: client.xpending(self.topic, GROUP))
        return sum(row["pending"] for row in summary["consumers"] if row["name"] != self._consumer.encode())

    def take_over(self, idle_ms: int) -> list[bytes]:
        """Entries that anybody kept for longer are this consumer's, at no attempt; returns those that are gone."""
        cursor, lost = b"0-0", []
        while True:
            command = pack_command([
                b"XAUTOCLAIM", self.topic.encode(), GROUP.encode(), self._consumer.encode(), b"%d" % idle_ms, cursor,
                b"COUNT", b"%d" % self._batch, b"JUSTID",
            ])  # fmt: skip
            ((cursor, _, gone),) = self._server.send(f"reclaim {self.topic}", command)
            lost += gone
            if cursor == b"0-0":
                return lost

    def read_again(self, ids: Collection[bytes], attempt: int) -> list[Entry]:
        """Those of the entries that are still there; the attempt is noted."""

        def claim(client: redis.Redis) -> Any:
            return client.xclaim(self.topic, GROUP, self._consumer, 0, list(ids), retrycount=attempt)

        answer = self._server.call(f"read {self.topic} again", claim) if ids else []
        return [entry for entry in answer if entry[0] is not None and entry[1] is not None]

    def fetch(self, ids: Collection[bytes]) -> list[Entry]:
        """Those of the entries that are still in the stream, at no attempt."""

        def read(client: redis.Redis) -> list[Entry]:
            with client.pipeline(transaction=False) as pipe:
                for entry in ids:
                    pipe.xrange(self.topic, entry, entry)
                return [entry for found in pipe.execute() for entry in found]

        return self._server.call(f"read {self.topic}", read)

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        """Done with; again changes nothing."""
        what = f"acknowledge {len(ids)} entries of {self.topic}"
        self._server.call(what, lambda client: client.xack(self.topic, GROUP, *ids))
