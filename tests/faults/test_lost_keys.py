"""A key that is lost: what was signed is not lost with it, and what nobody can vouch for is not loaded.

A key that others know: revoked, it is believed nowhere and never again, and the home goes on under another.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builders.sealed_policies import crowned, policy_of, validated
from support.homes.champion_homes import FORMER, crowned_home, open_home, own_champion_home
from support.servers.forked_commands import run_command

from simic.app import promotion
from simic.app.artifacts import artifacts_are_intact
from simic.app.checks.doctor import open_doctor
from simic.app.checks.health import healthy
from simic.app.container import Container
from simic.app.keys import Keys
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.results.lake import Check, Health
from simic.ledgers import PROMOTIONS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.promotions import Countersignature, PromotionJournal
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.settings import load_profile
from simic.trust.keys import Keyring, Signer, load_signer
from simic.trust.records import sign_record
from simic.trust.revocation import REVOKED_NAME, Revocations, read_revocations
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


# -- a key that others know -----------------------------------------------------------------------


@pytest.fixture
def app(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """A home whose champion, receipts and journal its own key signed."""
    return opened(own_champion_home(home, tmp_path_factory))


def opened(home: Home) -> Container:
    """As another process would."""
    return Container(home, load_profile("default"), 0)


def simic(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, **environment})


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def damage(app: Container, *, is_deep: bool = False) -> dict[str, str]:
    checks = open_doctor(opened(app.home)).examine(is_deep=is_deep).checks
    return {check.name: check.found for check in checks if check.health in (Health.DAMAGED, Health.REPAIRABLE)}


def test_a_leaked_key_is_revoked_and_the_home_goes_on_under_another(app: Container) -> None:
    """From the command line: revoke, look, reseal, and everything verifies under the new key alone."""
    leaked = app.signer.key_id
    done = told(simic("keys", "revoke", leaked, "--reason", "on a lost laptop", "--json"))
    assert done["is_new"] and done["signing_key"] != leaked
    assert "simic keys reseal" in done["next_steps"][0]

    refused = simic("publish")
    assert refused.returncode == 1
    assert leaked in refused.stderr
    assert "simic keys reseal" in refused.stderr
    for reference in ("models:/tamiyo@champion", str(policy_of(app))):
        with pytest.raises(IntegrityError, match=f"{leaked}.*simic keys reseal"):
            promotion.verify(opened(app.home), reference)
    with pytest.raises(IntegrityError, match="simic keys reseal"):
        promotion.roll_back(opened(app.home), "x")

    plan = told(simic("keys", "reseal", "--json"))
    assert not plan["is_done"]
    assert [line["phase"] for line in plan["lines"]] == ["open", "done"] * 2, "staged, then promoted"
    assert len(plan["directories"]) == 2, "the trained policy, and what the registry stores of it"
    with pytest.raises(IntegrityError, match="simic keys reseal"):
        opened(app.home).policies.champion_digest()

    assert told(simic("keys", "reseal", "--yes", "--json"))["directories"] == plan["directories"]
    assert promotion.verify(opened(app.home), "models:/tamiyo@champion").key_id == done["signing_key"]
    assert told(simic("publish", "--json"))["update"]["key_id"] == done["signing_key"]
    assert not (app.home.keys / f"{leaked}.pub").exists()
    assert opened(app.home).policies.champion_digest() is not None
    assert set(damage(app)) == set()
    again = Keys(opened(app.home)).reseal(is_dry_run=True)
    assert (again.lines, again.directories) == ([], [])


def test_an_update_that_a_revoked_key_signed_is_published_again_under_the_new_one(app: Container) -> None:
    first = promotion.publish_champion(opened(app.home))
    Keys(app).revoke(app.signer.key_id, "leaked")
    Keys(app).reseal(is_dry_run=False)
    shown = told(simic("status", "--json"))
    assert shown["champion"]["published"] is None, "consumers no longer believe it"
    assert shown["champion"]["judged"]["gain"] is None and len(shown["not_shown"]) > 1, "receipts are not sealed again"
    assert any("the update" in text and first.update.key_id in text for text in shown["not_shown"])
    second = promotion.publish_champion(opened(app.home))
    assert second.delivered
    assert second.update.key_id != first.update.key_id
    assert not promotion.publish_champion(opened(app.home)).delivered


def test_a_revoked_key_is_not_written_again_while_its_secret_is_in_the_environment(
    app: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the next init or publish made it trusted again."""
    seed = os.urandom(32)
    secret = base64.b64encode(seed).decode()
    key_id = Signer(seed).key_id
    told(simic("init", "--json", SIMIC_SIGNING_KEY=secret))
    assert (app.home.keys / f"{key_id}.pub").exists()
    done = told(simic("keys", "revoke", key_id, "--reason", "leaked", "--json", SIMIC_SIGNING_KEY=secret))
    assert done["signing_key"] is None
    assert "openssl rand -base64 32" in done["next_steps"][0]
    for verb in ("init", "publish"):
        refused = simic(verb, SIMIC_SIGNING_KEY=secret)
        assert refused.returncode in (1, 2), verb
        assert key_id in refused.stderr
        assert secret not in refused.stderr
        assert not (app.home.keys / f"{key_id}.pub").exists(), verb
    assert simic("init").returncode == 0, "with the home's own key"


