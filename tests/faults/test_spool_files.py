"""Whatever a producer or a stray process drops into the spool: one file never stops the others, and none is lost.

Each intruder lies between two good files. Both land in the same ingest, the intruder is set aside with its reason or
lands as well, and the next ingest finds nothing to do.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard
from support.builders.reports import episode, line
from support.checks.lake_contents import report_ids
from support.homes.pipeline import TOPIC, drop, ingest_all

from simic.bus.protocol import Defect
from simic.bus.spool.bus import ABANDONED_S, SpoolBus
from simic.bus.spool.lines import FileLimits
from simic.catalogue.query import query
from simic.runtime.home import Home

ROWS = b"".join(line(report) + b"\n" for report in episode(3))
LONGEST = "m" * (255 - len(".jsonl")) + ".jsonl"
NOBODY = 65534

Make = Callable[[Path], object]


class Intruder(NamedTuple):
    """A file among good ones, and what must become of it."""

    make: Make
    """Puts it into the folder."""
    reason: str | None = None
    """Of its row in the quarantine; None if its 20 reports land."""
    message: str = ""
    """Part of that row's message."""
    landed: int = 0
    """Reports that land nevertheless."""


def file(name: str | bytes, data: bytes = ROWS) -> Make:
    return lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(name))).write_bytes(data)


def packed(data: bytes, **settings: Any) -> bytes:
    return zstandard.ZstdCompressor(**settings).compress(data)


def taken_before(name: str, *folders: str) -> Make:
    """A file whose name is taken already by other files on their way."""

    def make(folder: Path) -> None:
        for other in folders:
            folder.with_name(other).mkdir(exist_ok=True)
            folder.with_name(other).joinpath(name).write_bytes(b"")
        (folder / name).write_bytes(ROWS)

    return make


def sparse(folder: Path) -> None:
    with (folder / "m.jsonl").open("wb") as made:
        made.truncate(1 << 40)


def socket_at(folder: Path) -> None:
    here = Path.cwd()
    os.chdir(folder)  # a socket's address has room for 108 bytes only
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind("m.jsonl")
    finally:
        os.chdir(here)


def folder_with_reports(folder: Path) -> None:
    (folder / "m.jsonl").mkdir()
    (folder / "m.jsonl" / "inner.jsonl").write_bytes(ROWS)


