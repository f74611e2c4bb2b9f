"""Logs of the networks of ``examples/foreign_reports`` under a controller whose choices are planted."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from simic.contracts.splits import Split, split_of

__all__ = ["EPOCHS", "keys_of", "logged"]

EXAMPLE = Path(__file__).parents[3] / "examples" / "foreign_reports"
SET = "graftnet"
EPOCHS = 4
KEPT = 0.98
"""Probability that a seed is kept once it may be."""


def keys_of(split: Split, count: int) -> list[int]:
    """The first keys of a split."""
    found = (key for key in range(1_000_000) if split_of(SET, key) is split)
    return [next(found) for _ in range(count)]


def logged(keys: list[int], right: float, waits: float, controller: str) -> bytes:
    """Reports of one episode per key, as lines.

    After its first epoch a network is cured with probability ``right``, left as it is with probability ``waits``, or
    given one of the three wrong seeds; an epoch later the seed is kept or not; at other times it waits.
    """
    with _example() as graftnet:
        lines = [
            json.dumps({**report, "controller": controller})
            for key in keys
            for report in _episode(graftnet, key, right, waits)
        ]
    return "\n".join(lines).encode() + b"\n"


def _episode(graftnet: ModuleType, key: int, right: float, waits: float) -> list[dict[str, Any]]:
    network, plain = graftnet.Network(key), graftnet.choices
    cure = (network.place, graftnet.CURES[network.family])

    def choices(now: Any) -> dict[str, Any]:
        found: dict[str, Any] = plain(now)
        allowed = {1: ("WAIT", "GERMINATE"), 2: ("WAIT", "FOSSILIZE")}.get(now.epoch, ("WAIT",))
        found["op"] = [is_legal and op in allowed for op, is_legal in zip(graftnet.OPS, found["op"], strict=True)]
        found["slot"] = [
            row if is_legal else [False] * 2 for row, is_legal in zip(found["slot"], found["op"], strict=True)
        ]
        return found

    def decide(legal: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], dict[str, float]]:
        ops = dict(zip(graftnet.OPS, legal["op"], strict=True))
        if ops["FOSSILIZE"]:
            slot, is_kept = legal["slot"][graftnet.OPS.index("FOSSILIZE")].index(True), draw.random() < KEPT
            if not is_kept:
                return {"op": "WAIT"}, _logs(op=1.0 - KEPT)
            return {"op": "FOSSILIZE", "slot": slot}, _logs(op=KEPT, slot=1.0)
        if not ops["GERMINATE"]:
            return {"op": "WAIT"}, _logs(op=1.0)
        if draw.random() < waits:
            return {"op": "WAIT"}, _logs(op=waits)
        other = (1.0 - right - waits) / 3.0
        odds = {
            (slot, name): right if (slot, name) == cure else other for slot in (0, 1) for name in graftnet.BLUEPRINTS
        }
        slot, name = draw.choices(list(odds), list(odds.values()))[0]
        of_slot = sum(share for (place, _), share in odds.items() if place == slot)
        action = {"op": "GERMINATE", "slot": slot, "blueprint": name, "tempo": 3}
        grows = 1.0 - waits
        return action, _logs(op=grows, slot=of_slot / grows, blueprint=odds[slot, name] / of_slot, tempo=1.0)

    graftnet.choices, graftnet.decide = choices, decide
    reports: list[dict[str, Any]] = graftnet.episode(key, EPOCHS, datetime(2026, 1, 1, tzinfo=UTC))
    graftnet.choices = plain
    return reports


def _logs(**probabilities: float) -> dict[str, float]:
    logs = {name: math.log(probability) for name, probability in probabilities.items()}
    return {**logs, "joint": sum(logs.values())}


@contextmanager
def _example() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield import_module("graftnet")
    finally:
        sys.path.remove(str(EXAMPLE))
        sys.modules.pop("graftnet", None)