def test_a_key_of_the_environment_is_rotated_where_it_is_set(home: Path) -> None:
    promotion.initialise_home(opened(Home(home)))
    refused = simic("keys", "rotate", SIMIC_SIGNING_KEY=base64.b64encode(os.urandom(32)).decode())
    assert refused.returncode == 2
    assert "openssl rand -base64 32" in refused.stderr


@pytest.mark.parametrize("verb", [["init"], ["keys", "rotate"], ["keys", "revoke", "OWN", "--reason", "leaked"]])
def test_an_empty_signing_key_variable_is_refused(home: Path, verb: list[str]) -> None:
    promotion.initialise_home(opened(Home(home)))
    before = {path.name: path.read_bytes() for path in Home(home).keys.iterdir()}
    own = next(path.stem for path in Home(home).keys.glob("*.pub"))
    refused = simic(*[own if word == "OWN" else word for word in verb], SIMIC_SIGNING_KEY="")
    assert refused.returncode == 2
    assert "SIMIC_SIGNING_KEY is empty" in refused.stderr
    assert {path.name: path.read_bytes() for path in Home(home).keys.iterdir()} == before


def test_the_doctor_and_the_list_of_keys_say_that_the_variable_is_empty(app: Container) -> None:
    app.signer  # noqa: B018 - makes the key
    listed = told(simic("keys", "list", "--json", SIMIC_SIGNING_KEY=""))
    assert "SIMIC_SIGNING_KEY is empty" in listed["signing_problem"]
    examined = simic("doctor", "--json", SIMIC_SIGNING_KEY="")
    assert examined.returncode == 5
    (found,) = (check for check in json.loads(examined.stdout)["checks"] if check["name"] == "signing key")
    assert "SIMIC_SIGNING_KEY is empty" in found["found"]


def test_a_public_key_copied_back_does_not_count_and_the_doctor_asks_who_did_it(app: Container) -> None:
    app.signer  # noqa: B018 - makes the key
    leaked = Signer((app.home.keys / "signing.key").read_bytes())  # as a thief uses it
    Keys(app).revoke(leaked.key_id, "leaked")
    Keys(app).reseal(is_dry_run=False)
    (app.home.keys / f"{leaked.key_id}.pub").write_text(leaked.public_bytes.hex())
    forged = policy_of(app)
    (forged / "weights.safetensors").write_bytes(b"forged")
    seal(forged, leaked)
    with pytest.raises(IntegrityError, match="was revoked"):
        promotion.verify(opened(app.home), str(forged))
    assert "does not count" in damage(app)[f"key {leaked.key_id}"]
    open_doctor(opened(app.home)).examine(is_repair=True)
    assert not (app.home.keys / f"{leaked.key_id}.pub").exists()


