"""kill -9 while a policy is recorded, staged or promoted: the champion is the old or new one, and the books close."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builders.judged_candidates import SIGNER, evidence_of, judged, ticking
from support.homes.champion_homes import first_champion_home
from support.servers.forked_commands import run_script

from simic.catalogue.query import query
from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION_REFERENCE
from simic.contracts.results.receipts import PolicyVersion
from simic.registry.mlflow_store import open_client
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring

STAGED_REFERENCE = "models:/tamiyo@staged"
RECORD_STEPS = ("logged", "stored", "registered", "recorded")
STAGE_STEPS = ("staging journalled", "staging aliased", "staging closed")
PROMOTE_STEPS = ("journalled", "tagged", "aliased", "verified", "unstaged", "closed")
MOVED = ("aliased", "verified", "unstaged", "closed")
"""Steps after the alias moved, which commits."""

CHILD = """
import os, signal, sys
from pathlib import Path
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from support.builders.judged_candidates import SIGNER, evidence_of, ticking

place, path, digest, champion, fatal = sys.argv[1:]
home = Home(Path(place))

def die(step):
    if step == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

registry = Registry(home, Keyring(home.keys), signer=lambda: SIGNER, clock=ticking(), on_step=die)
evidence = evidence_of(home, Path(path), digest, champion=champion)
registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
"""


class Killed(BaseException):
    """Stands in for a signal: nothing of ours catches it."""


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with one champion, nobody's successor."""
    return first_champion_home(tmp_path / "place", tmp_path_factory)


@pytest.fixture
def keyring(place: Home) -> Keyring:
    return Keyring(place.keys)


@pytest.fixture
def champion(place: Home, keyring: Keyring) -> PolicyVersion:
    held = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking()).champion()
    assert held is not None
    return held


def check_settled(place: Home, champion: PolicyVersion, digest: str, *, was_moved: bool) -> None:
    """A new process sees one of the two champions, whole, and no open books."""
    registry = Registry(place, Keyring(place.keys), signer=lambda: SIGNER, clock=ticking())
    held = registry.champion()
    assert held is not None
    assert held.digest == (digest if was_moved else champion.digest)
    registry.load(CHAMPION_REFERENCE, place.tmp / "loaded")
    assert registry.differences() == [], "alias and tags are those of whoever is champion"
    entries = _lines(place.ledger / "promotions.jsonl")
    assert entries[-1]["phase"] != "open"
    listed = [line["digest"] for line in _lines(place.ledger / "policies.jsonl")]
    assert listed == ([champion.digest, digest] if was_moved else [champion.digest])


def check_rerun(place: Home, champion: PolicyVersion, path: Path, digest: str) -> None:
    """The same command again ends where an undisturbed one would have ended."""
    registry = Registry(place, Keyring(place.keys), signer=lambda: SIGNER, clock=ticking())
    evidence = evidence_of(place, path, digest, champion=champion.digest)
    version = registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    assert registry.champion() == version
    assert (version.digest, version.number, version.previous) == (digest, 2, champion.number)
    client = open_client(place.tracking_uri)
    assert len(client.search_model_versions("name='tamiyo'")) == 2
    assert len(client.search_runs(["1"])) == 2
    assert len(client.search_logged_models(["1"])) == 2
    assert [line["digest"] for line in _lines(place.ledger / "policies.jsonl")] == [champion.digest, digest]
    assert len(_lines(place.ledger / "gates.jsonl")) == 2
    assert len(_lines(place.ledger / "candidates.jsonl")) == 2


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def killed_at(fatal: str) -> Callable[[str], None]:
    def die(step: str) -> None:
        if step == fatal:
            raise Killed

    return die


@pytest.mark.parametrize("fatal", [*RECORD_STEPS, *STAGE_STEPS, *PROMOTE_STEPS])
def test_a_promotion_cut_short_anywhere_is_settled_and_can_be_repeated(
    place: Home, keyring: Keyring, champion: PolicyVersion, fatal: str
) -> None:
    evidence = judged(place, b"two", champion=champion.digest)
    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), on_step=killed_at(fatal))
    with pytest.raises(Killed):
        registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    digest = evidence.training.digest
    check_settled(place, champion, digest, was_moved=fatal in MOVED)
    check_rerun(place, champion, Path(evidence.training.path), digest)


