"""Sign again what a revoked key signed.

A seal covers a list of digests, and the journal of promotions names the digest of every champion. So the content of a
champion can be verified without its seal, provided that somebody vouches for the journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from simic.app.container import Container
from simic.contracts.errors import IntegrityError
from simic.contracts.results.keys import Resealing, VouchedLine
from simic.ledgers import PROMOTIONS_LEDGER
from simic.ledgers.promotions import History, PromotionEntry, PromotionJournal, Signed
from simic.registry.pyfunc_files import POLICY_FOLDER
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.trust.canonical import digest_of
from simic.trust.keys import Keyring, Signer, load_signer
from simic.trust.seal import describe, seal

__all__ = ["Revoked", "countersign", "find_revoked", "key_of", "registry_lock", "reseal", "sealed_directories"]

REGISTRY_WAIT_S = 60.0


class Revoked(NamedTuple):
    """Lines and policies that only revoked keys signed."""

    lines: list[Signed]
    """Lines of the journal of promotions."""
    directories: dict[Path, str]
    """Sealed policies whose content the journal names, with its digest."""
    left: list[str]
    """Sealed policies whose content the journal does not name, with the reason."""
    history: History
    """Every line of the journal, as it was when the rest was found."""


def find_revoked(home: Home, keyring: Keyring) -> Revoked:
    """Read the journal and the bytes of every sealed policy.

    Raises:
        IntegrityError: if the journal is damaged.
    """
    journal = PromotionJournal(home.ledger, keyring)
    history, lines = journal.unvouched()
    named = {entry.digest for entry in history.changes}
    revoked = keyring.revocations().by_key
    directories: dict[Path, str] = {}
    left = []
    for path, key_id in sealed_directories(home):
        if key_id not in revoked:
            continue
        try:
            digest = digest_of(describe(path))
        except IntegrityError as error:
            left.append(f"{path}: {error}")
            continue
        if digest in named:
            directories[path] = digest
        else:
            left.append(f"{path}: no line of the journal names its content; train that policy again")
    return Revoked(lines, directories, left, history)


def reseal(container: Container, *, is_dry_run: bool, head: str | None = None) -> Resealing:
    """Vouch for the journal, then sign again every policy whose content it names.

    Every step can be repeated, so the same call completes what a killed process left.

    Args:
        container: Parts of the home.
        is_dry_run: Whether to return what would be signed and sign nothing.
        head: First characters of the ``head`` of a dry run; by default the head when this call began.

    Raises:
        ConfigError: if the present key is itself revoked.
        IntegrityError: if the journal no longer ends at ``head``, because the new lines were not shown, or if journal
            or policies change between being examined and being signed.
    """
    signer = load_signer(container.home.keys, os.environ)
    before = PromotionJournal(container.home.ledger, container.keyring).read_unvouched().head or ""
    with registry_lock(container.home):
        revoked = find_revoked(container.home, container.keyring)
        if not is_dry_run:
            _check_shown(revoked, head if head is not None else before)
            journal = PromotionJournal(container.home.ledger, container.keyring, lambda: signer)
            if revoked.lines or journal.unnamed():
                numbers = ", ".join(str(signed.number) for signed in revoked.lines)
                reason = (
                    f"lines {numbers} were looked at" if numbers else "keys were revoked that the journal did not name"
                )
                journal.countersign(reason, container.clock(), revoked.history)
            for path, digest in revoked.directories.items():
                seal(path, signer, digest)
    return Resealing(
        is_done=not is_dry_run,
        signing_key=signer.key_id,
        head=revoked.history.head,
        lines=[_vouched(signed) for signed in revoked.lines],
        directories=[str(path) for path in revoked.directories],
        left=revoked.left,
    )


def countersign(container: Container, signer: Signer, reason: str) -> bool:
    """Append a line to the journal that names the revoked keys, and return whether one was written.

    An empty journal gets no line while no key is revoked.

    Raises:
        UnvouchedError: if only revoked keys signed the last lines, for which nobody vouched.
    """
    journal = PromotionJournal(container.home.ledger, container.keyring, lambda: signer)
    with registry_lock(container.home):
        is_empty = not (container.home.ledger / PROMOTIONS_LEDGER).exists()
        if is_empty and not container.keyring.revocations().by_key:
            return False
        journal.countersign(reason, container.clock(), journal.read())
        return True


def _check_shown(revoked: Revoked, head: str) -> None:
    present = revoked.history.head or ""
    if not present.startswith(head) or (present and not head):
        raise IntegrityError(
            f"the journal of promotions ended with the line of SHA-256 {_short(head)} when it was shown, and ends now "
            f"with {_short(present)}: lines were added or removed, and nothing was signed. Look again: "
            f"`simic keys reseal`"
        )


def _short(head: str) -> str:
    return head[:12] or "none"


@contextmanager
def registry_lock(home: Home) -> Iterator[None]:
    """Hold the lock that promotions and signatures of journal lines take.

    Raises:
        TransientError: if it is held for longer than the waiting time.
    """
    with exclusive(home.locks / "registry", "signing the journal", REGISTRY_WAIT_S):
        yield


def _vouched(signed: Signed) -> VouchedLine:
    entry = signed.line if isinstance(signed.line, PromotionEntry) else None
    return VouchedLine(
        line=signed.number,
        operation=str(getattr(signed.line.operation, "value", signed.line.operation)),
        phase=None if entry is None else entry.phase.value,
        target=None if entry is None else entry.target,
        digest=None if entry is None else entry.digest,
        at=signed.line.at,
        reason=signed.line.reason,
        key_id=signed.key_id,
    )


def sealed_directories(home: Home) -> Iterator[tuple[Path, str]]:
    """Yield the sealed policies and Karns of the home and its registry, with the key their seals name."""
    # Versions that were registered without MLmodel hold the policy directly, not in a folder.
    places = f"**/artifacts/{POLICY_FOLDER}/manifest.json", "**/artifacts/manifest.json"
    stored = [manifest for place in places for manifest in home.artifacts.glob(place)]
    own = [manifest for root in (home.policies, home.karn) for manifest in sorted(root.glob("*/manifest.json"))]
    for manifest in (*own, *sorted(stored)):
        if (key_id := key_of(manifest.read_bytes())) is not None:
            yield manifest.parent, key_id


def key_of(text: bytes) -> str | None:
    """Return the id of the key that a record names as its signer, or None."""
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    key_id = record.get("key_id") if isinstance(record, dict) else None
    return key_id if isinstance(key_id, str) else None
