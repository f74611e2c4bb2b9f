"""Whatever was put is delivered until acknowledged, once or more, and nothing overwrites anything."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import struct
import time
from pathlib import Path

import pytest
import zstandard

from simic.bus.protocol import Defect, Delivery, Line
from simic.bus.spans import SpanDigest
from simic.bus.spool.bus import SpoolBus
from simic.bus.spool.files import free_name, is_own_fault, named_after
from simic.bus.spool.lines import read_lines
from simic.contracts.errors import ContractError, TransientError
from simic.contracts.results.lake import Span

TOPIC = "tamiyo.field_reports"


@pytest.fixture
def bus(tmp_path: Path) -> SpoolBus:
    return SpoolBus(tmp_path)


def lines(delivery: Delivery) -> list[bytes]:
    return [line.data for line in delivery.open(1000)]


def test_round_trip_in_order_of_names(bus: SpoolBus) -> None:
    bus.put(TOPIC, "b", [b"3"])
    bus.put(TOPIC, "a", [b"1", b"2"])
    assert bus.pending(TOPIC) == 2
    got = []
    for delivery in bus.claim(TOPIC):
        got.append(lines(delivery))
        bus.ack(delivery)
    assert got == [[b"1", b"2"], [b"3"]]
    assert bus.pending(TOPIC) == 0
    assert list(bus.claim(TOPIC)) == []


@pytest.mark.parametrize(
    "frame",
    [b"", struct.pack("<II", 0x184D2A50, 7) + b"no JSON", struct.pack("<II", 0x184D2A50, 2**31)],
    ids=["no frame", "another frame", "a frame longer than the file"],
)
def test_a_file_without_an_envelope_is_read_as_ever(bus: SpoolBus, tmp_path: Path, frame: bytes) -> None:
    """Earlier versions and other programs write such files."""
    incoming = tmp_path / TOPIC / "incoming"
    incoming.mkdir(parents=True)
    (incoming / "old.jsonl.zst").write_bytes(frame + zstandard.compress(b"1\n2\n"))
    (delivery,) = bus.claim(TOPIC)
    found = list(delivery.open(100))
    assert {line.envelope for line in found} == {None}
    is_whole = not frame.endswith(b"\x00\x80")
    assert ([line.data for line in found] == [b"1", b"2"]) is is_whole
    bus.ack(delivery)
    assert bus.set_aside(TOPIC) == ([] if is_whole else ["old.jsonl.zst"])


def test_other_programs_read_a_file_as_lines(bus: SpoolBus, tmp_path: Path) -> None:
    """Any decompressor passes over the envelope, and the same lines put again are the same file."""
    names = {bus.put(TOPIC, "a", [b"1", b"2"], correlation_id=one) for one in ("x", "y")}
    (file,) = (tmp_path / TOPIC / "incoming").iterdir()
    assert names == {file.name}
    with zstandard.open(file, "rb") as stream:
        assert stream.read() == b"1\n2\n"
    (delivery,) = bus.claim(TOPIC)
    assert {line.envelope and line.envelope.correlation_id for line in delivery.open(100)} == {"y"}


def test_unacknowledged_deliveries_come_first_and_under_the_same_name(bus: SpoolBus) -> None:
    source = bus.put(TOPIC, "m", [b"old"])
    assert [delivery.source for delivery in bus.claim(TOPIC)] == [source]
    bus.put(TOPIC, "a", [b"new"])
    again = list(SpoolBus(bus._root).claim(TOPIC))
    assert [lines(delivery) for delivery in again] == [[b"old"], [b"new"]]
    assert again[0].source == source


def test_acknowledging_twice_is_harmless_and_nothing_in_done_is_overwritten(bus: SpoolBus, tmp_path: Path) -> None:
    incoming = tmp_path / TOPIC / "incoming"
    incoming.mkdir(parents=True)
    for content in (b"first\n", b"second\n"):
        (incoming / "mine.jsonl").write_bytes(content)
        for delivery in bus.claim(TOPIC):
            bus.ack(delivery)
            bus.ack(delivery)
    done = sorted((tmp_path / TOPIC / "done").iterdir())
    assert [(path.name, path.read_bytes()) for path in done] == [
        ("mine.jsonl", b"first\n"),
        ("mine~2.jsonl", b"second\n"),
    ]


def test_a_new_file_does_not_overwrite_a_claimed_one_of_its_name(bus: SpoolBus, tmp_path: Path) -> None:
    incoming = tmp_path / TOPIC / "incoming"
    incoming.mkdir(parents=True)
    (incoming / "mine.jsonl").write_bytes(b"first\n")
    assert len(list(bus.claim(TOPIC))) == 1
    (incoming / "mine.jsonl").write_bytes(b"second\n")
    assert [lines(delivery) for delivery in bus.claim(TOPIC)] == [[b"first"], [b"second"]]


def test_putting_the_same_again_is_one_delivery_and_other_lines_another(bus: SpoolBus) -> None:
    assert bus.put(TOPIC, "a", [b"1"]) == bus.put(TOPIC, "a", [b"1"])
    bus.put(TOPIC, "a", [b"2"])
    assert bus.pending(TOPIC) == 2


def test_unfinished_files_are_left_alone_and_foreign_ones_set_aside(bus: SpoolBus, tmp_path: Path) -> None:
    bus.put(TOPIC, "a", [b"1"])
    incoming = tmp_path / TOPIC / "incoming"
    for name in ("x.jsonl.tmp", ".hidden.jsonl", "notes.txt"):
        (incoming / name).write_bytes(b"half")
    (incoming / "link.jsonl").symlink_to("/etc/hostname")
    (incoming / "folder.jsonl").mkdir()
    assert bus.pending(TOPIC) == 4
    found = []
    for delivery in bus.claim(TOPIC):
        found += [(each.data, each.defect) for each in delivery.open(1000)]
        bus.ack(delivery)
    assert found == [(b"1", None), *[(b"", Defect.UNREADABLE)] * 3]
    assert sorted(path.name for path in incoming.iterdir()) == [".hidden.jsonl", "x.jsonl.tmp"]
    aside = sorted(path.name for path in (tmp_path / TOPIC / "aside").iterdir())
    assert aside == ["folder.jsonl", "link.jsonl", "notes.txt"]
    assert bus.pending(TOPIC) == 0


def test_a_name_that_is_no_text_becomes_one(bus: SpoolBus, tmp_path: Path) -> None:
    """PD-5: as it is it cannot be a report's source, and must not keep other files from being read."""
    bus.put(TOPIC, "z", [b"1"])
    for name in (b"bad\xff.jsonl", b"bad\xfe.jsonl", "gut-\u00fc.jsonl".encode()):
        (tmp_path / TOPIC / "incoming" / os.fsdecode(name)).write_bytes(b"2\n")
    deliveries = list(bus.claim(TOPIC))
    assert [lines(delivery) for delivery in deliveries] == [[b"2"], [b"2"], [b"2"], [b"1"]]
    sources = [delivery.source for delivery in deliveries[:3]]
    assert sources[2] == "gut-\u00fc.jsonl" and len(set(sources)) == 3
    assert all(re.fullmatch(r"bad_-[0-9a-f]{16}\.jsonl", source) for source in sources[:2])


