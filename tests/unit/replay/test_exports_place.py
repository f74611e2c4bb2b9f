"""An export is there whole or not at all, and never mixes with what is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from simic.contracts.errors import ConfigError, TransientError
from simic.replay.exporting import new_folder


def test_it_appears_at_once_and_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with new_folder(out) as folder:
        (folder / "below").mkdir()
        (folder / "below" / "file").write_bytes(b"x")
        assert not out.exists()
    assert (out / "below" / "file").read_bytes() == b"x"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_an_empty_folder_is_taken_and_a_full_one_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as folder:
        (folder / "file").touch()
    assert (tmp_path / "empty" / "file").exists()
    with pytest.raises(ConfigError, match="exists already"), new_folder(tmp_path / "empty"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="exists already"), new_folder(tmp_path / "file"):
        pass
    assert (tmp_path / "empty" / "file").exists()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_files_are_for_whom_the_umask_says_however_they_were_written(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with new_folder(tmp_path / "out") as folder:
            save_file({"x": torch.zeros(1)}, folder / "a.safetensors")
            (folder / "below").mkdir()
            (folder / "below" / "mine").touch(0o600)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name: path.stat().st_mode & 0o777 for path in files} == {"a.safetensors": mode, "mine": mode}


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "out") as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_worth_another_try(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="No space"), new_folder(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_swept_away_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from simic.replay.exporting import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", code, out], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    with new_folder(out) as folder:
        (folder / "whole").touch()
    assert [path.name for path in out.iterdir()] == ["whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
