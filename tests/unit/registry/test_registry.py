"""The registry on a real MLflow database."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from support.builders.judged_candidates import SIGNER, decision, estimate, evidence_of, judged, sealed_policy, ticking

from simic.catalogue.query import query
from simic.contracts.actor import Actor
from simic.contracts.errors import ConfigError, GateRejectedError, IntegrityError, SmokeTestError, TransientError
from simic.contracts.names import CHAMPION_REFERENCE
from simic.contracts.policy_update import ValidationSummary
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.settings.run import GateConfig, RunConfig
from simic.ledgers.policies import read_history
from simic.registry.mlflow_run import CandidateRecord
from simic.registry.mlflow_store import initialise, open_client
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring


@pytest.fixture
def registry(place: Home, keyring: Keyring) -> Registry:
    return Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())


def crown(registry: Registry, evidence: CandidateRecord) -> PolicyVersion:
    return registry.promote(registry.record(evidence), evidence.validation, evidence.gate)


def published_figures(registry: Registry) -> ValidationSummary:
    """The figures of the champion as `simic publish` sends them."""
    with registry.certified() as champion:
        return champion.validation


def ledger(place: Home, name: str) -> list[dict[str, object]]:
    path = place.ledger / name
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def table(client: MlflowClient, version: PolicyVersion, name: str) -> list[dict[str, object]]:
    """The rows of a table artifact of a version's run, by column."""
    run = client.get_run(version.mlflow_run_id)
    assert {"path": f"tables/{name}.json", "type": "table"} in json.loads(run.data.tags["mlflow.loggedArtifacts"])
    content = json.loads((Path(urlsplit(str(run.info.artifact_uri)).path) / "tables" / f"{name}.json").read_text())
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def stored_files(place: Home) -> list[Path]:
    return sorted((place.artifacts / "models").rglob("weights.safetensors"))


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_an_empty_registry_has_no_champion(registry: Registry) -> None:
    assert registry.champion() is None
    with pytest.raises(
        ConfigError, match=r"There is no champion: no policy has been promoted.*Registered versions: none$"
    ):
        registry.find(CHAMPION_REFERENCE)


def test_a_recorded_candidate_is_no_champion(registry: Registry, place: Home) -> None:
    evidence = judged(place)
    version = registry.record(evidence)
    assert version.digest == evidence.training.digest
    assert version.aliases == ["candidate"]
    assert version.semantic_version == "1.0.0"
    assert registry.champion() is None
    assert ledger(place, "policies.jsonl") == []


def test_promotion_moves_the_title_and_remembers_the_former_holder(registry: Registry, place: Home) -> None:
    first = crown(registry, judged(place, b"one"))
    second = crown(registry, judged(place, b"two", champion=first.digest))
    assert (first.previous, second.previous) == (None, first.number)
    assert second.semantic_version == "1.0.1"
    assert registry.champion() == second
    assert second.aliases == ["candidate", "champion"]
    assert [line["digest"] for line in ledger(place, "policies.jsonl")] == [first.digest, second.digest]
    assert [line["phase"] for line in ledger(place, "promotions.jsonl")] == ["open", "done"] * 4


def test_recording_and_promoting_twice_changes_nothing(registry: Registry, place: Home) -> None:
    evidence = judged(place)
    once = crown(registry, evidence)
    assert crown(registry, evidence) == once
    client = open_client(place.tracking_uri)
    assert len(client.search_model_versions("name='tamiyo'")) == 1
    assert len(client.search_runs(["1"])) == 1
    assert len(ledger(place, "gates.jsonl")) == 1
    assert len(ledger(place, "candidates.jsonl")) == 1
    assert len(ledger(place, "promotions.jsonl")) == 4


