"""Everything that crosses a process boundary besides reports: bounds, and the same after JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError
from support.builders.judgements import judgement
from support.builders.plan_books import make_book

from simic.contracts.base import Contract
from simic.contracts.controllers import ControllerSpec, HeuristicRules, Plan, PlannedSeed
from simic.contracts.envelope import EventEnvelope, Priority
from simic.contracts.policy_update import PolicyUpdate, ValidationSummary
from simic.contracts.results.gate import Criterion, GateDecision, Verdict
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.telemetry import HealthStatus, SloViolation, TelemetryPacket

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
DIGEST = "ab" * 32
COMMON: dict[str, Any] = {
    "code_version": "0.1.0+0", "config_digest": DIGEST, "seed": 0, "started_at": NOW, "finished_at": NOW,
}  # fmt: skip

ENVELOPE = EventEnvelope(
    event_id="0" * 32, type="tamiyo.field_report", source="host-1", created_at=NOW, payload=b"\x00\xff{}"
)
UPDATE = PolicyUpdate(
    policy_name="tamiyo",
    version="1.2.3",
    digest=DIGEST,
    reference="models:/tamiyo/7",
    targets=["tamiyo"],
    validation=ValidationSummary(
        episodes=160, return_over_wait=5.5, lower_bound=4.9, confidence=0.95, gate_digest=DIGEST
    ),
    issued_at=NOW,
    key_id="0" * 16,
)
DECISION = GateDecision(
    **COMMON,
    policy_digest=DIGEST,
    champion_digest=None,
    judgement=judgement(),
    accepted=False,
    criteria=[
        Criterion(name="over wait", value=None, bound=0.0, comparison=">", verdict=Verdict.MISSING, evidence="none"),
        Criterion(name="episodes", value=160, bound=150, comparison=">=", verdict=Verdict.PASS, evidence="trials"),
    ],
    digest=DIGEST,
)
VERSION = PolicyVersion(
    **COMMON, name="tamiyo", number=3, semantic_version="1.0.0", digest=DIGEST, reference="models:/tamiyo/3",
    aliases=["champion"], previous=2, snapshot_digest=DIGEST, gate_digest=DIGEST, mlflow_run_id="r",
)  # fmt: skip
PLAN = Plan(seeds=[PlannedSeed(epoch=2, slot=1, blueprint="mlp")])
BOOK = make_book(PLAN, {"cap": PLAN})
RULES = HeuristicRules(blueprints=["mlp"])
PACKET = TelemetryPacket(
    source="trainer", status=HealthStatus.HEALTHY, metrics={"simic.trainer.grad_norm": 0.5}, emitted_at=NOW
)
VIOLATION = SloViolation(
    source="trainer", slo="latency", target=0.5, measured=0.7, unit="s", window_s=60.0, detected_at=NOW
)
SPEC = ControllerSpec(name="schedule", plan=PLAN, rules=RULES)


@pytest.mark.parametrize(
    "value",
    [ENVELOPE, UPDATE, DECISION, VERSION, BOOK, PACKET, VIOLATION, SPEC, RULES],
    ids=lambda value: type(value).__name__,
)
def test_json_and_back_is_the_same(value: Contract) -> None:
    assert type(value).model_validate_json(value.model_dump_json()) == value


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (ENVELOPE, {"ttl_s": 0}),
        (ENVELOPE, {"attempt": 0}),
        (ENVELOPE, {"type": "Tamiyo"}),
        (ENVELOPE, {"content_encoding": "gzip"}),
        (ENVELOPE, {"event_id": "0" * 31}),
        (UPDATE, {"version": "1.2"}),
        (UPDATE, {"version": "v1.2.3"}),
        (UPDATE, {"reference": "models:/tamiyo@champion"}),
        (UPDATE, {"reference": "models:/tamiyo/0"}),
        (UPDATE, {"reference": "file:///etc/passwd"}),
        (UPDATE, {"targets": []}),
        (UPDATE, {"signature": "00"}),
        (PACKET, {"metrics": {"x": float("nan")}}),
        (PACKET, {"metrics": {"Not Allowed": 1.0}}),
        (VIOLATION, {"window_s": 0.0}),
        (DECISION, {"stage": "validate"}),
        (SPEC, {"name": "../wait"}),
        (RULES, {"hurts": 0.2}),
        (RULES, {"window": 5}),
        (RULES, {"alpha_speed": 1}),
        (RULES, {"slot_epochs": 0}),
        (RULES, {"blueprints": ["Not Allowed"]}),
        (BOOK, {"horizon": 0}),
    ],
)
def test_values_out_of_bounds_are_refused(value: Contract, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        type(value).model_validate({**value.model_dump(), **wrong})


def test_urgent_events_sort_first() -> None:
    assert sorted(Priority) == [Priority.CRITICAL, Priority.HIGH, Priority.NORMAL, Priority.LOW]


def test_a_receipt_knows_its_stage_and_its_lineage() -> None:
    for receipt in (DECISION, VERSION):
        names = set(type(receipt).model_fields)
        assert {"code_version", "config_digest", "seed", "started_at", "finished_at", "stage"} <= names
