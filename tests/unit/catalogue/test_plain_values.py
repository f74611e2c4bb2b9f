"""Values of queries keep all their digits as JSON."""

from __future__ import annotations

from decimal import Decimal

import pytest

from simic.catalogue.query import plain_value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("0.10", 0.1),
        ("-2.5", -2.5),
        ("3", 3.0),
        ("123456789012345678.123", "123456789012345678.123"),
        ("0.12345678901234567890", "0.12345678901234567890"),
    ],
)
def test_a_decimal_is_text_where_a_float_lacks_digits(value: str, plain: float | str) -> None:
    found = plain_value(Decimal(value))
    assert (type(found), found) == (type(plain), plain)
