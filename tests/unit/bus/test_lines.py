"""Lines come out whole, or cut and flagged, in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from simic.bus.lines import read_lines
from simic.bus.protocol import Defect, Line


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(zstandard.ZstdCompressor().compress(data) if path.suffix == ".zst" else data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_lines_are_numbered_and_blank_ones_skipped(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, b"one\n\n  \r\ntwo\r\nthree")
    assert list(read_lines(path, 100)) == [Line(1, b"one", None), Line(4, b"two\r", None), Line(5, b"three", None)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_a_too_long_line_is_cut_flagged_and_does_not_cost_its_neighbours(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, b"before\n" + b"x" * 3_000_000 + b"\nafter\n" + b"y" * 11)
    assert list(read_lines(path, 10)) == [
        Line(1, b"before", None),
        Line(2, b"x" * 10, Defect.TOO_LONG),
        Line(3, b"after", None),
        Line(4, b"y" * 10, Defect.TOO_LONG),
    ]


@given(st.lists(st.binary(max_size=30).filter(lambda x: b"\n" not in x), max_size=30), st.integers(1, 40))
def test_splitting_equals_the_literal_reading(lines: list[bytes], limit: int) -> None:
    from simic.bus.lines import _Splitter

    data = b"\n".join(lines)
    for size in (1, 3, 7, 1000):
        splitter = _Splitter(limit)
        blocks = [data[i : i + size] for i in range(0, len(data), size)]
        found = [line for block in blocks for line in splitter.feed(block)]
        last = splitter.rest(None)
        found += [last] if last.data.strip() or last.defect else []
        expected = [
            Line(number, line[:limit], Defect.TOO_LONG if len(line) > limit else None)
            for number, line in enumerate(data.split(b"\n"), 1)
            if line.strip() or len(line) > limit
        ]
        assert found == expected


def test_torn_file_yields_what_is_readable_and_one_flagged_remainder(tmp_path: Path) -> None:
    lines = [f"{number:06d}".encode() * 50 for number in range(20_000)]
    packed = zstandard.ZstdCompressor().compress(b"".join(line + b"\n" for line in lines))
    path = tmp_path / "torn.jsonl.zst"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    found = list(read_lines(path, 1000))
    assert len(found) > 1000
    assert [line.data for line in found[:-1]] == lines[: len(found) - 1]
    assert all(line.defect is None for line in found[:-1])
    assert found[-1].defect is Defect.TORN
    assert lines[len(found) - 1].startswith(found[-1].data)


def test_frames_are_joined_and_garbage_behind_them_is_flagged(tmp_path: Path) -> None:
    pack = zstandard.ZstdCompressor().compress
    path = tmp_path / "frames.jsonl.zst"
    path.write_bytes(pack(b"one\ntw") + pack(b"") + pack(b"o\n"))
    assert list(read_lines(path, 100)) == [Line(1, b"one", None), Line(2, b"two", None)]
    path.write_bytes(pack(b"one\n") + b"garbage")
    assert list(read_lines(path, 100)) == [Line(1, b"one", None), Line(2, b"", Defect.TORN)]


@pytest.mark.parametrize("content", [b"", b"not zstd at all\n"])
def test_a_file_that_is_no_zstd_is_torn_not_fatal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(content)
    assert list(read_lines(path, 100)) == [Line(1, b"", Defect.TORN)]


def test_flipped_bytes_in_a_checked_frame_are_noticed(tmp_path: Path) -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b"abcdefgh\n" * 3))
    packed[-1] ^= 1
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(packed)
    assert list(read_lines(path, 100))[-1].defect is Defect.TORN


def test_a_bomb_is_read_in_constant_memory(tmp_path: Path) -> None:
    """200 MiB of one line in a few kB."""
    path = tmp_path / "bomb.jsonl.zst"
    with zstandard.ZstdCompressor().stream_writer(path.open("wb")) as writer:
        for _ in range(200):
            writer.write(b"[" * (1 << 20))
        writer.write(b"\nafter\n")
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    found = [(line.number, len(line.data), line.defect) for line in read_lines(path, 1000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [(1, 1000, Defect.TOO_LONG), (2, 5, None)]
    assert peak < 48 << 20
