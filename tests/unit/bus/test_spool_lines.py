"""Lines come out whole, or cut and flagged, in bounded memory."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from simic.bus.protocol import Defect, Line
from simic.bus.spool.lines import FileLimits, read_lines


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
    from simic.bus.spool.lines import _Splitter

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
    note = "zstd cannot unpack it: zstd decompressor error: Unknown frame descriptor"
    assert list(read_lines(path, 100)) == [Line(1, b"one", None), Line(2, b"", Defect.TORN, note)]


@pytest.mark.parametrize("content", [b"", b"not zstd at all\n"])
def test_a_file_that_is_no_zstd_is_torn_not_fatal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(content)
    (line,) = read_lines(path, 100)
    assert line[:3] == (1, b"", Defect.TORN)
    assert "zstd" in line.note


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_runs_of_empty_lines_are_counted_and_too_long_blank_ones_told(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, b"one\n" + b"\n" * 700_000 + b"two\n" + b" " * 101 + b"\n\n\nthree")
    assert list(read_lines(path, 100)) == [
        Line(1, b"one", None),
        Line(700_002, b"two", None),
        Line(700_003, b" " * 100, Defect.TOO_LONG),
        Line(700_006, b"three", None),
    ]


LIMITS = FileLimits(size_bytes=1_000_000, time_s=60.0)


def given_up(path: Path, *clock: float) -> tuple[list[bytes], str]:
    """Whole lines before the reader gave up, and why it did."""
    moments = iter([*clock, *[clock[-1]] * 1000] if clock else [0.0] * 100_000)
    *lines, last = read_lines(path, 100, LIMITS, lambda: next(moments))
    assert last.defect is Defect.GIVEN_UP and all(line.defect in (None, Defect.TOO_LONG) for line in lines)
    return [line.data for line in lines], last.note


def test_a_file_too_large_on_disk_is_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    os.truncate(path, 1 << 40)
    lines, note = given_up(path)
    assert lines == []
    assert note == f"expected a file of at most 1000000 bytes (ingest.max_file_mb), found {1 << 40}"


@pytest.mark.parametrize("filling", [b"\0", b"[", b"\n", b" \n", b"x\n"], ids=repr)
def test_a_bomb_is_given_up_at_its_budget(tmp_path: Path, filling: bytes) -> None:
    """Some 32 MiB of one byte, of empty lines, of lines of blanks, and of short lines in a few kB."""
    path = _write(tmp_path / "a.jsonl.zst", b"one\n" + filling * (1 << 25))
    lines, note = given_up(path)
    assert lines[0] == b"one" and len(lines) < 600_000
    assert re.match(r"expected at most (1000000 bytes unpacked|100000 lines in a file)", note)


def test_empty_frames_without_end_are_given_up(tmp_path: Path) -> None:
    pack = zstandard.ZstdCompressor().compress
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(pack(b"one\n") + pack(b"") * 110_000)
    assert given_up(path) == (
        [b"one"],
        "expected at most 100000 lines in a file of ingest.max_file_mb, found more",
    )


def test_a_file_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", b"x" * 99 + b"\n" + b"y" * 600_000)
    lines, note = given_up(path, 0.0, 59.0, 61.0)
    assert lines == [b"x" * 99]
    assert note == "expected to be done within 60 s (ingest.max_file_s), found it unfinished"


def test_a_file_that_grows_while_it_is_read_gives_what_it_held_at_first(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", b"one\ntwo\nhal")
    lines = read_lines(path, 100)
    found = [next(lines)]
    with path.open("ab") as file:
        file.write(b"f\nfour\n")
    found += lines
    assert [line.data for line in found] == [b"one", b"two", b"hal"]
    assert found[-1].defect is Defect.GIVEN_UP and "expected 11 bytes" in found[-1].note


def test_a_window_that_would_fill_the_memory_is_refused_by_name(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    path = tmp_path / "a.jsonl.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file) as writer:
        writer.write(b"one\n")
    (line,) = read_lines(path, 100)
    assert line.defect is Defect.TORN and "too much memory" in line.note


def test_a_pipe_is_no_file_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        list(read_lines(tmp_path / "a.jsonl", 100))