@pytest.mark.parametrize("fatal", PROMOTE_STEPS)
def test_a_rollback_cut_short_anywhere_is_settled_and_can_be_published(
    place: Home, keyring: Keyring, champion: PolicyVersion, fatal: str
) -> None:
    evidence = judged(place, b"two", champion=champion.digest)
    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    second = registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    with pytest.raises(Killed):
        Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), on_step=killed_at(fatal)).rollback("worse")
    after = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    expected = champion if fatal in MOVED else second
    with after.certified() as entry:
        assert entry.digest == expected.digest
    assert after.differences() == []
    assert query(place, "SELECT policy FROM policies WHERE is_live") == [{"policy": expected.digest}]


@pytest.mark.parametrize("fatal", STAGE_STEPS)
def test_a_staging_cut_short_is_settled_by_its_alias(
    place: Home, keyring: Keyring, champion: PolicyVersion, fatal: str
) -> None:
    evidence = judged(place, b"two", champion=champion.digest)
    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), on_step=killed_at(fatal))
    with pytest.raises(Killed):
        registry.stage(registry.record(evidence), evidence.validation, evidence.gate)
    check_settled(place, champion, evidence.training.digest, was_moved=False)
    after = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    if fatal == "staging journalled":
        with pytest.raises(ConfigError, match="does not exist"):
            after.find(STAGED_REFERENCE)
    else:
        assert after.find(STAGED_REFERENCE).digest == evidence.training.digest
    check_rerun(place, champion, Path(evidence.training.path), evidence.training.digest)


@pytest.mark.parametrize("fatal", ["registered", "staging aliased", "journalled", "aliased", "unstaged"])
def test_kill_9_during_a_promotion(place: Home, champion: PolicyVersion, fatal: str) -> None:
    evidence = judged(place, b"two", champion=champion.digest)
    path, digest = evidence.training.path, evidence.training.digest
    child = run_script(CHILD, str(place.root), path, digest, champion.digest, fatal)
    assert child.returncode == -signal.SIGKILL, child.stderr
    if fatal == "journalled":
        assert _lines(place.ledger / "promotions.jsonl")[-1]["phase"] == "open"
    check_settled(place, champion, digest, was_moved=fatal in MOVED)
    check_rerun(place, champion, Path(path), digest)


def test_a_promotion_that_was_cut_short_and_then_damaged_gives_the_title_back(
    place: Home, keyring: Keyring, champion: PolicyVersion
) -> None:
    evidence = judged(place, b"two", champion=champion.digest)
    with pytest.raises(Killed):
        registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), on_step=killed_at("aliased"))
        registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    for weights in (place.artifacts / "models").rglob("weights.safetensors"):
        if weights.read_bytes().startswith(b"two"):
            weights.write_bytes(b"not what was sealed")
    check_settled(place, champion, evidence.training.digest, was_moved=False)


def test_the_list_of_policies_can_be_rebuilt_from_the_journal(
    place: Home, keyring: Keyring, champion: PolicyVersion
) -> None:
    listed = place.ledger / "policies.jsonl"
    before = listed.read_bytes()
    listed.unlink()
    Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    assert listed.read_bytes() == before


def test_opening_the_registry_leaves_a_promotion_in_progress_alone(
    place: Home, keyring: Keyring, champion: PolicyVersion
) -> None:
    """Whoever holds the lock is at work on the open entry; a reader must not settle it under their feet."""
    seen: list[str] = []

    def look(step: str) -> None:
        if step == "journalled":
            held = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking()).champion()
            assert held is not None
            seen.append(held.digest)
            assert _lines(place.ledger / "promotions.jsonl")[-1]["phase"] == "open"

    evidence = judged(place, b"two", champion=champion.digest)
    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), on_step=look)
    version = registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    assert seen == [champion.digest]
    assert registry.champion() == version