def test_what_one_file_is_to_blame_for_and_what_it_is_not(tmp_path: Path) -> None:
    for number, is_own in ((errno.EPERM, True), (errno.EIO, True), (errno.ENOSPC, False), (errno.EMFILE, False)):
        assert is_own_fault(OSError(number, ""), tmp_path) is is_own
    assert not is_own_fault(OSError(errno.EPERM, ""), tmp_path / "gone")


@pytest.mark.parametrize("length", [1, 200, 240, 249])
def test_a_free_name_is_free_and_fits(tmp_path: Path, length: int) -> None:
    name = "\u00fc" * (length // 2) + "m" * (length % 2) + ".jsonl"
    found = []
    for _ in range(12):
        found.append(free_name(name, tmp_path))
        (tmp_path / found[-1]).touch()
    assert len(set(found)) == 12 and found[0] == name
    assert all(each.endswith(".jsonl") for each in found)
    (tmp_path / "another.jsonl").touch()
    assert {path.name for path in named_after(name, tmp_path)} == set(found)


def test_a_numbered_name_that_is_taken_gets_the_next_number(tmp_path: Path) -> None:
    """A number on a number could make a name too long, and then it would no longer tell what it comes from."""
    for name in ("a.jsonl", "a~2.jsonl", "a~9.jsonl"):
        (tmp_path / name).touch()
    assert [free_name(name, tmp_path) for name in ("a.jsonl", "a~2.jsonl", "a~9.jsonl")] == ["a~3.jsonl"] * 3
    for date in ("20240101", "2024"):
        (tmp_path / f"run~{date}.jsonl").touch()
        assert free_name(f"run~{date}.jsonl", tmp_path) == f"run~{date}~2.jsonl", "a date is part of the name"
        assert [path.name for path in named_after(f"run~{date}.jsonl", tmp_path)] == [f"run~{date}.jsonl"]
    assert named_after("run.jsonl", tmp_path) == []


def test_of_more_than_a_thousand_files_of_one_name_none_is_lost(tmp_path: Path) -> None:
    """A plain number of four digits would be taken for a year in the name."""
    for name in ("a.jsonl", *(f"a~{number}.jsonl" for number in range(2, 1000))):
        (tmp_path / name).touch()
    for expected in ("a~999~1.jsonl", "a~999~2.jsonl"):
        assert free_name("a.jsonl", tmp_path) == expected
        (tmp_path / expected).touch()
    assert len(named_after("a.jsonl", tmp_path)) == 1001
    assert free_name("a~999~1.jsonl", tmp_path) == "a~999~3.jsonl"


def test_to_look_for_a_delivery_in_a_folder_that_cannot_be_listed_is_transient(
    bus: SpoolBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / TOPIC / "done").mkdir(parents=True)

    def refuse(_folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TransientError, match=r"list .*done"):
        bus.requeue(TOPIC, "a.jsonl", [Span(first=1, last=1, sha256="0" * 64)])


def test_a_producer_that_fails_midway_publishes_nothing(bus: SpoolBus) -> None:
    def failing() -> object:
        yield b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bus.put(TOPIC, "a", failing())  # type: ignore[arg-type]
    assert bus.pending(TOPIC) == 0


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "a\n"])
def test_names_and_topics_cannot_leave_the_spool(bus: SpoolBus, name: str) -> None:
    with pytest.raises(ContractError):
        bus.put(TOPIC, name, [b"1"])
    with pytest.raises(ContractError):
        bus.put(name, "a", [b"1"])


