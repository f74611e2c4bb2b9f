"""What MLflow shows of a candidate: one run with parameters, curves, single numbers, files and its data set.

Everything here can be done twice: times are those of the receipts, so a repeated metric is the same row.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simic.contracts.config import RunConfig
from simic.contracts.receipts import (
    ControllerTrial,
    FamilyTrial,
    GateDecision,
    SnapshotManifest,
    TrainingReport,
    TrialReport,
    ValidationReport,
)
from simic.registry.versions import Lineage
from simic.runtime.telemetry import read_metrics
from simic.trust.canonical import digest_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

__all__ = [
    "Evidence",
    "ensure_run",
    "flatten",
    "gate_metrics",
    "lineage_of",
    "log_run",
    "log_scores",
    "trial_metrics",
    "version_tags",
]

_LOG = logging.getLogger(__name__)
_BATCH = 900
"""MLflow takes at most 1,000 metrics a call."""
_ARCHITECTURE = ("architecture", "network", "feature_version", "blueprints")
"""Fields of a card that decide which weights fit."""
_NOT_SHAPE = "exploration"
"""The one setting of the network that moves no weight."""
_TRAIN_PREFIX = "train/"
_DIGEST_CHARACTERS = 32
"""MLflow limits the digest of a data set to 36; the whole one is a tag."""


class Evidence(NamedTuple):
    """Everything known about one candidate."""

    training: TrainingReport
    validation: ValidationReport
    gate: GateDecision
    snapshot: SnapshotManifest
    config: RunConfig


def ensure_run(client: MlflowClient, experiment: str, evidence: Evidence) -> str:
    """The candidate's run; a run left unfinished by a killed process is taken up again."""
    digest = evidence.training.digest
    found = client.search_runs([experiment], filter_string=f"tags.policy_digest = '{digest}'", max_results=1)
    if found:
        return str(found[0].info.run_id)
    run = client.create_run(
        experiment,
        start_time=_milliseconds(evidence.training.started_at),
        run_name=f"vtrace-s{evidence.training.seed}-{digest[:8]}",
        tags={
            "policy_digest": digest,
            "snapshot_digest": evidence.snapshot.digest,
            "code_version": evidence.training.code_version,
            "config_digest": evidence.training.config_digest,
        },
    )
    return str(run.info.run_id)


def log_run(client: MlflowClient, run_id: str, evidence: Evidence) -> None:
    """Parameters, curves, data set, verdict, receipts and figures."""
    from mlflow.entities import RunTag

    _log_params(client, run_id, evidence)
    curves, broken = _curves(Path(evidence.training.curves_path), _milliseconds(evidence.training.finished_at))
    _log_metrics(client, run_id, curves)
    gate = evidence.gate
    tags = {
        "gate": "accepted" if gate.accepted else "rejected",
        "gate_digest": gate.digest,
        "gate_failed": ", ".join(c.name for c in gate.criteria if c.verdict.value != "PASS") or "none",
        "mlflow.note.content": _note(evidence),
        # Not-a-number has no point on a chart, and infinities come back changed: say where they were instead.
        **{f"not_finite.{name}": f"first at step {step}" for name, step in broken.items()},
    }
    client.log_batch(run_id, tags=[RunTag(key, value[:5000]) for key, value in tags.items()])
    _log_dataset(client, run_id, evidence.snapshot)
    _log_files(client, run_id, evidence)


def log_scores(client: MlflowClient, run_id: str, model_id: str, evidence: Evidence) -> None:
    """Trial and gate numbers, once each, on the run and on the model."""
    moment = _milliseconds(evidence.gate.finished_at)
    from mlflow.entities import Metric

    scores = {**trial_metrics(evidence.validation.trials), **gate_metrics(evidence.gate)}
    _log_metrics(client, run_id, [Metric(name, value, moment, 0, model_id=model_id) for name, value in scores.items()])


def version_tags(evidence: Evidence) -> dict[str, str]:
    """What a person wants to see beside a version, and what its receipts are rebuilt from."""
    training, gate, trials = evidence.training, evidence.gate, evidence.validation.trials
    tags = {
        "digest": training.digest,
        "snapshot": evidence.snapshot.digest,
        "code_version": training.code_version,
        "config_digest": training.config_digest,
        "seed": str(training.seed),
        "start_digest": training.start_digest or "none",
        "gate": "accepted" if gate.accepted else "rejected",
        "gate_digest": gate.digest,
        "recorded_at": gate.finished_at.isoformat(),
        "episodes": str(len(trials.host_keys)),
    }
    for name, estimate in evidence.validation.differences.items():
        tags[f"return_over_{name}"] = f"{estimate.mean:.4f}"
        tags[f"return_over_{name}_lower"] = f"{estimate.lower:.4f}"
        tags["confidence"] = str(estimate.confidence)
    return tags


