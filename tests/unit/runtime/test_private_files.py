"""Secrets are created once, whole, for their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from simic.contracts.errors import ConfigError
from simic.runtime.files import create_once
from simic.runtime.private_files import private_directory, read_private, write_private


@pytest.fixture(autouse=True)
def _generous_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_for_its_owner_whatever_the_umask(tmp_path: Path) -> None:
    create_once(tmp_path / "created", b"one")
    write_private(tmp_path / "written", b"one")
    private_directory(tmp_path / "new" / "folder")
    (tmp_path / "old").mkdir(mode=0o777)
    private_directory(tmp_path / "old")
    assert [_mode(tmp_path / name) for name in ("created", "written")] == [0o600, 0o600]
    assert [_mode(tmp_path / name) for name in ("new/folder", "old")] == [0o700, 0o700]


def test_who_comes_second_finds_the_first_secret(tmp_path: Path) -> None:
    create_once(tmp_path / "secret", b"first")
    create_once(tmp_path / "secret", b"second")
    assert read_private(tmp_path / "secret", "the secret", 100) == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o601])
def test_a_secret_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    create_once(tmp_path / "secret", b"first")
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(ConfigError, match=f"the secret .*found mode {mode:04o}"):
        read_private(tmp_path / "secret", "the secret", 100)


def test_a_secret_behind_a_link_is_refused(tmp_path: Path) -> None:
    create_once(tmp_path / "elsewhere", b"first")
    (tmp_path / "secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot read the secret"):
        read_private(tmp_path / "secret", "the secret", 100)


def test_a_named_pipe_in_the_place_of_a_secret_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "secret", 0o600)
    with pytest.raises(ConfigError, match="must be a plain file"):
        read_private(tmp_path / "secret", "the secret", 100)
