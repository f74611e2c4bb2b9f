"""What `simic keys` signs again is what was examined, also if somebody writes in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.builders.sealed_policies import policy_of
from support.homes.champion_homes import open_home, own_champion_home

from simic.app import resealing
from simic.app.container import Container
from simic.app.keys import Keys
from simic.contracts.errors import IntegrityError
from simic.ledgers import PROMOTIONS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.promotions import Countersignature, PromotionJournal, UnvouchedError
from simic.runtime.home import Home
from simic.trust.keys import Keyring, Signer
from simic.trust.records import sign_record


@pytest.fixture
def app(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """A home whose champion and journal its own key signed."""
    app = open_home(own_champion_home(home, tmp_path_factory))
    app.signer  # noqa: B018 - makes the key
    return app


@pytest.fixture
def thief(app: Container) -> Signer:
    """The key of the home, as a thief has it; the home has revoked it."""
    thief = Signer((app.home.keys / "signing.key").read_bytes())
    Keys(app).revoke(thief.key_id, "leaked")
    return thief


def examined_before(write: Callable[[], object]) -> Callable[[Home, Keyring], resealing.Revoked]:
    """Return the examination of a home, after which somebody writes once."""
    examine, is_written = resealing.find_revoked, []

    def examined(home: Home, keyring: Keyring) -> resealing.Revoked:
        found = examine(home, keyring)
        if not is_written:
            is_written.append(True)
            write()
        return found

    return examined


def add_line(app: Container, thief: Signer) -> None:
    head = PromotionJournal(app.home.ledger, app.keyring).read_unvouched().head
    line = Countersignature(reason="by a thief", at=app.clock()).model_dump(mode="json")
    ledger = Ledger(app.home.ledger / PROMOTIONS_LEDGER)
    ledger.append(sign_record({**line, "previous_sha256": head}, "promotion", thief))


def key_of_last_line(app: Container) -> object:
    return Ledger(app.home.ledger / PROMOTIONS_LEDGER).read()[-1]["key_id"]


def test_a_policy_that_changes_after_it_was_examined_is_not_signed(
    app: Container, thief: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = policy_of(app) / "weights.safetensors"
    before, sealed = weights.read_bytes(), weights.with_name("manifest.json").read_bytes()
    monkeypatch.setattr(resealing, "find_revoked", examined_before(lambda: weights.write_bytes(b"forged")))
    with pytest.raises(IntegrityError, match="its files changed after they were examined"):
        Keys(app).reseal(is_dry_run=False)
    assert weights.with_name("manifest.json").read_bytes() == sealed
    assert any("no line of the journal names" in line for line in Keys(app).reseal(is_dry_run=True).left)
    weights.write_bytes(before)
    Keys(app).reseal(is_dry_run=False)
    assert app.policies.seal(weights.parent).key_id == app.signer.key_id != thief.key_id


def test_a_line_that_comes_after_the_journal_was_examined_is_not_vouched_for(
    app: Container, thief: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resealing, "find_revoked", examined_before(lambda: add_line(app, thief)))
    with pytest.raises(IntegrityError, match=r"expected the examined lines.*simic keys reseal"):
        Keys(app).reseal(is_dry_run=False)
    assert key_of_last_line(app) == thief.key_id
    assert [line.reason for line in Keys(app).reseal(is_dry_run=True).lines][-1] == "by a thief"


def test_a_new_key_vouches_for_no_line_that_came_after_the_journal_was_examined(
    app: Container, thief: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keys(app).reseal(is_dry_run=False)
    monkeypatch.setattr("simic.app.keys.find_revoked", examined_before(lambda: add_line(app, thief)))
    with pytest.raises(UnvouchedError, match="simic keys reseal"):
        Keys(app).rotate()
    assert key_of_last_line(app) == thief.key_id
