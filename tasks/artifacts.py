"""What a run shows in the Prefect UI: the proof table, the gate's criteria, the champion."""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from simic.contracts.receipts import GateDecision, PolicyVersion, ValidationReport
from simic.validation.table import render_table

__all__ = ["show_decision", "show_validation", "show_version"]


def _is_in_flow() -> bool:
    """Artifacts need an API, which exists only within a run."""
    return FlowRunContext.get() is not None


def show_validation(report: ValidationReport) -> None:
    """The proof table."""
    if not _is_in_flow():
        return
    text = render_table(report.trials)
    rows = [dict(zip(text.header, row, strict=True)) for row in text.rows]
    hosts = len(report.trials.host_keys)
    create_table_artifact(rows, key="proof", description=f"{hosts} held-out hosts, returns in points, paired by host")


def show_decision(decision: GateDecision) -> None:
    """Every criterion with value, bound and verdict."""
    if not _is_in_flow():
        return
    lines = [f"# Gate: {'accepted' if decision.accepted else 'rejected'}", ""]
    lines += ["| criterion | value | bound | verdict | evidence |", "| --- | --- | --- | --- | --- |"]
    for line in decision.criteria:
        value = "missing" if line.value is None else f"{line.value:.4g}"
        bound = f"{line.comparison} {line.bound:.4g}"
        lines.append(f"| {line.name} | {value} | {bound} | {line.verdict.value} | {line.evidence} |")
    create_markdown_artifact("\n".join(lines), key="gate", description=f"Policy {decision.policy_digest[:12]}")


def show_version(version: PolicyVersion) -> None:
    """Where the champion is."""
    if not _is_in_flow():
        return
    text = (
        f"`models:/{version.name}@champion` is version **{version.semantic_version}** "
        f"(registry number {version.number}), digest `{version.digest}`, MLflow run `{version.mlflow_run_id}`."
    )
    create_markdown_artifact(text, key="champion", description="The policy promoted by this run")
