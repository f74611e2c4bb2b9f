"""The stream of a topic for one consumer of the group: one method per command of the server."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import redis

from simic.bus.redis.connection import RedisServer
from simic.bus.redis.entries import Entry, key_of, pack_command

__all__ = ["GROUP", "GroupStream"]

GROUP = "simic-trainer"

_READ = """
local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>')
if not found then return {} end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local facts = {}
  for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
  if facts['name'] == ARGV[1] and facts['entries-read'] then
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], facts['last-delivered-id'], 'ENTRIESREAD', facts['entries-read'])
  end
end
return found[1][2]
"""
"""XREADGROUP, and the number of entries read set to what it is: the server (7.0) writes the group's position to its
append-only file, but not this number, so that after a restart what was delivered would look as if it had been lost."""


class GroupStream:
    """Commands of one consumer on one stream, without decisions."""

    def __init__(self, server: RedisServer, topic: str, consumer: str, batch: int) -> None:
        self._server, self.topic, self._consumer, self._batch = server, topic, consumer, batch

    def ensure(self) -> None:
        """Create stream and group unless they exist."""

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
        """Return the number of entries in the stream."""
        return self._server.call(f"look at {self.topic}", lambda client: int(client.xlen(self.topic)))

    def last_key(self) -> tuple[int, int]:
        """Return the sort key of the newest entry ever added."""
        return key_of(self._last_id())

    def _last_id(self) -> bytes:
        def look(client: redis.Redis) -> bytes:
            return bytes(client.xinfo_stream(self.topic)["last-generated-id"])

        return self._server.call(f"look at {self.topic}", look)

    def waiting(self) -> tuple[int, int]:
        """Return the number of entries not delivered, and of those not acknowledged."""

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
        """Return at most a batch of undelivered entries; wait up to ``block_ms`` for the first."""
        newest = self._last_id() if block_ms else b""
        entries = self._read_new()
        if entries or not block_ms:
            return entries

        def wait(client: redis.Redis) -> Any:
            return client.xread({self.topic: newest}, count=1, block=block_ms)

        return self._read_new() if self._server.call(f"wait for {self.topic}", wait) else []

    def _read_new(self) -> list[Entry]:
        def read(client: redis.Redis) -> Any:
            return client.eval(_READ, 1, self.topic, GROUP, self._consumer, str(self._batch))

        entries = self._server.call(f"read {self.topic}", read)
        return [(entry, dict(zip(flat[::2], flat[1::2], strict=True))) for entry, flat in entries]

    def pending(self) -> Iterator[dict[bytes, int]]:
        """Yield the number of deliveries of each entry that this consumer did not acknowledge, a batch at a time."""
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
        """Return the number of entries that other consumers did not acknowledge."""
        summary = self._server.call(f"look at {self.topic}", lambda client: client.xpending(self.topic, GROUP))
        return sum(row["pending"] for row in summary["consumers"] if row["name"] != self._consumer.encode())

    def take_over(self, idle_ms: int) -> list[bytes]:
        """Take over entries that any consumer held for longer, without counting an attempt; return lost ids."""
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
        """Return the entries that still exist, and store the number of the attempt."""

        def claim(client: redis.Redis) -> Any:
            return client.xclaim(self.topic, GROUP, self._consumer, 0, list(ids), retrycount=attempt)

        answer = self._server.call(f"read {self.topic} again", claim) if ids else []
        return [entry for entry in answer if entry[0] is not None and entry[1] is not None]

    def fetch(self, ids: Collection[bytes]) -> list[Entry]:
        """Return the entries that still exist, without counting an attempt."""

        def read(client: redis.Redis) -> list[Entry]:
            with client.pipeline(transaction=False) as pipe:
                for entry in ids:
                    pipe.xrange(self.topic, entry, entry)
                return [entry for reply in pipe.execute() for entry in reply]

        return self._server.call(f"read {self.topic}", read)

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        """Acknowledge entries; repeating it changes nothing."""
        what = f"acknowledge {len(ids)} entries of {self.topic}"
        self._server.call(what, lambda client: client.xack(self.topic, GROUP, *ids))
