"""Lines a hostile or broken producer might send, the same for the same seed, and what must become of each."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from support.builders.reports import episode, line

__all__ = ["ID", "Fate", "HostileLine", "hostile_lines"]


ID = slice(33, 65)
"""Where the report id stands in a line in normal form."""


class Fate(str, Enum):
    """What must become of a line."""

    LAND = "land"
    REFUSE = "refuse"
    REPEAT = "repeat"
    """A line that landed, told again."""
    JUDGE = "judge"
    """Damaged at random: whatever the contract alone says."""


class HostileLine(NamedTuple):
    """One line and its fate."""

    data: bytes
    fate: Fate


_HUGE = "9" * 400
_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", _HUGE, "1" + "0" * 4000, "0x10", "1_0", "+1", ".5"]
_WRONG = [None, True, -1, 2**63, 2**64, 1e300, "", "x", "1" * 5000, [], {}, [[]], {"a": 1}]
_TOKENS = [b"\x00", b"\xff\xfe", b"\\ud800", b"\\u0000", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"NaN", b"\t"]


def hostile_lines(count: int, seed: int, *, good: float = 0.1) -> Iterator[HostileLine]:
    """``count`` lines: a share of them good, some told twice, the rest hostile."""
    rng = random.Random(seed)  # noqa: S311
    templates = [line(report) for key in range(6) for report in episode(key)]
    fresh, told = _fresh_reports(templates), list[bytes]()
    for _ in range(count):
        choice = rng.random()
        if choice < good:
            told.append(next(fresh))
            yield HostileLine(told[-1], Fate.LAND)
        elif choice < good * 1.2 and told:
            yield HostileLine(rng.choice(told[-500:]), Fate.REPEAT)
        elif choice < good * 1.25 and told:
            yield HostileLine(rng.choice(told[-500:]).replace(b'"NEUTRAL"', b'"SUCCESS"', 1), Fate.JUDGE)
        elif choice < 0.4:
            yield HostileLine(_damaged(rng, next(fresh)), Fate.JUDGE)
        else:
            make = rng.choice(_MAKERS)
            yield HostileLine(make(rng, rng.choice(templates)).replace(b"\n", b" "), Fate.REFUSE)


def _fresh_reports(templates: list[bytes]) -> Iterator[bytes]:
    """Valid reports without end, each with an id of its own."""
    number = 0
    while True:
        for template in templates:
            number += 1
            yield template[: ID.start] + b"%032x" % number + template[ID.stop :]


def _damaged(rng: random.Random, whole: bytes) -> bytes:
    """A few bytes replaced, cut out or put in."""
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data))
        stop = min(len(data), start + rng.choice([0, 1, 1, 2, 8, 40]))
        data[start:stop] = rng.choice([b"", rng.randbytes(rng.randint(1, 3)), rng.choice(_TOKENS), b"0", b"7"])
    return bytes(data).replace(b"\n", b" ")


def _garbage(rng: random.Random, _: bytes) -> bytes:
    return b"!" + rng.randbytes(rng.choice([1, 8, 200]))


def _deep(rng: random.Random, _: bytes) -> bytes:
    opening = rng.choice([b"[", b'{"a":', b'[{"a":'])
    return opening * rng.choice([17, 100, 10_000]) + rng.choice([b"", b"1", b"]" * 50])


def _deep_field(rng: random.Random, whole: bytes) -> bytes:
    depth = rng.choice([15, 40, 3000])
    return whole.replace(b'"seed_id":', b'"seed_id":' + b"[" * depth + b"]" * depth + b',"x":', 1)


def _huge_text(rng: random.Random, whole: bytes) -> bytes:
    name = rng.choice([b"device", b"controller", b"seed_id"])
    size = rng.choices([100, 5000, 200_000, 300_000], [60, 37, 2, 1])[0]
    return whole.replace(b'"%s":' % name, b'"%s":"%s","y":' % (name, b"A" * size), 1)


def _cut(rng: random.Random, whole: bytes) -> bytes:
    return whole[: rng.randrange(1, len(whole) - 1)]


def _wrong_number(rng: random.Random, whole: bytes) -> bytes:
    name = rng.choice([b"step", b"validation_loss", b"validation_accuracy_after", b"threads", b"horizon", b"joint"])
    start = whole.index(b'"%s":' % name) + len(name) + 3
    stop = min(found for end in b",}" if (found := whole.find(end, start)) > 0)
    return whole[:start] + rng.choice(_NUMBERS).encode() + whole[stop:]


def _wrong_type(rng: random.Random, whole: bytes) -> bytes:
    raw = json.loads(whole)
    holder, key = rng.choice(
        [
            (raw, "state"),
            (raw, "action"),
            (raw, "log_prob_behaviour"),
            (raw, "available"),
            (raw, "relevant"),
            (raw, "outcome"),
            (raw, "host"),
            (raw["state"], "graph"),
            (raw["state"], "hardware"),
            (raw["action"], "op"),
        ]
    )
    holder[key] = rng.choice(_WRONG)
    return json.dumps(raw).encode()


def _wrong_id(rng: random.Random, whole: bytes) -> bytes:
    raw = json.loads(whole)
    key = rng.choice(["report_id", "run_id", "command_id"])
    raw[key] = rng.choice(
        ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32, raw[key] + "\n", raw[key][:-1] + "\u0663", 7, None]
    )
    return json.dumps(raw).encode()


def _missing(rng: random.Random, whole: bytes) -> bytes:
    raw = json.loads(whole)
    del raw[rng.choice(["report_id", "state", "action", "log_prob_behaviour", "issued_at", "terminated", "metrics"])]
    return json.dumps(raw).encode()


def _unknown(rng: random.Random, whole: bytes) -> bytes:
    raw = json.loads(whole)
    rng.choice([raw, raw["state"], raw["action"], raw["metrics"]])[rng.choice(["", "x", "__class__", "\u0000"])] = 1
    return json.dumps(raw).encode()


def _too_many(rng: random.Random, whole: bytes) -> bytes:
    raw = json.loads(whole)
    changes: list[Callable[[], Any]] = [
        lambda: raw["available"].update(blueprint=["mlp"] * 257),
        lambda: raw["state"].update(validation_loss_history=[0.5] * 6),
        lambda: raw.update(mitigation=["x"] * 17),
        lambda: raw["state"]["graph"].update(connects=[[0, 1]] * 16_385),
        lambda: raw["state"].update(slots=[{"stage": "DORMANT", "stage_epochs": 0}] * 1025),
    ]
    rng.choices(changes, [30, 30, 30, 1, 1])[0]()  # the longest lists take milliseconds each
    return json.dumps(raw).encode()


def _surrogate(rng: random.Random, whole: bytes) -> bytes:
    return whole.replace(b'"device":"', b'"device":"' + rng.choice([b"\\ud800", b"\\udfff\\ud800", b"\xed\xa0\x80"]), 1)


def _odd_moment(rng: random.Random, whole: bytes) -> bytes:
    start = whole.rindex(b'"issued_at":"') + len(b'"issued_at":"')
    moment = rng.choice(
        [
            b"0001-01-01T00:00:00+23:59",
            b"9999-12-31T23:59:59-23:59",
            b"2026-02-30T00:00:00Z",
            b"2026-01-05T12:00:00",
            b"",
            b"1970-01-01T00:00:00Z",
            b"2026-01-08T00:00:00Z",
            b"9999-12-31T23:59:59Z",
        ]
    )
    return whole[:start] + moment + whole[whole.index(b'"', start) :]


def _inconsistent(rng: random.Random, whole: bytes) -> bytes:
    raw = json.loads(whole)
    change: Callable[[], Any] = rng.choice(
        [
            lambda: raw["log_prob_behaviour"].update(joint=-50.0),
            lambda: raw["state"].update(epoch=raw["state"]["horizon"] + 1),
            lambda: raw["available"].update(op=[False] * 6),
            lambda: raw.update(terminated=not raw["terminated"]),
            lambda: raw["state"]["graph"].update(monitors=[[3, 0]]),
            lambda: raw.update(schema_version=2),
            lambda: raw["available"]["blueprint"].append("novel"),
        ]
    )
    change()
    return json.dumps(raw).encode()


def _repeated_key(rng: random.Random, whole: bytes) -> bytes:
    """The last value is right, so a reader that takes the last sees nothing wrong."""
    field = rng.choice([b'"step":', b'"epoch":', b'"op":', b'"validation_accuracy_after":', b'"kind":', b'"stage":'])
    value = rng.choice([b"0", b'"x"', b"[[]]", b'{"a":{}}', b"null", b"9" * 5000, b"1e999"])
    spelt = rng.choice([field, field[:1] + b"\\u%04x" % field[1] + field[2:]])
    return whole.replace(field, spelt + value + b"," + field, 1)


def _loose(rng: random.Random, whole: bytes) -> bytes:
    """What a lenient reader would take for a number or a truth."""
    old, new = rng.choice(
        [
            (b'"step":', b'"step":true,"x":'),
            (b'"threads":1', b'"threads":1.0'),
            (b'"threads":1', b'"threads":"1"'),
            (b'"threads":1', b'"threads":true'),
            (b'"threads":1', b'"threads":1e0'),
            (b'"schema_version":1', b'"schema_version":true'),
            (b'"schema_version":1', b'"schema_version":1.0'),
            (b'"schema_version":1', b'"schema_version":"1"'),
            (b'"is_linear":false', b'"is_linear":0'),
            (b'"is_linear":false', b'"is_linear":"false"'),
            (b'"terminated":', b'"terminated":"no","x":'),
            (b'"alpha":0.0', b'"alpha":"0.0"'),
            (b'"alpha":0.0', b'"alpha":false'),
            (b'"issued_at":"2026-01-05T12:00:', b'"issued_at":17676144'),
        ]
    )
    assert old in whole, old
    return whole.replace(old, new, 1)


def _contradictory(rng: random.Random, whole: bytes) -> bytes:
    raw = json.loads(whole)
    metrics, state = raw["metrics"], raw["state"]
    change: Callable[[], Any] = rng.choice(
        [
            lambda: metrics.update(validation_accuracy_before=0.01),
            lambda: metrics.update(validation_loss_before=7.0),
            lambda: metrics.update(committed_parameters=metrics["committed_parameters"] + 1),
            lambda: metrics.update(rent_parameters=metrics["rent_parameters"] + 10**9, x=0),
            lambda: state.update(seeds_alive=state["seeds_alive"] + 1),
            lambda: state.update(seed_parameters=state["seed_parameters"] + 1),
            lambda: state["slots"][1].update(alpha=0.5),
            lambda: raw.update(seed_id="elsewhere"),
            lambda: raw.update(outcome="ABORTED" if raw["governor"] is None else "NEUTRAL"),
            lambda: raw.update(step=21),
        ]
    )
    change()
    return json.dumps(raw).encode()


_MAKERS = [
    _garbage, _deep, _deep_field, _huge_text, _cut, _wrong_number, _wrong_type, _wrong_id, _missing, _unknown,
    _too_many, _surrogate, _odd_moment, _inconsistent, _repeated_key, _loose, _contradictory,
]  # fmt: skip
