"""`simic run` for real, small: killed while it trains, given again, and looked at from every side afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.builders.profiles import write_tiny_profile
from support.servers.forked_commands import run_command

from simic.catalogue.query import query
from simic.runtime.home import Home

SIMIC = Path(sys.executable).with_name("simic")
PREFECT = Path(sys.executable).with_name("prefect")
START_TIMEOUT_S = 240.0
INTERRUPT_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_profile(tmp_path_factory.mktemp("profile") / "tiny.toml")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loop")


def _elsewhere(root: Path) -> Path:
    """The directory in which commands of a home are started: outside the home, and empty."""
    folder = root.with_name(f"{root.name}-elsewhere")
    folder.mkdir(exist_ok=True)
    return folder


def _reports(run: dict[str, Any]) -> list[int]:
    """The reports of the log and of the round.

    Its hosts differ from one version of the code to the next, and an episode that the governor stops has fewer.
    """
    counts = [receipt["reports"] for receipt in run["collections"]]
    full = [20 * receipt["episodes"] for receipt in run["collections"]]
    assert full == [400, 200]
    for count, most, receipt in zip(counts, full, run["collections"], strict=True):
        assert most - 20 * receipt["governor_events"] <= count <= most
    return counts


def _simic(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, "SIMIC_HOME": str(root)}, cwd=_elsewhere(root))


def _rows(root: Path, query: str) -> list[dict[str, Any]]:
    done = _simic(root, "sql", query, "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def _receipts(root: Path, stage: str) -> list[Path]:
    return sorted((root / "data" / "receipts" / stage).glob("*.json"))


def _start(root: Path, profile: Path) -> subprocess.Popen[str]:
    """A run in a process group of its own."""
    return subprocess.Popen(
        [SIMIC, "run", "--profile", str(profile)],
        env={**os.environ, "SIMIC_HOME": str(root)},
        cwd=_elsewhere(root),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def _kill_while_it_trains(root: Path, profile: Path) -> None:
    """SIGKILL to the whole group once the snapshot is sealed and the first updates are on disk."""
    process = _start(root, profile)
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while not list((root / "data" / "policies").rglob("*")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "training did not begin"
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def run(root: Path, profile: Path) -> dict[str, Any]:
    """The receipt of a run that was killed in its first training and then given again."""
    _kill_while_it_trains(root, profile)
    assert (len(_receipts(root, "ingest")), len(_receipts(root, "curate")), len(_receipts(root, "train"))) == (1, 1, 0)
    command = [SIMIC, "run", "--profile", str(profile), "--json"]
    environment = {**os.environ, "SIMIC_HOME": str(root)}
    done = subprocess.run(command, env=environment, cwd=_elsewhere(root), capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    receipt: dict[str, Any] = json.loads(done.stdout)
    reason = done.stderr.splitlines()[-1]
    assert reason.startswith("GateRejectedError: "), done.stderr
    # The hosts, and so the baselines that win, differ from one version of the code to the next.
    assert re.search(r"return_over_\w+ is \S+, needs > 0", reason)
    assert reason.endswith("so it is stricter"), "what to do next"
    return receipt


def test_ctrl_c_ends_a_run_at_once_and_says_how_to_go_on(tmp_path: Path, profile: Path) -> None:
    process = _start(tmp_path, profile)
    try:
        assert process.stderr is not None
        while not re.search(r"collect \w+: 0/", process.stderr.readline()):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=INTERRUPT_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.strip() == "interrupted; the same command continues after the last finished stage"


def test_after_the_kill_nothing_before_training_was_done_again(root: Path, run: dict[str, Any]) -> None:
    assert run["is_resumed"]
    assert len(_receipts(root, "collect")) == len(_receipts(root, "ingest")) == 2, "one each for the log and the round"
    assert len(_receipts(root, "train")) == 2
    assert [receipt["landed"] for receipt in run["ingests"]] == _reports(run)


def test_m16_a_run_writes_nothing_where_it_was_started(root: Path, run: dict[str, Any]) -> None:
    assert run["decision"]["policy_digest"]
    assert list(_elsewhere(root).iterdir()) == []


def test_every_receipt_names_what_it_was_made_from(run: dict[str, Any]) -> None:
    first, second = run["trainings"]
    assert first["start_digest"] is None
    assert second["start_digest"] == first["digest"]
    assert [snapshot["digest"] for snapshot in run["snapshots"]] == [
        first["snapshot_digest"],
        second["snapshot_digest"],
    ]
    assert [snapshot["ledger_digest"] for snapshot in run["snapshots"]] == [
        receipt["ledger_digest"] for receipt in run["ingests"]
    ]
    assert run["collections"][1]["policy_digest"] == first["digest"]
    assert run["validation"]["policy_digest"] == run["decision"]["policy_digest"] == second["digest"]
    assert run["validation"]["snapshot_digest"] == second["snapshot_digest"]
    assert {receipt["config_digest"] for receipt in [*run["ingests"], *run["trainings"], run["decision"]]} == {
        run["config_digest"]
    }


def test_a_rejected_policy_is_on_record_with_its_evidence_and_no_champion_was_made(
    root: Path, run: dict[str, Any]
) -> None:
    assert run["version"] is None
    assert not run["decision"]["accepted"]
    done = _simic(root, "verify", "models:/tamiyo@candidate", "--json")
    assert json.loads(done.stdout)["digest"] == run["trainings"][1]["digest"], done.stderr
    assert _simic(root, "verify", "models:/tamiyo@champion").returncode == 2
    assert _simic(root, "publish").returncode == 2
    assert all(Path(figure).read_bytes().startswith(b"\x89PNG") for figure in run["validation"]["figures"].values())


def test_the_views_hold_what_happened(root: Path, run: dict[str, Any]) -> None:
    counts = "SELECT (SELECT count(*) FROM reports) AS reports, (SELECT count(*) FROM gates) AS criteria"
    (row,) = _rows(root, counts)
    assert row["reports"] == sum(_reports(run))
    assert row["criteria"] >= len(run["decision"]["criteria"]) or row["criteria"] == 1


def test_a_rejected_policy_leads_to_the_rows_it_learned_from(root: Path, run: dict[str, Any]) -> None:
    """Its snapshot, that of the training before it, and in both the reports as they landed."""
    (policy,) = _rows(root, "SELECT policy, accepted, is_live, snapshot FROM policies")
    second = run["trainings"][1]
    assert policy == {
        "policy": second["digest"],
        "accepted": False,
        "is_live": False,
        "snapshot": second["snapshot_digest"],
    }
    trained = _rows(root, "SELECT policy, start, snapshot FROM trainings ORDER BY finished_at")
    assert [(row["policy"], row["start"], row["snapshot"]) for row in trained] == [
        (training["digest"], training["start_digest"], training["snapshot_digest"]) for training in run["trainings"]
    ]
    learned = """
        SELECT count(*) AS steps, count(DISTINCT reports.report_id) AS reports
        FROM policies
        INNER JOIN snapshots USING (snapshot)
        INNER JOIN rewards USING (snapshot)
        INNER JOIN reports ON rewards.run_id = reports.run_id AND rewards.step = reports.step
        WHERE rewards.split = 'train'
    """
    total = sum(_reports(run))
    assert _rows(root, learned) == [{"steps": total, "reports": total}]


def test_the_worked_queries_run_on_a_home_that_a_run_has_made(root: Path, run: dict[str, Any]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "queries.md").read_text("utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    answers = [query(Home(root), sql, limit=5) for sql in blocks]
    assert sum(map(bool, answers)) > len(answers) / 2


def test_snapshots_of_a_run_are_whole_and_leave_for_other_programs(
    root: Path, run: dict[str, Any], tmp_path: Path
) -> None:
    listed = json.loads(_simic(root, "snapshots", "list", "--json").stdout)["snapshots"]
    assert [use["standing"] for use in listed[-1]["used_by"] if use["is_direct"]] == ["rejected"]
    done = _simic(root, "snapshots", "verify")
    assert done.returncode == 0, done.stdout
    for name in ("minari", "pyg"):
        out = tmp_path / name
        done = _simic(root, "snapshots", "export", listed[-1]["digest"][:12], "--format", name, "--out", str(out))
        assert done.returncode == 0, done.stderr
        assert json.loads((out / "card.json").read_bytes())["steps"] == listed[-1]["rows"] == sum(_reports(run))


def test_a_flipped_byte_in_the_registered_weights_is_refused(root: Path, run: dict[str, Any]) -> None:
    (stored,) = (root / "mlruns" / "artifacts").rglob("weights.safetensors")
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        done = _simic(root, "verify", "models:/tamiyo@candidate")
    finally:
        stored.write_bytes(whole)
    assert done.returncode == 1
    assert "IntegrityError" in done.stderr


def test_stages_stand_alone_and_repeat_themselves_exactly(root: Path, profile: Path, run: dict[str, Any]) -> None:
    common = ("--profile", str(profile), "--json")
    snapshot = json.loads(_simic(root, "curate", *common).stdout)
    assert snapshot["digest"] == run["snapshots"][1]["digest"]
    first = Path(run["snapshots"][0]["path"])
    trained = json.loads(_simic(root, "train", "--snapshot", str(first), "--start", "nothing", *common).stdout)
    weights = [Path(report["path"]) / "weights.safetensors" for report in (trained, run["trainings"][0])]
    assert weights[0].read_bytes() == weights[1].read_bytes()
