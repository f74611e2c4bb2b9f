"""Atomic and durable writes, digests, and the errors of a full disk."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simic.cli.console import errors_become_exit_codes
from simic.contracts.errors import TransientError
from simic.runtime.files import (
    atomic_dir,
    atomic_file,
    atomic_write,
    create_once,
    disk_full_as_transient,
    move_to_damaged,
    publish_dir,
    sha256_file,
    unfinished_files,
)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_says_what_and_what_to_do(code: int) -> None:
    with pytest.raises(TransientError, match=f"{os.strerror(code)}: /some/file; make space"), disk_full_as_transient():
        raise OSError(code, os.strerror(code), "/some/file")


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), OSError("odd"), ZeroDivisionError()])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, disk_full_as_transient():
        raise error
    assert caught.value is error


def test_a_command_that_finds_no_room_ends_with_exit_code_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For real: this device is always full."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        Path("/dev/full").write_text("x")
    assert ended.value.code == TransientError.exit_code
    assert capsys.readouterr().err.startswith("TransientError: No space left on device; make space")


def test_a_write_that_fails_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    atomic_write(tmp_path / "x" / "y", b"old")
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "x" / "y") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert (tmp_path / "x" / "y").read_bytes() == b"old"
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["y"]


@pytest.mark.parametrize("durable", [True, False])
def test_content_and_name_are_synced_exactly_if_the_write_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(stat.S_ISDIR(os.fstat(file).st_mode)), real(file)))
    atomic_write(tmp_path / "y", b"new", durable=durable)
    assert (tmp_path / "y").read_bytes() == b"new"
    assert synced == ([False, True] if durable else []), "the content before the name"


def test_a_file_that_is_created_once_is_synced_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(stat.S_ISDIR(os.fstat(file).st_mode)), real(file)))
    create_once(tmp_path / "key", b"1")
    assert synced == [False, True]


def test_a_published_directory_syncs_its_own_files_and_not_links_to_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part").write_bytes(b"published before")
    built = tmp_path / "built"
    built.mkdir()
    (built / "own").write_bytes(b"new")
    (built / "link").hardlink_to(tmp_path / "part")
    numbers = {(built / name).stat().st_ino: name for name in ("own", "link")} | {built.stat().st_ino: "built"}
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), real(file)))
    publish_dir(built, tmp_path / "target")
    assert [numbers.get(number, "parent") for number in synced] == ["own", "built", "parent"]


def test_a_written_file_has_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic_write(tmp_path / "asked", b"", mode=0o640)
        atomic_write(tmp_path / "usual", b"")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("asked", "usual")] == [0o640, 0o600]


def test_a_directory_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_dir(tmp_path / "made") as folder:
        (folder / "half").touch()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with atomic_dir(tmp_path / "made") as folder:
        assert not (tmp_path / "made").exists()
        (folder / "one").write_bytes(b"1")
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "one"]


def test_a_directory_never_replaces_one_that_holds_something(tmp_path: Path) -> None:
    for name in ("built", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError, match="not empty"):
        publish_dir(tmp_path / "built", tmp_path / "target")
    assert (tmp_path / "target" / "file").read_text() == "target"


def test_file_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "x").write_bytes(content)
    assert sha256_file(tmp_path / "x") == hashlib.sha256(content).hexdigest()


def test_what_is_damaged_moves_beside_its_folder_under_a_name_of_its_own(tmp_path: Path) -> None:
    moved = []
    for _ in range(2):
        (tmp_path / "snapshots" / "abc").mkdir(parents=True)
        moved.append(move_to_damaged(tmp_path / "snapshots" / "abc"))
    assert moved[0] != moved[1]
    assert sorted(moved) == sorted((tmp_path / "damaged").iterdir())


@pytest.mark.parametrize("write", [create_once, atomic_write])
def test_what_a_killed_write_leaves_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for skipped in ("a", "b"):
        (tmp_path / skipped).mkdir()
        monkeypatch.setattr("pathlib.Path.replace", stop)
        monkeypatch.setattr("pathlib.Path.hardlink_to", stop)
        monkeypatch.setattr("pathlib.Path.unlink", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / skipped / "x.json", b"")
        monkeypatch.undo()
    (tmp_path / "a" / ".hidden.tmp").write_bytes(b"")
    (tmp_path / "a" / ".y.0123456789ab.tmp").symlink_to("nowhere")
    (found,) = unfinished_files(tmp_path, {tmp_path / "b"})
    assert found.parent == tmp_path / "a" and found.name.startswith(".x.json.")
