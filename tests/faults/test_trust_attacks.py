"""What somebody can do to a registry, a ledger or a file, and that nothing is signed or delivered after it.

The home holds version 1, the champion before; version 2, the champion; and version 3, which the gate rejected.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.builders.judged_candidates import judged
from support.homes.champion_homes import (
    FORMER,
    PRESENT,
    TURNED_AWAY,
    crowned_home,
    open_home,
    point_at,
    show_tag,
    weights_of,
)
from support.servers.forked_commands import run_command

from simic.app import promotion, training
from simic.app.checks.doctor import open_doctor
from simic.app.keys import Keys
from simic.bus.codec import decode, unwrap
from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ConfigError, IntegrityError, SimicError, TransientError
from simic.contracts.names import POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate
from simic.contracts.results.lake import Health
from simic.contracts.results.receipts import PolicyVersion, PublicationReceipt
from simic.registry.mlflow_run import CandidateRecord
from simic.runtime.home import Home
from simic.trust.records import sign_record
from simic.trust.seal import seal

CHAMPION = "models:/tamiyo@champion"
CANDIDATES, JOURNAL = "candidates.jsonl", "promotions.jsonl"
Attack = Callable[[Home], object]


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return crowned_home(tmp_path / "place", tmp_path_factory)


def lines(home: Home, name: str) -> list[bytes]:
    return (home.ledger / name).read_bytes().splitlines(keepends=True)


def write(home: Home, name: str, content: list[bytes]) -> None:
    (home.ledger / name).write_bytes(b"".join(content))


def edit(home: Home, name: str, place: int, **changes: Any) -> None:
    """One line of a ledger, as an editor would leave it."""
    found = lines(home, name)
    found[place] = json.dumps({**json.loads(found[place]), **changes}).encode() + b"\n"
    write(home, name, found)


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def delivered(home: Home) -> tuple[int, int, int]:
    """Updates on the bus, waiting in the outbox, and delivered from it."""
    bus, outbox = SpoolBus(home.spool), home.outbox
    counts = (len(list((outbox / name).glob("*.json"))) for name in ("pending", "done"))
    return (bus.pending(POLICY_UPDATES), *counts)  # type: ignore[return-value]


def live(home: Home) -> list[int] | str:
    """What the view calls live, or why it says nothing."""
    try:
        return [row["number"] for row in query(home, "SELECT number FROM policies WHERE is_live")]
    except IntegrityError as error:
        return str(error)


def check_refused(home: Home, *patterns: str) -> None:
    """Nobody signs, delivers, hands out or shows a wrong champion; the error names both sides."""
    before = delivered(home)
    app = open_home(home)
    for refusal in (
        lambda: promotion.publish_champion(app),
        lambda: promotion.verify(app, CHAMPION),
        lambda: app.policies.fetch(CHAMPION),
    ):
        with pytest.raises(IntegrityError) as caught:
            refusal()
        for pattern in patterns:
            assert pattern in str(caught.value)
    assert delivered(home) == before
    assert live(home) in ([PRESENT],) or isinstance(live(home), str)


def check_found(home: Home, health: Health, *, is_deep: bool = False) -> None:
    """By the doctor, who changes nothing."""
    report = open_doctor(open_home(home)).examine(is_deep=is_deep)
    assert not report.is_healthy
    assert health in {check.health for check in report.checks}


def check_published(home: Home, number: int) -> PublicationReceipt:
    """The champion is ``number``: production is told, the view shows it, the doctor has nothing to say."""
    app = open_home(home)
    receipt = promotion.publish_champion(app)
    assert receipt.update.reference == f"models:/tamiyo/{number}"
    assert promotion.verify(app, CHAMPION).digest == receipt.update.digest
    assert live(home) == [number]
    return receipt


def repair(home: Home) -> bool:
    """Whether the doctor could put all of it right."""
    return open_doctor(open_home(home)).examine(is_deep=True, is_repair=True).is_healthy


def test_without_an_attack_the_champion_is_published_and_the_doctor_is_content(place: Home) -> None:
    check_published(place, PRESENT)
    assert delivered(place) == (1, 0, 1)
    for is_deep in (False, True):
        report = open_doctor(open_home(place)).examine(is_deep=is_deep)
        assert report.is_healthy, [check for check in report.checks if check.health is not Health.HEALTHY]


@pytest.mark.parametrize(
    "number", [TURNED_AWAY, FORMER, None], ids=["to-a-rejected-version", "to-an-older-one", "away"]
)
def test_an_alias_moved_by_hand_is_refused_found_and_put_back(place: Home, number: int | None) -> None:
    point_at(place, number)
    there = "no version" if number is None else f"version {number}"
    check_refused(place, f"alias champion is on {there}", "promotions.jsonl says version 2", "simic doctor --repair")
    check_found(place, Health.REPAIRABLE)
    assert repair(place)
    check_published(place, PRESENT)


@pytest.mark.parametrize(
    "number", [TURNED_AWAY, FORMER, None], ids=["to-a-rejected-version", "to-an-older-one", "away"]
)
def test_a_rollback_goes_by_the_journal_wherever_the_alias_is(place: Home, number: int | None) -> None:
    point_at(place, number)
    assert promotion.roll_back(open_home(place), "an alias was moved").number == FORMER
    check_published(place, FORMER)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("digest", "e" * 64),
        ("gate_digest", "e" * 64),
        ("semantic_version", "9.9.9"),
        ("previous", "none"),
        ("promoted_at", "2031-01-01T00:00:00+00:00"),
        ("return_over_wait", "99.0000"),
        ("return_over_wait_lower", "98.0000"),
        ("return_over_blind", "97.0000"),
        ("confidence", "0.999"),
        ("episodes", "100000"),
        ("snapshot", "e" * 64),
        ("gate", "rejected"),
    ],
)
def test_an_edited_tag_of_the_champion_is_refused_found_and_put_back(place: Home, key: str, value: str) -> None:
    show_tag(place, PRESENT, key, value)
    check_refused(place, f"tag {key} of tamiyo version 2", repr(value), "the ledger says", "simic doctor --repair")
    check_found(place, Health.REPAIRABLE)
    assert repair(place)
    update = check_published(place, PRESENT).update
    assert (update.version, update.validation.return_over_wait, update.validation.episodes) == ("1.0.1", 6.0, 2)


@pytest.mark.parametrize(("number", "key"), [(FORMER, "previous"), (TURNED_AWAY, "gate"), (TURNED_AWAY, "digest")])
def test_an_edited_tag_of_another_version_is_found_and_put_back(place: Home, number: int, key: str) -> None:
    show_tag(place, number, key, "2")
    check_found(place, Health.REPAIRABLE)
    with pytest.raises(IntegrityError, match=f"tag {key} of tamiyo version {number}"):
        promotion.verify(open_home(place), f"models:/tamiyo/{number}")
    assert repair(place)
    check_published(place, PRESENT)


def test_a_version_that_only_says_it_was_promoted_stops_publication_until_the_tag_is_gone(place: Home) -> None:
    """It might be the trace of a promotion that somebody cut off the journal."""
    show_tag(place, TURNED_AWAY, "promoted_at", "2031-01-01T00:00:00+00:00")
    check_refused(place, "version 3 was promoted", "promotions.jsonl does not know of it")
    check_found(place, Health.REPAIRABLE)
    assert repair(place)
    check_published(place, PRESENT)


def test_a_flipped_bit_in_the_champions_weights_is_refused_and_a_rollback_mends_it(place: Home) -> None:
    flip_bit(weights_of(place, PRESENT))
    check_refused(place, "version 2", "differ from what was sealed", "simic rollback")
    check_found(place, Health.DAMAGED, is_deep=True)
    assert not repair(place), "the bytes are gone; no repair may say otherwise"
    assert promotion.roll_back(open_home(place), "weights damaged").number == FORMER
    check_published(place, FORMER)


def test_the_champions_files_replaced_by_those_of_another_signed_policy_are_refused(place: Home) -> None:
    theirs = weights_of(place, TURNED_AWAY).parent
    ours = weights_of(place, PRESENT).parent
    for path in theirs.iterdir():
        shutil.copyfile(path, ours / path.name)
    check_refused(place, "version 2", "expected digest", "simic rollback")
    whole = open_home(place).policies.champion_digest()
    show_tag(place, PRESENT, "digest", json.loads((theirs / "manifest.json").read_bytes())["digest"])
    check_refused(place, "tag digest of tamiyo version 2", str(whole))
    assert not repair(place)
    assert promotion.roll_back(open_home(place), "swapped").number == FORMER
    check_published(place, FORMER)


def test_a_rollback_to_damaged_weights_is_refused_and_moves_nothing(place: Home) -> None:
    flip_bit(weights_of(place, FORMER))
    before = lines(place, JOURNAL)
    with pytest.raises(IntegrityError, match="differ from what was sealed"):
        promotion.roll_back(open_home(place), "worse")
    assert lines(place, JOURNAL) == before
    check_published(place, PRESENT)


def _edited(home: Home) -> None:
    version = json.loads(lines(home, JOURNAL)[2])["version"]
    edit(home, JOURNAL, 2, version={**version, "number": TURNED_AWAY})


def _forged(home: Home) -> None:
    """A promotion of the rejected version, as well as somebody without a key can write it."""
    point_at(home, TURNED_AWAY)
    found = lines(home, JOURNAL)
    copies = [{**json.loads(line), "entry": 5, "source": PRESENT} for line in found[-2:]]
    write(home, JOURNAL, [*found, *(json.dumps(copy).encode() + b"\n" for copy in copies)])


def _cut_with_list(home: Home) -> None:
    write(home, JOURNAL, lines(home, JOURNAL)[:4])
    write(home, "policies.jsonl", lines(home, "policies.jsonl")[:1])


@pytest.mark.parametrize(
    ("attack", "found"),
    [
        pytest.param(_edited, "line 3", id="edited"),
        pytest.param(lambda home: write(home, JOURNAL, lines(home, JOURNAL)[1:]), "line 1", id="first-line-removed"),
        pytest.param(
            lambda home: write(home, JOURNAL, lines(home, JOURNAL)[:2] + lines(home, JOURNAL)[3:]),
            "line 3",
            id="removed",
        ),
        pytest.param(
            lambda home: write(home, JOURNAL, lines(home, JOURNAL) + lines(home, JOURNAL)[:2]), "line 9", id="inserted"
        ),
        pytest.param(_forged, "line 9", id="forged-promotion-of-the-rejected"),
        pytest.param(lambda home: write(home, JOURNAL, lines(home, JOURNAL)[::-1]), "line 1", id="reordered"),
        pytest.param(lambda home: write(home, JOURNAL, []), "last lines of the journal are missing", id="emptied"),
        pytest.param(
            lambda home: (home.ledger / JOURNAL).unlink(), "last lines of the journal are missing", id="deleted"
        ),
        pytest.param(
            lambda home: write(home, JOURNAL, lines(home, JOURNAL)[:4]),
            "last lines of the journal are missing",
            id="cut",
        ),
        pytest.param(_cut_with_list, "does not know", id="cut-together-with-the-list"),
    ],
)
def test_a_journal_that_was_tampered_with_is_refused_and_only_a_backup_mends_it(
    place: Home, attack: Attack, found: str
) -> None:
    ledgers = {name: (place.ledger / name).read_bytes() for name in (JOURNAL, "policies.jsonl")}
    attack(place)
    before = delivered(place)
    with pytest.raises(IntegrityError, match=found):
        promotion.publish_champion(open_home(place))
    with pytest.raises(IntegrityError, match=found):
        promotion.verify(open_home(place), CHAMPION)
    assert delivered(place) == before
    assert live(place) != [TURNED_AWAY]
    check_found(place, Health.DAMAGED)
    assert not repair(place)
    for name, content in ledgers.items():
        (place.ledger / name).write_bytes(content)
    if attack is _forged:
        assert repair(place)
    check_published(place, PRESENT)


def test_an_edited_list_of_champions_is_refused_found_and_made_again(place: Home) -> None:
    whole = lines(place, "policies.jsonl")
    edit(place, "policies.jsonl", 1, number=TURNED_AWAY, reference="models:/tamiyo/3")
    check_refused(place, "policies.jsonl, line 2", "it lists version 3", "version 2", "simic doctor --repair")
    check_found(place, Health.REPAIRABLE)
    assert repair(place)
    assert lines(place, "policies.jsonl") == whole
    check_published(place, PRESENT)


@pytest.mark.parametrize("changes", [{"accepted": False}, {"policy_digest": "e" * 64}, {"digest": "e" * 64}])
def test_an_edited_decision_about_the_champion_is_refused_and_found(place: Home, changes: dict[str, Any]) -> None:
    whole = lines(place, "gates.jsonl")
    edit(place, "gates.jsonl", PRESENT - 1, **changes)
    check_refused(place, "gate decision")
    check_found(place, Health.DAMAGED)
    write(place, "gates.jsonl", whole)
    check_published(place, PRESENT)


def test_a_rollback_leaves_a_champion_whose_decision_was_edited(place: Home) -> None:
    edit(place, "gates.jsonl", PRESENT - 1, accepted=False)
    assert promotion.roll_back(open_home(place), "nothing proves it").number == FORMER
    check_published(place, FORMER)


def test_a_rejection_edited_to_an_acceptance_makes_no_champion(place: Home) -> None:
    """The criteria are edited too, the alias is moved, and the tags say what the ledger says."""
    whole = lines(place, "gates.jsonl")
    rejected = json.loads(whole[TURNED_AWAY - 1])
    criteria = [{**criterion, "value": 500.0, "verdict": "PASS"} for criterion in rejected["criteria"]]
    edit(place, "gates.jsonl", TURNED_AWAY - 1, accepted=True, criteria=criteria)
    point_at(place, TURNED_AWAY)
    for key, value in {"gate": "accepted", "promoted_at": "2031-01-01T00:00:00+00:00", "previous": "2"}.items():
        show_tag(place, TURNED_AWAY, key, value)
    check_refused(place, "alias champion is on version 3", "promotions.jsonl says version 2")
    check_found(place, Health.DAMAGED)
    assert not repair(place)
    assert live(place) == [PRESENT]


def recorded(home: Home, weights: bytes = b"next") -> tuple[CandidateRecord, PolicyVersion]:
    """A candidate that the gate accepted and nobody promoted yet."""
    app = open_home(home)
    evidence = judged(home, weights, champion=app.policies.champion_digest())
    return evidence, app.registry.record(evidence)


@pytest.mark.parametrize(
    "changes",
    [{"seed": 77}, {"code_version": "9.9.9+000000000000"}, {"semantic_version": "7.0.0"}, {"signature": "0" * 128}],
    ids=lambda changes: next(iter(changes)),
)
def test_an_edited_line_about_a_candidate_is_signed_into_no_journal_and_numbers_no_version(
    place: Home, changes: dict[str, Any]
) -> None:
    """The fault: what the journal signs of a candidate came from an unsigned line, compared with MLflow's tags only."""
    evidence, version = recorded(place)
    whole, journal = lines(place, CANDIDATES), lines(place, JOURNAL)
    edit(place, CANDIDATES, -1, **changes)
    if "semantic_version" in changes:
        show_tag(place, version.number, "semantic_version", changes["semantic_version"])
    with pytest.raises(IntegrityError, match=r"candidates\.jsonl, line 4"):
        open_home(place).registry.promote(version, evidence.validation, evidence.gate)
    with pytest.raises(IntegrityError, match=r"candidates\.jsonl, line 4"):
        recorded(place, b"after")
    report = open_doctor(open_home(place)).examine(is_repair=True)
    assert [check.health for check in report.checks if check.name == "candidates"] == [Health.DAMAGED]
    assert lines(place, JOURNAL) == journal
    write(place, CANDIDATES, whole)
    show_tag(place, version.number, "semantic_version", version.semantic_version)
    assert open_home(place).registry.promote(version, evidence.validation, evidence.gate).seed == version.seed
    assert open_doctor(open_home(place)).examine(is_deep=True).is_healthy


