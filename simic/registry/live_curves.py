"""The curves of a training while it runs, in another MLflow experiment than the runs of judged policies."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from simic.registry.experiment_page import DESCRIPTION_TAG
from simic.registry.mlflow_store import open_client_of
from simic.runtime.home import Home
from simic.runtime.telemetry import Update

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["TRAININGS", "LiveCurves"]

TRAININGS = "simic trainings"
_DESCRIPTION = (
    "Curves of trainings, written while they run (telemetry.mlflow). No run here is a judged policy; a run that stays "
    "RUNNING was killed."
)
_BATCH = 900
"""MLflow accepts at most 1,000 metrics per call."""
_TIME = "time/training_time_ms"


class LiveCurves:
    """One run of ``TRAININGS``; every method talks to MLflow's database and may raise what MLflow does."""

    def __init__(self, home: Home, name: str, tags: Mapping[str, str]) -> None:
        """Name the run, which is created with the first update."""
        self._home, self._name, self._tags = home, name, dict(tags)
        self._run: tuple[MlflowClient, str] | None = None

    def write(self, updates: Sequence[Update]) -> None:
        """Log the finite metrics of updates, under ``<phase>/<name>`` and at their steps."""
        from mlflow.entities import Metric

        client, run_id = self._begun()
        moment = int(time.time() * 1000)
        rows = (
            Metric(name, value, moment, update.step)
            for update in updates
            for name, value in (*_named(update), (_TIME, update.time_ms))
            if math.isfinite(value)
        )
        while batch := list(islice(rows, _BATCH)):  # never all rows at once: many updates wait for a slow database
            client.log_batch(run_id, metrics=batch)

    def close(self, policy: str | None, stopped: str | None = None) -> None:
        """End the run: FINISHED with the digest of its policy as a tag, or FAILED without one.

        A hopeless training has FAILED, with ``stopped``, the cause, as a tag too.
        """
        if self._run is None:
            return
        client, run_id = self._run
        if policy is not None:
            client.set_tag(run_id, "policy", policy)
        if stopped is not None:
            client.set_tag(run_id, "stopped", stopped)
        client.set_terminated(run_id, "FAILED" if policy is None or stopped is not None else "FINISHED")

    def _begun(self) -> tuple[MlflowClient, str]:
        if self._run is None:
            client = open_client_of(self._home)
            known = client.get_experiment_by_name(TRAININGS)
            experiment = (
                client.create_experiment(TRAININGS, self._home.artifacts.as_uri(), tags={DESCRIPTION_TAG: _DESCRIPTION})
                if known is None
                else known.experiment_id
            )
            run = client.create_run(str(experiment), tags=self._tags, run_name=self._name)
            self._run = client, str(run.info.run_id)
        return self._run


def _named(update: Update) -> list[tuple[str, float]]:
    return [(f"{update.phase}/{name}", value) for name, value in update.metrics.items()]