def test_a_run_shows_parameters_curves_numbers_files_and_data(registry: Registry, place: Home) -> None:
    evidence = judged(place)
    version = registry.record(evidence)
    client = open_client(place.tracking_uri)
    run = client.get_run(version.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.policy_lr"] == str(evidence.config.train.policy_lr)
    assert run.data.tags["gate"] == "accepted"
    assert run.data.tags["snapshot_digest"] == "d" * 64
    assert run.data.tags["not_finite.train/policy_loss"] == "first at step 3"
    rows = table(client, version, "controllers")
    assert {(row["controller"], row["family"], row["gain_over_wait_mean"]) for row in rows} >= {
        ("candidate", "all", 4.0), ("candidate", "cap", 4.0), ("wait", "cap", None)
    }  # fmt: skip
    assert next(row for row in rows if row["controller"] == "wait" and row["family"] == "cap")[
        "committed_parameters_mean"
    ] == 100.0  # fmt: skip
    assert {row["criterion"]: row["value"] for row in table(client, version, "gate")} == {
        "return_over_wait": 5.0, "episodes": 160.0
    }  # fmt: skip
    curve = client.get_metric_history(version.mlflow_run_id, "train/policy_loss")
    assert [(point.step, point.value) for point in curve] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert [item.dataset.digest for item in run.inputs.dataset_inputs] == ["d" * 32]
    names = {item.path for folder in ("receipts", "figures") for item in client.list_artifacts(run.info.run_id, folder)}
    assert {"receipts/gate.json", "figures/paired_differences.png"} <= names


def test_recording_twice_doubles_no_metric(registry: Registry, place: Home) -> None:
    evidence = judged(place)
    version = registry.record(evidence)
    registry.record(evidence)
    client = open_client(place.tracking_uri)
    for name, points in (("train/policy_loss", 3), ("gain_over_wait_mean", 1), ("commit_rate", 1)):
        assert len(client.get_metric_history(version.mlflow_run_id, name)) == points
    assert len(table(client, version, "gate")) == 2


def test_only_sealed_files_are_stored_and_none_of_them_is_a_pickle(registry: Registry, place: Home) -> None:
    registry.record(judged(place))
    (weights,) = stored_files(place)
    assert sorted(path.name for path in weights.parent.iterdir()) == [
        "card.json",
        "manifest.json",
        "weights.safetensors",
    ]


def test_the_number_says_what_changed(registry: Registry, place: Home) -> None:
    numbers = [
        registry.record(judged(place, name, hidden=hidden, schema_version=contract)).semantic_version
        for name, hidden, contract in ((b"a", 48, 1), (b"b", 48, 1), (b"c", 64, 1), (b"d", 64, 1), (b"e", 64, 2))
    ]
    assert numbers == ["1.0.0", "1.0.1", "1.1.0", "1.1.1", "2.0.0"]


def test_a_rejected_candidate_is_on_record_but_never_promoted(registry: Registry, place: Home) -> None:
    champion = crown(registry, judged(place, b"one"))
    evidence = judged(place, b"two", accepted=False, champion=champion.digest)
    version = registry.record(evidence)
    with pytest.raises(GateRejectedError, match="return_over_wait"):
        registry.promote(version, evidence.validation, evidence.gate)
    assert registry.champion() == champion.model_copy(update={"aliases": ["champion"]})
    assert [line["accepted"] for line in ledger(place, "gates.jsonl")] == [True, False]
    sql = "SELECT number, policy, accepted, is_live, gate, previous FROM policies ORDER BY number"
    assert query(place, sql) == [
        {"number": 1, "policy": champion.digest, "accepted": True, "is_live": True, "gate": champion.gate_digest,
         "previous": None},
        {"number": 2, "policy": version.digest, "accepted": False, "is_live": False, "gate": evidence.gate.digest,
         "previous": None},
    ]  # fmt: skip


def test_a_judgement_of_another_policy_does_not_count(registry: Registry, place: Home) -> None:
    mine, other = judged(place, b"one"), judged(place, b"two")
    version = registry.record(mine)
    with pytest.raises(IntegrityError, match="the gate decision is about another policy"):
        registry.promote(version, other.validation, other.gate)
    with pytest.raises(IntegrityError, match="another policy"):
        registry.record(mine._replace(gate=other.gate))


def test_a_judgement_against_a_former_champion_is_stale(registry: Registry, place: Home) -> None:
    crown(registry, judged(place, b"one"))
    late = judged(place, b"two", champion=None)
    with pytest.raises(
        GateRejectedError, match=r"judged against no champion, but now there is champion .*run `simic validate` again"
    ):
        crown(registry, late)


def test_a_policy_sealed_by_a_stranger_is_not_recorded(registry: Registry, place: Home, keyring: Keyring) -> None:
    evidence = judged(place)
    (place.keys / f"{SIGNER.key_id}.pub").unlink()
    with pytest.raises(IntegrityError, match="not trusted"):
        registry.record(evidence)


def test_pd4_a_flipped_byte_in_the_registered_weights_is_refused(registry: Registry, place: Home) -> None:
    crown(registry, judged(place))
    into = place.tmp / "loaded"
    assert registry.load(CHAMPION_REFERENCE, into) == into
    (weights,) = stored_files(place)
    flip_byte(weights)
    with pytest.raises(IntegrityError, match="differ from what was sealed"):
        registry.load(CHAMPION_REFERENCE, into)
    with pytest.raises(IntegrityError, match="differ from what was sealed"):
        registry.load("models:/tamiyo/1", place.tmp / "elsewhere")
    assert not (place.tmp / "elsewhere").exists()
    assert list(place.tmp.glob("fetch-*")) == []


def test_a_policy_swapped_for_another_sealed_one_is_refused(registry: Registry, place: Home) -> None:
    """Both are whole and signed; the registry promised one of them."""
    evidence = judged(place, b"one")
    version = registry.record(evidence)
    impostor, _ = sealed_policy(place, b"two")
    (weights,) = stored_files(place)
    for path in impostor.iterdir():
        (weights.parent / path.name).write_bytes(path.read_bytes())
    with pytest.raises(IntegrityError, match="expected digest"):
        registry.promote(version, evidence.validation, evidence.gate)
    with pytest.raises(IntegrityError, match="expected digest"):
        registry.load(version.reference, place.tmp / "loaded")
    assert registry.champion() is None


def test_files_that_are_gone_are_an_integrity_error(registry: Registry, place: Home) -> None:
    crown(registry, judged(place))
    (weights,) = stored_files(place)
    weights.unlink()
    with pytest.raises(IntegrityError):
        registry.load(CHAMPION_REFERENCE, place.tmp / "loaded")


@pytest.mark.parametrize(
    "reference", ["tamiyo", "models:/karn@champion", "models:/tamiyo/latest", "models:/tamiyo/9", "models:/tamiyo@none"]
)
def test_what_is_no_version_is_a_config_error(registry: Registry, place: Home, reference: str) -> None:
    registry.record(judged(place))
    with pytest.raises(ConfigError):
        registry.load(reference, place.tmp / "loaded")


def test_a_policy_damaged_before_promotion_moves_nothing(registry: Registry, place: Home) -> None:
    champion = crown(registry, judged(place, b"one"))
    evidence = judged(place, b"two", champion=champion.digest)
    version = registry.record(evidence)
    flip_byte(next(path for path in stored_files(place) if path.read_bytes().startswith(b"two")))
    with pytest.raises(IntegrityError):
        registry.promote(version, evidence.validation, evidence.gate)
    held = registry.champion()
    assert held is not None
    assert held.digest == champion.digest
    assert len(ledger(place, "promotions.jsonl")) == 4


def test_a_staged_version_waits_until_it_is_promoted_or_the_champion_changes(registry: Registry, place: Home) -> None:
    first = crown(registry, judged(place, b"one"))
    evidence = judged(place, b"two", champion=first.digest)
    version = registry.record(evidence)
    staged = registry.stage(version, evidence.validation, evidence.gate)
    assert staged.aliases == ["candidate", "staged"]
    assert registry.stage(version, evidence.validation, evidence.gate) == staged
    assert registry.find("models:/tamiyo@staged") == staged
    assert registry.champion() == first.model_copy(update={"aliases": ["champion"]})
    assert registry.differences() == []
    promoted = registry.promote(version, evidence.validation, evidence.gate)
    assert promoted.aliases == ["candidate", "champion"]
    operations = [(line["operation"], line["phase"]) for line in ledger(place, "promotions.jsonl")]
    assert operations == [(name, end) for name in ("stage", "promote") * 2 for end in ("open", "done")]
    other = judged(place, b"three", champion=promoted.digest)
    registry.stage(registry.record(other), other.validation, other.gate)
    registry.rollback("worse")
    with pytest.raises(ConfigError, match="does not exist"):
        registry.find("models:/tamiyo@staged")
    assert registry.differences() == []


def test_a_rejected_or_outdated_candidate_is_not_staged(registry: Registry, place: Home) -> None:
    rejected = judged(place, b"bad", accepted=False)
    version = registry.record(rejected)
    with pytest.raises(GateRejectedError, match="did not pass the gate"):
        registry.stage(version, rejected.validation, rejected.gate)
    crown(registry, judged(place, b"one"))
    outdated = judged(place, b"two")
    version = registry.record(outdated)
    with pytest.raises(GateRejectedError, match="judged against no champion"):
        registry.stage(version, outdated.validation, outdated.gate)
    assert [line["operation"] for line in ledger(place, "promotions.jsonl")] == ["stage", "stage", "promote", "promote"]


def test_an_alias_staged_that_was_moved_by_hand_decides_nothing_and_is_repaired(
    registry: Registry, place: Home
) -> None:
    first = crown(registry, judged(place, b"one"))
    evidence = judged(place, b"two", champion=first.digest)
    registry.stage(registry.record(evidence), evidence.validation, evidence.gate)
    open_client(place.tracking_uri).set_registered_model_alias("tamiyo", "staged", "1")
    assert registry.find("models:/tamiyo@staged").number == 2
    assert "alias staged is on version 1" in registry.differences()[0].text
    registry.repair()
    assert registry.differences() == []


@pytest.mark.parametrize("has_champion", [True, False])
def test_a_policy_damaged_while_it_is_promoted_gives_the_title_back(
    place: Home, keyring: Keyring, has_champion: bool
) -> None:
    def damage(step: str) -> None:
        if step == "aliased":
            flip_byte(next(path for path in stored_files(place) if path.read_bytes().startswith(b"two")))

    first = (
        crown(Registry(place, keyring, signer=lambda: SIGNER, clock=ticking()), judged(place, b"one"))
        if has_champion
        else None
    )
    evidence = judged(place, b"two", champion=first.digest if first else None)
    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), on_step=damage)
    with pytest.raises(IntegrityError):
        crown(registry, evidence)
    held = registry.champion()
    assert (held.digest if held else None) == (first.digest if first else None)
    assert ledger(place, "promotions.jsonl")[-1]["phase"] == "rolled_back"
    assert len(ledger(place, "policies.jsonl")) == (1 if has_champion else 0)


