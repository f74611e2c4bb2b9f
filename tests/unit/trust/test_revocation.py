"""The revocation list counts as it was written, line after line, and any other list lets no key be believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from simic.contracts.errors import IntegrityError
from simic.trust.canonical import canonical_bytes
from simic.trust.keys import Keyring, Signer
from simic.trust.records import sign_record
from simic.trust.revocation import REVOKED_NAME, add_revocation, read_revocations

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
A, B, C, STRANGER = (Signer(bytes([number]) * 32) for number in range(1, 5))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """B revoked A, C revoked B, and only C is left."""
    ring = Keyring(tmp_path)
    for signer in (A, B, C):
        ring.trust(signer.public_bytes)
    revoke(tmp_path, A, by=B)
    revoke(tmp_path, B, by=C)
    for signer in (A, B):
        ring.distrust(signer.key_id)
    return tmp_path


def revoke(keys: Path, key: Signer, by: Signer, reason: str = "leaked") -> None:
    add_revocation(keys, key.key_id, key.public_bytes, reason=reason, at=NOW, signer=by)


def test_the_list_says_who_was_revoked_when_and_why(keys: Path) -> None:
    found = read_revocations(keys)
    assert list(found.by_key) == [A.key_id, B.key_id]
    assert (found.by_key[B.key_id].reason, found.by_key[B.key_id].at) == ("leaked", NOW)
    assert Keyring(keys).key_ids() == (C.key_id,)


def test_a_line_stays_when_its_signer_is_revoked_later_and_its_public_key_is_gone(keys: Path) -> None:
    assert A.key_id in read_revocations(keys).by_key


def test_revoking_again_changes_nothing(keys: Path) -> None:
    before = (keys / REVOKED_NAME).read_bytes()
    revoke(keys, A, by=C, reason="another")
    assert (keys / REVOKED_NAME).read_bytes() == before


def test_a_key_may_revoke_itself(tmp_path: Path) -> None:
    Keyring(tmp_path).trust(A.public_bytes)
    revoke(tmp_path, A, by=A)
    assert Keyring(tmp_path).key_ids() == ()


def test_a_revoked_key_revokes_no_other(keys: Path) -> None:
    Keyring(keys).including_revoked()
    with pytest.raises(IntegrityError, match=f"signed by key {A.key_id}, which line 1 revokes"):
        revoke(keys, C, by=A)


def test_a_key_that_was_never_trusted_revokes_none(tmp_path: Path) -> None:
    Keyring(tmp_path).trust(A.public_bytes)
    with pytest.raises(IntegrityError, match="not trusted here"):
        revoke(tmp_path, A, by=STRANGER)


def forged(change: Callable[[dict], object], by: Signer | None = None) -> Callable[[list[bytes]], list[bytes]]:
    """The first line changed, and perhaps signed again."""

    def apply(lines: list[bytes]) -> list[bytes]:
        record = json.loads(lines[0])
        change(record)
        if by is not None:
            record = sign_record({k: v for k, v in record.items() if k != "signature"}, "revocation", by)
        return [canonical_bytes(record), *lines[1:]]

    return apply


EDITS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a line removed from the front": lambda lines: lines[1:],
    "lines exchanged": lambda lines: lines[::-1],
    "a line doubled": lambda lines: [lines[0], *lines],
    "another key named": forged(lambda record: record.update(revoked="0" * 16)),
    "another reason": forged(lambda record: record.update(reason="a mistake")),
    "another moment": forged(lambda record: record.update(at="2020-01-01T00:00:00Z")),
    "no signature": forged(lambda record: record.pop("signature")),
    "signed again by its own signer": forged(lambda record: record.update(reason="a mistake"), by=B),
    "signed again by a stranger": forged(
        lambda record: record.update(signer_public_key=STRANGER.public_bytes.hex()), by=STRANGER
    ),
    "not JSON": lambda lines: [b"{", *lines[1:]],
    "not an object": lambda lines: [b"[]", *lines[1:]],
    "an empty line": lambda lines: [b"", *lines],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_with_an_edited_list_no_key_is_believed(keys: Path, edit: Callable[[list[bytes]], list[bytes]]) -> None:
    path = keys / REVOKED_NAME
    path.write_bytes(b"".join(line + b"\n" for line in edit(path.read_bytes().split(b"\n")[:-1])))
    ring = Keyring(keys)
    with pytest.raises(IntegrityError, match="The revocation list is damaged"):
        ring.verify(C.key_id, b"x", C.sign(b"x"))
    with pytest.raises(IntegrityError, match="The revocation list is damaged"):
        ring.trust(STRANGER.public_bytes)


def test_cut_at_any_byte_the_list_is_damaged_or_ends_with_a_whole_line(keys: Path) -> None:
    """Whole lines that were cut off leave no trace here; the journal of promotions names who was revoked."""
    path = keys / REVOKED_NAME
    whole = path.read_bytes()
    unnoticed = []
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            read_revocations(keys)
        except IntegrityError:
            continue
        unnoticed.append(length)
    assert unnoticed == [0]


def test_every_flipped_bit_of_the_list_is_noticed(keys: Path) -> None:
    path = keys / REVOKED_NAME
    whole = path.read_bytes()
    for index in range(0, len(whole), 7):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(IntegrityError):
            read_revocations(keys)


def test_a_stranger_who_revokes_a_key_and_then_himself_is_not_believed(tmp_path: Path) -> None:
    """The fault: a signer that a later line revokes was taken for one that was trusted once."""
    place, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    Keyring(place).trust(A.public_bytes)
    Keyring(elsewhere).trust(STRANGER.public_bytes)
    revoke(elsewhere, A, by=STRANGER)
    revoke(elsewhere, STRANGER, by=STRANGER)
    (place / REVOKED_NAME).write_bytes((elsewhere / REVOKED_NAME).read_bytes())
    with pytest.raises(IntegrityError, match=f"line 1: it is signed by key {STRANGER.key_id}, which is not trusted"):
        read_revocations(place)


def test_the_public_key_of_a_revoked_key_is_kept_and_verifies_nothing(keys: Path) -> None:
    assert (keys / f"{B.key_id}.revoked").read_text().strip() == B.public_bytes.hex()
    assert B.key_id not in Keyring(keys).lying()
    with pytest.raises(IntegrityError, match="was revoked"):
        Keyring(keys).verify(B.key_id, b"x", B.sign(b"x"))
    (keys / f"{STRANGER.key_id}.revoked").write_text(STRANGER.public_bytes.hex())
    for ring in (Keyring(keys), Keyring(keys).including_revoked()):
        with pytest.raises(IntegrityError, match="is not trusted"):
            ring.verify(STRANGER.key_id, b"x", STRANGER.sign(b"x"))


@pytest.mark.parametrize(("signer", "suffix"), [(B, "revoked"), (C, "pub")])
def test_where_the_public_key_of_a_signer_is_gone_the_error_says_what_to_put_back(
    keys: Path, signer: Signer, suffix: str
) -> None:
    path = keys / f"{signer.key_id}.{suffix}"
    path.unlink()
    with pytest.raises(
        IntegrityError, match=f"no {path.name} in .*put the file back: its content is {signer.public_bytes.hex()}"
    ):
        read_revocations(keys)
    path.write_text(signer.public_bytes.hex() + "\n")
    assert A.key_id in read_revocations(keys).by_key


def test_a_public_key_that_does_not_hold_what_its_name_says_is_not_kept(keys: Path) -> None:
    (keys / f"{A.key_id}.pub").write_text(STRANGER.public_bytes.hex())
    kept = (keys / f"{A.key_id}.revoked").read_bytes()
    Keyring(keys).distrust(A.key_id)
    assert (keys / f"{A.key_id}.revoked").read_bytes() == kept
    assert not (keys / f"{A.key_id}.pub").exists()


def test_an_unreadable_public_key_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{A.key_id}.pub").mkdir(parents=True)
    with pytest.raises(IntegrityError, match=f"cannot read the public key .*{A.key_id}.pub"):
        Keyring(tmp_path).verify(A.key_id, b"x", A.sign(b"x"))
