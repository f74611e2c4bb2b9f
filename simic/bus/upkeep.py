"""What keeps a stream honest and small: entries nobody could read are counted, old acknowledged ones trimmed."""

from __future__ import annotations

import redis

from simic.bus.connection import RedisServer
from simic.bus.entries import key_of

__all__ = ["settle_gap", "trim"]

_SETTLE_GAP = """
local function field(pairs_, name)
  for i = 1, #pairs_, 2 do if pairs_[i] == name then return pairs_[i + 1] end end
end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if field(group, 'name') == ARGV[1] then
    local last = field(group, 'last-delivered-id')
    if #redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', 1) > 0 then return 0 end
    local read = field(group, 'entries-read')
    local added = field(redis.call('XINFO', 'STREAM', KEYS[1]), 'entries-added')
    if not read or not added or added <= read then return 0 end
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], last, 'ENTRIESREAD', added)
    return added - read
  end
end
return 0
"""
"""Entries added and never read, although nothing is left to read; counted once, so the group's count catches up."""


def settle_gap(server: RedisServer, topic: str, group: str) -> int:
    """How many entries were trimmed before anybody read them, since the last time this was asked.

    Known only while nothing is left to read; 0 otherwise, and the next time tells.
    """
    # Asked once: the count is settled with the first answer, even if that never arrives.
    ask = f"compare what was added to {topic} with what was read"
    return server.call(ask, lambda client: int(client.eval(_SETTLE_GAP, 1, topic, group)), attempts=1)


def trim(server: RedisServer, topic: str, keep_s: int) -> None:
    """Removes entries older than ``keep_s`` that every group of the stream has read and acknowledged."""

    def cut(client: redis.Redis) -> None:
        seconds, microseconds = client.time()
        bounds = [(max(0, (seconds - keep_s) * 1000 + microseconds // 1000), 0)]
        for group in client.xinfo_groups(topic):
            bounds.append(key_of(group["last-delivered-id"]))
            oldest = client.xpending(topic, group["name"])["min"] if group["pending"] else None
            if oldest is not None:  # None: another consumer acknowledged the last one meanwhile
                bounds.append(key_of(oldest))
        milliseconds, sequence = min(bounds)
        client.xtrim(topic, minid=f"{milliseconds}-{sequence}", approximate=False)

    server.call(f"trim {topic}", cut)
