"""A run or the experiment deleted in MLflow: names and texts for people stop no move of the champion, and are found.

The home holds version 1, the champion before; version 2, the champion; and version 3, which the gate rejected.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.champion_homes import FORMER, PRESENT, crowned_home, open_home, point_at
from support.judged_candidates import judged

from simic.app import promotion
from simic.app.doctor import open_doctor
from simic.contracts.lake import Health
from simic.contracts.receipts import PolicyVersion
from simic.registry.mlflow_store import open_client
from simic.registry.registry import Registry
from simic.runtime.settings import Home

EXPERIMENT = "1"


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return crowned_home(tmp_path / "place", tmp_path_factory)


def run_of(home: Home, number: int) -> str:
    """The id of the MLflow run of a version."""
    return str(open_client(home.tracking_uri).get_model_version("tamiyo", str(number)).run_id)


def lose_run(home: Home, number: int, how: str) -> str:
    """Delete the run of a version as MLflow's UI does; ``purged`` also empties the bin."""
    run_id = run_of(home, number)
    open_client(home.tracking_uri).delete_run(run_id)
    if how == "purged":
        store = ["--backend-store-uri", home.tracking_uri, "--tracking-uri", home.tracking_uri]
        subprocess.run([sys.executable, "-m", "mlflow", "gc", *store, "--run-ids", run_id], check=True)
    return run_id


def accepted(home: Home) -> tuple[PolicyVersion, Registry]:
    """Promote one more candidate."""
    app = open_home(home)
    evidence = judged(home, b"fresh", champion=app.policies.champion_digest())
    version = app.registry.record(evidence)
    return app.registry.promote(version, evidence.validation, evidence.gate), app.registry


@pytest.mark.parametrize("how", ["deleted", "purged"])
def test_a_lost_run_of_the_champion_stops_no_promotion_no_publication_and_no_rollback(
    place: Home, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    run_id = lose_run(place, PRESENT, how)
    promoted, _ = accepted(place)
    assert run_id in caplog.text, "a name that cannot be written is logged"
    assert f"mlflow runs restore --run-id {run_id}" in caplog.text
    assert promotion.publish_champion(open_home(place)).update.reference == f"models:/tamiyo/{promoted.number}"
    assert open_home(place).registry.rollback("worse").number == PRESENT
    champion = open_home(place).registry.champion()
    assert champion is not None
    assert champion.number == PRESENT


@pytest.mark.parametrize("how", ["deleted", "purged"])
def test_a_promotion_killed_before_the_alias_moved_is_undone_although_its_run_was_lost(place: Home, how: str) -> None:
    app = open_home(place)
    evidence = judged(place, b"fresh", champion=app.policies.champion_digest())

    def stop(step: str) -> None:
        if step == "journalled":
            raise KeyboardInterrupt

    registry = Registry(place, app.keyring, signer=lambda: app.signer, clock=app.clock, on_step=stop)
    version = registry.record(evidence)
    with pytest.raises(KeyboardInterrupt):
        registry.promote(version, evidence.validation, evidence.gate)
    lose_run(place, version.number, how)
    champion = open_home(place).registry.champion()
    assert champion is not None
    assert champion.number == PRESENT
    assert open_home(place).registry.rollback("worse").number == FORMER


@pytest.mark.parametrize(("how", "text"), [("deleted", "mlflow runs restore --run-id"), ("purged", "has no run")])
def test_the_doctor_finds_a_lost_run_and_repairs_all_else(place: Home, how: str, text: str) -> None:
    run_id = lose_run(place, FORMER, how)
    point_at(place, FORMER)
    before = open_doctor(open_home(place)).examine()
    assert [check.health for check in before.checks if run_id in check.found] == [Health.DAMAGED]
    report = open_doctor(open_home(place)).examine(is_repair=True)
    (lost,) = (check for check in report.checks if run_id in check.found)
    assert (lost.health, text in lost.found) == (Health.DAMAGED, True)
    assert [check.health for check in report.checks if "alias champion" in check.found] == [Health.REPAIRED]
    champion = open_home(place).registry.champion()
    assert champion is not None
    assert champion.number == PRESENT


def test_a_restored_run_gets_the_name_that_it_missed(place: Home) -> None:
    run_id = lose_run(place, PRESENT, "deleted")
    open_home(place).registry.rollback("worse")
    client = open_client(place.tracking_uri)
    client.restore_run(run_id)
    assert client.get_run(run_id).data.tags["standing"] == "champion", "written before the run was deleted"
    assert open_doctor(open_home(place)).examine(is_repair=True).is_healthy
    assert client.get_run(run_id).data.tags["standing"] == "former"
    assert open_doctor(open_home(place)).examine().is_healthy


def test_a_deleted_run_that_no_ledger_lists_is_no_finding(place: Home) -> None:
    client = open_client(place.tracking_uri)
    run = client.create_run(EXPERIMENT, run_name="9.9.9 champion", tags={"standing": "champion"})
    assert not open_doctor(open_home(place)).examine().is_healthy
    client.delete_run(run.info.run_id)
    assert open_doctor(open_home(place)).examine().is_healthy


def test_a_deleted_experiment_stops_no_rollback_and_is_one_finding(
    place: Home, caplog: pytest.LogCaptureFixture
) -> None:
    client = open_client(place.tracking_uri)
    client.delete_experiment(EXPERIMENT)
    assert open_home(place).registry.rollback("worse").number == FORMER
    hint = f"mlflow experiments restore --experiment-id {EXPERIMENT}"
    assert hint in caplog.text
    point_at(place, PRESENT)
    report = open_doctor(open_home(place)).examine(is_repair=True)
    assert [check.health for check in report.checks if hint in check.found] == [Health.DAMAGED]
    assert [check.health for check in report.checks if check.name == "registry"] == [Health.REPAIRED, Health.DAMAGED]
    client.restore_experiment(EXPERIMENT)
    assert open_doctor(open_home(place)).examine(is_repair=True).is_healthy


def test_a_flow_run_is_not_linked_to_a_deleted_run_and_nothing_fails(
    place: Home, caplog: pytest.LogCaptureFixture
) -> None:
    registry = open_home(place).registry
    champion = registry.champion()
    assert champion is not None
    lose_run(place, PRESENT, "deleted")
    registry.link_flow_run(champion, "the flow run")
    assert "flow_run" in caplog.text