def test_a_rollback_without_a_former_champion_says_how_many_there_were(registry: Registry, place: Home) -> None:
    with pytest.raises(ConfigError, match="this home has no champion; `simic run` makes one"):
        registry.rollback("too early")
    crown(registry, judged(place, b"one"))
    with pytest.raises(ConfigError, match="no champion when version 1 was promoted, which is the present one"):
        registry.rollback("too early")


def test_rollback_gives_the_title_back_and_keeps_the_reason(registry: Registry, place: Home) -> None:
    first = crown(registry, judged(place, b"one"))
    evidence = judged(place, b"two", champion=first.digest)
    second = crown(registry, evidence)
    back = registry.rollback("panics in production")
    assert (back.digest, back.previous) == (first.digest, second.number)
    held = registry.champion()
    assert held is not None
    assert held.digest == first.digest
    tags = open_client(place.tracking_uri).get_model_version("tamiyo", str(second.number)).tags
    assert tags["rolled_back_because"] == "panics in production"
    assert [line["digest"] for line in ledger(place, "policies.jsonl")] == [first.digest, second.digest, first.digest]
    with pytest.raises(ConfigError, match="no champion when version 1 was promoted"):
        registry.rollback("again")
    with pytest.raises(GateRejectedError, match=r"by this judgement before, and a rollback replaced it \(panics in"):
        crown(registry, evidence)
    assert registry.champion() == held
    history = read_history(place)
    assert [history.times_replaced(digest) for digest in (first.digest, second.digest)] == [1, 1]


