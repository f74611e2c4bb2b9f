"""The bus as an operator sees it, and dead letters put back."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from simic.bus.protocol import FIELD_REPORTS, POLICY_UPDATES

if TYPE_CHECKING:
    from simic.bus.protocol import Bus, DeadLetter, TopicStatus

__all__ = ["TOPICS", "list_dead_letters", "list_topics"]

TOPICS = (FIELD_REPORTS, POLICY_UPDATES)
_RAW_CHARACTERS = 200


def list_topics(bus: Bus) -> list[TopicStatus]:
    """Every topic that Simic uses."""
    return [bus.status(topic) for topic in TOPICS]


def list_dead_letters(bus: Bus, topic: str, limit: int) -> list[dict[str, Any]]:
    """The oldest ones, with the beginning of their bytes as text."""
    return [_plain(letter) for letter in islice(bus.dead_letters(topic), limit)]


def _plain(letter: DeadLetter) -> dict[str, Any]:
    facts = {name: value for name, value in letter._asdict().items() if name != "fields"}
    raw = letter.raw
    return {
        **facts,
        "size_bytes": len(raw),
        "raw": raw[: 4 * _RAW_CHARACTERS].decode("utf-8", "replace")[:_RAW_CHARACTERS],
    }
