"""What MLflow's pages answer: which policy is live, what became of the others, and why."""

from __future__ import annotations

import json

import pytest
from mlflow import MlflowClient
from support.builders.judged_candidates import SIGNER, estimate, evidence_of, judged, ticking, trials

from simic.contracts.results.receipts import PolicyVersion
from simic.registry.experiment_page import RUNS_VIEW_TAG, runs_page
from simic.registry.headline import HEADLINES
from simic.registry.mlflow_run import CandidateRecord, version_tags
from simic.registry.mlflow_store import open_client
from simic.registry.registry import Registry
from simic.registry.version_status import SHOWN_TAGS
from simic.runtime.home import Home
from simic.trust.keys import Keyring

NOTE = "mlflow.note.content"


@pytest.fixture
def registry(place: Home, keyring: Keyring) -> Registry:
    return Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())


@pytest.fixture
def client(registry: Registry, place: Home) -> MlflowClient:
    return open_client(place.tracking_uri)


def crown(registry: Registry, candidate: CandidateRecord) -> PolicyVersion:
    return registry.promote(registry.record(candidate), candidate.validation, candidate.gate)


def runs(client: MlflowClient) -> dict[str, str]:
    """Standing of every run, by name."""
    return {run.info.run_name: run.data.tags["standing"] for run in client.search_runs(["1"])}


def policy_statuses(client: MlflowClient) -> dict[int, str]:
    """Standing of every version."""
    return {int(v.version): v.tags["standing"] for v in client.search_model_versions("name = 'tamiyo'")}


def test_names_and_standings_follow_promotion_rejection_and_rollback(
    registry: Registry, place: Home, client: MlflowClient
) -> None:
    waiting = registry.record(judged(place, b"zero"))
    assert runs(client) == {"1.0.0 accepted": "accepted"}
    first = crown(registry, judged(place, b"one"))
    rejected = registry.record(judged(place, b"bad", accepted=False, champion=first.digest))
    second = crown(registry, judged(place, b"two", champion=first.digest))
    turned_away = f"rejected {rejected.digest[:6]}"
    assert runs(client) == {
        "1.0.0 accepted": "accepted", "1.0.1 former": "former", turned_away: "rejected", "1.0.3 champion": "champion",
    }  # fmt: skip
    assert policy_statuses(client) == {
        waiting.number: "accepted", first.number: "former", rejected.number: "rejected", second.number: "champion",
    }  # fmt: skip
    registry.rollback("worse in production")
    assert runs(client)["1.0.1 champion"] == "champion"
    assert (policy_statuses(client)[first.number], policy_statuses(client)[second.number]) == ("champion", "former")
    assert registry.differences() == []


def test_a_rejection_that_a_later_judgement_overturns_is_renamed(
    registry: Registry, place: Home, client: MlflowClient
) -> None:
    candidate = judged(place, accepted=False)
    assert registry.record(candidate).digest == candidate.training.digest
    assert runs(client) == {f"rejected {candidate.training.digest[:6]}": "rejected"}
    crown(registry, evidence_of(place, place.policies / candidate.training.path, candidate.training.digest))
    assert runs(client) == {"1.0.0 champion": "champion"}
    assert registry.differences() == []


def test_a_run_has_the_twelve_headline_metrics_and_no_other_without_a_step(
    registry: Registry, place: Home, client: MlflowClient
) -> None:
    candidate = judged(place)
    differences = {
        name: estimate(mean) for mean, name in enumerate(("wait", "heuristic", "blind", "symptom", "champion"))
    }
    report = trials(("wait", "oracle", "candidate"))
    rows = [
        row.model_copy(update={"over_wait": estimate(8.0)}) if row.controller == "oracle" else row
        for row in report.controllers
    ]
    validation = candidate.validation.model_copy(
        update={"differences": differences, "trials": report.model_copy(update={"controllers": rows})}
    )
    version = registry.record(candidate._replace(validation=validation))
    metrics = client.get_run(version.mlflow_run_id).data.metrics
    assert {name for name in metrics if "/" not in name} == set(HEADLINES)
    assert len(HEADLINES) == 12
    assert all(name.startswith("train/") for name in metrics.keys() - set(HEADLINES))
    assert (metrics["gain_over_heuristic_mean"], metrics["gain_over_heuristic_lower"]) == (1.0, 0.0)
    assert (metrics["share_of_oracle"], metrics["commit_rate"]) == (0.5, 0.8)


