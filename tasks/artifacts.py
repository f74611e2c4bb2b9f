"""Artifacts of a run in the Prefect UI: the proof table, the gate's criteria, the champion.

An artifact never fails a run: a failure to make or send one is logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from simic.contracts.errors import SimicError
from simic.contracts.names import CHAMPION_REFERENCE
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import PolicyVersion
from simic.runtime.home import MLFLOW_URL_VARIABLE
from simic.validation.gate_page import gate_text
from simic.validation.promotion_gate import rejection_message
from simic.validation.table import render_log, render_table

__all__ = ["show_champion", "show_decision", "show_validation", "show_version"]

P = ParamSpec("P")

_LOG = logging.getLogger(f"simic.{__name__}")  # Prefect shows loggers below simic


def _artifact(key: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Return a decorator that shows an artifact within a run, and logs every failure under the key of the artifact.

    Outside a run there is no API to send artifacts to, and nothing is shown.
    """

    def wrap(show: Callable[P, None]) -> Callable[P, None]:
        @wraps(show)
        def shown(*arguments: P.args, **named: P.kwargs) -> None:
            if FlowRunContext.get() is None:
                return
            try:
                show(*arguments, **named)
            except Exception as error:  # noqa: BLE001 - what the artifact shows is done already
                kind = type(error).__name__
                _LOG.warning("the artifact %s is not shown in Prefect, the run continues: %s: %s", key, kind, error)

        return shown

    return wrap


@_artifact("proof")
def show_validation(report: ValidationReport) -> None:
    """Show the proof table."""
    text, how = render_table(report.trials), "returns in points, paired by host"
    if report.evidence == "reports" and report.log is not None:
        text, how = render_log(report.log, report.differences), "estimates from logged episodes, in points"
    rows = [dict(zip(text.header, row, strict=True)) for row in text.rows]
    create_table_artifact(rows, key="proof", description=f"{report.hosts} held-out hosts, {how}")


@_artifact("gate")
def show_decision(decision: GateDecision) -> None:
    """Show every criterion with value, bound and verdict."""
    create_markdown_artifact(gate_text(decision), key="gate", description=f"Policy {decision.policy_digest[:12]}")


@_artifact("promoted")
def show_version(version: PolicyVersion) -> None:
    """Show the version that this run promoted."""
    text = f"`{CHAMPION_REFERENCE}` is now {describe_version(version)}."
    create_markdown_artifact(text, key="promoted", description="The policy promoted by this run")


@_artifact("champion")
def show_champion(
    champion: Callable[[], PolicyVersion | None], candidate: PolicyVersion, decision: GateDecision
) -> None:
    """Show which policy is live after the run, whether the candidate was promoted or rejected.

    ``champion`` looks it up; if the registry is found damaged, its error is shown.
    """
    try:
        version = champion()
        live = "No policy is live yet." if version is None else f"Live: {describe_version(version)}."
    except SimicError as error:
        live = f"The live policy is not certain: {error}"
    verdict = "promoted" if decision.accepted else f"rejected: {rejection_message(decision)}"
    text = f"{live}\n\nThis run's candidate is {describe_version(candidate)}; it was {verdict}"
    create_markdown_artifact(text, key="champion", description="The policy that is live after this run")


def describe_version(version: PolicyVersion) -> str:
    """Return a version in Markdown, with links into the MLflow UI if one is running."""
    number, run = f"{version.name}/{version.number}", f"`{version.mlflow_run_id}`"
    if url := os.environ.get(MLFLOW_URL_VARIABLE):
        number = f"[{number}]({url}/#/models/{version.name}/versions/{version.number})"
        run = f"[{run}]({url}/#/runs/{version.mlflow_run_id})"
    return f"version **{version.semantic_version}** ({number}), digest `{version.digest}`, MLflow run {run}"
