"""Short names of policies and snapshots, wherever one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.judged_candidates import SIGNER, evidence_of, receipt, sealed_policy
from support.builders.karns import no_karns

from simic.app import promotion, training
from simic.app.artifacts import resolve_snapshot, resolve_training
from simic.app.container import Container
from simic.app.evidence import plan_books
from simic.app.names.policy_names import locate
from simic.app.policies import Policies
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import CANDIDATES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.keys import Keyring


@pytest.fixture
def place(home: Path) -> Home:
    made = Home(home)
    made.create()
    Keyring(made.keys).trust(SIGNER.public_bytes)
    return made


@pytest.fixture
def policies(place: Home) -> Policies:
    def no_registry() -> object:
        raise AssertionError("the registry was opened for a policy that lies in the home")

    return Policies(place, Keyring(place.keys), no_registry, no_karns(place))  # type: ignore[arg-type]


def put(place: Home, weights: bytes, number: int | None = None) -> tuple[Path, str]:
    """A sealed policy where training leaves it, on record under a number."""
    made, digest = sealed_policy(place, weights)
    path = made.rename(place.policies / digest)
    if number is not None:
        version = PolicyVersion(
            **receipt(), name="tamiyo", number=number, semantic_version="1.0.0", digest=digest,
            reference=f"models:/tamiyo/{number}", aliases=[], previous=None, snapshot_digest="d" * 64,
            gate_digest="e" * 64, mlflow_run_id="r",
        )  # fmt: skip
        Ledger(place.ledger / CANDIDATES_LEDGER).append(version.model_dump(mode="json"))
    return path, digest


def test_a_policy_is_found_by_version_digest_and_the_beginning_of_it(place: Home, policies: Policies) -> None:
    (first, one), (second, two) = put(place, b"one", 1), put(place, b"two")
    assert [policies.at(name) for name in (one, one[:8], two[:12], str(second))] == [first, first, second, second]
    assert locate(place, "1") == locate(place, "tamiyo/1")
    found = locate(place, "tamiyo/1")
    assert found is not None
    assert (found.digest, found.reference) == (one, "models:/tamiyo/1")
    assert policies.spec(two[:8], is_decisive=True).policy_path == str(second)


def test_rows_of_trials_are_short_whatever_path_a_policy_was_named_by(place: Home, policies: Policies) -> None:
    (first, one), (second, two) = put(place, b"one", 2), put(place, b"two")
    names = (str(first), one[:9], str(second))
    labels = [policies.label(name, policies.spec(name, is_decisive=True)) for name in names]
    assert labels == [f"tamiyo/2 ({one[:8]})", f"tamiyo/2 ({one[:8]})", f"policy {two[:8]}"]
    assert policies.label("random", policies.spec("random", is_decisive=True)) == "random"


def test_a_name_that_fits_nothing_or_several_is_answered_with_what_there_is(place: Home, policies: Policies) -> None:
    _, one = put(place, b"one", 1)
    for name in ("aaaaaaaa11", "b" * 16):
        (place.policies / name.ljust(64, "0")).mkdir()
    (place.policies / "aaaaaaaa22".ljust(64, "0")).mkdir()
    with pytest.raises(
        ConfigError, match=r"several policies have a digest that begins with 'aaaaaaaa': policy aaaaaaaa, policy"
    ):
        policies.at("aaaaaaaa")
    with pytest.raises(
        ConfigError, match=rf"no policy has a digest that begins with '12345678'; policies: .*tamiyo/1 \({one[:8]}"
    ):
        policies.at("12345678")
    for name in ("7", "tamiyo/7"):
        with pytest.raises(ConfigError, match=rf"{name}: there is no version 7 of tamiyo; policies: tamiyo/1"):
            policies.at(name)


def test_a_home_without_versions_says_what_there_is_instead(place: Home, policies: Policies) -> None:
    with pytest.raises(ConfigError, match="no version 7 of tamiyo; this home has no policies, `simic run` makes one"):
        policies.at("tamiyo/7")
    put(place, b"one")
    with pytest.raises(ConfigError, match="no version 7 of tamiyo; this home has registered none yet; name a policy"):
        policies.at("tamiyo/7")


@pytest.mark.parametrize("name", ["abc1234", "wait", "0", "tamiyo/0", "tamiyo/x", "ABCDEF12", "g" * 8, "a" * 65, ""])
def test_what_has_not_the_form_of_a_short_name_names_no_policy(place: Home, name: str) -> None:
    assert locate(place, name) is None


def test_a_folder_that_is_not_the_policy_it_is_named_after_is_refused(place: Home, policies: Policies) -> None:
    path, digest = put(place, b"one")
    other, _ = put(place, b"two")
    (path / "weights.safetensors").write_bytes((other / "weights.safetensors").read_bytes())
    with pytest.raises(IntegrityError):
        policies.at(digest[:8])
    wrong = place.policies / ("c" * 64)
    other.rename(wrong)
    with pytest.raises(IntegrityError):
        policies.at("cccccccc")


def test_verbs_take_the_beginning_of_a_digest(place: Home) -> None:
    app = Container(place, load_profile("quick"), 0)
    path, digest = put(place, b"one")
    trained = app.save_receipt(evidence_of(place, path, digest).training)
    assert promotion.verify(app, digest[:8]).digest == digest
    assert (
        resolve_training(app, digest[:8]) == resolve_training(app, str(path)) == resolve_training(app, None) == trained
    )
    start = training.resolve_start(app, digest[:8])
    assert start is not None
    assert start.path == path
    with pytest.raises(ConfigError, match="'champoin' is not a policy to start from: expected champion"):
        training.resolve_start(app, "champoin")
    for name in ("nothing", "no/such/place"):
        with pytest.raises(ConfigError, match=f"'{name}' is not a policy: expected champion"):
            promotion.verify(app, name)
        with pytest.raises(ConfigError, match=f"'{name}' is not a policy: expected champion"):
            resolve_training(app, name)
    with pytest.raises(ConfigError, match=r"nothing exists at that path\. Did you mean 'champion'\?"):
        promotion.verify(app, "champoin")
    with pytest.raises(IntegrityError, match="is not sealed"):
        promotion.verify(app, str(place.policies))
    with pytest.raises(ConfigError, match="'bogus' is not a snapshot: expected a directory"):
        resolve_snapshot(app, "bogus")
    with pytest.raises(ConfigError, match="no snapshot has a digest that begins with '0123abcd'"):
        resolve_snapshot(app, "0123abcd")
    with pytest.raises(ConfigError, match="no snapshot has a digest that begins with '0123'"):
        resolve_snapshot(app, "0123")


@pytest.mark.parametrize(
    ("name", "near"), [("herustic", "heuristic"), ("champoin", "champion"), ("exprt", "expert"), ("wiat", "wait")]
)
def test_a_controller_spelt_wrong_is_answered_with_the_nearest(policies: Policies, name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' is not a controller\. Did you mean '{near}'\?"):
        policies.spec(name, is_decisive=True)


def test_a_set_spelt_wrong_is_answered_with_the_nearest_before_anything_is_made(home: Path, tmp_path: Path) -> None:
    from simic.cli.options import open_container

    for name, near in (("benchmrk", "benchmark"), ("compund", "compound"), ("noizy", "noisy")):
        with pytest.raises(ConfigError, match=rf"'{name}' is not a set of hosts\. Did you mean '{near}'\?"):
            open_container(extra={"world.set": name})
        assert not home.exists()
        config = load_profile("quick", {"world.set": name})
        with pytest.raises(ConfigError, match=f"Did you mean '{near}'"):
            plan_books.check_baselines(Container(Home(tmp_path), config, 0))
