"""Verbs say what they do while Prefect or PyTorch loads, on stderr and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.builders.profiles import write_tiny_profile
from support.servers.forked_commands import run_command

from simic.runtime.home import Home

SAID = "loading the flow and starting Prefect's server"


@contextmanager
def _run(profile: Path, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [Path(sys.executable).with_name("simic"), "run", "--profile", profile, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=os.environ | {"TERM": "xterm"})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _no_server_yet(home: Path) -> bool:
    log = home / ".run" / "run-server.log"
    return not (home / ".prefect" / "prefect.db").exists() and (not log.exists() or log.read_text() == "")


def _stdout_of_killed(process: subprocess.Popen[bytes]) -> bytes:
    process.kill()
    assert process.stdout is not None
    return process.stdout.read()


def _read_until(read: Callable[[], bytes], text: str) -> bytes:
    seen = b""
    while text.encode() not in seen:
        chunk = read()
        assert chunk, seen
        seen += chunk
    return seen


def test_into_a_file_it_is_a_line_before_anything_is_loaded(tmp_path: Path, home: Path) -> None:
    with _run(write_tiny_profile(tmp_path / "tiny.toml"), subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().decode() == f"{SAID}\n"
        assert _no_server_yet(home)
        assert _stdout_of_killed(process) == b""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_on_a_terminal_it_is_a_spinner(tmp_path: Path, home: Path) -> None:
    ours, theirs = os.openpty()
    try:
        with _run(write_tiny_profile(tmp_path / "tiny.toml"), theirs) as process:
            seen = _read_until(lambda: os.read(ours, 1000), SAID)
            assert b"\x1b[?25l" in seen  # the cursor is hidden while it spins
            assert _stdout_of_killed(process) == b""
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    "call", ["train", "validate", "promote", "evaluate wait", "export nobody --torch-export x.pt2"]
)
def test_a_verb_that_loads_pytorch_says_so_first(call: str, home: Path) -> None:
    Home(home).create()
    done = run_command(*call.split(), "--json", cwd=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("loading PyTorch, which takes seconds\nConfigError: ")


@pytest.mark.parametrize("verb", ["ab", "compare"])
def test_a_plot_that_cannot_be_drawn_is_refused_before_pytorch_loads(verb: str, home: Path) -> None:
    Home(home).create()
    done = run_command(verb, "quick", "quick -o train.distil_passes=2", "--plot", "pairs.jpg")
    assert (done.returncode, done.stderr) == (
        2, "ConfigError: --plot expects the name of a .png file, found 'pairs.jpg'\n"
    )  # fmt: skip


def test_a_picture_of_a_collection_is_refused_before_pytorch_loads(home: Path) -> None:
    done = run_command("collect", "--plot", "hosts.jpg")
    assert done.stderr == "ConfigError: --plot expects the name of a .png file, found 'hosts.jpg'\n"
    assert not home.exists(), "nothing was done"
