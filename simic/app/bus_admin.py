"""Administration of the bus: topics, dead letters, forwarding of spooled files, and the checks of the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from simic.app.checks.health import damaged, healthy, unrecoverable
from simic.bus.factory import URL_VARIABLE, BusSpec, bus_plugin, open_bus
from simic.bus.protocol import Bus, DeadLetter, RemoteBus, TopicStatus
from simic.contracts.errors import ConfigError, SimicError
from simic.contracts.names import FIELD_REPORTS, TOPICS
from simic.contracts.results.lake import Check
from simic.runtime.progress import Progress

__all__ = ["examine_bus", "forward", "list_dead_letters", "list_topics"]

_RAW_CHARACTERS = 200


def list_topics(bus: Bus) -> list[TopicStatus]:
    """Return the status of every topic that Simic uses."""
    return [bus.status(topic) for topic in TOPICS]


def list_dead_letters(bus: Bus, topic: str, limit: int) -> list[dict[str, Any]]:
    """Return the oldest dead letters with the first characters of their content."""
    return [_plain(letter) for letter in islice(bus.dead_letters(topic), limit)]


def forward(spec: BusSpec, limit: int | None, progress: Progress) -> dict[str, int]:
    """Send spooled files to the server of the bus, oldest first, and return how many were sent and how many remain.

    Raises:
        ConfigError: if the bus has no server, as the spool.
        TransientError: if the server does not answer, even if there is nothing to send.
    """
    if not spec.has_url:
        raise ConfigError(f"there is nothing to forward: the spool is the bus because {URL_VARIABLE} is not set")
    bus = open_bus(spec)
    if not isinstance(bus, RemoteBus):
        raise ConfigError(
            f"there is nothing to forward: the bus {bus_plugin(spec)!r}, which {URL_VARIABLE} names, has no server to "
            "forward to"
        )
    bus.ping()
    waiting = bus.spilled()
    if not waiting:
        return {"forwarded": 0, "waiting": 0}
    with progress.task("forward", waiting if limit is None else min(limit, waiting)) as advance:
        return {"forwarded": bus.catch_up(limit, advance), "waiting": bus.spilled()}


def examine_bus(spec: BusSpec) -> Iterator[Check]:
    """Check the bus that ``REDIS_URL`` names; change nothing, and yield nothing if there is no URL."""
    if not spec.has_url:
        return
    name = "redis"  # of a URL that no bus serves; the variable may name another bus than Redis
    remedy = f"correct {URL_VARIABLE} as the message says"
    try:
        name = _check_name(bus_plugin(spec))
        bus = open_bus(spec)
        if not isinstance(bus, RemoteBus):
            remedy = f"correct what the message names, or let {URL_VARIABLE} name another bus"
            yield healthy(name, f"opens; {bus.pending(FIELD_REPORTS)} deliveries of {FIELD_REPORTS} wait")
            return
        remedy = f"start it or correct {URL_VARIABLE}; reports wait in the spool, `simic bus forward` sends them on"
        address = bus.ping()
        state, gap = bus.measure(FIELD_REPORTS), bus.uncounted(FIELD_REPORTS)
    except SimicError as error:
        yield damaged(name, str(error), remedy)
        return
    yield healthy(name, f"{address} answers")
    yield from _examine_topic(name, state, gap)


def _check_name(plugin: str) -> str:
    """Return the name of a bus's check; the doctor has a check ``spool`` of the files in the spool, too."""
    return f"bus {plugin}" if plugin == "spool" else plugin


def _examine_topic(name: str, state: TopicStatus, gap: int) -> Iterator[Check]:
    waiting = max(
        0, (state.undelivered or 0) - gap
    )  # the server counts entries that were trimmed unread as undelivered
    yield healthy(f"{name} waiting", f"{waiting} entries of {FIELD_REPORTS} are not delivered yet")
    yield healthy(f"{name} pending", f"{state.pending} are delivered and not acknowledged; an ingest takes them again")
    if state.dead_letters:
        remedy = "`simic bus dead-letters` says why; correct the cause, then --replay returns them to the topic"
        yield damaged(f"{name} dead letters", f"{state.dead_letters} could not be delivered", remedy)
    else:
        yield healthy(f"{name} dead letters", "none")
    if gap:
        remedy = "they cannot be recovered; no producer may trim the stream. The next ingest counts them"
        yield unrecoverable(f"{name} lost", f"{gap} were trimmed unread", remedy)
    else:
        yield healthy(f"{name} lost", "none known since the last ingest")


def _plain(letter: DeadLetter) -> dict[str, Any]:
    facts = {name: value for name, value in letter._asdict().items() if name != "fields"}
    raw = letter.raw
    return {
        **facts,
        "size_bytes": len(raw),
        "raw": raw[: 4 * _RAW_CHARACTERS].decode("utf-8", "replace")[:_RAW_CHARACTERS],
    }
