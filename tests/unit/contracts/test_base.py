"""The rules every contract inherits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError

from simic.contracts.base import WHOLE, Contract, Count, Digest, Finite, NonNegative, UnitInterval, UtcDatetime


class Sample(Contract):
    number: Finite = 0.0
    plain: float = 0.0
    size: NonNegative = 0.0
    share: UnitInterval = 0.0
    count: Count = 0
    digest: Digest = "0" * 64
    at: UtcDatetime | None = None
    blob: bytes = b""


@pytest.mark.parametrize("field", ["number", "plain", "size", "share"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused_from_python_and_json(field: str, value: str) -> None:
    with pytest.raises(ValidationError):
        Sample(**{field: float(value)})
    with pytest.raises(ValidationError):
        Sample.model_validate_json(f'{{"{field}": {value}}}')


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": -0.1},
        {"share": 1.1},
        {"count": -1},
        {"count": 2**53 + 1},
        {"count": 1.5},
        {"digest": "0" * 63},
        {"digest": "A" * 64},
        {"digest": "0" * 64 + "\n"},
        {"at": "2026-01-01T00:00:00"},
        {"at": datetime(2026, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"unknown": 1},
    ],
)
def test_what_breaks_a_bound_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sample(**wrong)


def test_moments_become_utc() -> None:
    local = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    sample = Sample(at=local)
    assert sample.at == local
    assert sample.at is not None
    assert sample.at.tzinfo is UTC
    assert '"2026-01-01T10:00:00Z"' in sample.model_dump_json()


def test_contracts_do_not_change() -> None:
    sample = Sample()
    with pytest.raises(ValidationError, match="frozen"):
        sample.number = 1.0


def test_bytes_travel_as_base64() -> None:
    sample = Sample(blob=bytes(range(256)))
    assert Sample.model_validate_json(sample.model_dump_json()) == sample


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "1767571200", "2026-01-05T00:00:00"])
def test_a_moment_is_an_aware_iso_text_within_the_years_of_utc(text: str) -> None:
    with pytest.raises(ValidationError):
        Sample.model_validate_json(f'{{"at": "{text}"}}')


@pytest.mark.parametrize("wrong", [True, 1.0, "1"])
def test_a_literal_number_is_that_number_and_nothing_that_equals_it(wrong: object) -> None:
    version = TypeAdapter(Annotated[Literal[1], WHOLE])
    assert version.validate_python(1) == 1
    with pytest.raises(ValidationError, match="expected a whole number"):
        version.validate_python(wrong)
