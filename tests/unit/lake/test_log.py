"""Lines to live parts: a pure function that refuses what cannot be true."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simic.contracts.errors import IntegrityError
from simic.lake.log import Damaged, Dropped, Input, Part, Replaced, StoreBound, TombstoneFile, TombstonesExpired, fold

T0 = datetime(2026, 1, 6, tzinfo=UTC)
SAID = {"at": T0, "code_version": "x"}


def part(number: int, rows: int = 10) -> Part:
    sha256 = f"{number:064x}"
    return Part(
        part=f"day=2026-01-06/part-{number:x}-{sha256[-16:]}.parquet", rows=rows, size_bytes=100 * rows, sha256=sha256,
        sources=[f"s{number}"], schema_digest="0" * 64, landed_at=T0 + timedelta(seconds=number), code_version="x",
    )  # fmt: skip


def merged(number: int, parts: list[Part], rows: int | None = None) -> Replaced:
    inputs = [Input(part=p.part, rows=p.rows, sha256=p.sha256) for p in parts]
    return Replaced(**SAID, part=part(number, sum(p.rows for p in parts) if rows is None else rows), inputs=inputs)


def dropped(parts: list[Part], number: int = 1) -> Dropped:
    rows = sum(p.rows for p in parts)
    known = TombstoneFile(file=f"dropped-{number:016x}.parquet", rows=rows, sha256="1" * 64, dropped_at=T0)
    return Dropped(**SAID, reason="age", parts=[p.part for p in parts], rows=rows, size_bytes=0, remembered=known)


def lines(*records: Any) -> list[dict[str, Any]]:
    return [record.model_dump(mode="json") for record in records]


def test_a_merged_part_stands_where_its_rows_stood() -> None:
    a, b, c, d = (part(number) for number in range(4))
    state = fold(lines(a, b, c, d, merged(9, [b, c])))
    assert [p.part for p in state.parts] == [a.part, part(9).part, d.part]
    assert set(state.retired) == {b.part, c.part}
    again = fold(lines(a, b, c, d, merged(9, [b, c]), merged(10, [a, part(9, 20)])))
    assert [p.part for p in again.parts] == [part(10).part, d.part]


def test_dropped_parts_are_remembered_until_forgotten() -> None:
    a, b = part(0), part(1)
    state = fold(lines(a, b, dropped([a])))
    assert [p.part for p in state.parts] == [b.part] and [r.rows for r in state.tombstones] == [10]
    assert (
        fold(
            lines(a, b, dropped([a]), TombstonesExpired(**SAID, files=["dropped-0000000000000001.parquet"]))
        ).tombstones
        == ()
    )


def test_a_damaged_part_may_land_again_under_its_name() -> None:
    a, b = part(0), part(1)
    gone = Damaged(**SAID, part=a.part, rows=10, found="missing", requeued=["s0"], missing=[])
    assert [p.part for p in fold(lines(a, b, gone)).parts] == [b.part]
    state = fold(lines(a, b, gone, a))
    assert [p.part for p in state.parts] == [b.part, a.part] and state.retired == {}
    assert [line.part for line in state.damaged] == [a.part]


A, B, C = part(0), part(1), part(2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (A, "live already"),
        (merged(9, [A, C]), "no neighbours"),
        (merged(9, [B, A]), "out of order"),
        (merged(9, [A, part(7)]), "not live"),
        (merged(9, [A, part(1, 11)]), "another"),
        (merged(9, [A, B], rows=19), "makes 19 rows of 20"),
        (dropped([A, A]), "not live"),
        (TombstonesExpired(**SAID, files=["dropped-0000000000000001.parquet"]), "which are not there"),
        (StoreBound(**SAID, url="s3://b/p"), "moves the lake"),
    ],
)
def test_a_line_that_contradicts_those_before_it_is_damage(line: Any, why: str) -> None:
    with pytest.raises(IntegrityError, match=rf"line 4: .*{why}"):
        fold(lines(A, B, C, line))


@pytest.mark.parametrize("line", [{"op": "moved"}, {"op": "dropped"}, {"part": "../x"}, {}])
def test_a_line_of_no_known_kind_is_damage(line: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="line 2: not a part"):
        fold([*lines(A), line])


@given(st.data())
def test_merges_keep_rows_and_order_whatever_came_before(data: st.DataObject) -> None:
    """Against a slow literal twin: a list of lists of row numbers."""
    count = data.draw(st.integers(1, 8))
    parts = [part(number, rows=number + 1) for number in range(count)]
    records: list[Any] = list(parts)
    twin = [(p, [(p.part, row) for row in range(p.rows)]) for p in parts]
    for number in range(100, 100 + data.draw(st.integers(0, 5))):
        if not twin:
            break
        start = data.draw(st.integers(0, len(twin) - 1))
        end = data.draw(st.integers(start + 1, len(twin)))
        chosen = twin[start:end]
        if data.draw(st.booleans()):
            line = merged(number, [p for p, _ in chosen])
            records.append(line)
            twin[start:end] = [(line.part, [row for _, rows in chosen for row in rows])]
        else:
            records.append(dropped([p for p, _ in chosen], number))
            del twin[start:end]
    state = fold(lines(*records))
    assert [p.part for p in state.parts] == [p.part for p, _ in twin]
    assert [p.rows for p in state.parts] == [len(rows) for _, rows in twin]