def test_a_line_about_a_candidate_without_a_seal_or_with_that_of_a_decision_is_refused(place: Home) -> None:
    evidence, version = recorded(place)
    whole = lines(place, CANDIDATES)
    plain = {name: value for name, value in json.loads(whole[-1]).items() if name not in ("key_id", "signature")}
    write(place, CANDIDATES, [*whole[:-1], json.dumps(plain).encode() + b"\n"])
    with pytest.raises(IntegrityError, match=r"candidates\.jsonl, line 4: .*found no signature"):
        open_home(place).registry.promote(version, evidence.validation, evidence.gate)
    sealed = sign_record(plain, "receipt:promote", open_home(place).signer)
    write(place, CANDIDATES, [*whole[:-1], json.dumps(sealed).encode() + b"\n"])
    with pytest.raises(IntegrityError, match=r"candidates\.jsonl, line 4"):
        open_home(place).registry.promote(version, evidence.validation, evidence.gate)


def test_a_candidate_sealed_by_a_key_revoked_since_is_promoted_only_after_it_is_recorded_again(place: Home) -> None:
    evidence, version = recorded(place)
    keys = Keys(open_home(place))
    keys.revoke(open_home(place).signer.key_id, "leaked")
    Keys(open_home(place)).reseal(is_dry_run=False)
    app = open_home(place)
    with pytest.raises(IntegrityError, match=r"was revoked.*record it again"):
        app.registry.promote(version, evidence.validation, evidence.gate)
    seal(Path(evidence.training.path), app.signer)
    assert app.registry.record(evidence).semantic_version == version.semantic_version
    assert len(lines(place, CANDIDATES)) == 5
    checks = {check.name: check for check in open_doctor(open_home(place)).examine().checks}
    assert checks["candidates"].health is Health.HEALTHY