def test_a_new_judgement_replaces_the_old_one_on_the_same_version(registry: Registry, place: Home) -> None:
    evidence = judged(place, accepted=False)
    rejected = registry.record(evidence)
    again = evidence_of(place, Path(evidence.training.path), evidence.training.digest)
    version = crown(registry, again)
    assert version.number == rejected.number
    assert version.gate_digest == decision(version.digest).digest


def test_a_champion_that_is_judged_again_and_rejected_keeps_what_let_it_through(
    registry: Registry, place: Home
) -> None:
    evidence = judged(place, b"one")
    first = crown(registry, evidence)
    figures = published_figures(registry)
    against_itself = evidence_of(
        place, Path(evidence.training.path), first.digest, accepted=False, champion=first.digest
    )
    validation = against_itself.validation.model_copy(update={"differences": {"wait": estimate(-9.0)}})
    again = registry.record(against_itself._replace(validation=validation))
    assert (again.number, again.gate_digest) == (first.number, evidence.gate.digest)
    assert published_figures(registry) == figures
    client = open_client(place.tracking_uri)
    assert client.get_model_version("tamiyo", str(first.number)).tags["gate"] == "accepted"
    assert client.get_run(first.mlflow_run_id).data.tags["gate"] == "rejected"
    assert [line["accepted"] for line in ledger(place, "gates.jsonl")] == [True, False]
    listed = query(place, "SELECT number, accepted, gate FROM policies ORDER BY accepted")
    assert [(row["number"], row["accepted"]) for row in listed] == [(1, False), (1, True)]
    assert listed[0]["gate"] == against_itself.gate.digest, "a rejection names its own decision"
    crown(registry, judged(place, b"two", champion=first.digest))
    assert registry.rollback("worse in production").gate_digest == evidence.gate.digest