def test_a_forged_promotion_by_a_leaked_key_is_shown_before_it_is_vouched_for(app: Container) -> None:
    """Nothing tells lines of the thief from those of the owner but the owner's eyes, so nothing is done unasked."""
    leaked = app.signer
    crowned(app, b"two", champion=app.policies.champion_digest())  # by whoever held the key
    Keys(app).revoke(leaked.key_id, "leaked")
    plan = Keys(app).reseal(is_dry_run=True)
    assert [line.target for line in plan.lines] == [1] * 4 + [2] * 4
    with pytest.raises(IntegrityError, match="lines 1, 2, 3, 4, 5, 6, 7, 8 are signed by a key that was revoked"):
        opened(app.home).policies.champion_digest()


def test_no_other_line_vouches_for_those_of_a_revoked_key(app: Container) -> None:
    """A promotion under the new key would vouch for all before it, so it is refused before a person has looked."""
    first = app.policies.champion_digest()
    Keys(app).revoke(app.signer.key_id, "leaked")
    report = validated(opened(app.home), b"two", champion=first)
    with pytest.raises(IntegrityError, match="simic keys reseal"):
        promotion.record(opened(app.home), report, promotion.decide(opened(app.home), report))
    assert len((app.home.ledger / "promotions.jsonl").read_text().splitlines()) == 4


def test_what_the_journal_does_not_name_is_not_sealed_anew(app: Container) -> None:
    validated(app, b"two", margin=-3.0)
    Keys(app).revoke(app.signer.key_id, "leaked")
    damaged = policy_of(app)
    (damaged / "weights.safetensors").write_bytes(b"forged")
    done = Keys(app).reseal(is_dry_run=False)
    assert len(done.directories) == 1, "what the registry stores of the champion"
    assert {line.split(":")[0] for line in done.left} == {str(damaged), str(policy_of(app, b"two"))}
    for path in (damaged, policy_of(app, b"two")):
        with pytest.raises(IntegrityError):
            promotion.verify(opened(app.home), str(path))
    assert promotion.verify(opened(app.home), "models:/tamiyo@champion").key_id == app.signer.key_id


def test_receipts_of_a_revoked_key_promote_nothing_even_after_resealing(app: Container) -> None:
    report = validated(app, b"two", champion=app.policies.champion_digest())
    Keys(app).revoke(app.signer.key_id, "leaked")
    Keys(app).reseal(is_dry_run=False)
    assert not artifacts_are_intact(opened(app.home), report)
    with pytest.raises(IntegrityError, match="simic validate"):
        promotion.resolve_validation(opened(app.home), None)
    assert any(name.startswith("receipt ") for name in damage(app, is_deep=True))


def test_a_rotated_key_stays_believed_and_the_journal_ends_with_a_line_by_the_new_one(app: Container) -> None:
    old = app.signer.key_id
    done = told(simic("keys", "rotate", "--json"))
    assert done["is_new"] and done["is_countersigned"] and done["next_steps"] == []
    found = opened(app.home)
    assert found.signer.key_id == done["signing_key"] != old
    assert promotion.verify(found, "models:/tamiyo@champion").key_id == old
    listed = {key.key_id: key for key in Keys(found).listed().keys}
    assert (listed[old].standing, listed[done["signing_key"]].standing) == ("trusted", "own")
    assert (listed[old].policies, listed[old].journal_lines, listed[done["signing_key"]].journal_lines) == (2, 4, 1)
    assert listed[old].receipts == 5, "training, validation, the gate, and on record the decision and the candidate"
    # Rotated first and revoked later, the old key's lines are vouched for by the line that came with the rotation.
    revoked = Keys(opened(app.home)).revoke(old, "leaked later")
    assert revoked.is_countersigned
    assert opened(app.home).policies.champion_digest() is not None


def test_revoking_again_completes_what_a_killed_process_left(app: Container) -> None:
    leaked = app.signer
    Keys(app).revoke(leaked.key_id, "leaked")
    before = (app.home.keys / REVOKED_NAME).read_bytes()
    (app.home.keys / f"{leaked.key_id}.pub").write_text(leaked.public_bytes.hex())
    signing = (app.home.keys / "signing.key").read_bytes()
    again = Keys(opened(app.home)).revoke(leaked.key_id[:6], "another reason")
    assert again.revoked == leaked.key_id
    assert not again.is_new
    assert (app.home.keys / REVOKED_NAME).read_bytes() == before
    assert (app.home.keys / "signing.key").read_bytes() == signing
    assert not (app.home.keys / f"{leaked.key_id}.pub").exists()