def test_a_database_that_is_gone_is_not_taken_for_one_that_never_was(place: Home) -> None:
    (place.mlruns / "mlflow.db").unlink()
    check_refused(place, "mlflow.db is missing", "restore it from a backup")
    check_found(place, Health.DAMAGED)
    with pytest.raises(IntegrityError, match=r"mlflow\.db"):
        open_home(place).policies.champion_digest()


def test_an_update_edited_in_the_outbox_is_not_delivered(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_bus: SpoolBus, topic: str, _name: str, _lines: Iterable[bytes]) -> str:
        raise TransientError(f"{topic} is away")

    with monkeypatch.context() as absent, pytest.raises(TransientError):
        absent.setattr(SpoolBus, "put", away)
        promotion.publish_champion(open_home(place))
    (waiting,) = (place.outbox / "pending").glob("*.json")
    event = decode(EventEnvelope, waiting.read_bytes())
    update = unwrap(event, PolicyUpdate).model_copy(update={"reference": "models:/tamiyo/3"})
    waiting.write_bytes(
        event.model_copy(update={"payload": update.model_dump_json().encode()}).model_dump_json().encode()
    )
    with pytest.raises(IntegrityError, match=r"differs from what was signed.*simic doctor --repair"):
        promotion.publish_champion(open_home(place))
    assert delivered(place) == (0, 1, 0)
    check_found(place, Health.REPAIRABLE)
    assert repair(place)
    check_published(place, PRESENT)
    assert delivered(place) == (1, 0, 1)