def test_a_version_has_at_most_eight_tags_and_a_description_that_gives_the_reason(
    registry: Registry, place: Home, client: MlflowClient
) -> None:
    first = crown(registry, judged(place, b"one"))
    crown(registry, judged(place, b"two", champion=first.digest))
    registry.rollback("worse")
    rejected = registry.record(judged(place, b"bad", accepted=False, champion=first.digest))
    for version in client.search_model_versions("name = 'tamiyo'"):
        assert set(version.tags) <= set(SHOWN_TAGS)
    assert len(SHOWN_TAGS) == 8
    assert version_tags(judged(place, b"x")).keys() < set(SHOWN_TAGS), "no tag is made that nobody sees"
    text = client.get_model_version("tamiyo", str(rejected.number)).description
    assert text.startswith("Rejected by the gate on 2026-01-02: return_over_wait failed.")
    assert "| wait | 6 | 5 | 7 |" in text
    assert f"snapshot `{'d' * 12}` with 100 episodes" in text
    assert f"Start: policy `{first.digest[:12]}`" in text
    assert client.get_run(rejected.mlflow_run_id).data.tags[NOTE] == text


def test_the_experiment_says_who_is_live(registry: Registry, place: Home, client: MlflowClient) -> None:
    def note() -> str:
        return str(client.get_experiment("1").tags[NOTE])

    assert "Live: no policy" in note()
    first = crown(registry, judged(place, b"one"))
    assert f"Live: tamiyo 1.0.0**, version 1, policy `{first.digest[:12]}`" in note()
    assert "mean 6, lower bound 5 (95% interval, 2 held-out hosts)" in note()
    crown(registry, judged(place, b"two", champion=first.digest))
    assert "Live: tamiyo 1.0.1**" in note()
    registry.rollback("worse")
    assert "Live: tamiyo 1.0.0**" in note()
    assert "returns of different runs do not compare" in note()


def test_the_saved_view_of_runs_shows_standing_and_headline_metrics(client: MlflowClient) -> None:
    view = json.loads(client.get_experiment("1").tags[RUNS_VIEW_TAG])
    assert view["selectedColumns"][:13] == ["tags.`standing`", *(f"metrics.`{name}`" for name in HEADLINES)]
    assert runs_page("http://x", "1").endswith(f"&viewStateShareKey={RUNS_VIEW_TAG.rpartition('.')[2]}")


@pytest.mark.parametrize("what", ["name", "standing", "experiment", "view"])
def test_an_edited_name_standing_or_text_is_found_and_put_back(
    registry: Registry, place: Home, client: MlflowClient, what: str
) -> None:
    crown(registry, judged(place, b"one"))
    rejected = registry.record(judged(place, b"bad", accepted=False))
    before = (runs(client), client.get_experiment("1").tags)
    edits = {
        "name": lambda: client.update_run(rejected.mlflow_run_id, name="9.9.9 champion"),
        "standing": lambda: client.set_tag(rejected.mlflow_run_id, "standing", "champion"),
        "experiment": lambda: client.set_experiment_tag("1", NOTE, "Live: tamiyo 9.9.9"),
        "view": lambda: client.set_experiment_tag("1", RUNS_VIEW_TAG, "{}"),
    }
    edits[what]()
    (difference,) = registry.differences()
    assert difference.is_repairable
    registry.repair()
    assert registry.differences() == []
    assert (runs(client), client.get_experiment("1").tags) == before


def test_a_run_by_other_hands_that_claims_a_standing_is_found(registry: Registry, client: MlflowClient) -> None:
    client.create_run("1", run_name="9.9.9 champion", tags={"standing": "champion"})
    (difference,) = registry.differences()
    assert "does not list that run" in difference.text
    assert not difference.is_repairable
