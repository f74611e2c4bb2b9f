"""Names, tags and texts in MLflow that are derived from the ledgers and change at every promotion and rollback."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from simic.contracts.errors import ContractError
from simic.ledgers.promotions import History
from simic.registry.differences import (
    REPAIR,
    Difference,
    differing_tags,
    label_differences,
    wanted_labels,
)
from simic.registry.experiment_page import experiment_tags
from simic.registry.ledger_records import LedgerRecords
from simic.registry.mlflow_run import label_run, run_labels
from simic.registry.mlflow_store import display_only
from simic.registry.models import Models, Shown
from simic.registry.version_status import wanted_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

__all__ = ["Labels"]


class Labels:
    """Writes labels from the ledgers into MLflow, and compares them; to write, the caller holds the registry's lock.

    The tags of versions are compared with the journal, so a failure to write them is an error. Names and tags of runs
    and of the experiment are for display only: if MLflow refuses them, that is logged and the caller continues.
    """

    def __init__(self, client: MlflowClient, experiment: str, models: Models) -> None:
        self._client, self._experiment, self._models = client, experiment, models

    def show(self, records: LedgerRecords, shown: Shown) -> None:
        """Write tags and run names of the versions in ``shown``, and the tags of the experiment, where they differ."""
        labels = wanted_labels(records)
        for number, version in shown.versions.items():
            self._models.tag(number, differing_tags(version, wanted_tags(records, version.number, version.tags)))
            listed = records.candidates.get(number)
            if listed is not None and (label := labels.get(listed.mlflow_run_id)) is not None:
                label_run(self._client, listed.mlflow_run_id, label)
        self.show_experiment(records.history)

    def require_experiment(self) -> None:
        """Raise ContractError if the experiment is deleted: MLflow takes no run in it."""
        if self._is_deleted(self._client.get_experiment(self._experiment)):
            raise ContractError(self._deleted_message())

    def show_experiment(self, history: History) -> None:
        """Write the tags of the experiment where they differ; an experiment that MLflow refuses to change is logged."""
        with display_only("the description and the saved view of the experiment were", self._restore_hint()):
            for key, value in _differing(self._client.get_experiment(self._experiment), history).items():
                self._client.set_experiment_tag(self._experiment, key, value)

    def differences(self, records: LedgerRecords, cut_short: Collection[str]) -> Iterator[Difference]:
        """Yield each run name and each text of the experiment that differs from the ledgers.

        A deleted experiment is one difference: MLflow deletes and restores its runs with it.

        ``cut_short`` are runs of versions whose recording was cut short.
        """
        experiment = self._client.get_experiment(self._experiment)
        if self._is_deleted(experiment):
            yield Difference(self._deleted_message(), is_repairable=False, lets_repair_go_on=True)
            return
        yield from label_differences(records, run_labels(self._client, self._experiment), cut_short)
        if records.history.open_entry is None:
            for key in _differing(experiment, records.history):
                text = f"MLflow shows another tag {key} of the experiment than the journal gives; {REPAIR}"
                yield Difference(text, is_repairable=True)

    def _is_deleted(self, experiment: Experiment) -> bool:
        from mlflow.entities import LifecycleStage

        return bool(experiment.lifecycle_stage == LifecycleStage.DELETED)

    def _deleted_message(self) -> str:
        text = f"MLflow's experiment {self._experiment} is deleted with its runs, so no candidate can be recorded"
        return f"{text}; {self._restore_hint()}"

    def _restore_hint(self) -> str:
        return f"restore it in MLflow with `mlflow experiments restore --experiment-id {self._experiment}`"


def _differing(experiment: Experiment, history: History) -> dict[str, str]:
    tags = experiment.tags
    return {key: value for key, value in experiment_tags(history).items() if tags.get(key) != value}