def test_an_alias_without_its_version_is_an_integrity_error(registry: Registry, place: Home) -> None:
    crown(registry, judged(place))
    with sqlite3.connect(place.mlruns / "mlflow.db") as database:
        database.execute("DELETE FROM model_version_tags")
        database.execute("DELETE FROM model_versions")
    database.close()
    with pytest.raises(IntegrityError, match="names version 1 of tamiyo, which MLflow does not have"):
        registry.champion()


def test_a_judgement_under_other_settings_leaves_the_parameters_of_the_run_alone(
    registry: Registry, place: Home
) -> None:
    """MLflow refuses to change a parameter; the receipts say under which settings each judgement was made."""
    evidence = judged(place)
    version = registry.record(evidence)
    stricter = RunConfig(gate=GateConfig(margin_over_baselines=1.0))
    registry.record(evidence._replace(config=stricter))
    run = open_client(place.tracking_uri).get_run(version.mlflow_run_id)
    assert run.data.params["gate.margin_over_baselines"] == "0.0"


def test_what_a_consumer_wants_to_know_is_published_from_the_registry(registry: Registry, place: Home) -> None:
    evidence = judged(place)
    gate = evidence.gate.model_copy(update={"without": ["success", "memory"], "evidence": "reports"})
    version = crown(registry, evidence._replace(gate=gate))
    summary = published_figures(registry)
    assert (summary.return_over_wait, summary.lower_bound, summary.confidence) == (6.0, 5.0, 0.95)
    assert summary.gate_digest == version.gate_digest
    assert (summary.without, summary.evidence) == (["success", "memory"], "reports")


def test_initialising_twice_keeps_the_database(place: Home, keyring: Keyring) -> None:
    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    registry.record(judged(place))
    initialise(place)
    assert len(open_client(place.tracking_uri).search_runs(["1"])) == 1


def test_a_picture_that_is_gone_does_not_lose_the_judgement(registry: Registry, place: Home) -> None:
    evidence = judged(place)
    Path(evidence.training.curves_path).unlink()
    Path(evidence.validation.figures["paired_differences"]).unlink()
    assert registry.record(evidence).digest == evidence.training.digest


def test_two_who_initialise_at_once_make_one_database(tmp_path: Path) -> None:
    home = Home(tmp_path / "fresh")
    home.create()
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(initialise, [home, home])) == {"1"}
    assert len(open_client(home.tracking_uri).search_experiments(filter_string="name = 'simic'")) == 1


def test_what_a_killed_initialisation_left_is_replaced(tmp_path: Path) -> None:
    home = Home(tmp_path / "fresh")
    home.create()
    (home.mlruns / "mlflow.db.new").write_bytes(b"half a database")
    initialise(home)
    experiment = open_client(home.tracking_uri).get_experiment_by_name("simic")
    assert experiment is not None
    assert experiment.artifact_location == home.artifacts.as_uri()


def test_mlflow_refuses_to_delete_a_version_with_an_alias(registry: Registry, place: Home) -> None:
    first = crown(registry, judged(place, b"one"))
    second = judged(place, b"two", champion=first.digest)
    registry.stage(registry.record(second), second.validation, second.gate)
    registry.record(judged(place, b"bad", accepted=False, champion=first.digest))
    client = open_client(place.tracking_uri)
    for number in ("1", "2", "3"):  # champion, staged, candidate
        with pytest.raises(MlflowException, match="a version with an alias is not deleted"):
            client.delete_model_version("tamiyo", number)
    with pytest.raises(MlflowException, match="it holds the champion"):
        client.delete_registered_model("tamiyo")
    assert registry.champion() == first.model_copy(update={"aliases": ["champion"]})
    assert registry.differences() == []
    client.delete_registered_model_alias("tamiyo", "candidate")
    client.delete_model_version("tamiyo", "3")
    assert [int(found.version) for found in client.search_model_versions("name='tamiyo'")] == [2, 1]


def test_a_database_of_an_earlier_release_gets_the_refusals(registry: Registry, place: Home, keyring: Keyring) -> None:
    crown(registry, judged(place, b"one"))
    with sqlite3.connect(place.mlruns / "mlflow.db") as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
    Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    with pytest.raises(MlflowException, match="a version with an alias is not deleted"):
        open_client(place.tracking_uri).delete_model_version("tamiyo", "1")


