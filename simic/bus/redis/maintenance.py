"""Maintain a stream: count entries that were trimmed unread, trim old acknowledged ones, remove idle consumers."""

from __future__ import annotations

import redis

from simic.bus.redis.connection import RedisServer
from simic.bus.redis.entries import key_of

__all__ = ["CONSUMER_REST_S", "find_gap", "forget_consumers", "settle_gap", "trim"]

CONSUMER_REST_S = 86_400
"""A consumer that was idle for a day and holds nothing is removed; the server creates it again when it returns."""

_GAP = """
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
    if ARGV[2] == 'settle' then redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], last, 'ENTRIESREAD', added) end
    return added - read
  end
end
return 0
"""
"""Entries added and never read, although nothing is left to read; counted once, so the group's count catches up."""
_FORGET = """
local forgotten = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts['name'] ~= ARGV[2] and facts['pending'] == 0 and facts['idle'] >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts['name'])
    forgotten = forgotten + 1
  end
end
return forgotten
"""
"""One script: an entry that a consumer takes between check and removal would be pending without an owner."""


def settle_gap(server: RedisServer, topic: str, group: str) -> int:
    """Return how many entries were trimmed unread since the last call.

    The number is known only while nothing is left to read; until then the result is 0.
    """
    # Asked once: the count is settled with the first answer, even if that never arrives.
    ask = f"compare what was added to {topic} with what was read"
    return server.call(ask, lambda client: int(client.eval(_GAP, 1, topic, group, "settle")), attempts=1)


def find_gap(server: RedisServer, topic: str, group: str) -> int:
    """Return what ``settle_gap`` would return, and change nothing."""

    def look(client: redis.Redis) -> int:
        return int(client.eval(_GAP, 1, topic, group, "look")) if client.exists(topic) else 0

    return server.call(f"compare what was added to {topic} with what was read", look)


def forget_consumers(server: RedisServer, topic: str, group: str, own: str, rest_s: int) -> int:
    """Remove consumers other than ``own`` that hold nothing and were idle for ``rest_s``; return how many."""

    def forget(client: redis.Redis) -> int:
        return int(client.eval(_FORGET, 1, topic, group, own, str(rest_s * 1000)))

    return server.call(f"forget idle consumers of {topic}", forget)


def trim(server: RedisServer, topic: str, keep_s: int) -> None:
    """Remove entries older than ``keep_s`` that every group of the stream has read and acknowledged."""

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
