"""Checked once, checked again after any change, and trusted on nobody's word but the file system's."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from simic.contracts.errors import IntegrityError
from simic.lake import verified_files as sealed
from simic.lake.verified_files import VerifiedFile, verify_cached


@pytest.fixture
def files(tmp_path: Path) -> list[VerifiedFile]:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 100)
        made.append(VerifiedFile(tmp_path / name, hashlib.sha256(name.encode() * 100).hexdigest(), 100))
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose bytes were read."""
    seen: list[str] = []
    real = sealed._check

    def check(file: VerifiedFile, advice: str) -> None:
        seen.append(file.path.name)
        real(file, advice)

    monkeypatch.setattr(sealed, "_check", check)
    return seen


def test_what_did_not_change_is_read_once(files: list[VerifiedFile], tmp_path: Path, read: list[str]) -> None:
    for _ in range(3):
        verify_cached(files, tmp_path / "notes", "help")
    assert read == ["a", "b"]
    (tmp_path / "b").write_bytes(b"b" * 100)
    verify_cached(files, tmp_path / "notes", "help")
    assert read == ["a", "b", "b"], "whole, but written to"


def test_an_old_time_stamp_hides_no_change(files: list[VerifiedFile], tmp_path: Path) -> None:
    """As tools that copy leave it, or somebody who means it: the file system's own stamp cannot be set back."""
    verify_cached(files, tmp_path / "notes", "help")
    status = (tmp_path / "b").stat()
    (tmp_path / "b").write_bytes(b"c" * 100)
    os.utime(tmp_path / "b", ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(IntegrityError, match=r"/b: expected SHA-256 .* help"):
        verify_cached(files, tmp_path / "notes", "help")


def test_a_damaged_file_is_refused_each_time(files: list[VerifiedFile], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"short")
    for _ in range(2):
        with pytest.raises(IntegrityError, match="/a: expected 100 bytes, found 5; help"):
            verify_cached(files, tmp_path / "notes", "help")


def test_another_promise_about_the_same_file_is_checked(files: list[VerifiedFile], tmp_path: Path) -> None:
    verify_cached(files, tmp_path / "notes", "help")
    with pytest.raises(IntegrityError, match="expected SHA-256 0000"):
        verify_cached([files[0]._replace(sha256="0" * 64)], tmp_path / "notes", "help")


@pytest.mark.parametrize("notes", [b"", b"[1]", b'{"torn', b"\xff"])
def test_notes_that_make_no_sense_are_no_notes(
    files: list[VerifiedFile], tmp_path: Path, read: list[str], notes: bytes
) -> None:
    (tmp_path / "notes").write_bytes(notes)
    verify_cached(files, tmp_path / "notes", "help")
    assert read == ["a", "b"]


def test_notes_that_cannot_be_written_cost_time_only(
    files: list[VerifiedFile], tmp_path: Path, read: list[str]
) -> None:
    (tmp_path / "notes").mkdir()
    verify_cached(files, tmp_path / "notes", "help")
    verify_cached(files, tmp_path / "notes", "help")
    assert read == ["a", "b"] * 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a", "b"]
