"""A sealed directory is accepted exactly as it was sealed and refused after any change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simic.contracts.errors import ContractError, IntegrityError
from simic.trust.canonical import canonical_bytes
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import Seal, seal, verify

SIGNER = Signer(b"k" * 32)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    directory = tmp_path / "policy"
    directory.mkdir()
    (directory / "weights.safetensors").write_bytes(bytes(range(200)))
    (directory / "card.json").write_bytes(b"{}")
    seal(directory, SIGNER)
    Keyring(tmp_path / "keys").trust(SIGNER.public_bytes)
    return directory


def ring(sealed: Path) -> Keyring:
    return Keyring(sealed.parent / "keys")


def rewrite(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        manifest = json.loads((directory / "manifest.json").read_text())
        change(manifest)
        (directory / "manifest.json").write_text(json.dumps(manifest))

    return apply


def test_sealed_directory_verifies_and_digest_ignores_the_signer(sealed: Path) -> None:
    first = verify(sealed, ring(sealed))
    assert [file.name for file in first.files] == ["card.json", "weights.safetensors"]
    assert verify(sealed, ring(sealed), expected_digest=first.digest) == first
    again = seal(sealed, Signer(b"j" * 32))
    assert again.digest == first.digest and again.signature != first.signature


def test_every_flipped_byte_is_noticed(sealed: Path) -> None:
    path = sealed / "weights.safetensors"
    whole = path.read_bytes()
    for index in range(0, len(whole), 17):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(IntegrityError, match=r"differ.*weights"):
            verify(sealed, ring(sealed))
    path.write_bytes(whole)
    verify(sealed, ring(sealed))


def test_every_flipped_manifest_byte_is_noticed(sealed: Path) -> None:
    path = sealed / "manifest.json"
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(IntegrityError):
            verify(sealed, ring(sealed))


SPOILS: dict[str, Callable[[Path], object]] = {
    "missing": lambda d: (d / "card.json").unlink(),
    "added": lambda d: (d / "extra").write_bytes(b""),
    "hidden file": lambda d: (d / ".hidden").write_bytes(b""),
    "directory": lambda d: (d / "sub").mkdir(),
    "link": lambda d: (
        (d / "card.json").rename(d.parent / "card.json"),
        (d / "card.json").symlink_to(d.parent / "card.json"),
    ),
    "linked manifest": lambda d: (
        (d / "manifest.json").rename(d.parent / "m"),
        (d / "manifest.json").symlink_to(d.parent / "m"),
    ),
    "pipe": lambda d: os.mkfifo(d / "pipe"),
    "no manifest": lambda d: (d / "manifest.json").unlink(),
    "huge manifest": lambda d: (d / "manifest.json").write_bytes(b" " * (2 << 20)),
    "not json": lambda d: (d / "manifest.json").write_bytes(b"{"),
    "unknown field": rewrite(lambda m: m.update(extra=1)),
    "file name out of the directory": rewrite(lambda m: m["files"][0].update(name="../card.json")),
    "absolute name": rewrite(lambda m: m["files"][0].update(name="/etc/passwd")),
    "name twice": rewrite(lambda m: m["files"].append(m["files"][0])),
    "digest": rewrite(lambda m: m.update(digest="0" * 64)),
    "signature": rewrite(lambda m: m.update(signature="0" * 128)),
    "key id": rewrite(lambda m: m.update(key_id="0" * 16)),
    "entry dropped": rewrite(lambda m: m["files"].pop()),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_whatever_else_changes_is_refused(sealed: Path, spoil: Callable[[Path], object]) -> None:
    spoil(sealed)
    with pytest.raises(IntegrityError):
        verify(sealed, ring(sealed))


def test_a_self_consistent_forgery_lacks_the_signature(sealed: Path) -> None:
    """Swap the weights and redo the manifest without the key."""
    original = json.loads((sealed / "manifest.json").read_text())
    (sealed / "weights.safetensors").write_bytes(b"forged")
    forged = seal(sealed, Signer(b"f" * 32)).model_dump(mode="json")
    with pytest.raises(IntegrityError, match="not trusted"):
        verify(sealed, ring(sealed))
    forged.update(key_id=SIGNER.key_id, signature=original["signature"])
    (sealed / "manifest.json").write_bytes(canonical_bytes(forged))
    with pytest.raises(IntegrityError, match="does not match"):
        verify(sealed, ring(sealed))


def test_a_rightly_signed_other_directory_is_not_the_expected_one(sealed: Path) -> None:
    with pytest.raises(IntegrityError, match="expected digest"):
        verify(sealed, ring(sealed), expected_digest="0" * 64)


def test_only_flat_directories_with_files_can_be_sealed(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no files"):
        seal(tmp_path, SIGNER)
    (tmp_path / "sub").mkdir()
    with pytest.raises(ContractError, match="plain file"):
        seal(tmp_path, SIGNER)


def test_a_crash_while_sealing_can_be_repeated(sealed: Path) -> None:
    (sealed / ".manifest.json.tmp").write_bytes(b"half")
    with pytest.raises(IntegrityError):
        verify(sealed, ring(sealed))
    seal(sealed, SIGNER)
    verify(sealed, ring(sealed))


def test_a_kill_while_a_sealed_directory_is_sealed_again_leaves_the_seal_that_was_there(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`simic keys reseal` reads the directory before it seals it, so a file within would stop it for good."""

    def dies(*_: object) -> None:
        verify(sealed, ring(sealed))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", dies)
        seal(sealed, Signer(b"n" * 32))
    assert verify(sealed, ring(sealed)).key_id == SIGNER.key_id


def test_a_digest_that_is_not_of_the_files_is_refused_even_if_signed(sealed: Path) -> None:
    """Whoever holds a trusted key still cannot pass one policy off under another's digest."""
    claimed = Seal.model_validate_json((sealed / "manifest.json").read_bytes()).model_copy(update={"digest": "0" * 64})
    signed = canonical_bytes(claimed.model_dump(mode="json", exclude={"signature"}))
    forged = claimed.model_copy(update={"signature": SIGNER.sign(signed)})
    (sealed / "manifest.json").write_bytes(canonical_bytes(forged))
    with pytest.raises(IntegrityError, match="not that of its file list"):
        verify(sealed, ring(sealed))
