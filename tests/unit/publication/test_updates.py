"""A policy update is believed only as signed, in every field."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from simic.contracts.errors import IntegrityError
from simic.contracts.policy_update import PolicyUpdate, ValidationSummary
from simic.publication.publish import sign_update, verify_update
from simic.trust.keys import Keyring, Signer

SIGNER = Signer(b"k" * 32)
UPDATE = PolicyUpdate(
    policy_name="tamiyo",
    version="1.0.0",
    digest="a" * 64,
    reference="models:/tamiyo/1",
    targets=["tamiyo"],
    validation=ValidationSummary(
        episodes=160,
        return_over_wait=5.5,
        lower_bound=4.5,
        confidence=0.95,
        gate_digest="b" * 64,
        without=["success"],
        evidence="reports",
    ),
    issued_at=datetime(2026, 1, 5, tzinfo=UTC),
    key_id="0" * 16,
)


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    ring = Keyring(tmp_path)
    ring.trust(SIGNER.public_bytes)
    return ring


def test_signed_update_survives_the_wire(keyring: Keyring) -> None:
    signed = sign_update(UPDATE, SIGNER)
    assert signed.key_id == SIGNER.key_id
    verify_update(PolicyUpdate.model_validate_json(signed.model_dump_json()), keyring)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1.0.1"},
        {"digest": "c" * 64},
        {"reference": "models:/tamiyo/2"},
        {"targets": ["tamiyo", "karn"]},
        {"validation": UPDATE.validation.model_copy(update={"lower_bound": 9.0})},
        {"validation": UPDATE.validation.model_copy(update={"without": []})},
        {"validation": UPDATE.validation.model_copy(update={"without": None})},
        {"validation": UPDATE.validation.model_copy(update={"evidence": "trials"})},
        {"issued_at": datetime(2027, 1, 5, tzinfo=UTC)},
        {"policy_name": "karn"},
        {"signature": "0" * 128},
        {"key_id": "0" * 16},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_changed_field_is_refused(keyring: Keyring, change: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        verify_update(sign_update(UPDATE, SIGNER).model_copy(update=change), keyring)


def test_unsigned_update_is_refused(keyring: Keyring) -> None:
    with pytest.raises(IntegrityError):
        verify_update(UPDATE.model_copy(update={"key_id": SIGNER.key_id}), keyring)


def test_an_update_of_an_earlier_release_keeps_its_bytes_and_says_nothing_about_its_judgement(keyring: Keyring) -> None:
    summary = UPDATE.validation.model_dump(exclude={"without", "evidence"})
    earlier = UPDATE.model_copy(update={"validation": ValidationSummary.model_validate(summary)})
    text = sign_update(earlier, SIGNER).model_dump_json()
    assert "without" not in text and "evidence" not in text
    read = PolicyUpdate.model_validate_json(text)
    verify_update(read, keyring)
    assert (read.validation.without, read.validation.evidence) == (None, None)
