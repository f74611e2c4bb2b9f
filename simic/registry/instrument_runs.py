"""Results of instruments as MLflow runs, in an experiment of their own: a run of ``simic`` is one judged policy."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simic.contracts.results.receipts import Receipt
from simic.registry.experiment_page import DESCRIPTION_TAG
from simic.registry.headline import RunTable
from simic.registry.mlflow_run import TABLES_TAG, milliseconds, table_file
from simic.registry.mlflow_store import INITIALISE_WAIT_S, open_client_of, store_errors
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.trust.canonical import digest_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "INSTRUMENTS",
    "ComparedPolicy",
    "ComparisonResult",
    "InstrumentResult",
    "has_database",
    "log_comparison",
    "log_instrument",
]

INSTRUMENTS = "simic instruments"
_FINISHED = "FINISHED"
_PARENT_TAG = "mlflow.parentRunId"
"""Tag by which MLflow shows a run below another one."""
_DESCRIPTION = "Pages and figures of comparisons that people asked for. No run here is a judgement of a policy."


class InstrumentResult(NamedTuple):
    """Numbers, page and plots of one call of an instrument, as they are logged to MLflow."""

    name: str
    """Name of the run."""
    kind: str
    """Stage of the receipt; a tag, by which runs are found."""
    receipt: Receipt
    metrics: Mapping[str, float]
    page: Path
    """Markdown file with the tables."""
    figures: Mapping[str, bytes]
    """PNG by name."""


class ComparedPolicy(NamedTuple):
    """One controller or policy of a comparison."""

    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]


class ComparisonResult(NamedTuple):
    """A finished comparison of controllers, policies or recipes, as it is logged to MLflow."""

    name: str
    """Name of the run."""
    kind: str
    """Stage of the receipt; a tag, by which runs are found."""
    receipt: Receipt
    policies: Sequence[ComparedPolicy]
    """Each becomes a run of its own below that of the comparison."""
    tables: Sequence[RunTable]


def has_database(home: Home) -> bool:
    """Return whether the home has MLflow's database, without which nothing is logged."""
    return home.mlflow_database.exists()


def log_instrument(home: Home, result: InstrumentResult) -> str | None:
    """Log a finished run with page, figures and receipt, and return its id; None in a home without MLflow's database.

    Raises:
        TransientError: while MLflow's database is locked.
        ContractError: if MLflow refuses the run, or its database has another schema.
        IntegrityError: if the database is damaged or is not one of MLflow.
    """
    if not has_database(home):
        return None
    with store_errors(f"logging {result.name}"):
        client = open_client_of(home)
        run_id = _begin(client, _experiment(client, home), result)
        for name, value in result.metrics.items():
            client.log_metric(run_id, name, value)
        client.log_artifact(run_id, str(result.page))
        client.log_text(run_id, result.receipt.model_dump_json(indent=2), "receipt.json")
        with tempfile.TemporaryDirectory() as folder:
            for name, png in result.figures.items():
                (Path(folder) / f"{name}.png").write_bytes(png)
            client.log_artifacts(run_id, folder, "figures")
        client.set_terminated(run_id, _FINISHED, milliseconds(result.receipt.finished_at))
    return run_id


def log_comparison(home: Home, result: ComparisonResult) -> str | None:
    """Log a finished run with tables and receipt, and below it one run per policy; return its id.

    None and errors are those of ``log_instrument``.
    """
    if not has_database(home):
        return None
    finished = milliseconds(result.receipt.finished_at)
    with store_errors(f"logging {result.name}"):
        client = open_client_of(home)
        experiment = _experiment(client, home)
        run_id = _begin(client, experiment, result)
        for policy in result.policies:
            nested = _begin(client, experiment, result._replace(name=policy.name), {_PARENT_TAG: run_id})
            _log_policy(client, nested, policy, finished)
            client.set_terminated(nested, _FINISHED, finished)
        for table in result.tables:
            client.log_text(run_id, json.dumps({"columns": table.columns, "data": table.rows}), table_file(table))
        files = [{"path": table_file(table), "type": "table"} for table in result.tables]
        client.set_tag(run_id, TABLES_TAG, json.dumps(files))
        client.log_text(run_id, result.receipt.model_dump_json(indent=2), "receipt.json")
        client.set_terminated(run_id, _FINISHED, finished)
    return run_id


def _experiment(client: MlflowClient, home: Home) -> str:
    with exclusive(home.locks / "mlflow", "finding the experiment of comparisons", INITIALISE_WAIT_S):
        known = client.get_experiment_by_name(INSTRUMENTS)
        if known is None:
            tags = {DESCRIPTION_TAG: _DESCRIPTION}
            return str(client.create_experiment(INSTRUMENTS, home.artifacts.as_uri(), tags=tags))
        if known.lifecycle_stage == "deleted":  # MLflow keeps its name, and takes neither a run nor another of the name
            client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)


def _begin(
    client: MlflowClient,
    experiment: str,
    result: InstrumentResult | ComparisonResult,
    tags: Mapping[str, str] | None = None,
) -> str:
    receipt = result.receipt
    own = {
        "stage": result.kind,
        "receipt_digest": digest_of(receipt.model_dump(mode="json")),
        "code_version": receipt.code_version,
        "config_digest": receipt.config_digest,
        **(tags or {}),
    }
    started = milliseconds(receipt.started_at)
    return str(client.create_run(experiment, started, own, run_name=result.name).info.run_id)


def _log_policy(client: MlflowClient, run_id: str, policy: ComparedPolicy, moment: int) -> None:
    from mlflow.entities import Metric, Param

    client.log_batch(
        run_id,
        metrics=[Metric(name, value, moment, 0) for name, value in policy.metrics.items()],
        params=[Param(name, value) for name, value in policy.params.items()],
    )
