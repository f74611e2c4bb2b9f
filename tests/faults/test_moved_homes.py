"""A home is copied and moved while a run in it is unfinished: everything goes on, and the old place stays as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.builders.profiles import write_tiny_profile
from support.checks.files import bytes_of
from support.servers.forked_commands import run_command

from simic.app.prefect_results import results_elsewhere
from simic.contracts.errors import GateRejectedError
from simic.registry.locations import locations
from simic.runtime.home import Home

SIMIC = Path(sys.executable).with_name("simic")
ODD = "o?d #%41*[x]\n'é"
KILLED_BY_THEN_S = 240.0
pytestmark = pytest.mark.timeout(900)  # two runs of everything are dear on a machine with other work


class Copied:
    """A home in which a run was killed, and its copy in which the same command was given again."""

    def __init__(self, folder: Path) -> None:
        self.profile = write_tiny_profile(folder / "tiny.toml", rounds=0, horizon=6, min_experiences=20)
        self.original, self.copy = Home(folder / "original"), Home(folder / ODD)
        self.kill_a_run(self.original)
        self.before = bytes_of(self.original.root)
        subprocess.run(["cp", "-a", str(self.original.root), str(self.copy.root)], check=True)
        command = [SIMIC, "run", "--profile", str(self.profile)]
        self.resumed = subprocess.run(command, env=_environment(self.copy), capture_output=True, text=True, check=False)

    def simic(self, home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, env=_environment(home))

    def kill_a_run(self, home: Home) -> None:
        """As soon as a policy was trained: the stages after it have not begun."""
        command = [SIMIC, "run", "--profile", str(self.profile)]
        running = subprocess.Popen(
            command, env=_environment(home), start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + KILLED_BY_THEN_S
        while not any(map(_is_json, (home.prefect / "storage").glob("train-*"))):
            assert running.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        while _is_at_work(home):  # its server ends with it, and writes a little until then
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _is_json(path: Path) -> bool:
    """Whether Prefect has written all of a result, which it does in place."""
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def _is_at_work(home: Home) -> bool:
    """Whether a process was started for this home and has not ended."""
    mark = b"SIMIC_HOME=" + os.fsencode(home.root) + b"\0"
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes():
                return True
    return False


def _environment(home: Home) -> dict[str, str]:
    names = ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_PROFILE")
    return {name: value for name, value in os.environ.items() if name not in names} | {"SIMIC_HOME": str(home.root)}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copied]:
    yield Copied(tmp_path_factory.mktemp("moved"))


def lines(home: Home, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home.ledger / name).read_text("utf-8").splitlines()]


def receipts(home: Home, stage: str) -> int:
    return len(list((home.receipts / stage).glob("*.json")))


def test_a_killed_run_goes_on_in_a_copy_and_repeats_no_stage(copied: Copied) -> None:
    assert copied.resumed.returncode == GateRejectedError.exit_code, copied.resumed.stderr
    assert "doing it again" not in copied.resumed.stderr
    assert [line["event"] for line in lines(copied.copy, "runs.jsonl")] == ["OPENED", "RESUMED", "CLOSED"]
    assert [receipts(copied.copy, stage) for stage in ("collect", "ingest", "curate", "train", "validate")] == [1] * 5
    assert f"Policy: {copied.copy.policies}/" in copied.resumed.stdout


def test_the_original_keeps_every_byte(copied: Copied) -> None:
    assert bytes_of(copied.original.root) == copied.before


def test_nothing_of_the_copy_points_to_the_original(copied: Copied) -> None:
    move = lines(copied.copy, "moves.jsonl")[-1]
    assert (move["source"], move["target"]) == (str(copied.original.root), str(copied.copy.root))
    assert move["prefect"] > 0
    assert (locations(copied.copy), results_elsewhere(copied.copy)) == ([], [])
    old = str(copied.original.root).encode()
    named = [path for path in copied.copy.data.rglob("*.json*") if old in path.read_bytes()]
    assert [path.name for path in named] == ["moves.jsonl"]
    assert sorted(path.name for path in copied.copy.root.parent.iterdir()) == sorted(["original", "tiny.toml", ODD])


def test_moved_again_every_verb_works_and_the_old_path_stays_gone(copied: Copied) -> None:
    was, home = copied.copy.root, Home(copied.copy.root.with_name("plain"))
    was.rename(home.root)
    try:
        found = copied.simic(home, "doctor", "--deep", "--json")
        place = next(check for check in json.loads(found.stdout)["checks"] if check["name"] == "place")
        assert (found.returncode, place["health"]) == (5, "repairable")
        for words in (
            ["verify", "models:/tamiyo/1"],
            ["snapshots", "verify"],
            ["sql", "SELECT path FROM trainings", "--json"],
            ["train", "--profile", str(copied.profile)],
            ["ingest"],
            ["doctor", "--deep"],
        ):
            answer = copied.simic(home, *words)
            assert (answer.returncode, str(was) in answer.stdout) == (0, False), answer
        assert lines(home, "moves.jsonl")[-1]["target"] == str(home.root)
        assert not was.exists()
        assert bytes_of(copied.original.root) == copied.before
    finally:
        home.root.rename(was)


@pytest.mark.parametrize("way", [["cp", "-a"], ["cp", "-r"], ["cp", "-r", "--no-preserve=links,timestamps"]])
def test_snapshots_are_whole_in_every_kind_of_copy(copied: Copied, tmp_path: Path, way: list[str]) -> None:
    copy = Home(tmp_path / "copy")
    subprocess.run([*way, str(copied.copy.root), str(copy.root)], check=True)
    held = list(copy.snapshots.rglob("part-*.parquet"))
    links = {path.stat().st_nlink for path in held}
    assert held
    assert links == ({2} if way == ["cp", "-a"] else {1}), "with -a a part is one file under two names, as before"
    for words in (["doctor", "--deep", "--repair"], ["snapshots", "verify"]):
        answer = copied.simic(copy, *words)
        assert answer.returncode == 0, answer