def test_line_ends_inside_a_line_are_refused(bus: SpoolBus) -> None:
    with pytest.raises(ContractError, match="line end"):
        bus.put(TOPIC, "a", [b"1\n2"])


def test_a_store_that_is_away_is_transient(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TransientError, match="spool"):
        SpoolBus(tmp_path / "file").put(TOPIC, "a", [b"1"])


def test_a_file_that_vanishes_while_it_is_looked_at_is_none(
    bus: SpoolBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer claims while somebody else counts what waits."""
    claimed = tmp_path / TOPIC / "incoming" / bus.put(TOPIC, "a", [b"1"])
    bus.put(TOPIC, "b", [b"2"])
    real = os.scandir

    def slow(folder: Path) -> list[os.DirEntry[str]]:
        entries = list(real(folder))
        claimed.unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(os, "scandir", slow)
    assert bus.pending(TOPIC) == 1


def test_a_folder_that_cannot_be_listed_is_transient(bus: SpoolBus, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "scandir", away)
    with pytest.raises(TransientError, match=r"list .*Input/output error"):
        bus.pending(TOPIC)


def test_what_killed_producers_left_is_removed_after_a_day(bus: SpoolBus, tmp_path: Path) -> None:
    bus.put(TOPIC, "a", [b"1"])
    folder = tmp_path / TOPIC / "tmp"
    hour, now = 3600.0, time.time()
    for name, age in (("dead", 25 * hour), ("slow", 23 * hour)):
        (folder / f"{name}.0a.tmp").write_bytes(b"half")
        os.utime(folder / f"{name}.0a.tmp", (now - age, now - age))
    assert len(list(bus.claim(TOPIC))) == 1
    assert [path.name for path in folder.iterdir()] == ["slow.0a.tmp"]


def test_a_delivery_put_back_comes_again_under_its_name(bus: SpoolBus, tmp_path: Path) -> None:
    source = bus.put(TOPIC, "a", [b"1"])
    assert bus.requeue(TOPIC, source), "it waits already"
    (delivery,) = bus.claim(TOPIC)
    assert bus.claimed(TOPIC) == [source]
    assert bus.requeue(TOPIC, source) and bus.claimed(TOPIC) == []
    (delivery,) = bus.claim(TOPIC)
    bus.ack(delivery)
    assert bus.requeue(TOPIC, source)
    (again,) = bus.claim(TOPIC)
    assert (again.source, lines(again)) == (source, [b"1"])


def test_putting_back_overwrites_nothing_and_leaves_the_spool_alone(bus: SpoolBus, tmp_path: Path) -> None:
    folder = tmp_path / TOPIC
    bus.put(TOPIC, "x", [b"0"])
    (folder / "done").mkdir()
    (folder / "done" / "a.jsonl").write_bytes(b"old\n")
    (folder / "incoming" / "a.jsonl").write_bytes(b"new\n")
    assert bus.requeue(TOPIC, "a.jsonl")
    assert sorted(line for delivery in bus.claim(TOPIC) for line in lines(delivery)) == [b"0", b"new", b"old"]
    for name in ("gone.jsonl", "../x.jsonl", "", "."):
        assert not bus.requeue(TOPIC, name)


def test_lines_are_known_again_with_the_limit_they_were_read_with_and_without_what_was_not_read(
    bus: SpoolBus, tmp_path: Path
) -> None:
    """A limit that was raised meanwhile cuts no line, and a file that was still written is whole by now.

    Its last line, which was refused, may have been unfinished.
    """
    done = tmp_path / TOPIC / "done"
    done.mkdir(parents=True)
    (done / "a.jsonl").write_bytes(b'"a line beyond the limit"\n2\n"whole"\n4\n')
    digest = SpanDigest(10)
    for line, is_accepted in (
        (Line(1, b'"a line be', Defect.TOO_LONG), False), (Line(2, b"2", None), True), (Line(3, b'"wh', None), False),
        (Line(4, b"", Defect.GIVEN_UP), False), (Line(0, b"", Defect.UNREADABLE), False),
    ):  # fmt: skip
        digest.add(line, is_accepted=is_accepted)
    assert (digest.span().first, digest.span().last, digest.span().limit_bytes) == (1, 2, 10)
    other = digest.span().model_copy(update={"sha256": "0" * 64})
    assert not bus.requeue(TOPIC, "a.jsonl", [digest.span(), other])
    assert bus.requeue(TOPIC, "a.jsonl", [digest.span()])


def earlier_span(path: Path, limit_bytes: int) -> Span:
    """A span as earlier versions wrote it: without the limit of a line, but with one at which reading ended."""
    found = list(read_lines(path, limit_bytes))
    content = b"".join(line.data + b"\n" for line in found)
    return Span.model_validate(
        {"first": found[0].number, "last": found[-1].number, "sha256": hashlib.sha256(content).hexdigest()}
    )


def test_spans_of_earlier_ledgers_are_read_with_the_present_limit_of_a_line(bus: SpoolBus, tmp_path: Path) -> None:
    done = tmp_path / TOPIC / "done"
    done.mkdir(parents=True)
    (done / "a.jsonl").write_bytes(b"x" * 300_000 + b"\n")
    span = earlier_span(done / "a.jsonl", 2**20)
    assert not bus.requeue(TOPIC, "a.jsonl", [span]), "by default, longer lines are cut"
    assert bus.requeue(TOPIC, "a.jsonl", [span], limit_bytes=2**20)


def test_spans_of_earlier_ledgers_have_the_line_at_which_reading_ended(bus: SpoolBus, tmp_path: Path) -> None:
    aside = tmp_path / TOPIC / "aside"
    aside.mkdir(parents=True)
    numbers = b"".join(hashlib.sha256(b"%d" % number).hexdigest().encode() + b"\n" for number in range(10_000))
    (aside / "a.jsonl.zst").write_bytes(zstandard.compress(numbers)[:-50_000])
    assert list(read_lines(aside / "a.jsonl.zst", 1000))[-1].defect is Defect.TORN
    span = earlier_span(aside / "a.jsonl.zst", 1000)
    assert not bus.requeue(TOPIC, "a.jsonl.zst", [span.model_copy(update={"last": span.last - 1})])
    assert bus.requeue(TOPIC, "a.jsonl.zst", [span])


def test_a_delivery_is_found_again_under_another_name(bus: SpoolBus, tmp_path: Path) -> None:
    """Its own name was taken by other lines; a second damaged part of it must not be told that it is gone."""
    folder = tmp_path / TOPIC
    for place, lines_of_file in (("done", b"old\n"), ("incoming", b"new\n")):
        (folder / place).mkdir(parents=True)
        (folder / place / "a.jsonl").write_bytes(lines_of_file)
    digest = SpanDigest(100)
    digest.add(Line(1, b"old", None), is_accepted=True)

    def names(place: str) -> list[str]:
        return sorted(path.name for path in (folder / place).iterdir())

    assert bus.requeue(TOPIC, "a.jsonl", [digest.span()])
    assert names("incoming") == ["a.jsonl", "a~2.jsonl"]
    assert bus.requeue(TOPIC, "a.jsonl", [digest.span()]), "it waits already"
    for delivery in bus.claim(TOPIC):
        bus.ack(delivery)
    assert names("done") == ["a.jsonl", "a~2.jsonl"]
    assert bus.requeue(TOPIC, "a.jsonl", [digest.span()]), "it was ingested in between"
    assert (names("done"), names("incoming")) == (["a.jsonl"], ["a~2.jsonl"])
    (folder / "incoming" / "a~2.jsonl").rename(folder / "incoming" / "a.jsonl")
    assert bus.requeue(TOPIC, "a~2.jsonl", [digest.span()]), "rows that landed from the other name"
    (folder / "incoming" / "a.jsonl").unlink()
    assert not bus.requeue(TOPIC, "a.jsonl", [digest.span()])


def test_whoever_only_looks_makes_no_folder(bus: SpoolBus, tmp_path: Path) -> None:
    assert (bus.pending(TOPIC), bus.claimed(TOPIC), bus.newest(TOPIC), bus.counters(TOPIC).lag) == (0, [], None, 0)
    assert bus.status(TOPIC).length == 0 and list(bus.dead_letters(TOPIC)) == []
    assert not bus.requeue(TOPIC, "a.jsonl")
    assert list(tmp_path.iterdir()) == []
