"""The MLflow run of a judged policy: parameters, curves, headline metrics, tables, files and its data set.

Every function is idempotent. Times are those of the receipts, so a repeated metric is the same row.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simic.contracts.errors import IntegrityError
from simic.contracts.names import WAIT, judged_name
from simic.contracts.policy_update import ValidationSummary
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.karn import KarnReport, Trained
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.trials import SeedChoice
from simic.contracts.settings.run import RunConfig
from simic.registry.headline import RunTable, headline_metrics, seed_metrics, seed_table, tables
from simic.registry.mlflow_store import display_only
from simic.registry.model_card import CARD_FILE, model_card
from simic.registry.version_numbers import Lineage
from simic.registry.version_status import STATUS_TAG, judged_status, version_description
from simic.runtime.telemetry import read_metrics
from simic.trust.canonical import digest_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

__all__ = [
    "TABLES_TAG",
    "CandidateRecord",
    "RunLabel",
    "ensure_run",
    "flatten",
    "label_run",
    "lineage_of",
    "log_run",
    "log_scores",
    "milliseconds",
    "restore_run_hint",
    "run_labels",
    "summary_of",
    "table_file",
    "version_tags",
]

_LOG = logging.getLogger(__name__)
_BATCH = 900
"""MLflow accepts at most 1,000 metrics per call."""
_ARCHITECTURE = ("architecture", "network", "feature_version", "blueprints")
"""Fields of a policy card that decide which weights fit."""
_NOT_SHAPE = "exploration"
"""The only setting of the network that does not affect the weights."""
_TRAIN_PREFIX = "train/"
_DIGEST_CHARACTERS = 32
"""MLflow limits the digest of a data set to 36 characters; the full digest is a tag."""


TABLES_TAG = "mlflow.loggedArtifacts"
"""Tag by which MLflow recognises table artifacts."""
_RUN_NAME_TAG = "mlflow.runName"
_PAGE = 1_000
_PAGE_FOLDER = "gate"


class CandidateRecord(NamedTuple):
    """Everything that is recorded of one judged candidate."""

    training: Trained
    validation: ValidationReport
    gate: GateDecision
    snapshot: SnapshotManifest
    config: RunConfig
    page: Path | None = None
    """Folder of the page of the judgement, which becomes the folder ``gate`` of the run."""
    choice: SeedChoice | None = None
    """Figures of all training seeds, if the candidate was chosen among several."""


class RunLabel(NamedTuple):
    """Name and status of a run, as MLflow's list of runs shows them."""

    name: str
    status: str | None
    """None for a run whose recording was cut short."""
    is_deleted: bool = False
    """Whether somebody deleted the run in MLflow: it can be read and restored, but not renamed or tagged."""


def ensure_run(client: MlflowClient, experiment: str, candidate: CandidateRecord, listed: str | None) -> str:
    """Return the id of the candidate's run, which is created unless there is one; a deleted one is restored.

    A second run of the same policy would be in no ledger. So a run that a killed process left unfinished is continued,
    and a run that somebody deleted in MLflow becomes visible again, because the candidate is recorded on it.

    Args:
        client: client of the home's database.
        experiment: id of the experiment.
        candidate: what is recorded of it.
        listed: id of the run that the ledger of candidates names for this policy, if any.
    """
    from mlflow.entities import LifecycleStage, ViewType

    digest = candidate.training.digest
    runs = client.search_runs(
        [experiment], filter_string=f"tags.policy_digest = '{digest}'", run_view_type=ViewType.ALL, max_results=_PAGE
    )
    if runs:
        chosen = min(
            runs, key=lambda run: (run.info.run_id != listed, run.info.lifecycle_stage == LifecycleStage.DELETED)
        )
        run_id = str(chosen.info.run_id)
        if chosen.info.lifecycle_stage == LifecycleStage.DELETED:
            client.restore_run(run_id)
            _LOG.warning(
                "run %s of policy %s was deleted in MLflow and is restored: the policy is recorded on it",
                run_id,
                digest[:12],
            )
        return run_id
    run = client.create_run(
        experiment,
        start_time=milliseconds(candidate.training.started_at),
        run_name=f"recording {digest[:6]}",
        tags={
            "policy_digest": digest,
            "snapshot_digest": candidate.snapshot.digest,
            "code_version": candidate.training.code_version,
            "config_digest": candidate.training.config_digest,
        },
    )
    return str(run.info.run_id)


