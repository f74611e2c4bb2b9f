"""Keys are made once, stay secret, and only trusted ones verify."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from simic.contracts.errors import ConfigError, IntegrityError
from simic.trust.keys import Keyring, Signer, load_signer, present_signer, replace_key, weakness
from simic.trust.revocation import add_revocation

SEED = hashlib.sha256(b"a seed for tests").digest()
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
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


@pytest.mark.parametrize("value", ["", " \n"])
@pytest.mark.parametrize("load", [load_signer, present_signer])
def test_an_empty_variable_never_selects_the_key_file(tmp_path: Path, value: str, load: Callable[..., object]) -> None:
    env = {"SIMIC_SIGNING_KEY": value}
    with pytest.raises(ConfigError, match=r"SIMIC_SIGNING_KEY is empty.*unset the variable"):
        load(tmp_path, env)
    assert list(tmp_path.iterdir()) == [], "no key was made"
    load_signer(tmp_path, {})
    with pytest.raises(ConfigError, match="SIMIC_SIGNING_KEY is empty"):
        load(tmp_path, env)


def test_a_key_file_others_can_read_is_refused(tmp_path: Path) -> None:
    load_signer(tmp_path, {})
    (tmp_path / "signing.key").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_signer(tmp_path, {})


def test_a_named_pipe_in_the_place_of_the_key_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "signing.key", 0o600)
    with pytest.raises(ConfigError, match="must be a plain file"):
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


def revoke(directory: Path, signer: Signer, by: Signer) -> None:
    add_revocation(directory, signer.key_id, signer.public_bytes, reason="leaked", at=NOW, signer=by)


def test_a_revoked_key_in_the_environment_signs_nothing_and_is_not_trusted_again(tmp_path: Path) -> None:
    leaked = load_signer(tmp_path, ENV)
    signature = leaked.sign(b"x")
    revoke(tmp_path, leaked, by=load_signer(tmp_path, {}))
    Keyring(tmp_path).distrust(leaked.key_id)
    with pytest.raises(ConfigError, match=r"SIMIC_SIGNING_KEY holds a revoked key.*openssl rand -base64 32"):
        load_signer(tmp_path, ENV)
    assert not (tmp_path / f"{leaked.key_id}.pub").exists()
    with pytest.raises(IntegrityError, match="not trusted again"):
        Keyring(tmp_path).trust(leaked.public_bytes)
    with pytest.raises(IntegrityError, match="simic keys reseal"):
        Keyring(tmp_path).verify(leaked.key_id, b"x", signature)


def test_the_public_key_of_a_revoked_key_copied_back_does_not_count(tmp_path: Path) -> None:
    own = load_signer(tmp_path, ENV)
    leaked = Signer(base64.b64decode(ENV["SIMIC_SIGNING_KEY"]))  # as a thief uses it
    revoke(tmp_path, own, by=load_signer(tmp_path, {}))
    with pytest.raises(ConfigError, match=r"was revoked.*Start the command again"):
        own.sign(b"x")
    (tmp_path / f"{leaked.key_id}.pub").write_text(leaked.public_bytes.hex())
    ring = Keyring(tmp_path)
    assert leaked.key_id in ring.lying()
    assert leaked.key_id not in ring.key_ids()
    with pytest.raises(IntegrityError, match="was revoked on 2026-01-02"):
        ring.verify(leaked.key_id, b"x", leaked.sign(b"x"))
    ring.including_revoked().verify(leaked.key_id, b"x", leaked.sign(b"x"))


def test_a_revoked_key_in_the_file_says_that_rotation_makes_another(tmp_path: Path) -> None:
    old = load_signer(tmp_path, {})
    revoke(tmp_path, old, by=old)
    with pytest.raises(ConfigError, match="simic keys rotate"):
        load_signer(tmp_path, {})
    new = replace_key(tmp_path)
    assert load_signer(tmp_path, {}).key_id == new.key_id != old.key_id
    assert (tmp_path / "signing.key").stat().st_mode & 0o777 == 0o600


def test_looking_for_the_signer_makes_none(tmp_path: Path) -> None:
    assert present_signer(tmp_path, {}) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "seed",
    [
        bytes(32),
        b"\xff" * 32,
        bytes(range(32)),
        bytes(range(63, -1, -2)),
        b"\x13\x37" * 16,
        bytes(range(100, 116)) * 2,
        b"correct horse battery staple 123",
        b"password".ljust(32, b"\0"),
        b"deadbeef" * 4,
        (1).to_bytes(32, "big"),
        (2**64).to_bytes(32, "little"),
        bytes([1, 200] + [7] * 30),
        bytes([1, 2, 3, 250, 9, 77] * 5 + [1, 9]),
    ],
)
def test_a_seed_that_nobody_drew_is_refused_wherever_it_lies(tmp_path: Path, seed: bytes) -> None:
    encoded = base64.b64encode(seed).decode()
    with pytest.raises(ConfigError, match=r"not hold a random seed.*openssl rand -base64 32") as caught:
        load_signer(tmp_path, {"SIMIC_SIGNING_KEY": encoded})
    assert encoded not in str(caught.value)
    assert list(tmp_path.glob("*.pub")) == [], "nor is it trusted"
    path = tmp_path / "signing.key"
    path.write_bytes(seed)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"not hold a random seed.*simic keys rotate"):
        load_signer(tmp_path, {})


def test_no_seed_drawn_at_random_is_refused() -> None:
    """Each of them by chance once in 2**40 at the very most; 20,000 from a generator, and 1,000 of the kernel's."""
    generator = random.Random(0)  # noqa: S311 - the same seeds each time
    seeds = [generator.randbytes(32) for _ in range(20_000)] + [os.urandom(32) for _ in range(1_000)]
    assert [seed for seed in seeds if weakness(seed)] == []
