"""The curves of a training in progress, in a real MLflow database."""

from __future__ import annotations

import math

from simic.registry.live_curves import TRAININGS, LiveCurves
from simic.registry.mlflow_store import EXPERIMENT, open_client
from simic.runtime.home import Home
from simic.runtime.telemetry import Update


def test_updates_are_the_metrics_of_one_run_outside_the_experiment_of_judged_policies(place: Home) -> None:
    client = open_client(place.tracking_uri)
    for number, policy in enumerate(("ab" * 32, None)):
        curves = LiveCurves(place, f"training {number}", {"snapshot": "cd" * 32})
        curves.write([Update(1, "cloning", {"cloning_loss": 2.0, "broken": math.nan}, 12.5)])
        curves.write([Update(step, "vtrace", {"policy_loss": float(step)}, 10.0) for step in range(2, 1002)])
        curves.close(policy)
    experiment = client.get_experiment_by_name(TRAININGS).experiment_id
    failed, finished = client.search_runs([experiment], order_by=["attributes.start_time DESC"])
    assert (finished.info.run_name, finished.info.status, failed.info.status) == ("training 0", "FINISHED", "FAILED")
    assert finished.data.tags["policy"] == "ab" * 32
    assert (finished.data.tags["snapshot"], "policy" in failed.data.tags) == ("cd" * 32, False)
    assert set(finished.data.metrics) == {"cloning/cloning_loss", "vtrace/policy_loss", "time/training_time_ms"}
    history = client.get_metric_history(finished.info.run_id, "vtrace/policy_loss")
    assert [(one.step, one.value) for one in history] == [(step, float(step)) for step in range(2, 1002)]
    assert client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id]) == []


def test_a_training_without_updates_is_no_run(place: Home) -> None:
    LiveCurves(place, "training", {}).close(None)
    assert open_client(place.tracking_uri).get_experiment_by_name(TRAININGS) is None