def log_run(client: MlflowClient, run_id: str, candidate: CandidateRecord) -> None:
    """Log parameters, curves, data set, verdict, tables, receipts and figures."""
    from mlflow.entities import RunTag

    _log_params(client, run_id, candidate)
    curves, broken = _curves(_curves_path(candidate.training), milliseconds(candidate.training.finished_at))
    _log_metrics(client, run_id, curves)
    gate = candidate.gate
    tags = {
        "gate": "accepted" if gate.accepted else "rejected",
        "gate_digest": gate.digest,
        "gate_failed": ", ".join(c.name for c in gate.criteria if c.verdict.value != "PASS") or "none",
        "mlflow.note.content": version_description(candidate.training, candidate.validation, gate, candidate.snapshot),
        TABLES_TAG: json.dumps([{"path": table_file(table), "type": "table"} for table in _tables(candidate)]),
        # MLflow plots no NaN and alters infinities, so a tag names the first step instead.
        **{f"not_finite.{name}": f"first at step {step}" for name, step in broken.items()},
    }
    client.log_batch(run_id, tags=[RunTag(key, value[:5000]) for key, value in tags.items()])
    _log_dataset(client, run_id, candidate.snapshot)
    _log_files(client, run_id, candidate)


def log_scores(client: MlflowClient, run_id: str, model_id: str, candidate: CandidateRecord) -> None:
    """Log the headline metrics, once each, on the run and on the model."""
    from mlflow.entities import Metric

    moment = milliseconds(candidate.gate.finished_at)
    scores = headline_metrics(candidate.validation) | seed_metrics(candidate.choice)
    _log_metrics(client, run_id, [Metric(name, value, moment, 0, model_id=model_id) for name, value in scores.items()])


def label_run(client: MlflowClient, run_id: str, label: RunLabel) -> None:
    """Name a run and tag it with its status; a run that MLflow refuses to change is logged."""
    with display_only(f"the name {label.name!r} of run {run_id} was", restore_run_hint(run_id)):
        client.update_run(run_id, name=label.name)
        if label.status is not None:
            client.set_tag(run_id, STATUS_TAG, label.status)


def restore_run_hint(run_id: str) -> str:
    """Return a hint for the operator about a deleted run."""
    return f"restore the run in MLflow with `mlflow runs restore --run-id {run_id}`, or leave it: nothing depends on it"


def run_labels(client: MlflowClient, experiment: str) -> dict[str, RunLabel]:
    """Return the label of every run, deleted ones too, by id."""
    from mlflow.entities import LifecycleStage, ViewType

    labels: dict[str, RunLabel] = {}
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], run_view_type=ViewType.ALL, max_results=_PAGE, page_token=token or None)
        for run in page:
            tags = run.data.tags
            is_deleted = run.info.lifecycle_stage == LifecycleStage.DELETED
            labels[str(run.info.run_id)] = RunLabel(tags.get(_RUN_NAME_TAG, ""), tags.get(STATUS_TAG), is_deleted)
        token = page.token or None
    return labels


def version_tags(candidate: CandidateRecord) -> dict[str, str]:
    """Return the tags that the version of a judged policy shows, but for its semantic version."""
    gate = candidate.gate
    return {
        "digest": candidate.training.digest,
        "snapshot": candidate.snapshot.digest,
        "gate": "accepted" if gate.accepted else "rejected",
        "gate_digest": gate.digest,
        STATUS_TAG: judged_status(gate.accepted).value,
    }


def summary_of(report: ValidationReport, gate: GateDecision) -> ValidationSummary:
    """Return the numbers for a policy update; raise IntegrityError without a comparison with ``wait``."""
    over_wait = report.differences.get(WAIT)
    if over_wait is None:
        raise IntegrityError(
            f"the validation report of policy {report.policy_digest[:12]} lacks the comparison with controller `wait`; "
            "run `simic validate` again"
        )
    return ValidationSummary(
        episodes=report.hosts,
        return_over_wait=over_wait.mean,
        lower_bound=over_wait.lower,
        confidence=over_wait.confidence,
        gate_digest=gate.digest,
        without=gate.without,
        evidence=gate.evidence,
        consulted_by=gate.consulted_by,
    )


def lineage_of(policy: Path) -> Lineage:
    """Return the fields of a sealed policy's card that decide its version number."""
    card = json.loads((policy / "card.json").read_text("utf-8"))
    shape = {name: card[name] for name in _ARCHITECTURE}
    shape["network"] = {name: value for name, value in card["network"].items() if name != _NOT_SHAPE}
    return Lineage(card["schema_version"], digest_of(shape)[:16])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and text values of a resolved configuration."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "null" if value is None else str(value)


