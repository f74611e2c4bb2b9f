"""Faults of data are told with their places, in words of ours, and without the data."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from support.builders.reports import episode, plain

from simic.contracts.base import Contract, UtcDatetime
from simic.contracts.faults import LONGEST, describe_faults
from simic.contracts.field_report import FieldReport


class Moment(Contract):
    """Any contract."""

    at: UtcDatetime
    count: int = 0


def faults(kind: type[Contract], data: object) -> str:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(data)
    return describe_faults(caught.value, "record")


def test_a_fault_has_its_place_and_none_of_pydantics_own_words() -> None:
    assert faults(Moment, {"at": "soon"}) == "at: expected an ISO 8601 text that begins with a date such as 2026-01-05"
    assert faults(Moment, ["soon"]).startswith("record: Input should be a valid dictionary")


def test_a_check_of_the_whole_record_names_its_field_itself() -> None:
    fields = plain(episode(1)[0])
    told = faults(FieldReport, fields | {"branch_of": fields["run_id"], "branch_step": 0})
    assert told == "branch_of must name another episode than run_id"


def test_of_many_faults_the_first_are_told_and_none_is_long() -> None:
    told = faults(Moment, {"at": "soon", "count": "secret", **{letter * 9999: 1 for letter in "abc"}})
    assert told.endswith("; 5 faults in all")
    assert "secret" not in told
    assert len(told) < 4 * LONGEST


def test_the_name_of_an_unknown_field_stays_on_its_line() -> None:
    """It is data: it could begin a line of a log, or command a terminal."""
    told = faults(Moment, {"at": "2026-01-05T00:00:00Z", "a\nERROR\x1b[2J": 1})
    assert told == r"a\nERROR\x1b[2J: Extra inputs are not permitted"