def test_the_journal_says_who_staged_and_promoted(place: Home, keyring: Keyring) -> None:
    actor = Actor(operator="ada", host="trainer-7", run="0123456789ab")
    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), actor=actor)
    crown(registry, judged(place, b"one"))
    assert [line["actor"] for line in ledger(place, "promotions.jsonl")] == [actor.model_dump()] * 4
    for wrong in ({"operator": "/home/ada"}, {"host": "a b"}, {"run": "../x"}):
        with pytest.raises(ValueError, match="should match pattern"):
            Actor(**{**actor.model_dump(), **wrong})


def test_each_version_has_a_model_card(registry: Registry, place: Home) -> None:
    evidence = judged(place, accepted=False)
    version = registry.record(evidence)
    run = open_client(place.tracking_uri).get_run(version.mlflow_run_id)
    card = (Path(urlsplit(str(run.info.artifact_uri)).path) / "model_card.md").read_text()
    for told in (
        version.digest, evidence.snapshot.digest, evidence.gate.digest, "9 of 10 landed rows", "Rejected on",
        "| return_over_wait | -5 | > 0 | FAIL |", "| blind | 3 | 2 | 4 | 160 |", "## Limits", "None stated.",
    ):  # fmt: skip
        assert told in card
    assert str(place.root) not in card


@pytest.mark.parametrize("operation", ["promote", "rollback"])
@pytest.mark.parametrize(("failures", "attempts"), [(2, 3), (3, 3), (None, 1)])
def test_a_smoke_test_is_repeated_a_few_times_and_restores_the_champion_if_it_fails(
    place: Home, keyring: Keyring, monkeypatch: pytest.MonkeyPatch, operation: str, failures: int | None, attempts: int
) -> None:
    """``failures`` of the machine come first; None is a failure of the policy."""
    monkeypatch.setattr("simic.registry.promotion._PAUSE_S", 0.0)
    plain = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    champion = crown(plain, judged(place, b"one"))
    second = judged(place, b"two", champion=champion.digest)
    if operation == "rollback":
        champion = crown(plain, second)
    tried: list[str] = []

    def try_it(policy: Path, digest: str) -> None:
        assert (policy / "weights.safetensors").exists()
        tried.append(digest)
        if failures is None:
            raise SmokeTestError("does not decide")
        if len(tried) <= failures:
            raise TransientError("no space")

    registry = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), smoke_test=try_it)

    def move() -> PolicyVersion:
        return crown(registry, second) if operation == "promote" else registry.rollback("worse")

    if failures == 2:
        moved = move()
        assert registry.champion() == moved
        assert ledger(place, "promotions.jsonl")[-1]["phase"] == "done"
    else:
        expected = (SmokeTestError, "^does not decide$") if failures is None else (TransientError, "^no space$")
        with pytest.raises(expected[0], match=expected[1]):
            move()
        held = registry.champion()
        assert held is not None and held.digest == champion.digest
        assert ledger(place, "promotions.jsonl")[-1]["phase"] == "rolled_back"
    assert len(tried) == attempts and len(set(tried)) == 1
    assert registry.differences() == []


def test_a_promotion_of_a_killed_process_stays_open_while_the_machine_refuses_to_try_it(
    place: Home, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk of the process that opens the registry does not undo what another one decided."""
    monkeypatch.setattr("simic.registry.promotion._PAUSE_S", 0.0)
    champion = crown(Registry(place, keyring, signer=lambda: SIGNER, clock=ticking()), judged(place, b"one"))

    def die(step: str) -> None:
        if step == "aliased":
            raise KeyboardInterrupt

    def refuse(_policy: Path, _digest: str) -> None:
        raise TransientError("no space")

    second = judged(place, b"two", champion=champion.digest)
    with pytest.raises(KeyboardInterrupt):
        crown(Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), on_step=die), second)
    for _ in range(2):
        with pytest.raises(TransientError, match="no space"):
            Registry(place, keyring, signer=lambda: SIGNER, clock=ticking(), smoke_test=refuse).champion()
        assert ledger(place, "promotions.jsonl")[-1]["phase"] == "open"
    held = Registry(place, keyring, signer=lambda: SIGNER, clock=ticking()).champion()
    assert held is not None and held.digest == second.training.digest
    assert ledger(place, "promotions.jsonl")[-1]["phase"] == "done"