@pytest.mark.parametrize("cut", ["deleted", "last line removed"])
def test_a_revocation_list_that_was_cut_is_noticed_by_the_journal(app: Container, cut: str) -> None:
    """Whoever can write to the folder of keys can take lines away; the journal names every key that was revoked."""
    first, second = app.signer.key_id, Signer(os.urandom(32))
    Keys(app).revoke(first, "leaked")
    Keys(app).reseal(is_dry_run=False)
    app.keyring.trust(second.public_bytes)
    Keys(app).revoke(second.key_id, "a colleague left")
    path = app.home.keys / REVOKED_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    if cut == "deleted":
        path.unlink()
        missing = first
    else:
        path.write_bytes(lines[0])
        missing = second.key_id
    app.keyring.trust(second.public_bytes)
    with pytest.raises(IntegrityError, match=f"simic keys revoke {missing}"):
        opened(app.home).policies.champion_digest()
    with pytest.raises(IntegrityError, match=f"simic keys revoke {missing}"):
        promotion.initialise_home(opened(app.home))
    assert missing in damage(app)["revocation list"]
    (app.home.keys / f"{second.key_id}.pub").unlink()
    if cut == "deleted":
        with pytest.raises(IntegrityError, match=f"simic keys revoke {second.key_id}"):
            Keys(opened(app.home)).revoke(first, "again, after the list was deleted")
    Keys(opened(app.home)).revoke(second.key_id, "again")
    assert opened(app.home).policies.champion_digest() is not None, (
        "what the first key signed is recognised, and vouched for"
    )
    assert damage(app) == {}


def test_an_edited_revocation_list_stops_every_verb_that_verifies(app: Container) -> None:
    Keys(app).revoke(app.signer.key_id, "leaked")
    Keys(app).reseal(is_dry_run=False)
    path = app.home.keys / REVOKED_NAME
    path.write_text(path.read_text().replace("leaked", "mistake"))
    refused = simic("keys", "list")
    assert refused.returncode == 1
    assert "revocation list is damaged" in refused.stderr

    def champion_digest(container: Container) -> str | None:
        return container.policies.champion_digest()

    for verb in (champion_digest, promotion.publish_champion, promotion.initialise_home):
        with pytest.raises(IntegrityError, match="revocation list is damaged"):
            verb(opened(app.home))
    assert "revocation list" in damage(app)


def test_the_doctor_sees_a_key_that_others_can_read_and_a_folder_that_others_can_write(app: Container) -> None:
    assert damage(app) == {}
    (app.home.keys / "signing.key").chmod(0o644)
    app.home.keys.chmod(0o777)
    found = damage(app)
    assert "chmod 600" in found["signing key"]
    assert "mode 777" in found["folder of keys"]


def test_the_deep_doctor_finds_an_edited_gate_decision_on_record(app: Container) -> None:
    assert damage(app, is_deep=True) == {}
    path = app.home.ledger / "gates.jsonl"
    record = json.loads(path.read_text())
    record["code_version"] = "another"
    path.write_text(json.dumps(record) + "\n")
    assert "gates.jsonl, line 1" in damage(app, is_deep=True)


def test_a_home_without_a_journal_remembers_its_revocations_too(home: Path) -> None:
    app = opened(Home(home))
    leaked = app.signer.key_id
    Keys(app).revoke(leaked, "leaked")
    assert damage(app) == {}
    assert not (app.home.mlruns / "mlflow.db").exists()
    (app.home.keys / REVOKED_NAME).unlink()
    with pytest.raises(IntegrityError, match=leaked):
        PromotionJournal(app.home.ledger, app.keyring).read()


def test_an_unknown_key_can_be_revoked_before_it_comes(home: Path) -> None:
    app = opened(Home(home))
    stranger = Signer(os.urandom(32))
    Keys(app).revoke(stranger.key_id, "seen on a list of stolen keys")
    with pytest.raises(IntegrityError, match="not trusted again"):
        app.keyring.trust(stranger.public_bytes)


