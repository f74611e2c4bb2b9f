"""A home that was moved or copied: its registry, its receipts and its ledger of moves."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from support.builders.judged_candidates import NOW, SIGNER, evidence_of, judged, sealed_policy, ticking
from support.checks.files import bytes_of
from support.homes.mlflow_databases import furnished_home

from simic.app import promotion
from simic.app.artifacts import resolve_training
from simic.app.checks.doctor import Doctor
from simic.app.container import Container
from simic.app.home_location import settle, settle_registry
from simic.app.receipts import ReceiptStore
from simic.bus.spool.bus import SpoolBus
from simic.contracts.names import CHAMPION_REFERENCE
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.lake import Check, Health
from simic.contracts.results.receipts import PolicyVersion, SnapshotManifest, TrainingReport
from simic.ledgers import MOVES_LEDGER
from simic.registry.locations import locations
from simic.registry.mlflow_store import open_client
from simic.registry.registry import Registry
from simic.runtime.home import Home, HomeUse
from simic.runtime.progress import NoProgress
from simic.runtime.settings import load_profile
from simic.trust.keys import Keyring

ODD_NAMES = ("a?b", "a#b", "a%3Fb", "a\nb", "a[x]*b", "a 'b\"é&=;")


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """With a champion, and settled where it lies."""
    home = furnished_home(tmp_path / "place", tmp_path_factory)
    settle(home, NOW)
    crown(home, b"one")
    return home


def registry_of(home: Home) -> Registry:
    return Registry(home, Keyring(home.keys), signer=lambda: SIGNER, clock=ticking())


def crown(home: Home, weights: bytes, champion: str | None = None) -> PolicyVersion:
    registry, evidence = registry_of(home), judged(home, weights, champion=champion)
    return registry.promote(registry.record(evidence), evidence.validation, evidence.gate)


def moves(home: Home) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home.ledger / MOVES_LEDGER).read_text("utf-8").splitlines()]


def everything_recorded(home: Home) -> list[str]:
    with closing(sqlite3.connect(home.mlruns / "mlflow.db")) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [str(row) for table in tables for row in connection.execute(f'SELECT * FROM "{table}"')]  # noqa: S608


def place_check(home: Home, *, is_repair: bool = False, is_deep: bool = False) -> Check:
    def registry(_model: str) -> Registry:
        assert not locations(home), "opening the registry would rewrite these"
        return registry_of(home)

    doctor = Doctor(home, SpoolBus(home.spool), registry, code_version="x", clock=ticking(), progress=NoProgress())
    report = doctor.examine(is_deep=is_deep, is_repair=is_repair)
    return next(check for check in report.checks if check.name == "place")


def test_no_address_in_a_new_registry_is_outside_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow puts the experiment it makes by itself below the directory in which it was started."""
    from simic.registry.mlflow_store import initialise

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    home = Home(tmp_path / "place")
    home.create()
    initialise(home)
    assert locations(home) == []
    assert not [row for row in everything_recorded(home) if "elsewhere" in row]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_registry_goes_on_in_a_home_that_was_moved_to_an_odd_name_and_the_old_path_stays_gone(
    place: Home, tmp_path: Path, name: str
) -> None:
    old, moved = place.root, Home(place.root.rename(tmp_path / name))
    move = settle(moved, NOW)
    assert move is not None
    assert (move.source, move.target, move.mlflow > 0) == (str(old), str(moved.root), True)
    assert not [row for row in everything_recorded(moved) if str(old) in row]
    champion = registry_of(moved).champion()
    assert champion is not None
    registry_of(moved).load(CHAMPION_REFERENCE, tmp_path / "fetched")
    second = crown(moved, b"two", champion.digest)
    assert second.previous == champion.number
    assert registry_of(moved).rollback("back").digest == champion.digest
    client = open_client(moved.tracking_uri)
    run = client.get_run(second.mlflow_run_id)
    assert run.info.artifact_uri.startswith(f"{moved.artifacts.as_uri()}/")
    assert {item.path for item in client.list_artifacts(run.info.run_id)} >= {"receipts", "curves"}
    assert locations(moved) == []
    assert not old.exists()
    assert settle(moved, NOW) is None, "one line per move"
    assert [line["target"] for line in moves(moved)] == [str(old), str(moved.root)]


