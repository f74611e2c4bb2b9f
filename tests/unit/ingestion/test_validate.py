"""Each fault gets its own reason; what passes is in normal form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.reports import BLUEPRINTS, EPOCH_ZERO, episode, line, plain

from simic.bus.protocol import Defect, Line
from simic.contracts.field_report import FieldReport, Outcome
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.validate import Accepted, Refused, Validator
from simic.lake.quarantine import Reason

KNOWN = frozenset(BLUEPRINTS)
REPORT = episode(1)[2]


def check(data: bytes, defect: Defect | None = None, known: frozenset[str] = KNOWN) -> Accepted | Refused:
    return Validator(IngestConfig(), known).validate(Line(1, data, defect))


def spoiled(change: Callable[[dict[str, Any]], object]) -> bytes:
    raw = plain(REPORT)
    change(raw)
    return line(raw)


def nested(raw: dict[str, Any]) -> None:
    raw["state"]["slots"] = json.loads("[" * 20 + "]" * 20)


FAULTS: dict[str, tuple[bytes, Reason, str]] = {
    "cut short": (line(REPORT)[:-100], Reason.MALFORMED_JSON, "EOF"),
    "empty object": (b"{}", Reason.CONTRACT, "required"),
    "not an object": (b"[1, 2]", Reason.CONTRACT, "report"),
    "not utf-8": (b'{"report_id": "\xff"}', Reason.MALFORMED_JSON, "JSON"),
    "unknown field": (spoiled(lambda r: r.update(surprise=1)), Reason.UNKNOWN_FIELD, "surprise"),
    "unknown nested field": (spoiled(lambda r: r["metrics"].update(b=1)), Reason.UNKNOWN_FIELD, "metrics.b"),
    "nan": (
        spoiled(lambda r: r["metrics"].update(validation_loss_after=float("nan"))),
        Reason.NON_FINITE,
        "metrics.validation_loss_after",
    ),
    "nan in a bounded field": (
        spoiled(lambda r: r["metrics"].update(validation_accuracy_after=float("nan"))),
        Reason.NON_FINITE,
        "metrics.validation_accuracy_after",
    ),
    "overflow": (
        spoiled(lambda r: r["metrics"].update(validation_loss_before=123.25)).replace(b"123.25", b"1e999"),
        Reason.NON_FINITE,
        "metrics.validation_loss_before",
    ),
    "infinity": (
        spoiled(lambda r: r["state"].update(validation_loss_history=[float("inf")])),
        Reason.NON_FINITE,
        "state.validation_loss_history.0",
    ),
    "other version": (spoiled(lambda r: r.update(schema_version=2)), Reason.SCHEMA_VERSION, "schema_version"),
    "too deep": (spoiled(nested), Reason.TOO_DEEP, "max_depth"),
    "naive time": (spoiled(lambda r: r.update(issued_at="2026-01-05T12:00:00")), Reason.CONTRACT, "issued_at"),
    "a number in quotes for a time": (
        spoiled(lambda r: r.update(issued_at="1767225600")),
        Reason.CONTRACT,
        "issued_at",
    ),
    "a sign in quotes for a time": (spoiled(lambda r: r.update(issued_at="-1767225.5")), Reason.CONTRACT, "issued_at"),
    "no such month": (
        spoiled(lambda r: r.update(issued_at="2026-13-05T12:00:00Z")),
        Reason.CONTRACT,
        "issued_at: Input should be a valid datetime",
    ),
    "missing propensity": (
        spoiled(lambda r: r.pop("log_prob_behaviour")),
        Reason.CONTRACT,
        "log_prob_behaviour",
    ),
    "illegal action": (
        spoiled(lambda r: r["available"].update(op=[True] + [False] * 5)),
        Reason.CONTRACT,
        "available.op",
    ),
    "lone surrogate": (
        line(REPORT).replace(b'"device":"cpu"', b'"device":"\\ud800"'),
        Reason.MALFORMED_JSON,
        "JSON",
    ),
}


@pytest.mark.parametrize(("data", "reason", "place"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_have_reasons_and_places(data: bytes, reason: Reason, place: str) -> None:
    result = check(data)
    assert isinstance(result, Refused)
    assert result.reason is reason
    assert place in result.message
    assert len(result.message) <= 512


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["available"]["blueprint"].append("novel"),
        lambda r: r.update(blueprint_id="novel"),
        lambda r: r["state"]["slots"][0].update(stage="TRAINING", blueprint="novel"),
    ],
)
def test_unknown_blueprints_are_found_wherever_they_stand(change: Callable[[dict[str, Any]], object]) -> None:
    result = check(spoiled(change))
    assert isinstance(result, Refused)
    assert (result.reason, result.report_id) == (Reason.UNKNOWN_BLUEPRINT, REPORT.report_id)
    assert "novel" in result.message
    known = check(spoiled(change), known=KNOWN | {"novel"})
    assert isinstance(known, Accepted) or known.reason is Reason.CONTRADICTION


def test_unknown_blueprints_are_found_in_the_final_state() -> None:
    raw = plain(episode(1)[-1])
    raw["final_state"]["slots"][1].update(stage="TRAINING", blueprint="novel")
    result = check(line(raw))
    assert isinstance(result, Refused) and result.reason is Reason.UNKNOWN_BLUEPRINT


@pytest.mark.parametrize("defect", list(Defect))
def test_lines_that_are_not_whole_are_not_parsed(defect: Defect) -> None:
    result = check(line(REPORT), defect)
    assert isinstance(result, Refused)
    assert (result.reason.value, result.report_id) == (defect.value, REPORT.report_id)


def test_accepted_reports_are_in_normal_form() -> None:
    raw = dict(reversed(plain(REPORT).items()))
    raw["state"]["slots"][1]["alpha"] = 0
    result = check(json.dumps(raw, indent=1).encode().replace(b"\n", b" "))
    assert isinstance(result, Accepted)
    assert result.data == REPORT.model_dump_json().encode()
    assert FieldReport.model_validate_json(result.data) == REPORT


def test_content_digest_is_of_what_was_told_not_of_when() -> None:
    def digest(report: FieldReport) -> str:
        result = check(line(report))
        assert isinstance(result, Accepted)
        return result.content_digest

    later = REPORT.model_copy(update={"issued_at": EPOCH_ZERO.replace(year=2027)})
    tricky = episode(1, governor_at=3)[-1].model_copy(update={"mitigation": [',"issued_at":"x"']})
    assert digest(later) == digest(REPORT)
    assert digest(tricky) != digest(REPORT)
    assert digest(tricky.model_copy(update={"issued_at": later.issued_at})) == digest(tricky)
    assert digest(REPORT.model_copy(update={"outcome": Outcome.SUCCESS})) != digest(REPORT)


@pytest.mark.parametrize("step", [0, 19])
def test_a_report_of_no_branch_and_no_trial_keeps_the_digest_of_the_contract_before_them(step: int) -> None:
    report = episode(1)[step]
    before = report.model_dump_json(exclude={"branch_of", "branch_step", "trial_id", "judgement"}).encode()
    for data in (before, report.model_dump_json(exclude={"trial_id", "judgement"}).encode(), line(report)):
        result = check(data)
        assert isinstance(result, Accepted) and result.data == line(report)
        issued_at = report.model_dump_json(include={"issued_at"})[1:-1].encode()
        told = without_newer(before.replace(b"," + issued_at, b""))
        assert result.content_digest == hashlib.sha256(told).hexdigest()


NEWER = ("host_parameters", "train_samples", "effective_dimension")
"""Measurements that earlier contracts did not have."""


def without_newer(data: bytes) -> bytes:
    for name in NEWER:
        data = data.replace(f',"{name}":null'.encode(), b"")
    return data


def test_a_report_without_newer_measurements_keeps_its_digest_and_one_with_them_has_another() -> None:
    def stripped(value: Any, drop: bool) -> Any:
        if isinstance(value, dict):
            known = {name: stripped(one, drop) for name, one in value.items() if not (drop and name in NEWER)}
            return known if drop else {name: None if name in NEWER else one for name, one in known.items()}
        return [stripped(one, drop) for one in value] if isinstance(value, list) else value

    told = json.loads(line(REPORT))
    older, unmeasured = (check(json.dumps(stripped(told, drop)).encode()) for drop in (True, False))
    measured = check(line(REPORT))
    assert isinstance(older, Accepted) and isinstance(unmeasured, Accepted) and isinstance(measured, Accepted)
    assert older == unmeasured
    issued_at = REPORT.model_dump_json(include={"issued_at"})[1:-1].encode()
    text = older.data.replace(b"," + issued_at, b"").replace(b',"trial_id":null,"judgement":null', b"")
    text = text.replace(b',"branch_of":null,"branch_step":null', b"")
    assert older.content_digest == hashlib.sha256(without_newer(text)).hexdigest()
    assert older.content_digest != measured.content_digest


def test_parent_and_step_of_a_branch_are_content() -> None:
    branches = [{"branch_of": name * 32, "branch_step": step} for name, step in (("a", 3), ("b", 3), ("a", 4))]
    reports = [REPORT, *(REPORT.model_copy(update=branch) for branch in branches)]
    results = [check(line(report)) for report in reports]
    assert len({result.content_digest for result in results if isinstance(result, Accepted)}) == 4


def test_the_mark_of_a_trial_is_content_and_its_judgement_needs_it() -> None:
    marks = [{}, {"trial_id": "a" * 32}, {"trial_id": "b" * 32}, {"trial_id": "a" * 32, "judgement": 1}]
    results = [check(line(REPORT.model_copy(update=mark))) for mark in marks]
    assert len({result.content_digest for result in results if isinstance(result, Accepted)}) == 4
    result = check(spoiled(lambda r: r.update(judgement=1)))
    assert isinstance(result, Refused) and "expected a trial_id, found null" in result.message


@pytest.mark.parametrize("half", [{"branch_of": "a" * 32}, {"branch_step": 3}])
def test_half_a_branch_is_refused(half: dict[str, Any]) -> None:
    result = check(spoiled(lambda r: r.update(half)))
    assert isinstance(result, Refused) and result.reason is Reason.CONTRACT
    assert "branch_of and branch_step belong together: a branch has both, another episode neither" in result.message


def test_input_is_not_repeated_in_messages() -> None:
    result = check(spoiled(lambda r: r.update(policy_version="s3cret-value")))
    assert isinstance(result, Refused) and "s3cret" not in result.message


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_whatever_break_the_check(data: st.DataObject) -> None:
    """A report with a stretch of it replaced by anything is accepted or refused, never an exception."""
    whole = line(REPORT)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, min(len(whole), start + 40)))
    filling = data.draw(
        st.binary(max_size=20) | st.sampled_from([b"NaN", b"1e999", b"-1", b"null", b"[[", b'"\\u0000"', b"{}"])
    )
    result = check((whole[:start] + filling + whole[stop:]).replace(b"\n", b" "))
    if isinstance(result, Accepted):
        assert check(result.data) == result
    else:
        assert result.message
