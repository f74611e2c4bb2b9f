"""A report that does not tell one story is refused, whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from support.builders.reports import episode, plain

from simic.contracts.field_report import FieldReport

Json = dict[str, Any]
GERMINATION, LAST = 2, 19


def refuse(raw: Json, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FieldReport.model_validate_json(json.dumps(raw))


@pytest.mark.parametrize("step", range(20))
def test_a_whole_episode_survives_json(step: int) -> None:
    report = episode(1)[step]
    assert FieldReport.model_validate_json(report.model_dump_json()) == report
    assert (report.final_state is not None) == (step == LAST)


@pytest.mark.parametrize(
    ("step", "spoil", "message"),
    [
        (GERMINATION, lambda r: r["relevant"].pop(), "relevant: expected op, slot, blueprint"),
        (GERMINATION, lambda r: r["relevant"].reverse(), "relevant: expected op, slot, blueprint"),
        (0, lambda r: r["relevant"].append("slot"), "relevant: expected op, the factors of WAIT, found op, slot"),
        (0, lambda r: r["log_prob_behaviour"].update(tempo=0.0), "exactly the relevant factors op, found op, tempo"),
        (0, lambda r: r["available"]["op"].__setitem__(0, False), "available.op: expected true for WAIT"),
        (GERMINATION, lambda r: r["available"]["slot"][1].__setitem__(0, False), "action.slot: expected a slot that"),
        (GERMINATION, lambda r: r["action"].update(slot=3), "that available.slot allows for GERMINATE, found 3"),
        (GERMINATION, lambda r: r["available"]["slot"][1].pop(), "available.slot: expected 3 slots"),
        (GERMINATION, lambda r: r["available"]["blueprint"].remove("mlp"), "one of available.blueprint, found mlp"),
        (0, lambda r: r.update(final_state=r["state"]), "final_state: expected null, because neither terminated nor"),
        (LAST, lambda r: r.update(final_state=None), "the state after the window, because terminated is true, found"),
        (
            LAST,
            lambda r: r.update(final_state=None, terminated=False, truncated=True),
            "final_state: expected the state after the window, because truncated is true, found null",
        ),
        (LAST, lambda r: r.update(terminated=False), "final_state: expected null, because neither terminated nor"),
        (0, lambda r: r.update(governor={"kind": "DIVERGENCE", "message": "x"}), "ends its episode in the same step"),
        (0, lambda r: r.update(branch_of="0" * 32), "a branch has both, another episode neither"),
        (0, lambda r: r.update(branch_step=0), "a branch has both, another episode neither"),
        (0, lambda r: r.update(branch_of=r["run_id"], branch_step=0), "branch_of must name another episode"),
        (0, lambda r: r.update(branch_of="x" * 32, branch_step=0), "branch_of"),
        (0, lambda r: r.update(branch_of="0" * 32, branch_step=-1), "branch_step"),
        (0, lambda r: r.update(schema_version=2), "schema_version"),
        (0, lambda r: r.update(unknown=1), "unknown"),
        (0, lambda r: r["state"].update(unknown=1), "unknown"),
        (0, lambda r: r["metrics"].update(validation_loss_after=float("nan")), "validation_loss_after"),
        (0, lambda r: r["metrics"].update(validation_accuracy_after=1.5), "validation_accuracy_after"),
        (0, lambda r: r.pop("report_id"), "report_id"),
        (0, lambda r: r.update(report_id="x" * 32), "report_id"),
        (0, lambda r: r.update(issued_at="2026-01-01T00:00:00"), "issued_at"),
        (0, lambda r: r["host"].update(key=2**31), "key"),
        (0, lambda r: r["state"].update(epoch=21), "epoch 21 lies beyond the horizon 20"),
        (0, lambda r: r["state"]["graph"]["connects"].append([0, 4]), "points beyond 4 layers"),
        (0, lambda r: r["state"]["graph"]["monitors"].append([3, 0]), "points beyond 3 slots or 4 layers"),
        (0, lambda r: r["state"]["slots"][0].update(stage="HOLDING"), "only a dormant slot has none"),
        (0, lambda r: r["state"]["slots"][0].update(blueprint="mlp"), "only a dormant slot has none"),
        (0, lambda r: r["state"]["validation_loss_history"].extend([0.5] * 5), "validation_loss_history"),
    ],
)
def test_what_contradicts_itself_is_refused(step: int, spoil: Callable[[Json], Any], message: str) -> None:
    raw = plain(episode(1)[step])
    spoil(raw)
    refuse(raw, message)


def test_l4_a_governor_event_stands_in_the_terminal_report() -> None:
    last = episode(1, governor_at=7)[-1]
    assert (last.step, last.terminated, last.outcome.value) == (7, True, "ABORTED")
    assert FieldReport.model_validate_json(last.model_dump_json()) == last


def test_d6_behaviour_is_not_optional() -> None:
    for field in ("action", "log_prob_behaviour", "available", "state", "metrics"):
        raw = plain(episode(1)[0])
        del raw[field]
        refuse(raw, field)


def test_a_report_is_small_on_the_wire() -> None:
    assert max(len(report.model_dump_json()) for report in episode(1)) < 8192