def test_a_registry_can_begin_on_an_odd_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simic.registry.mlflow_store import initialise

    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / "a?b#c%41d\ne[x]")
    home.create()
    Keyring(home.keys).trust(SIGNER.public_bytes)
    initialise(home)
    assert crown(home, b"one").number == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [home.root.name]


@pytest.mark.parametrize("is_original_there", [True, False])
def test_a_copy_writes_and_reads_only_itself(place: Home, tmp_path: Path, is_original_there: bool) -> None:
    champion = registry_of(place).champion()
    assert champion is not None
    copied = Home(tmp_path / "copy")
    subprocess.run(["cp", "-a", str(place.root), str(copied.root)], check=True)
    if is_original_there:
        for path in (place.artifacts / "models").rglob("weights.safetensors"):
            path.write_bytes(b"damaged after it was copied")
    else:
        shutil.rmtree(place.root)
    before = bytes_of(place.root)
    settle(copied, NOW)
    registry_of(copied).load(CHAMPION_REFERENCE, tmp_path / "fetched")
    crown(copied, b"two", champion.digest)
    assert bytes_of(place.root) == before
    assert place.root.exists() == is_original_there


def test_moving_there_and_back_again_is_three_lines(place: Home, tmp_path: Path) -> None:
    old, new = place.root, tmp_path / "new"
    for here, there in ((old, new), (new, old)):
        settle(Home(here.rename(there)), NOW)
    assert [(line["source"], line["target"]) for line in moves(place)] == [
        (None, str(old)), (str(old), str(new)), (str(new), str(old)),
    ]  # fmt: skip
    assert locations(place) == []
    assert registry_of(place).champion() is not None


def test_two_first_users_of_a_moved_home_settle_it_once(place: Home, tmp_path: Path) -> None:
    moved = Home(place.root.rename(tmp_path / "moved"))
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: settle(moved, NOW), range(8)))
    assert sum(move is not None for move in done) == 1
    assert len(moves(moved)) == 2


CHILD = """
import os, signal, sys
from pathlib import Path
from simic.app import home_location
from simic.registry.locations import rewrite_locations
from simic.runtime.home import Home
from support.builders.judged_candidates import NOW

if sys.argv[2] == "between":
    class Killer(home_location.Ledger):
        def append(self, record):
            os.kill(os.getpid(), signal.SIGKILL)
    home_location.Ledger = Killer
home_location.settle(Home(Path(sys.argv[1])), NOW)
"""


def test_a_kill_between_rewriting_and_the_ledger_is_made_good_by_the_next_user(place: Home, tmp_path: Path) -> None:
    moved = Home(place.root.rename(tmp_path / "moved"))
    tests = Path(__file__).parents[2]
    paths = f"{tests}{os.pathsep}{tests.parent}"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(moved.root), "between"], env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    assert done.returncode == -9
    assert len(moves(moved)) == 1
    assert settle(moved, NOW) is not None
    assert [line["target"] for line in moves(moved)] == [str(place.root), str(moved.root)]
    assert registry_of(moved).champion() is not None


def test_a_home_of_an_earlier_version_is_settled_too(place: Home, tmp_path: Path) -> None:
    """Without a ledger of moves, and with MLflow's own experiment outside."""
    (place.ledger / MOVES_LEDGER).unlink()
    with closing(sqlite3.connect(place.mlruns / "mlflow.db")) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = '/gone/mlruns/0' WHERE experiment_id = 0")
    moved = Home(place.root.rename(tmp_path / "moved"))
    assert settle(moved, NOW) is not None
    assert moves(moved)[0]["source"] is None
    assert locations(moved) == []


def test_the_doctor_finds_what_points_outside_changes_nothing_and_repairs_it(place: Home, tmp_path: Path) -> None:
    assert place_check(place, is_deep=False).health is Health.HEALTHY
    moved = Home(place.root.rename(tmp_path / "moved"))
    before = bytes_of(moved.mlruns)
    for is_deep in (False, True):
        found = place_check(moved, is_deep=is_deep)
        assert found.health is Health.REPAIRABLE
        assert place.root.as_uri() in found.found
    assert (bytes_of(moved.mlruns), len(moves(moved))) == (before, 1)
    assert place_check(moved, is_repair=True).health is Health.REPAIRED
    assert place_check(moved).health is Health.HEALTHY
    assert len(moves(moved)) == 2