def bomb(data: bytes, mib: int) -> Make:
    """``mib`` MiB of the same few bytes over and over, in some kB."""

    def make(folder: Path) -> None:
        with zstandard.ZstdCompressor().stream_writer((folder / "m.jsonl.zst").open("wb")) as writer:
            writer.write(ROWS)
            for _ in range(mib):
                writer.write(data * ((1 << 20) // len(data)))

    return make


def wide_window(folder: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with compressor.stream_writer((folder / "m.jsonl.zst").open("wb")) as writer:
        writer.write(ROWS)


SIX_FRAMES = b"".join(packed(ROWS[at : at + len(ROWS) // 5]) for at in range(0, len(ROWS), len(ROWS) // 5))

INTRUDERS: dict[str, Intruder] = {
    "a name of 255 bytes": Intruder(file(LONGEST)),
    "a name of 254 bytes that is in done": Intruder(taken_before(LONGEST[1:], "done")),
    "a name of 255 bytes that is in done and aside": Intruder(taken_before(LONGEST, "done", "aside")),
    "a name in done": Intruder(taken_before("m.jsonl", "done")),
    "a name that is no UTF-8": Intruder(file(b"m\xff\xfe.jsonl")),
    "a name of 255 bytes that is no UTF-8": Intruder(file(b"m" + b"\xff" * 248 + b".jsonl")),
    "a name of many lines": Intruder(file("m\nm\r\n.jsonl")),
    "a name that writes backwards": Intruder(file("m\u202elnosj.jsonl")),
    "a name that clears the screen": Intruder(file("m\x1b[2J\x07.jsonl")),
    "a name that is a flag": Intruder(file("--help.jsonl")),
    "a name with a shell's letters": Intruder(file("m $(reboot) `id` ; * ? ' \".jsonl")),
    "a name that looks upwards": Intruder(file("m..%2f..\\..\\etc.jsonl")),
    "nothing but the ending": Intruder(file(" .jsonl")),
    "another ending": Intruder(file("m.txt"), "unreadable", "expected a name that ends in .jsonl or"),
    "another ending on the longest name": Intruder(file("m" * 255), "unreadable", "expected a name that ends in"),
    "gzip": Intruder(file("m.jsonl.gz", b"\x1f\x8b"), "unreadable", "expected a name that ends in"),
    "gzip by the name of a plain file": Intruder(
        file("m.jsonl", gzip.compress(ROWS)), "unreadable", "found gzip: decompress it with gunzip; set aside as"
    ),
    "a directory": Intruder(folder_with_reports, "unreadable", "expected a regular file, found a directory"),
    "a link to a file outside": Intruder(
        lambda folder: (folder / "m.jsonl").symlink_to("/etc/passwd"), "unreadable", "found a symbolic link"
    ),
    "a link to nowhere": Intruder(
        lambda folder: (folder / "m.jsonl").symlink_to("nowhere"), "unreadable", "found a symbolic link"
    ),
    "a link to itself": Intruder(
        lambda folder: (folder / "m.jsonl").symlink_to("m.jsonl"), "unreadable", "found a symbolic link"
    ),
    "a link to a good file": Intruder(
        lambda folder: (folder / "m.jsonl").symlink_to("a.jsonl"), "unreadable", "found a symbolic link"
    ),
    "a pipe": Intruder(lambda folder: os.mkfifo(folder / "m.jsonl"), "unreadable", "found a pipe"),
    "a socket": Intruder(socket_at, "unreadable", "found a socket"),
    "a second name of a good file": Intruder(
        lambda folder: (folder / "m.jsonl").hardlink_to(folder / "a.jsonl"), "duplicate", "landed before from a.jsonl"
    ),
    "an empty file": Intruder(file("m.jsonl", b"")),
    "an empty packed file": Intruder(file("m.jsonl.zst", b""), "torn", "expected the end of a zstd frame"),
    "no zstd": Intruder(file("m.jsonl.zst"), "torn", "Unknown frame descriptor"),
    "a packed file that breaks off": Intruder(
        file("m.jsonl.zst", packed(ROWS, write_checksum=True)[:-2]), "torn", "expected the end of a zstd frame", 20
    ),
    "many frames": Intruder(file("m.jsonl.zst", SIX_FRAMES)),
    "empty frames without end": Intruder(
        file("m.jsonl.zst", packed(ROWS) + packed(b"") * 120_000), "given_up", "expected at most 100000 lines", 20
    ),
    "a window of 128 MiB": Intruder(wide_window, "torn", "too much memory"),
    "a terabyte of nothing": Intruder(sparse, "given_up", "(ingest.max_file_mb), found 1099511627776"),
    "a bomb of one line": Intruder(bomb(b"[", 64), "given_up", "bytes unpacked (ingest.max_file_mb)", 20),
    "a bomb of empty lines": Intruder(bomb(b"\n", 64), "given_up", "expected at most", 20),
    "a bomb of blanks": Intruder(bomb(b" \n", 64), "given_up", "expected at most", 20),
}  # fmt: skip
LANDS = {name: each for name, each in INTRUDERS.items() if each.reason is None}
STAYS_OUT = {name: each for name, each in INTRUDERS.items() if each.reason is not None}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def incoming(home: Home) -> Path:
    folder = home.spool / TOPIC / "incoming"
    folder.mkdir(parents=True)
    return folder


def refusals(home: Home) -> list[dict[str, Any]]:
    return query(home, "SELECT source, line, reason, message FROM quarantine")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def ingest_between(home: Home, incoming: Path, make: Make, **settings: Any) -> int:
    """Good files around the intruder; how many reports of it landed."""
    drop(home, "a", episode(1))
    drop(home, "z", episode(2))
    make(incoming)
    receipt = ingest_all(home, **{"max_file_mb": 16, **settings})
    good = {report.report_id for key in (1, 2) for report in episode(key)}
    assert good <= set(report_ids(home))
    assert names(incoming) == names(incoming.with_name("claimed")) == []
    again = ingest_all(home, **settings)
    assert (again.read, again.quarantined, again.retried, again.lag) == (0, 0, 0, 0), "the next ingest is clean"
    return receipt.landed - len(good)


@pytest.mark.parametrize("name", LANDS)
def test_pd5_a_good_file_with_an_odd_name_lands(home: Home, incoming: Path, name: str) -> None:
    landed = ingest_between(home, incoming, INTRUDERS[name].make)
    assert landed == (0 if name == "an empty file" else 20)
    assert refusals(home) == []
    assert all(row["source"].isprintable() for row in query(home, "SELECT DISTINCT source FROM reports"))
    assert all(len(os.fsencode(each)) <= 255 for each in names(incoming.with_name("done")))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", STAYS_OUT)
def test_pd5_a_bad_file_is_set_aside_with_its_reason_and_the_others_land(home: Home, incoming: Path, name: str) -> None:
    intruder = INTRUDERS[name]
    assert ingest_between(home, incoming, intruder.make) == intruder.landed
    rows = [row for row in refusals(home) if row["reason"] == intruder.reason]
    assert len(rows) == (20 if intruder.reason == "duplicate" else 1)
    assert intruder.message in rows[0]["message"]
    if intruder.reason == "duplicate":
        assert names(incoming.with_name("done")) == ["a.jsonl", "m.jsonl", "z.jsonl"]
        return
    assert f"set aside as {TOPIC}/aside/{rows[0]['source']}" in rows[0]["message"]
    assert names(incoming.with_name("aside")) == [rows[0]["source"]]
    assert names(incoming.with_name("done")) == ["a.jsonl", "z.jsonl"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.timeout(60)
def test_pd5_a_device_node_is_set_aside(home: Home, incoming: Path) -> None:
    """Read, this one would give bytes for ever."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(Path(folder) / "probe", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("device nodes are forbidden here")
    zero = stat.S_IFCHR | 0o666, os.makedev(1, 5)
    assert ingest_between(home, incoming, lambda folder: os.mknod(folder / "m.jsonl", *zero)) == 0
    assert "found a character device" in refusals(home)[0]["message"]


def test_pd5_garbage_without_end_costs_a_bounded_number_of_refusals(home: Home, incoming: Path) -> None:
    """Each line of a bomb of garbage would be judged and kept with its reason, for hours."""
    assert ingest_between(home, incoming, bomb(b"{}\n", 8), max_file_refusals=500, batch_reports=100) == 20
    reasons = query(home, "SELECT reason, count(*) AS lines FROM quarantine GROUP BY ALL ORDER BY ALL")
    assert reasons == [{"reason": "contract", "lines": 501}, {"reason": "given_up", "lines": 1}]
    assert names(incoming.with_name("aside")) == ["m.jsonl.zst"]


def test_pd5_a_line_of_gigabytes_is_cut_and_the_lines_around_it_land(home: Home, incoming: Path) -> None:
    def make(folder: Path) -> None:
        rows = ROWS.splitlines(keepends=True)
        with zstandard.ZstdCompressor().stream_writer((folder / "m.jsonl.zst").open("wb")) as writer:
            writer.write(b"".join(rows[:10]))
            for _ in range(1024):
                writer.write(b"[" * (1 << 20))
            writer.write(b"\n" + b"".join(rows[10:]))

    assert ingest_between(home, incoming, make, max_file_mb=2048) == 20
    assert [(row["line"], row["reason"]) for row in refusals(home)] == [(11, "too_long")]


def test_pd5_a_slow_file_does_not_hold_up_the_others(home: Home, incoming: Path) -> None:
    """Its time is over before its first block: what stands for a share that gives a byte a second."""
    settings = {"max_file_s": 1e-9}
    drop(home, "m", episode(1))
    receipt = ingest_all(home, **settings)
    assert (receipt.landed, receipt.reasons) == (0, {"given_up": 1})
    (incoming.with_name("aside") / "m.jsonl").rename(incoming / "m.jsonl")
    assert ingest_all(home).landed == 20, "put back with time enough it lands"


def test_pd5_what_was_set_aside_lands_once_its_fault_is_mended(home: Home, incoming: Path) -> None:
    assert ingest_between(home, incoming, INTRUDERS["a packed file that breaks off"].make) == 20
    aside = incoming.with_name("aside")
    (aside / "m.jsonl.zst").write_bytes(packed(ROWS))
    (aside / "m.jsonl.zst").rename(incoming / "m.jsonl.zst")
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.duplicate, receipt.quarantined) == (0, 20, 0)


def test_pd5_a_killed_ingest_sets_the_file_aside_at_its_next_start(home: Home, incoming: Path) -> None:
    """Killed between claim and acknowledgement: the reason is found again, in the file itself."""
    (incoming / "m.jsonl").mkdir()
    assert len(list(SpoolBus(home.spool).claim(TOPIC))) == 1
    assert names(incoming.with_name("claimed")) == ["m.jsonl"]
    assert ingest_all(home).reasons == {"unreadable": 1}
    assert names(incoming.with_name("aside")) == ["m.jsonl"]


def test_pd5_strangers_among_the_claimed_files_are_treated_like_others(home: Home, incoming: Path) -> None:
    claimed = incoming.with_name("claimed")
    claimed.mkdir()
    file(b"b\xff.jsonl")(claimed)
    (claimed / "c.jsonl").mkdir()
    assert ingest_between(home, incoming, lambda _: None) == 20
    assert [row["reason"] for row in refusals(home)] == ["unreadable"]


def test_pd5_copies_in_progress_are_left_alone_for_a_day(
    home: Home, incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = [".m.jsonl", ".m.jsonl.Xa1B2c", "m.jsonl.part", "m.jsonl.tmp"]
    for name in unfinished:
        (incoming / name).write_bytes(ROWS)
    assert ingest_all(home).read == 0
    assert names(incoming) == unfinished
    later = time.time() + ABANDONED_S + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert ingest_all(home).reasons == {"unreadable": 4}
    assert names(incoming) == []
    assert names(incoming.with_name("aside")) == unfinished
    assert "copy in progress" in refusals(home)[0]["message"]


def test_pd5_a_file_that_vanishes_between_listing_and_claiming_is_none(home: Home, incoming: Path) -> None:
    for name in ("a", "b", "c"):
        (incoming / f"{name}.jsonl").write_bytes(b"1\n")
    deliveries = SpoolBus(home.spool).claim(TOPIC)
    assert next(deliveries).source == "a.jsonl"
    (incoming / "b.jsonl").unlink()
    assert [delivery.source for delivery in deliveries] == ["c.jsonl"]


def test_pd5_a_file_that_vanishes_after_it_was_claimed_is_told(home: Home, incoming: Path) -> None:
    (incoming / "m.jsonl").write_bytes(ROWS)
    (delivery,) = SpoolBus(home.spool).claim(TOPIC)
    (incoming.with_name("claimed") / "m.jsonl").unlink()
    (found,) = delivery.open(1000)
    assert found.defect is Defect.UNREADABLE and "vanished" in found.note


def test_pd5_a_file_that_grows_while_it_is_read_is_set_aside_whole(home: Home, incoming: Path) -> None:
    """Its producer still writes; moved to done, what it adds would be lost without a word."""
    drop(home, "a", episode(1))
    bus = SpoolBus(home.spool)
    (delivery,) = bus.claim(TOPIC)
    with (incoming.with_name("claimed") / "a.jsonl").open("ab") as producer:
        lines = delivery.open(100_000)
        next(lines)
        producer.write(ROWS)
        producer.flush()
        assert list(lines)[-1].defect is Defect.GIVEN_UP
        bus.ack(delivery)
    assert names(incoming.with_name("aside")) == ["a.jsonl"]
    assert bus.requeue(TOPIC, "a.jsonl")
    assert ingest_all(home).landed == 40


def as_nobody(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a process without root's rights."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(told)


@pytest.fixture
def open_spool() -> Iterator[Path]:
    """A spool that everybody may write to; pytest's own folders are its user's alone."""
    root = Path(tempfile.mkdtemp())
    try:
        for name in ("tmp", "incoming", "claimed", "done", "aside"):
            (root / TOPIC / name).mkdir(parents=True)
            (root / TOPIC / name).chmod(0o777)
        for folder in (root, root / TOPIC):
            folder.chmod(0o777)
        yield root
    finally:
        shutil.rmtree(root)


def consume(root: Path) -> list[list[Any]]:
    """Claims, reads and acknowledges everything."""
    bus, found = SpoolBus(root, FileLimits()), []
    for delivery in bus.claim(TOPIC):
        found += [
            [delivery.source, each.number, each.defect and each.defect.value, each.note] for each in delivery.open(99)
        ]
        bus.ack(delivery)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are not its user's")
def test_pd5_a_file_that_may_not_be_read_is_set_aside(open_spool: Path) -> None:
    incoming = open_spool / TOPIC / "incoming"
    for name in ("a", "m", "z"):
        (incoming / f"{name}.jsonl").write_bytes(b"1\n")
    (incoming / "m.jsonl").chmod(0o600)
    found = as_nobody(lambda: [consume(open_spool), consume(open_spool)])
    note = f"expected permission to read it, found mode 0600 for user {NOBODY}; set aside as {TOPIC}/aside/m.jsonl"
    told = [["a.jsonl", 1, None, ""], ["m.jsonl", 0, "unreadable", note], ["z.jsonl", 1, None, ""]]
    assert found == [told, []]
    assert names(incoming.with_name("aside")) == ["m.jsonl"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are not its user's")
def test_pd5_a_file_that_may_not_be_moved_stays_and_is_told_of(open_spool: Path) -> None:
    """In a folder like /tmp nobody moves what is another's."""
    incoming = open_spool / TOPIC / "incoming"
    for name in ("a", "m", "z"):
        (incoming / f"{name}.jsonl").write_bytes(b"1\n")
    for name in ("a", "z"):
        os.chown(incoming / f"{name}.jsonl", NOBODY, NOBODY)
    incoming.chmod(0o1777)
    found = as_nobody(lambda: consume(open_spool))
    note = f"it cannot be claimed: Operation not permitted; it stays as {TOPIC}/incoming/m.jsonl"
    assert found == [["a.jsonl", 1, None, ""], ["m.jsonl", 0, "unreadable", note], ["z.jsonl", 1, None, ""]]
    assert names(incoming) == ["m.jsonl"]
