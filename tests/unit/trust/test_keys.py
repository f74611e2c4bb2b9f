"""Keys are made once, stay secret, and only trusted ones verify."""

from __future__ import annotations

import base64
import logging
import os
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from simic.contracts.errors import ConfigError, IntegrityError
from simic.trust.keys import Keyring, Signer, load_signer

SEED = bytes(range(32))
ENV = {"SIMIC_SIGNING_KEY": base64.b64encode(SEED).decode()}


def test_generated_key_is_kept_private_and_reused(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        first = load_signer(tmp_path / "keys", {})
    finally:
        os.umask(old)
    assert load_signer(tmp_path / "keys", {}).key_id == first.key_id
    assert (tmp_path / "keys" / "signing.key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == [f"{first.key_id}.pub", "signing.key"]


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    own = load_signer(tmp_path, {})
    given = load_signer(tmp_path, ENV)
    assert given.key_id == Signer(SEED).key_id != own.key_id
    assert set(Keyring(tmp_path).key_ids()) == {own.key_id, given.key_id}


def test_signature_is_plain_ed25519(tmp_path: Path) -> None:
    signer = load_signer(tmp_path, ENV)
    Ed25519PrivateKey.from_private_bytes(SEED).public_key().verify(bytes.fromhex(signer.sign(b"text")), b"text")
    Keyring(tmp_path).verify(signer.key_id, b"text", signer.sign(b"text"))


@pytest.mark.parametrize("encoded", ["not base64!", base64.b64encode(b"short").decode(), "ä"])
def test_a_bad_key_in_the_environment_is_a_config_error_that_does_not_quote_it(tmp_path: Path, encoded: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_signer(tmp_path, {"SIMIC_SIGNING_KEY": encoded})
    assert encoded not in str(caught.value)


def test_a_key_file_others_can_read_is_refused(tmp_path: Path) -> None:
    load_signer(tmp_path, {})
    (tmp_path / "signing.key").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_signer(tmp_path, {})


def test_a_linked_key_file_is_refused(tmp_path: Path) -> None:
    load_signer(tmp_path / "a", {})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "signing.key").symlink_to(tmp_path / "a" / "signing.key")
    with pytest.raises(ConfigError, match="cannot read"):
        load_signer(tmp_path / "b", {})


def test_racing_first_uses_agree_on_one_key(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(load_signer(tmp_path, {}).key_id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_secrets_are_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    signer = load_signer(tmp_path, ENV)
    shown = repr(signer) + str(signer) + caplog.text
    assert SEED.hex() not in shown and ENV["SIMIC_SIGNING_KEY"] not in shown
    assert repr(signer) == f"Signer({signer.key_id})"


def test_unknown_key_wrong_bytes_and_renamed_key_are_refused(tmp_path: Path) -> None:
    signer, stranger = load_signer(tmp_path, ENV), Signer(bytes(32))
    ring = Keyring(tmp_path)
    with pytest.raises(IntegrityError, match="not trusted"):
        ring.verify(stranger.key_id, b"x", stranger.sign(b"x"))
    with pytest.raises(IntegrityError, match="does not match"):
        ring.verify(signer.key_id, b"y", signer.sign(b"x"))
    (tmp_path / f"{stranger.key_id}.pub").write_text(signer.public_bytes.hex())
    with pytest.raises(IntegrityError, match="another key"):
        ring.verify(stranger.key_id, b"x", signer.sign(b"x"))
    (tmp_path / f"{stranger.key_id}.pub").write_text("zz")
    with pytest.raises(IntegrityError, match="in hex"):
        ring.verify(stranger.key_id, b"x", signer.sign(b"x"))


@pytest.mark.parametrize("key_id", ["../../etc/passwd", "", "0" * 15, "0" * 16 + "\n", "0" * 15 + "/"])
def test_key_ids_cannot_name_paths(tmp_path: Path, key_id: str) -> None:
    with pytest.raises(IntegrityError, match="16"):
        Keyring(tmp_path).verify(key_id, b"x", "0" * 128)
