"""Base class of all contracts: immutable, strict, finite."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

__all__ = [
    "DATE_TEXT",
    "IDENTIFIER",
    "WHOLE",
    "Contract",
    "Count",
    "Digest",
    "Finite",
    "Identifier",
    "NonNegative",
    "Positive",
    "Text",
    "UnitInterval",
    "UtcDatetime",
    "contracts_in",
]


class Contract(BaseModel):
    """Immutable record; unknown fields, NaN and infinities are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )


def _to_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the moment lies outside the years 1 to 9999 of UTC") from error


_MOMENT: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _from_text(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    if _DATE.match(value) is None:
        raise ValueError("expected an ISO 8601 text that begins with a date such as 2026-01-05")
    if info.mode != "json":
        return value
    try:  # a strict JSON parser accepts text from JSON, but not the object that a validator returned
        return _MOMENT.validate_python(value)
    except ValidationError as error:
        raise ValueError(error.errors(include_url=False)[0]["msg"]) from None


DATE_TEXT = BeforeValidator(_from_text)
"""Check a moment: pydantic takes a number in quotes for seconds since 1970, even in strict mode."""

UtcDatetime = Annotated[AwareDatetime, DATE_TEXT, AfterValidator(_to_utc)]
"""A moment with time zone, normalised to UTC; naive datetimes and numbers in quotes are refused."""


def _is_whole(value: Any) -> Any:
    if type(value) is not int:
        raise ValueError(f"expected a whole number, found {type(value).__name__}")
    return value


WHOLE = BeforeValidator(_is_whole)
"""Check a literal number: Python's ``True`` and ``1.0`` equal 1, so pydantic accepts them even in strict mode."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 in lower-case hex."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A whole number that JSON represents exactly."""

Positive = Annotated[int, Field(ge=1, le=10_000_000)]
"""A number of things of which there is at least one."""

Text = Annotated[str, Field(max_length=4096)]
"""A text of limited length, so that receipts stay small."""

IDENTIFIER = r"^[a-z][a-z0-9_]{0,31}$"
"""The pattern of names of sets, families, blueprints and objectives."""

Identifier = Annotated[str, Field(pattern=IDENTIFIER)]

Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


def contracts_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the contracts that a field with this annotation may hold: none, one, or those of a union or a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [contract for member in get_args(annotation) for contract in contracts_in(member)]
