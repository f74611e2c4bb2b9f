"""A subscriber that consults a published Karn: only the Karn that was judged with its policy, verified at each load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders.deciding_policies import SIGNER
from support.builders.karns import files_of, sealed_karn
from support.builders.observations import BLUEPRINTS, make_scene
from support.builders.published_policies import SUMMARY, Publisher, sealed_by_digest

import simic
from simic.api.policy import controller_of
from simic.catalogue.contract_schemas import example_of
from simic.contracts.actions import Head
from simic.contracts.errors import ConfigError, ContractError, IntegrityError, TransientError
from simic.contracts.names import consulting_name
from simic.contracts.policy_update import PolicyUpdate
from simic.controllers.karn import ConsultedKarn, load_karn
from simic.controllers.learned_controller import LearnedController
from simic.controllers.policy_files import load_policy
from simic.trust.keys import Signer

KEYS = [SIGNER.public_bytes.hex()]


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "home")


@pytest.fixture
def policies(publisher: Publisher) -> list[str]:
    return [sealed_by_digest(publisher.home.policies, seed) for seed in range(2)]


def put(publisher: Publisher, number: int, digest: str, consulted_by: str | None) -> PolicyUpdate:
    summary = SUMMARY.model_copy(update={"consulted_by": consulted_by})
    return publisher.publish(number, digest, ("karn",), name="karn", summary=summary)


def opened(publisher: Publisher, state: Path, **changed: Any) -> simic.Subscriber:
    return simic.Subscriber(publisher.home.spool, trusted_keys=KEYS, state=state, **{"consult_karn": True, **changed})


def test_the_policy_consults_the_karn_that_was_judged_with_it(
    publisher: Publisher, policies: list[str], tmp_path: Path
) -> None:
    karn = sealed_karn(publisher.home, SIGNER)
    publisher.publish(1, policies[0])
    with opened(publisher, tmp_path / "state") as subscriber:
        assert subscriber.poll() is not None and subscriber.policy is not None
        assert (subscriber.policy.karn, subscriber.policy.controller, subscriber.karn_update) == (None, "learned", None)
        update = put(publisher, 1, karn, policies[0])
        assert subscriber.poll() == update == subscriber.karn_update
        assert (subscriber.policy.digest, subscriber.policy.karn) == (policies[0], karn)
        assert subscriber.policy.controller == consulting_name(karn)
        assert (tmp_path / "state/karn/current").resolve().name == karn
        publisher.publish(2, policies[1])
        subscriber.poll()
        assert (subscriber.policy.digest, subscriber.policy.karn) == (policies[1], None), "nothing is known of both"
        publisher.publish(1, policies[0])
        subscriber.poll()
        assert subscriber.policy.karn == karn and subscriber.refusals == 0
    with opened(publisher, tmp_path / "state") as again:
        assert again.policy is not None and again.policy.karn == karn, "from the state, before the first look"
    with opened(publisher, tmp_path / "alone", consult_karn=False) as alone:
        alone.poll()
        assert alone.policy is not None and alone.policy.karn is None and alone.refusals == 0


def test_a_consumers_log_probs_are_those_of_the_same_pair_inside_simic(
    publisher: Publisher, policies: list[str], tmp_path: Path
) -> None:
    karn = sealed_karn(publisher.home, SIGNER)
    publisher.publish(1, policies[0])
    put(publisher, 1, karn, policies[0])
    with opened(publisher, tmp_path / "state") as subscriber:
        subscriber.poll()
        policy = subscriber.policy
    assert policy is not None
    folder = publisher.home.karn / karn
    inside = LearnedController(
        load_policy(publisher.home.policies / policies[0]), policy_version=policies[0], is_decisive=False,
        karn=ConsultedKarn(load_karn(folder, files_of(folder)), karn),
    )  # fmt: skip
    scene = make_scene(71, 200)
    ours = controller_of(policy).consider(scene.observations, scene.masks, is_decisive=False).distribution
    theirs = inside.consider(scene.observations, scene.masks, is_decisive=False).distribution
    slots = np.zeros(200, dtype=np.int64)
    for head, table in ours.factors(slots).items():
        assert table.tobytes() == theirs.factors(slots)[head].tobytes(), head
    report = example_of("FieldReport")
    found = policy.explain(report["state"], report["available"], explore=True)
    assert isinstance(found, simic.Explanation) and found.karn == karn
    alone = simic.load_policy(publisher.home.policies / policies[0], trusted_keys=KEYS)
    both = simic.load_policy(publisher.home.policies / policies[0], trusted_keys=KEYS, karn=folder)
    tables = [
        controller_of(one).consider(scene.observations, scene.masks, is_decisive=False).distribution.factors(slots)
        for one in (alone, both)
    ]
    assert not np.array_equal(tables[0][Head.BLUEPRINT], tables[1][Head.BLUEPRINT])
    assert np.array_equal(tables[1][Head.BLUEPRINT], ours.factors(slots)[Head.BLUEPRINT])


def test_a_forged_replayed_or_changed_karn_is_refused_and_the_one_before_stays(
    publisher: Publisher, policies: list[str], tmp_path: Path
) -> None:
    first, second = (sealed_karn(publisher.home, SIGNER, seed) for seed in range(2))
    publisher.publish(1, policies[0])
    with opened(publisher, tmp_path / "state") as subscriber:
        old = put(publisher, 1, first, policies[0])
        subscriber.poll()
        stranger = publisher.signed(old, Signer(b"x" * 32), digest=second)
        publisher.put(stranger, "forged")
        claimed = old.model_copy(update={"validation": old.validation.model_copy(update={"consulted_by": policies[1]})})
        publisher.put(claimed, "edited")
        weights = publisher.home.karn / second / "weights.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        new = put(publisher, 2, second, policies[0])
        assert subscriber.poll() is None
        assert all(isinstance(one.error, IntegrityError) for one in subscriber.refused) and subscriber.refusals == 3
        assert subscriber.policy is not None and subscriber.policy.karn == first
        weights.write_bytes(whole)
        newer = put(publisher, 3, second, policies[0])
        assert newer.issued_at > new.issued_at and subscriber.poll() == newer
        publisher.put(old, "replayed")
        subscriber.poll()
        assert "an older update was put again" in str(subscriber.refused[-1].error)
        assert subscriber.policy.karn == second


def test_an_accepted_policy_is_returned_although_the_look_for_karn_fails(
    publisher: Publisher, policies: list[str], tmp_path: Path
) -> None:
    sealed_karn(publisher.home, SIGNER)
    with opened(publisher, tmp_path / "state") as subscriber:
        update = publisher.publish(1, policies[0])
        obstacle = tmp_path / "state/karn/state.json"
        obstacle.mkdir()
        assert subscriber.poll() == update, "who reloads at an accepted update must hear of it"
        with pytest.raises(TransientError, match=r"karn/state\.json"):
            subscriber.poll()
        obstacle.rmdir()
        assert subscriber.poll() is None


def test_a_karn_of_other_blueprints_or_too_large_a_one_is_not_consulted(
    publisher: Publisher, policies: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.builders.karns.BLUEPRINTS", BLUEPRINTS[::-1])
    other = sealed_karn(publisher.home, SIGNER)
    publisher.publish(1, policies[0])
    put(publisher, 1, other, policies[0])
    with opened(publisher, tmp_path / "state") as subscriber:
        subscriber.poll()
        subscriber.poll()
        assert subscriber.policy is not None and subscriber.policy.karn is None
        assert subscriber.refusals == 1 and isinstance(subscriber.refused[-1].error, ContractError)
        assert "knows blueprints" in str(subscriber.refused[-1].error)
    with pytest.raises(ContractError, match="knows blueprints"):
        simic.load_policy(publisher.home.policies / policies[0], trusted_keys=KEYS, karn=publisher.home.karn / other)
    monkeypatch.setattr("simic.publication.follower._MOST_POLICY_BYTES", 100)
    shutil.rmtree(tmp_path / "state/karn")
    with opened(publisher, tmp_path / "state") as subscriber:
        subscriber.poll()
        assert subscriber.karn_update is None and "100 bytes" in str(subscriber.refused[-1].error)


def test_the_folder_of_karns_is_asked_for_where_it_is_not_known(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="karns: expected the folder with the karns by digest, found no folder"):
        opened(publisher, tmp_path / "state")
    with pytest.raises(ConfigError, match="karn: expected champion"):
        simic.load_policy(tmp_path, trusted_keys=KEYS, karn="the last one")