def _log_params(client: MlflowClient, run_id: str, candidate: CandidateRecord) -> None:
    from mlflow.entities import Param

    params = {
        **dict(flatten(candidate.config.model_dump(mode="json"))),
        "seed": str(candidate.training.seed),
        **_training_params(candidate.training),
    }
    # MLflow refuses to change a parameter; an existing one comes from the same receipt.
    known = client.get_run(run_id).data.params
    missing = [Param(name, value) for name, value in sorted(params.items()) if name not in known]
    client.log_batch(run_id, params=missing)


def _training_params(training: Trained) -> dict[str, str]:
    if isinstance(training, KarnReport):
        return {name: str(getattr(training, name)) for name in ("comparisons", "germinations", "undrawn")}
    return {
        "recoveries": str(training.recoveries),
        "anomalies": ", ".join(f"{kind} {n}" for kind, n in training.anomalies.items()) or "none",
        "conservative_entries": str(training.conservative_entries),
        "start_digest": str(training.start_digest or "null"),
    }


def _curves_path(training: Trained) -> Path | None:
    """Return the file of the curves; the training of Karn keeps none."""
    return None if isinstance(training, KarnReport) else Path(training.curves_path)


def _curves(path: Path | None, moment: int) -> tuple[list[Metric], dict[str, int]]:
    """Return series with steps, and the first step at which a series was not finite."""
    from mlflow.entities import Metric

    metrics: list[Metric] = []
    broken: dict[str, int] = {}
    for step, values in read_metrics(path) if path is not None and path.is_file() else ():
        for name, value in values.items():
            key = name if name.startswith(_TRAIN_PREFIX) else f"{_TRAIN_PREFIX}{name}"
            if math.isfinite(value):
                metrics.append(Metric(key, value, moment, step))
            else:
                broken.setdefault(key, step)
    return metrics, broken


def _log_metrics(client: MlflowClient, run_id: str, metrics: Iterable[Metric]) -> None:
    rows = list(metrics)
    for start in range(0, len(rows), _BATCH):
        client.log_batch(run_id, metrics=rows[start : start + _BATCH])


def _log_dataset(client: MlflowClient, run_id: str, snapshot: SnapshotManifest) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name="snapshot",
        digest=snapshot.digest[:_DIGEST_CHARACTERS],
        source_type="local",
        source=json.dumps({"uri": snapshot.path}),
        profile=json.dumps({"rows": snapshot.rows_out, "episodes": snapshot.episodes}),
    )
    client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _log_files(client: MlflowClient, run_id: str, candidate: CandidateRecord) -> None:
    receipts = {
        "training": candidate.training,
        "validation": candidate.validation,
        "gate": candidate.gate,
        "snapshot": candidate.snapshot,
        "config": candidate.config,
        **({} if candidate.choice is None else {"training_seeds": candidate.choice}),
    }
    for name, receipt in receipts.items():
        client.log_text(run_id, receipt.model_dump_json(indent=2), f"receipts/{name}.json")
    client.log_text(run_id, model_card(candidate), CARD_FILE)
    for table in _tables(candidate):
        # MlflowClient.log_table appends to an existing table; a repeated recording must replace it.
        content = {"columns": table.columns, "data": table.rows}
        client.log_text(run_id, json.dumps(content), table_file(table))
    if candidate.page is not None:
        client.log_artifacts(run_id, str(candidate.page), _PAGE_FOLDER)
    curves = _curves_path(candidate.training)
    for folder, path in [
        *([] if curves is None else [("curves", curves)]),
        *(("figures", Path(path)) for path in candidate.validation.figures.values()),
    ]:
        if path.is_file():
            client.log_artifact(run_id, str(path), folder)
        else:  # a missing picture must not prevent the recording
            _LOG.warning(
                "%s is recorded without %s, which no longer exists",
                judged_name(candidate.gate.model, candidate.training.digest),
                path,
            )


def _tables(candidate: CandidateRecord) -> list[RunTable]:
    choice = candidate.choice
    return [*tables(candidate.validation, candidate.gate), *([] if choice is None else [seed_table(choice)])]


def table_file(table: RunTable) -> str:
    """Return the artifact path of a table."""
    return f"tables/{table.name}.json"


def milliseconds(moment: datetime) -> int:
    """Return a moment in milliseconds since 1970, as MLflow stores it."""
    return int(moment.timestamp() * 1000)
