"""The one base of every contract: immutable, strict at the edge, finite."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

__all__ = ["Contract", "Count", "Digest", "Finite", "NonNegative", "UnitInterval", "UtcDatetime"]


class Contract(BaseModel):
    """Frozen record; unknown fields, NaN and infinities are refused."""

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


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""An aware moment, normalised to UTC; naive datetimes are refused."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 in lower-case hex."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A whole number that survives JSON exactly."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
