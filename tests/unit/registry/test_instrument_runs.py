"""Results of instruments in a real MLflow database."""

from __future__ import annotations

from pathlib import Path

from support.builders.policy_differences import difference

from simic.contracts.results.policy_difference import PolicyDifference
from simic.registry.instrument_runs import INSTRUMENTS, InstrumentResult, log_instrument
from simic.registry.mlflow_store import EXPERIMENT, open_client
from simic.runtime.home import Home


def test_a_result_is_a_finished_run_of_its_own_experiment(place: Home, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<p>a page</p>")
    found = difference()
    result = InstrumentResult("one and two", found.stage, found, {"disagreement": 0.25}, page, {"family": b"\x89PNG"})
    first, second = log_instrument(place, result), log_instrument(place, result)
    assert first != second
    client = open_client(place.tracking_uri)
    experiments = {name: client.get_experiment_by_name(name).experiment_id for name in (EXPERIMENT, INSTRUMENTS)}
    assert client.search_runs([experiments[EXPERIMENT]]) == [], "there a run is one judged policy"
    runs = client.search_runs([experiments[INSTRUMENTS]], filter_string="tags.stage = 'diff-policies'")
    assert {run.info.run_id for run in runs} == {first, second}
    run = client.get_run(first)
    assert (run.info.run_name, run.info.status, run.data.metrics) == ("one and two", "FINISHED", {"disagreement": 0.25})
    assert {item.path for item in client.list_artifacts(first)} == {"figures", "page.html", "receipt.json"}
    folder = place.artifacts / first / "artifacts"
    assert (folder / "page.html").read_bytes() == page.read_bytes()
    assert (folder / "figures" / "family.png").read_bytes() == b"\x89PNG"
    assert PolicyDifference.model_validate_json((folder / "receipt.json").read_bytes()) == found


def test_a_home_without_a_registry_keeps_none(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    assert log_instrument(home, InstrumentResult("x", "x", difference(), {}, tmp_path / "page.html", {})) is None
    assert not (home.mlruns / "mlflow.db").exists()


def test_an_experiment_deleted_on_a_page_takes_runs_again(place: Home, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<h1>page</h1>")
    result = InstrumentResult("x", "diff-policies", difference(), {}, page, {})
    assert log_instrument(place, result) is not None
    client = open_client(place.tracking_uri)
    experiment = client.get_experiment_by_name(INSTRUMENTS)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    run_id = log_instrument(place, result)
    assert run_id is not None
    assert client.get_run(run_id).info.experiment_id == experiment.experiment_id
