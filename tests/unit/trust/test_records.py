"""A signed record is believed as it was signed, for what it was signed, and not otherwise."""

import pytest

from simic.contracts.errors import IntegrityError
from simic.trust.keys import Keyring, Signer
from simic.trust.records import sign_record, verify_record

RECORD = {"target": 3, "reason": "accepted by the gate", "nested": {"lower": 0.5}}


@pytest.fixture
def signer(tmp_path):
    made = Signer(bytes(range(32)))
    Keyring(tmp_path).trust(made.public_bytes)
    return made


def test_what_was_signed_comes_back(tmp_path, signer):
    signed = sign_record(RECORD, "promotion", signer)
    assert verify_record(signed, "promotion", Keyring(tmp_path), "here") == RECORD


@pytest.mark.parametrize(
    "change",
    [
        {"target": 4},
        {"nested": {"lower": 0.6}},
        {"extra": None},
        {"signature": "0" * 128},
        {"key_id": "0" * 16},
        {"signature": None},
    ],
)
def test_a_changed_field_is_refused_and_the_place_is_named(tmp_path, signer, change):
    signed = {**sign_record(RECORD, "promotion", signer), **change}
    with pytest.raises(IntegrityError, match=r"promotions\.jsonl, line 2"):
        verify_record(signed, "promotion", Keyring(tmp_path), "promotions.jsonl, line 2")


def test_a_record_is_refused_for_another_purpose(tmp_path, signer):
    signed = sign_record(RECORD, "receipt", signer)
    with pytest.raises(IntegrityError, match="does not match"):
        verify_record(signed, "promotion", Keyring(tmp_path), "here")


def test_an_unsigned_record_is_refused(tmp_path):
    with pytest.raises(IntegrityError, match="no signature"):
        verify_record(RECORD, "promotion", Keyring(tmp_path), "here")