def test_an_address_that_simic_never_made_is_reported_and_left_alone(place: Home) -> None:
    with closing(sqlite3.connect(place.mlruns / "mlflow.db")) as connection, connection:
        columns = "experiment_id, name, artifact_location, lifecycle_stage, workspace"
        for row in ((7, "mine", "file:///srv/mine"), (8, "s3", "s3://bucket/mlruns/artifacts")):
            connection.execute(f"INSERT INTO experiments ({columns}) VALUES (?, ?, ?, 'active', 'default')", row)  # noqa: S608
    found = place_check(place, is_repair=True)
    assert (found.health, "file:///srv/mine" in found.found, "s3://" in found.found) == (Health.DAMAGED, True, False)


def test_a_verb_that_looks_settles_the_registry_before_it_reads_from_it(place: Home, tmp_path: Path) -> None:
    copied = Home(tmp_path / "copy")
    shutil.copytree(place.root, copied.root)
    for path in (place.artifacts / "models").rglob("weights.safetensors"):
        path.write_bytes(b"damaged after it was copied")
    app = Container(copied, load_profile("quick"), 0, use=HomeUse.LOOK)
    assert promotion.verify(app, CHAMPION_REFERENCE).digest == app.policies.champion_digest()
    settle_registry(copied, NOW)
    assert len(moves(copied)) == 2


def test_receipts_speak_of_the_home_in_which_they_are_read(place: Home, tmp_path: Path) -> None:
    app = Container(place, load_profile("quick"), 0)
    path, digest = sealed_policy(place, b"three")
    home_of_policy = path.rename(place.policies / digest)
    evidence = evidence_of(place, home_of_policy, digest)
    snapshot = evidence.snapshot.model_copy(update={"path": str(place.snapshots / evidence.snapshot.digest[:16])})
    curves = place.curves / f"{digest}.jsonl"
    training = evidence.training.model_copy(update={"curves_path": str(curves)})
    figures = {"a": str(place.runs / digest[:16] / "figures" / "a.png")}
    validation = evidence.validation.model_copy(update={"figures": figures})
    for receipt in (training, snapshot, validation):
        app.save_receipt(receipt)
    kept = list(place.receipts.rglob("*.json"))
    assert len(kept) == 3
    assert not [path for path in kept if str(place.root) in path.read_text()]
    copied = Home(tmp_path / "copy")
    shutil.copytree(place.root, copied.root)
    there = Container(copied, load_profile("quick"), 0)
    for home, own in ((place, app), (copied, there)):
        assert own.receipts.latest(TrainingReport, "").path == str(home.policies / digest)
        assert own.receipts.latest(TrainingReport, "").curves_path == str(home.curves / curves.name)
        assert own.receipts.latest(SnapshotManifest, "").path == str(home.snapshots / snapshot.digest[:16])
        assert own.receipts.latest(ValidationReport, "").figures["a"].startswith(f"{home.root}/data/runs/")
        assert resolve_training(own, None).path == str(home.policies / digest)


def test_receipts_of_an_earlier_version_hold_absolute_paths_and_follow_the_home_too(
    place: Home, tmp_path: Path
) -> None:
    path, digest = sealed_policy(place, b"three")
    path.rename(place.policies / digest)
    training = evidence_of(place, place.policies / digest, digest).training
    folder = ReceiptStore(place, ticking(), lambda: SIGNER, Keyring(place.keys)).save(training).parent
    copied = Home(tmp_path / "copy")
    shutil.copytree(place.root, copied.root)
    app = Container(copied, load_profile("quick"), 0)
    assert app.receipts.latest(TrainingReport, "").path == str(copied.policies / digest)
    assert app.receipts.read(TrainingReport, next(folder.glob("*.json"))).path == str(copied.policies / digest)
    shutil.rmtree(copied.policies / digest)
    named = app.receipts.read(TrainingReport, next(folder.glob("*.json")))
    assert named.path == str(place.policies / digest), "named in another home, it speaks of that home"
    assert app.receipts.latest(TrainingReport, "").path == str(copied.policies / digest), "its own never does"
