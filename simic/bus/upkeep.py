"""What keeps a stream honest and small: entries nobody could read are counted, old acknowledged ones trimmed, and
consumers that are no more forgotten."""

from __future__ import annotations

import redis

from simic.bus.connection import RedisServer
from simic.bus.entries import key_of

__all__ = ["CONSUMER_REST_S", "find_gap", "forget_consumers", "settle_gap", "trim"]

CONSUMER_REST_S = 86_400
"""A consumer that was not heard of for a day and holds nothing is forgotten; should it come back, it is made anew."""

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
"""In one step: of a consumer that took something in between, what it took would be pending with nobody."""


def settle_gap(server: RedisServer, topic: str, group: str) -> int:
    """How many entries were trimmed before anybody read them, since the last time this was asked.

    Known only while nothing is left to read; 0 otherwise, and the next time tells.
    """
    # Asked once: the count is settled with the first answer, even if that never arrives.
    ask = f"compare what was added to {topic} with what was read"
    return server.call(ask, lambda client: int(client.eval(_GAP, 1, topic, group, "settle")), attempts=1)


def find_gap(server: RedisServer, topic: str, group: str) -> int:
    """What ``settle_gap`` would return, and it still will: nothing is changed."""

    def look(client: redis.Redis) -> int:
        return int(client.eval(_GAP, 1, topic, group, "look")) if client.exists(topic) else 0

    return server.call(f"compare what was added to {topic} with what was read", look)


def forget_consumers(server: RedisServer, topic: str, group: str, own: str, rest_s: int) -> int:
    """Removes consumers other than ``own`` that hold nothing and rested so long; returns how many."""

    def forget(client: redis.Redis) -> int:
        return int(client.eval(_FORGET, 1, topic, group, own, str(rest_s * 1000)))

    return server.call(f"forget idle consumers of {topic}", forget)


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
