"""Host keys as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simic.cli.options import parse_host_keys
from simic.contracts.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "keys"),
    [("0:4", [0, 1, 2, 3]), ("7", [7]), ("3,1,2", [3, 1, 2]), ("0:2, 9 ,5:7", [0, 1, 9, 5, 6])],
)
def test_ranges_lists_and_mixtures_keep_their_order(text: str, keys: list[int]) -> None:
    assert parse_host_keys(text) == keys


@pytest.mark.parametrize(
    "text", ["", ":", "4:4", "5:3", "1,,2", "a", "-1", "1.5", "0:2,1", "٣", "0:2147483649", "0:1:2"]
)
def test_anything_else_is_a_usage_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ConfigError, match="--host-keys"):
        parse_host_keys(text)


def test_a_range_without_keys_is_told_which_end_is_larger() -> None:
    with pytest.raises(ConfigError, match="--host-keys: expected A:B with A below B, found '5:3'"):
        parse_host_keys("1,5:3")


def test_a_range_too_long_to_be_meant_is_refused_before_memory_is_spent() -> None:
    with pytest.raises(ConfigError, match="more than"):
        parse_host_keys("0:2000000000")


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, unique=True))
def test_a_written_list_comes_back(keys: list[int]) -> None:
    assert parse_host_keys(",".join(map(str, keys))) == keys
