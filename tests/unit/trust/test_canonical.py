"""Equal values have equal bytes; what JSON cannot hold is refused."""

from __future__ import annotations

import hashlib

import pytest

from simic.contracts.errors import ContractError
from simic.contracts.rewards import RewardConfig
from simic.trust.canonical import canonical_bytes, digest_of


def test_key_order_and_spaces_do_not_matter() -> None:
    assert (
        canonical_bytes({"b": 1, "a": {"d": [1.5, None], "c": "ä"}}) == '{"a":{"c":"ä","d":[1.5,null]},"b":1}'.encode()
    )
    assert digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})
    assert digest_of({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


def test_a_contract_equals_its_plain_form() -> None:
    assert canonical_bytes(RewardConfig()) == canonical_bytes(RewardConfig().model_dump(mode="json"))
    assert canonical_bytes([RewardConfig()]) == canonical_bytes([RewardConfig().model_dump(mode="json")])


@pytest.mark.parametrize(
    "value", [{"x": float("nan")}, {"x": float("inf")}, [{"y": -float("inf")}], {1: "x"}, {"x": object()}, ["\ud800"]]
)
def test_values_without_a_canonical_form_are_refused(value: object) -> None:
    with pytest.raises(ContractError, match="no canonical form"):
        canonical_bytes(value)  # type: ignore[arg-type]
