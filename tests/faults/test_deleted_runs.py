"""A run or the experiment deleted in MLflow: names and texts for people stop no move of the champion, and are found.

The home holds version 1, the champion before; version 2, the champion; and version 3, which the gate rejected.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.entities import ViewType
from support.builders.judged_candidates import judged
from support.homes.champion_homes import FORMER, PRESENT, TURNED_AWAY, crowned_home, open_home, point_at, weights_of
from support.servers.forked_commands import run_mlflow

from simic.app import promotion
from simic.app.checks.doctor import open_doctor
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.results.lake import Health
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers.promotions import History
from simic.registry.differences import label_differences
from simic.registry.ledger_records import LedgerRecords
from simic.registry.mlflow_store import initialise, open_client
from simic.registry.registry import Registry
from simic.runtime.home import Home

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
        run_mlflow("gc", *store, "--run-ids", run_id)
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


@pytest.mark.parametrize(
    ("how", "text", "health"),
    [("deleted", "mlflow runs restore --run-id", Health.DAMAGED), ("purged", "has no run", Health.HEALTHY)],
)
def test_the_doctor_names_a_lost_run_and_repairs_all_else(place: Home, how: str, text: str, health: Health) -> None:
    run_id = lose_run(place, FORMER, how)
    point_at(place, FORMER)
    before = open_doctor(open_home(place)).examine()
    assert [check.health for check in before.checks if run_id in check.found] == [health]
    report = open_doctor(open_home(place)).examine(is_repair=True)
    (lost,) = (check for check in report.checks if run_id in check.found)
    assert (lost.health, text in lost.found) == (health, True)
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


def test_a_purged_run_is_a_note_and_no_finding_while_the_ledgers_hold_the_decision(place: Home) -> None:
    """Nothing can be mended, and the doctor must not end with 5 for ever."""
    run_id = lose_run(place, PRESENT, "purged")
    for is_deep in (False, True):
        report = open_doctor(open_home(place)).examine(is_deep=is_deep)
        assert report.is_healthy
        (note,) = (check for check in report.checks if run_id in check.found)
        assert "the ledgers hold the version and its gate decision" in note.found
    weights = weights_of(place, PRESENT)
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    deep = open_doctor(open_home(place)).examine(is_deep=True)
    assert [check.health for check in deep.checks if check.name == f"policy tamiyo/{PRESENT}"] == [Health.DAMAGED]


def test_a_purged_run_is_a_finding_if_its_decision_is_not_on_record() -> None:
    version = PolicyVersion.model_construct(name="tamiyo", number=1, gate_digest="a" * 64, mlflow_run_id="b" * 32)
    records = LedgerRecords(History((), None), {1: version}, 1, {}, frozenset())
    (found,) = label_differences(records, {})
    assert not found.is_note


def lines_of(home: Home, name: str) -> list[bytes]:
    return (home.ledger / name).read_bytes().splitlines()


def runs_of(home: Home, digest: str) -> list[tuple[str, str]]:
    found = open_client(home.tracking_uri).search_runs(
        [EXPERIMENT], f"tags.policy_digest = '{digest}'", run_view_type=ViewType.ALL
    )
    return [(str(run.info.run_id), str(run.info.lifecycle_stage)) for run in found]


def test_a_policy_recorded_again_after_its_run_was_deleted_is_recorded_on_that_run(
    place: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: only active runs were searched, so a second run was made that no ledger lists."""
    app = open_home(place)
    evidence = judged(place, b"again", accepted=False, champion=app.policies.champion_digest())
    version = app.registry.record(evidence)
    run_id = lose_run(place, version.number, "deleted")
    assert open_home(place).registry.record(evidence).mlflow_run_id == run_id
    assert runs_of(place, version.digest) == [(run_id, "active")]
    assert f"run {run_id}" in caplog.text and "is restored" in caplog.text
    assert len(lines_of(place, "candidates.jsonl")) == 4, "the same judgement is one line"
    assert open_doctor(open_home(place)).examine().is_healthy


@pytest.mark.parametrize("step", ["logged", "stored", "registered"])
def test_a_recording_killed_before_its_run_was_deleted_goes_on_with_that_run(place: Home, step: str) -> None:
    app = open_home(place)
    evidence = judged(place, b"again", accepted=False, champion=app.policies.champion_digest())

    def stop(reached: str) -> None:
        if reached == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Registry(place, app.keyring, signer=lambda: app.signer, clock=app.clock, on_step=stop).record(evidence)
    ((run_id, _),) = runs_of(place, evidence.training.digest)
    open_client(place.tracking_uri).delete_run(run_id)
    assert open_home(place).registry.record(evidence).mlflow_run_id == run_id
    assert runs_of(place, evidence.training.digest) == [(run_id, "active")]
    assert open_doctor(open_home(place)).examine().is_healthy


def test_a_policy_recorded_again_after_its_run_was_purged_keeps_the_run_of_its_version(place: Home) -> None:
    app = open_home(place)
    evidence = judged(place, b"again", accepted=False, champion=app.policies.champion_digest())
    version = app.registry.record(evidence)
    run_id = lose_run(place, version.number, "purged")
    assert open_home(place).registry.record(evidence).mlflow_run_id == run_id
    ((new, _),) = runs_of(place, version.digest)
    assert new != run_id
    report = open_doctor(open_home(place)).examine()
    assert [check for check in report.checks if check.health is not Health.HEALTHY] == []
    assert open_home(place).registry.record(evidence).mlflow_run_id == run_id
    assert len(runs_of(place, version.digest)) == 1, "the run that replaced it is used again"


def test_recording_in_a_deleted_experiment_names_the_command_that_restores_it(place: Home) -> None:
    client = open_client(place.tracking_uri)
    client.delete_experiment(EXPERIMENT)
    before = lines_of(place, "candidates.jsonl")
    with pytest.raises(ContractError, match=f"mlflow experiments restore --experiment-id {EXPERIMENT}"):
        accepted(place)
    assert lines_of(place, "candidates.jsonl") == before
    client.restore_experiment(EXPERIMENT)
    app = open_home(place)
    evidence = judged(place, b"later", champion=app.policies.champion_digest())
    assert app.registry.record(evidence).number == TURNED_AWAY + 1
    assert open_doctor(open_home(place)).examine().is_healthy


def test_a_purged_experiment_asks_for_a_backup_and_never_to_move_the_registry_away(place: Home) -> None:
    open_client(place.tracking_uri).delete_experiment(EXPERIMENT)
    store = ["--backend-store-uri", place.tracking_uri, "--tracking-uri", place.tracking_uri]
    run_mlflow("gc", *store, "--experiment-ids", EXPERIMENT)
    with pytest.raises(ConfigError, match=r"was purged .*from a backup; do not move it away"):
        open_home(place).registry  # noqa: B018 - opens it
    report = open_doctor(open_home(place)).examine()
    (found,) = (check for check in report.checks if "was purged" in check.found)
    assert found.health is Health.DAMAGED


def test_a_database_of_others_is_to_be_moved_away(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.mlruns.mkdir()
    open_client(home.tracking_uri).create_experiment("theirs")
    with pytest.raises(ConfigError, match="not made by simic; move it away"):
        initialise(home)
