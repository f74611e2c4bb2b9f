"""Names that people and other programs rely on. A change here breaks somebody: it needs a major version."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from simic.contracts import names
from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, OPS, TEMPOS
from simic.contracts.controllers import CONTROLLER_ORDER
from simic.contracts.field_report import FieldReport, GovernorKind, Outcome, StepMetrics
from simic.contracts.lifecycle import Gate, SeedStage
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import (
    CollectionReceipt,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    SnapshotManifest,
    TrainingReport,
)
from simic.contracts.results.trials import TrialReport
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity, SeedState, SystemState
from simic.contracts.telemetry import CircuitState, HealthStatus


def test_actions_and_their_order() -> None:
    assert [op.value for op in OPS] == ["WAIT", "GERMINATE", "SET_ALPHA_TARGET", "ADVANCE", "FOSSILIZE", "PRUNE"]
    assert [head.value for head in HEADS] == [
        "op", "slot", "blueprint", "alpha_target", "alpha_speed", "alpha_curve", "tempo",
    ]  # fmt: skip
    assert (ALPHA_TARGETS, ALPHA_SPEEDS, TEMPOS) == ((0.5, 0.7, 1.0), (0, 3, 5, 8), (3, 5, 8))
    assert [curve.value for curve in ALPHA_CURVES] == ["LINEAR", "COSINE", "SIGMOID"]


def test_names_of_the_model_its_aliases_topics_and_event_types() -> None:
    assert (names.MODEL_NAME, names.CHAMPION, names.CANDIDATE) == ("tamiyo", "champion", "candidate")
    assert names.CHAMPION_REFERENCE == "models:/tamiyo@champion"
    assert (names.FIELD_REPORTS, names.FIELD_REPORT_TYPE) == ("tamiyo.field_reports", "tamiyo.field_report")
    assert (names.POLICY_UPDATES, names.POLICY_UPDATE_TYPE) == ("innovation.policy", "innovation.policy_update")
    assert names.KEY_LIMIT == 2**31


def test_names_on_the_wire_are_written_down_in_one_file() -> None:
    own = {value for name in names.__all__ if isinstance(value := getattr(names, name), str)}
    own -= {names.KARN, *CONTROLLER_ORDER}  # also plug-ins, and words of other contracts and verbs
    sources = [path for path in Path(inspect.getfile(names)).parents[1].rglob("*.py") if path.name != "names.py"]
    assert len(sources) > 100
    for path in sources:
        literals = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not literals & own, path


def test_enumerations() -> None:
    assert [stage.value for stage in SeedStage] == [
        "DORMANT", "GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "PRUNED", "EMBARGOED", "RESETTING",
    ]  # fmt: skip
    assert [gate.value for gate in Gate] == ["G0", "G1", "G2", "G3", "G4", "G5"]
    assert [outcome.value for outcome in Outcome] == ["SUCCESS", "NEUTRAL", "REGRESSION", "ABORTED"]
    assert [kind.value for kind in GovernorKind] == ["NON_FINITE", "DIVERGENCE", "COLLAPSE"]
    assert [split.value for split in Split] == ["train", "validation", "test"]
    assert [status.value for status in HealthStatus] == ["HEALTHY", "DEGRADED", "UNHEALTHY", "CRITICAL"]
    assert [state.value for state in CircuitState] == ["CLOSED", "OPEN", "HALF_OPEN"]


def test_the_columns_of_a_report() -> None:
    assert list(FieldReport.model_fields) == [
        "schema_version", "report_id", "run_id", "command_id", "step", "controller", "policy_version", "host", "state",
        "available", "action", "relevant", "log_prob_behaviour", "outcome", "metrics", "terminated", "truncated",
        "governor", "seed_id", "blueprint_id", "observation_window_epochs", "mitigation", "branch_of",
        "branch_step", "trial_id", "judgement", "issued_at", "final_state",
    ]  # fmt: skip
    assert list(HostIdentity.model_fields) == ["set", "family", "key"]
    assert list(StepMetrics.model_fields) == [
        "validation_accuracy_before", "validation_accuracy_after", "validation_loss_before", "validation_loss_after",
        "rent_parameters", "committed_parameters", "test_accuracy",
    ]  # fmt: skip


def test_d26_what_a_controller_sees_is_disjoint_from_what_it_is_paid_for() -> None:
    seen = set(SystemState.model_fields) | set(SeedState.model_fields)
    assert not seen & set(StepMetrics.model_fields)
    assert not {"family", "key"} & seen


def test_stages_name_their_receipts() -> None:
    receipts = (
        CollectionReceipt, IngestReceipt, SnapshotManifest, TrainingReport, TrialReport, ValidationReport,
        GateDecision, PolicyVersion, PublicationReceipt,
    )  # fmt: skip
    assert [receipt.model_fields["stage"].default for receipt in receipts] == [
        "collect", "ingest", "curate", "train", "trials", "validate", "gate", "promote", "publish",
    ]  # fmt: skip


def test_vtrace_is_called_by_these_names() -> None:
    from simic.numerics.vtrace import VTrace, vtrace

    parameters = inspect.signature(vtrace).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        **dict.fromkeys(
            ("log_prob_target", "log_prob_behaviour", "rewards", "discounts", "values", "next_values", "is_cut"),
            inspect.Parameter.empty,
        ),
        "rho_bar": 1.0,
        "c_bar": 1.0,
        "pg_rho_bar": 1.0,
        "lambda_": 1.0,
    }
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert VTrace._fields[:2] == ("vs", "pg_advantages")
