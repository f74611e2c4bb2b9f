"""Candidates that must never pass, through the whole of ``simic promote``: exit code 3, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from support.builders.sealed_policies import validated
from support.homes.mlflow_databases import furnished_home
from support.servers.forked_commands import run_command

from simic.app.container import Container
from simic.contracts.names import CANDIDATE
from simic.contracts.results.gate import Probe, ValidationReport
from simic.contracts.results.trials import ControllerTrial
from simic.ledgers.policies import candidate_versions
from simic.runtime.settings import load_profile

Change = Callable[[ValidationReport], ValidationReport]


def with_rows(change: Callable[[ControllerTrial, ControllerTrial], ControllerTrial]) -> Change:
    """Change the candidate's row, given that of never growing."""

    def changed(report: ValidationReport) -> ValidationReport:
        rows = {row.controller: row for row in report.trials.controllers}
        rows[CANDIDATE] = change(rows[CANDIDATE], rows["wait"])
        trials = report.trials.model_copy(update={"controllers": list(rows.values())})
        return report.model_copy(update={"trials": trials})

    return changed


def with_probe(name: str, detail: str) -> Change:
    return lambda report: report.model_copy(
        update={"probes": {**report.probes, name: Probe(value=1.0, count=8, detail=detail)}}
    )


def empty(report: ValidationReport) -> ValidationReport:
    nothing = {"host_keys": [], "families": [], "controllers": []}
    trials = report.trials.model_copy(update=nothing)
    return report.model_copy(update={"trials": trials, "differences": {}, "probes": {}, "further": []})


HOPELESS: dict[str, tuple[Change, str]] = {
    "waits": (
        with_rows(lambda row, wait: wait.model_copy(update={"controller": row.controller})), "return_over_wait is "
    ),
    "acts illegally": (with_rows(lambda row, _: row.model_copy(update={"illegal_actions": 1})), "illegal_actions is 1"),
    "hacks the reward": (
        with_rows(lambda row, _: row.model_copy(update={"hacking_steps": row.measured_steps})), "reward_hacking is 1"
    ),
    "holds hosts to ransom": (
        with_rows(lambda row, _: row.model_copy(update={"ransomware_steps": row.measured_steps})), "ransomware is 1"
    ),
    "claims a higher mean": (
        with_rows(lambda row, _: row.model_copy(update={"mean_return": 99.0})), "other_than_its_episodes is 1"
    ),
    "was never tried": (empty, "episodes is missing"),
    "has no metrics": (lambda report: report.model_copy(update={"training_metrics": {}}), "commit_rate is missing"),
    "gives NaN": (with_probe("finite_outputs", "history: huge: 1 of 8"), "finite_outputs is 1"),
    "is pickled": (with_probe("artifact", "'policy.pkl' is not in the allow-list"), "artifact is 1"),
}  # fmt: skip


def test_each_hopeless_candidate_is_rejected_with_its_reason(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The evidence is otherwise that of a policy that the gate accepts."""
    app = Container(furnished_home(home, tmp_path_factory), load_profile("default"), 0)
    report, found = validated(app), {}
    for name, (change, reason) in HOPELESS.items():
        app.save_receipt(change(report))
        done = run_command("promote")
        found[name] = (done.returncode, reason in done.stderr)
        assert found[name] == (3, True), f"{name}: {done.stderr}"
    assert app.policies.champion_digest() is None
    version = candidate_versions(app.home)[-1]
    client = MlflowClient(app.home.tracking_uri)
    files = {item.path for item in client.list_artifacts(version.mlflow_run_id, "gate")}
    assert files == {"gate/gate.md", "gate/criteria.png"}
    page = (app.home.runs / report.policy_digest[:16] / "gate" / "gate.md").read_text("utf-8")
    assert "- **artifact** is 1, needs <= 0: faults of the sealed files of the policy, of 8; first 'policy.pkl'" in page
    app.save_receipt(report)
    assert run_command("promote").returncode == 0, "the same policy with its own evidence"
