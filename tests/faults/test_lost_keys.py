"""A key that is lost: what was signed is not lost with it, and what nobody can vouch for is not loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from simic.contracts.errors import IntegrityError
from simic.trust.keys import Keyring, Signer, load_signer
from simic.trust.seal import seal, verify


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A sealed directory and, beside it, the keys of the home that sealed it."""
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "weights.safetensors").write_bytes(b"weights")
    seal(policy, signer_of(tmp_path))
    return policy


def keys_of(place: Path) -> Path:
    return place / "keys"


def signer_of(place: Path) -> Signer:
    return load_signer(keys_of(place), {})


def test_without_its_signing_key_a_home_signs_with_another_and_believes_the_first(tmp_path: Path, sealed: Path) -> None:
    first = signer_of(tmp_path).key_id
    (keys_of(tmp_path) / "signing.key").unlink()
    second = signer_of(tmp_path).key_id
    assert first != second
    assert set(Keyring(keys_of(tmp_path)).key_ids()) == {first, second}
    assert verify(sealed, Keyring(keys_of(tmp_path))).key_id == first


def test_without_its_public_key_nothing_loads_until_it_is_back(tmp_path: Path, sealed: Path) -> None:
    (public,) = keys_of(tmp_path).glob("*.pub")
    kept = public.read_bytes()
    public.unlink()
    with pytest.raises(IntegrityError, match=f"key {public.stem} is not trusted"):
        verify(sealed, Keyring(keys_of(tmp_path)))
    signer_of(tmp_path)
    assert public.read_bytes() == kept, "the signing key knows it"
    assert verify(sealed, Keyring(keys_of(tmp_path))).key_id == public.stem


def test_with_both_halves_gone_another_key_does_not_vouch_for_it(tmp_path: Path, sealed: Path) -> None:
    for path in keys_of(tmp_path).iterdir():
        path.unlink()
    signer_of(tmp_path)
    with pytest.raises(IntegrityError, match="is not trusted"):
        verify(sealed, Keyring(keys_of(tmp_path)))