@pytest.mark.parametrize("name", ["", "abc", "zzzz", "0123"])
def test_a_name_that_is_no_key_is_answered_with_those_that_are(home: Path, name: str) -> None:
    app = opened(Home(home))
    with pytest.raises(ConfigError, match=f"known keys: {app.signer.key_id}"):
        Keys(app).revoke(name, "x")


def test_a_revocation_needs_a_reason(home: Path) -> None:
    app = opened(Home(home))
    with pytest.raises(ConfigError, match="--reason"):
        Keys(app).revoke(app.signer.key_id, " ")
    assert app.keyring.key_ids() == (app.signer.key_id,)


# -- a process that goes on while a key is revoked ------------------------------------------------


def test_a_process_that_loaded_its_key_before_the_revocation_signs_nothing_more(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = crowned_home(tmp_path / "place", tmp_path_factory)
    running = open_home(home)
    leaked = running.signer
    told(simic("keys", "revoke", leaked.key_id, "--reason", "leaked", "--json", SIMIC_HOME=str(home.root)))
    told(simic("keys", "reseal", "--yes", "--json", SIMIC_HOME=str(home.root)))
    before = (home.ledger / PROMOTIONS_LEDGER).read_bytes()
    policy = next(path.parent for path in home.policies.glob("*/manifest.json"))
    sealed = (policy / "manifest.json").read_bytes()
    for act in (
        lambda: promotion.roll_back(running, "x"),
        lambda: promotion.publish_champion(running),
        lambda: seal(policy, leaked),
    ):
        with pytest.raises(ConfigError, match=f"{leaked.key_id} was revoked.*Start the command again"):
            act()
    assert (home.ledger / PROMOTIONS_LEDGER).read_bytes() == before
    assert (policy / "manifest.json").read_bytes() == sealed
    assert promotion.roll_back(open_home(home), "x").number == FORMER


def test_a_key_is_not_revoked_in_the_midst_of_a_promotion(app: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simic.app.resealing.REGISTRY_WAIT_S", 0.0)
    key_id = app.signer.key_id
    with exclusive(app.home.locks / "registry", "promoting"), pytest.raises(TransientError, match="is busy"):
        Keys(app).revoke(key_id, "leaked")
    assert app.keyring.revocations().by_key == {}


# -- the doctor reports on whatever lies there ----------------------------------------------------

_LINE = {"key_id": "0" * 16, "signature": "x", "signer_public_key": "00" * 32}
GARBAGE: dict[str, tuple[str, bytes, str | None]] = {
    "NaN in the revocation list": (
        "data/keys/revoked.jsonl", json.dumps({**_LINE, "reason": float("nan")}).encode() + b"\n", "revocation list",
    ),
    "a lone surrogate in the revocation list": (
        "data/keys/revoked.jsonl", json.dumps({**_LINE, "reason": "\ud800"}).encode() + b"\n", "revocation list",
    ),
    "deep nesting in the revocation list": ("data/keys/revoked.jsonl", b"[" * 200_000 + b"\n", "revocation list"),
    "a deeply nested manifest": ("data/policies/x/manifest.json", b"[" * 200_000, None),
    "a deeply nested result": (".prefect/storage/x", b"[" * 200_000, None),
    "a deeply nested ledger line": ("data/ledger/runs.jsonl", b"[" * 200_000 + b"\n", "ledger runs.jsonl"),
    "a database that is none": ("mlruns/mlflow.db", b"garbage" * 1000, "place"),
    "a public key that is a folder": ("data/keys/0123456789abcdef.pub/x", b"", None),
}  # fmt: skip


@pytest.mark.parametrize(("place", "content", "finding"), GARBAGE.values(), ids=GARBAGE.keys())
def test_the_doctor_reports_garbage_and_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, place: str, content: bytes, finding: str | None
) -> None:
    home = crowned_home(tmp_path / "place", tmp_path_factory)
    path = home.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    done = simic("doctor", "--json", SIMIC_HOME=str(home.root))
    assert done.returncode == (0 if finding is None else 5), done.stderr
    checks = {check["name"]: check["health"] for check in json.loads(done.stdout)["checks"]}
    assert "locks" in checks, "the other sections are examined"
    assert finding is None or checks[finding] == "damaged"


def test_an_error_that_no_check_foresaw_is_a_finding_of_its_section(
    app: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Iterator[Check]:
        yield healthy("first", "fine")
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("simic.app.checks.doctor.examine_snapshots", broken)
    found = {check.name: check for check in open_doctor(opened(app.home)).examine().checks}
    assert found["snapshots"].health is Health.DAMAGED and "RuntimeError: unforeseen" in found["snapshots"].found
    assert {"first", "keys", "locks"} <= found.keys()


# -- what the journal names, and what a person was shown ------------------------------------------


@pytest.mark.parametrize("by", ["reseal", "rollback"])
def test_the_journal_names_a_key_of_the_environment_that_revoked_itself(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The fault: that key signs no line, so no line had to be vouched for, and the list could be deleted unnoticed."""
    home = crowned_home(tmp_path / "place", tmp_path_factory)
    monkeypatch.setenv("SIMIC_SIGNING_KEY", base64.b64encode(os.urandom(32)).decode())
    leaked = open_home(home).signer.key_id
    assert not Keys(open_home(home)).revoke(leaked, "leaked").is_countersigned
    monkeypatch.delenv("SIMIC_SIGNING_KEY")
    if by == "reseal":
        Keys(open_home(home)).reseal(is_dry_run=False)
    else:
        promotion.roll_back(open_home(home), "x")
    assert leaked in PromotionJournal(home.ledger, Keyring(home.keys)).recorded_revocations()
    (home.keys / REVOKED_NAME).unlink()
    with pytest.raises(IntegrityError, match=f"simic keys revoke {leaked}"):
        open_home(home).policies.champion_digest()


def test_lines_that_came_after_a_person_looked_are_not_vouched_for(app: Container) -> None:
    thief = Signer((app.home.keys / "signing.key").read_bytes())
    Keys(app).revoke(thief.key_id, "leaked")
    plan = told(simic("keys", "reseal", "--json"))
    ledger = Ledger(app.home.ledger / PROMOTIONS_LEDGER)
    line = Countersignature(reason="by a thief", at=app.clock()).model_dump(mode="json")
    ledger.append(sign_record({**line, "previous_sha256": plan["head"]}, "promotion", thief))
    before = ledger.path.read_bytes()
    refused = simic("keys", "reseal", "--yes", "--head", plan["head"][:12])
    assert refused.returncode == 1
    assert plan["head"][:12] in refused.stderr and "Look again" in refused.stderr
    assert ledger.path.read_bytes() == before
    shown = simic("keys", "reseal")
    head = shown.stdout.split("--head ")[1].split()[0]
    assert told(simic("keys", "reseal", "--yes", "--head", head, "--json"))["is_done"]
    assert simic("keys", "reseal", "--yes", "--head", "latest").returncode == 2


def test_the_doctor_does_not_ask_for_a_backup_of_lines_that_only_wait_for_a_person(app: Container) -> None:
    Keys(app).revoke(app.signer.key_id, "leaked")
    checks = {check.name: check for check in open_doctor(opened(app.home)).examine().checks}
    assert "backup" not in checks["journal of promotions"].remedy
    assert all(
        "simic keys reseal" in checks[name].remedy for name in ("journal of promotions", "lines by a revoked key")
    )


def test_the_revocation_list_is_read_a_fixed_number_of_times_however_long_the_journal(
    app: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = PromotionJournal(app.home.ledger, app.keyring, lambda: app.signer)
    reads: list[Path] = []

    def counted(directory: Path) -> Revocations:
        reads.append(directory)
        return read_revocations(directory)

    monkeypatch.setattr("simic.trust.keys.read_revocations", counted)
    counts = []
    for _ in range(2):
        reads.clear()
        journal.read()
        counts.append(len(reads))
        for _ in range(5):
            journal.countersign("looked at", app.clock(), journal.read())
    assert counts[0] == counts[1]