def test_a_run_does_not_begin_from_a_champion_that_nothing_proves(place: Home) -> None:
    point_at(place, TURNED_AWAY)
    app = open_home(place)
    for asked in (
        app.policies.champion_digest,
        lambda: training.resolve_start(app, "champion"),
        lambda: app.policies.spec("champion", is_decisive=True),
    ):
        with pytest.raises(IntegrityError, match="alias champion is on version 3"):
            asked()


def test_a_promotion_over_a_disagreement_is_refused(place: Home) -> None:
    from support.builders.judged_candidates import judged

    champion = open_home(place).policies.champion_digest()
    evidence = judged(place, b"new", champion=champion)
    registry = open_home(place).registry
    version = registry.record(evidence)
    point_at(place, TURNED_AWAY)
    before = lines(place, JOURNAL)
    with pytest.raises(IntegrityError, match="alias champion is on version 3"):
        registry.promote(version, evidence.validation, evidence.gate)
    assert lines(place, JOURNAL) == before


def test_what_is_champion_no_longer_is_not_published(place: Home) -> None:
    app = open_home(place)
    champion = app.policies.champion()
    assert champion is not None
    promotion.roll_back(app, "worse")
    with pytest.raises(ConfigError, match="the champion now is version 1"):
        promotion.publish(app, champion)
    assert delivered(place) == (0, 0, 0)