def lineage_of(policy: Path) -> Lineage:
    """What of a sealed policy decides its version number, from its card."""
    card = json.loads((policy / "card.json").read_text("utf-8"))
    shape = {name: card[name] for name in _ARCHITECTURE}
    shape["network"] = {name: value for name, value in card["network"].items() if name != _NOT_SHAPE}
    return Lineage(card["schema_version"], digest_of(shape)[:16])


def trial_metrics(report: TrialReport) -> dict[str, float]:
    """``trial/<number>_<controller>``, and ``trial/<family>/<number>_<controller>`` within a family."""
    metrics: dict[str, float] = {}
    for trial in report.controllers:
        metrics |= _numbers("trial", trial.controller, trial)
        for family, own in trial.by_family.items():
            metrics |= _numbers(f"trial/{family}", trial.controller, own)
    return metrics


def _numbers(prefix: str, controller: str, trial: ControllerTrial | FamilyTrial) -> dict[str, float]:
    numbers = {
        f"{prefix}/return_{controller}": trial.mean_return,
        f"{prefix}/test_accuracy_{controller}": trial.test_accuracy,
        f"{prefix}/parameters_{controller}": trial.committed_parameters,
    }
    if trial.over_wait is not None:
        numbers[f"{prefix}/over_wait_{controller}"] = trial.over_wait.mean
        numbers[f"{prefix}/over_wait_lower_{controller}"] = trial.over_wait.lower
    return numbers


def gate_metrics(gate: GateDecision) -> dict[str, float]:
    """``gate/<criterion>`` for every criterion that has a value, and ``gate/accepted`` 1 or 0."""
    values = {f"gate/{c.name}": c.value for c in gate.criteria if c.value is not None}
    return {**values, "gate/accepted": float(gate.accepted)}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and text values of a resolved configuration."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "null" if value is None else str(value)


def _log_params(client: MlflowClient, run_id: str, evidence: Evidence) -> None:
    from mlflow.entities import Param

    params = {
        **dict(flatten(evidence.config.model_dump(mode="json"))),
        "seed": str(evidence.training.seed),
        "start_digest": str(evidence.training.start_digest or "null"),
    }
    # A parameter cannot change, so one that stands already stays: it is the same receipt's.
    known = client.get_run(run_id).data.params
    missing = [Param(name, value) for name, value in sorted(params.items()) if name not in known]
    client.log_batch(run_id, params=missing)


def _curves(path: Path, moment: int) -> tuple[list[Metric], dict[str, int]]:
    """Series with steps, and the first step at which a series was not finite."""
    from mlflow.entities import Metric

    metrics: list[Metric] = []
    broken: dict[str, int] = {}
    for step, values in read_metrics(path) if path.is_file() else ():
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


def _log_files(client: MlflowClient, run_id: str, evidence: Evidence) -> None:
    receipts = {
        "training": evidence.training,
        "validation": evidence.validation,
        "gate": evidence.gate,
        "snapshot": evidence.snapshot,
        "config": evidence.config,
    }
    for name, receipt in receipts.items():
        client.log_text(run_id, receipt.model_dump_json(indent=2), f"receipts/{name}.json")
    for folder, path in [
        ("curves", evidence.training.curves_path),
        *(("figures", path) for path in evidence.validation.figures.values()),
    ]:
        if Path(path).is_file():
            client.log_artifact(run_id, path, folder)
        else:  # a picture less is no reason to lose the judgement
            _LOG.warning("policy %s is recorded without %s: it is gone", evidence.training.digest[:12], path)


def _note(evidence: Evidence) -> str:
    """Markdown at the top of the run's page: the decision, criterion by criterion."""
    gate = evidence.gate
    verdict = "accepted" if gate.accepted else "rejected"
    lines = [f"**Gate: {verdict}**", "", "| criterion | value | bound | verdict |", "| --- | --- | --- | --- |"]
    for c in gate.criteria:
        value = "-" if c.value is None else f"{c.value:.4g}"
        lines.append(f"| {c.name} | {value} | {c.comparison} {c.bound:.4g} | {c.verdict.value} |")
    return "\n".join(lines)


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