def _simic(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, "SIMIC_HOME": str(home.root)})


def test_an_attack_from_the_command_line_to_the_verb_that_mends_it(place: Home) -> None:
    point_at(place, TURNED_AWAY)
    refused = _simic(place, "publish")
    assert refused.returncode == 1
    assert "simic doctor --repair" in refused.stderr
    assert _simic(place, "doctor").returncode == 5
    answer = _simic(place, "rollback", "--reason", "alias moved", "--json")
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert (told["number"], told["publication"]["update"]["reference"]) == (FORMER, "models:/tamiyo/1")
    assert told["publication"]["delivered"]
    assert delivered(place) == (1, 0, 1)
    assert not check_published(place, FORMER).delivered


def test_a_rollback_while_the_bus_is_away_says_so_and_the_update_waits(place: Home) -> None:
    topic = place.spool / POLICY_UPDATES
    topic.parent.mkdir(parents=True, exist_ok=True)
    topic.write_bytes(b"not a directory")
    answer = _simic(place, "rollback", "--reason", "worse", "--json")
    assert answer.returncode == 4, answer.stderr
    told = json.loads(answer.stdout)
    assert (told["number"], told["publication"]) == (FORMER, None)
    assert "simic publish" in answer.stderr
    assert len(list((place.outbox / "pending").glob("*.json"))) == 1
    topic.unlink()
    assert check_published(place, FORMER).delivered
    with pytest.raises(SimicError, match="no champion when version 1 was promoted"):
        promotion.roll_back(open_home(place), "once more")
