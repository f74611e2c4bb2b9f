"""`simic.Subscriber` follows what `simic publish` puts on the bus, over the spool and over Redis."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.builders.deciding_policies import SIGNER
from support.builders.published_policies import Publisher, sealed_by_digest
from support.servers.redis_buses import drain, stream_bus
from support.servers.redis_server import RedisProcess

import simic
from simic.bus.codec import envelop
from simic.bus.redis.entries import fields_of
from simic.catalogue.contract_schemas import example_of
from simic.contracts.errors import ConfigError
from simic.contracts.names import POLICY_UPDATE_TYPE, POLICY_UPDATES
from simic.contracts.policy_update import RolloutPlan
from simic.publication.rollout import is_within
from simic.runtime.clock import utc_now

KEYS = [SIGNER.public_bytes.hex()]


class Setting(NamedTuple):
    """A publisher, what a consumer names as the source, and its state."""

    publisher: Publisher
    source: str
    state: Path

    def open(self, **changed: Any) -> simic.Subscriber:
        arguments = {"trusted_keys": KEYS, "state": self.state, "policies": self.publisher.home.policies}
        return simic.Subscriber(self.source, **{**arguments, **changed})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def digests(made: Path) -> list[str]:
    return [sealed_by_digest(made, seed) for seed in range(4)]


@pytest.fixture(params=["spool", "redis"])
def setting(request: pytest.FixtureRequest, tmp_path: Path, made: Path, digests: list[str]) -> Iterator[Setting]:
    assert len(digests) == 4
    if request.param == "spool":
        publisher = Publisher(tmp_path / "home", made)
        yield Setting(publisher, str(publisher.home.spool), tmp_path / "state")
        return
    with RedisProcess(tmp_path / "redis") as server:
        yield Setting(Publisher(tmp_path / "home", made, stream_bus(server)), server.url, tmp_path / "state")


def decided(policy: simic.Policy | None) -> simic.Action:
    report = example_of("FieldReport")
    assert policy is not None
    action = policy.decide(report["state"], report["available"])
    assert isinstance(action, simic.Action)
    return action


def test_each_publication_becomes_the_policy_once(setting: Setting, digests: list[str]) -> None:
    with setting.open() as subscriber:
        assert (subscriber.poll(), subscriber.policy) == (None, None)
        for number, digest in enumerate(digests[:3], 1):
            update = setting.publisher.publish(number, digest)
            assert subscriber.poll() == update == subscriber.update
            assert subscriber.policy is not None and subscriber.policy.digest == digest
            decided(subscriber.policy)
            assert (setting.state / "current").resolve() == setting.state.resolve() / "policies" / digest
            assert subscriber.poll() is None
        assert subscriber.refused == ()
        kept = {path.name for path in (setting.state / "policies").iterdir()}
        assert kept == set(digests[1:3])  # the current and the previous one


def test_of_several_updates_the_newest_is_taken_and_others_take_nothing_from_the_bus(
    setting: Setting, digests: list[str], tmp_path: Path
) -> None:
    for number, digest in enumerate(digests, 1):
        newest = setting.publisher.publish(number, digest)
    for name in ("one", "two"):
        with setting.open(state=tmp_path / name) as subscriber:
            assert (subscriber.poll(), subscriber.refused) == (newest, ())
            assert [path.name for path in (tmp_path / name / "policies").iterdir()] == [digests[-1]]


def test_a_rollback_is_a_newer_update_about_an_older_version(setting: Setting, digests: list[str]) -> None:
    with setting.open() as subscriber:
        for number in (1, 2, 1):
            update = setting.publisher.publish(number, digests[number - 1])
            assert subscriber.poll() == update
        assert subscriber.policy is not None and subscriber.policy.digest == digests[0]
        assert subscriber.update is not None and subscriber.update.version == "1.0.1"


def test_a_rollback_reaches_consumers_after_a_publication_whose_clock_was_ahead(
    setting: Setting, digests: list[str]
) -> None:
    """They hold the update of the future, and would hold a rollback that only follows it."""
    with setting.open() as subscriber:
        setting.publisher.publish(1, digests[0])
        subscriber.poll()
        setting.publisher.clock = lambda: utc_now() + timedelta(days=30)
        setting.publisher.publish(2, digests[1])
        assert subscriber.poll() is None
        setting.publisher.clock = utc_now
        restored = setting.publisher.publish(1, digests[0])
        assert subscriber.poll() == restored
        assert restored.issued_at - utc_now() < timedelta(hours=1)
        third = setting.publisher.publish(3, digests[2])
        assert subscriber.poll() == third
        setting.publisher.publish(3, digests[2])
        assert subscriber.poll() is None, "it is known already"
        subscriber._follower._clock = lambda: utc_now() + timedelta(days=31)
        later = subscriber.poll()
        assert later is not None and (later.version, later.digest) == ("1.0.3", digests[2])
        assert subscriber.policy is not None and subscriber.policy.digest == digests[2]
        assert subscriber.poll() is None


def test_an_update_accepted_before_an_error_is_returned_by_the_next_look(
    setting: Setting, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`simic follow --json` would never say that the policy changed."""
    with setting.open() as subscriber:
        update = setting.publisher.publish(1, digests[0])
        with monkeypatch.context() as full, pytest.raises(simic.TransientError):
            full.setattr(Path, "symlink_to", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "no space left")))
            subscriber.poll()
        assert subscriber.poll() == update
        assert subscriber.poll() is None


def test_a_rollback_to_the_previous_policy_needs_no_source(setting: Setting, digests: list[str]) -> None:
    with setting.open() as subscriber:
        for number in (1, 2):
            setting.publisher.publish(number, digests[number - 1])
            subscriber.poll()
        (setting.publisher.home.policies / digests[0]).rename(setting.state.parent / "gone")
        assert subscriber.poll() is None
        assert subscriber.poll() is None
        assert setting.publisher.publish(1, digests[0]) == subscriber.poll()


def test_a_consumer_that_was_off_for_two_days_takes_the_newest_update(setting: Setting, digests: list[str]) -> None:
    for number, days in ((1, 3), (2, 2)):
        setting.publisher.clock = lambda days=days: utc_now() - timedelta(days=days)
        newest = setting.publisher.publish(number, digests[number])
    with setting.open() as subscriber:
        assert (subscriber.poll(), subscriber.refused) == (newest, ())


def test_the_same_update_twice_changes_nothing_also_after_a_restart(setting: Setting, digests: list[str]) -> None:
    update = setting.publisher.publish(1, digests[0])
    with setting.open() as subscriber:
        assert subscriber.poll() == update
        policy = subscriber.policy
        setting.publisher.put(update)
        assert (subscriber.poll(), subscriber.refused, subscriber.policy) == (None, (), policy)
    with setting.open() as subscriber:
        assert subscriber.update == update
        first = decided(subscriber.policy)
        setting.publisher.put(update, "once-more")
        assert (subscriber.poll(), subscriber.refused) == (None, ())
        assert policy is not None and first == decided(policy)


def test_an_older_update_put_again_is_refused_also_after_a_restart(setting: Setting, digests: list[str]) -> None:
    older = setting.publisher.publish(1, digests[0])
    newer = setting.publisher.publish(2, digests[1])
    with setting.open() as subscriber:
        assert subscriber.poll() == newer
        setting.publisher.put(older)
        assert subscriber.poll() is None
        (refusal,) = subscriber.refused
        assert isinstance(refusal.error, simic.IntegrityError) and "older update was put again" in str(refusal.error)
    with setting.open() as subscriber:
        setting.publisher.put(older, "once-more")
        assert (subscriber.poll(), subscriber.refusals, subscriber.update) == (None, 1, newer)
        decided(subscriber.policy)


def test_updates_for_other_targets_are_no_concern(setting: Setting, digests: list[str]) -> None:
    other = setting.publisher.publish(1, digests[0], targets=("karn",))
    with setting.open() as subscriber:
        assert (subscriber.poll(), subscriber.policy, subscriber.refused) == (None, None, ())
    with setting.open(target="karn", state=setting.state.parent / "karn") as subscriber:
        assert subscriber.poll() == other


def test_an_update_waits_for_its_policy_also_after_a_restart(setting: Setting, digests: list[str]) -> None:
    policies = setting.publisher.home.policies
    first = setting.publisher.publish(1, digests[0])
    (policies / digests[1]).rename(setting.state.parent / "late")
    second = setting.publisher.publish(2, digests[1])
    with setting.open() as subscriber:
        assert subscriber.poll() == first  # the last good one
        assert [type(one.error) for one in subscriber.refused] == [simic.TransientError]
        assert (subscriber.poll(), subscriber.refusals) == (None, 1)
    with setting.open() as subscriber:
        assert subscriber.poll() is None
        (setting.state.parent / "late").rename(policies / digests[1])
        assert subscriber.poll() == second == subscriber.update


def test_deciding_threads_see_one_policy_or_the_other(setting: Setting, digests: list[str]) -> None:
    setting.publisher.publish(1, digests[0])
    report, end, faults = example_of("FieldReport"), threading.Event(), []
    with setting.open() as subscriber:
        subscriber.poll()
        expected = {d: simic.load_policy(setting.publisher.home.policies / d, trusted_keys=KEYS) for d in digests[:2]}
        actions = {d: decided(policy) for d, policy in expected.items()}

        def work() -> None:
            while not end.is_set():
                policy = subscriber.policy
                assert policy is not None
                if policy.decide(report["state"], report["available"]) != actions[policy.digest]:
                    faults.append(policy.digest)

        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        for number in (2, 1, 2, 1):
            setting.publisher.publish(number, digests[number - 1])
            assert subscriber.poll() is not None
        end.set()
        for worker in workers:
            worker.join()
    assert faults == []


def test_a_redis_that_dies_and_comes_back(tmp_path: Path, made: Path, digests: list[str]) -> None:
    with RedisProcess(tmp_path / "redis") as server:
        publisher = Publisher(tmp_path / "home", made, stream_bus(server))
        with Setting(publisher, server.url, tmp_path / "state").open() as subscriber:
            publisher.publish(1, digests[0])
            subscriber.poll()
            server.kill()
            with pytest.raises(simic.TransientError, match="Redis"):
                subscriber.poll()
            decided(subscriber.policy)
            server.start()
            publisher = Publisher(tmp_path / "home", made, stream_bus(server))
            assert subscriber.poll() is None
            assert subscriber.poll() is None
            assert publisher.publish(2, digests[1]) == subscriber.poll()
            server.hang()
            with pytest.raises(simic.TransientError, match="does not answer"):
                subscriber.poll()
            server.go_on()
            assert subscriber.poll() is None


def test_a_stream_that_was_made_again_is_read_from_its_beginning(
    tmp_path: Path, made: Path, digests: list[str]
) -> None:
    """Its ids are lower if the clock of the server was set back."""
    with RedisProcess(tmp_path / "redis") as server:
        publisher = Publisher(tmp_path / "home", made, stream_bus(server))
        with Setting(publisher, server.url, tmp_path / "state").open() as subscriber:
            update = publisher.publish(1, digests[0])
            assert subscriber.poll() == update
            server.client.delete(POLICY_UPDATES)
            assert subscriber.poll() is None
            newer = publisher.signed(update, digest=digests[1])
            flat = fields_of(envelop(newer, type_=POLICY_UPDATE_TYPE, source="simic", created_at=newer.issued_at))
            server.client.xadd(POLICY_UPDATES, dict(zip(flat[::2], flat[1::2], strict=True)), id="5-1")
            assert subscriber.poll() == newer


def test_what_another_consumer_took_is_seen_too(setting: Setting, digests: list[str]) -> None:
    update = setting.publisher.publish(1, digests[0])
    assert len(list(drain(setting.publisher.bus, POLICY_UPDATES))) == 1
    with setting.open() as subscriber:
        assert subscriber.poll() == update


def test_a_home_is_followed_with_its_own_keys_and_policies(
    tmp_path: Path, made: Path, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    publisher = Publisher(tmp_path / "home", made)
    home = simic.Home(tmp_path / "home")
    with simic.Subscriber(home, trusted_keys=home, state=tmp_path / "state") as subscriber:
        assert publisher.publish(1, digests[0]) == subscriber.poll()
    with simic.Subscriber(publisher.home.spool, trusted_keys=home, state=tmp_path / "other") as subscriber:
        assert subscriber.poll() is not None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"state": ""}, "state: expected a folder"),
        ({"source": ""}, "source: expected"),
        ({"source": "nowhere"}, "folder of a spool, found no folder"),
        ({"source": "ftp://host/x"}, "scheme"),
        ({"source": "redis://host", "policies": None}, "policies: expected"),
        ({"policies": "nowhere"}, "policies: expected"),
        ({"trusted_keys": []}, "at least one public key"),
    ],
)
def test_wrong_arguments_say_what_was_expected(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spool").mkdir()
    arguments = {"source": "spool", "trusted_keys": KEYS, "state": "state", "policies": made, **changed}
    with pytest.raises(simic.ConfigError, match=message):
        simic.Subscriber(**arguments)


def test_one_process_follows_into_a_state(tmp_path: Path, made: Path) -> None:
    publisher = Publisher(tmp_path / "home", made)
    setting = Setting(publisher, str(publisher.home.spool), tmp_path / "state")
    with setting.open(), pytest.raises(simic.TransientError, match="busy"):
        setting.open()
    setting.open().close()


def partly(baseline: str, version: str = "1.0.1") -> RolloutPlan:
    return RolloutPlan(
        share=0.5, hours=24.0, min_success=0.8, min_episodes=5, baseline=baseline, baseline_version=version
    )


def consumers(setting: Setting, digests: list[str]) -> dict[bool, str]:
    """A name within the share of the second policy, and one outside."""
    plan, found = partly(digests[0]), {}
    like = setting.publisher.signed(setting.publisher.publish(1, digests[0]), digest=digests[1], rollout=plan)
    for number in range(100):
        found.setdefault(is_within(like, f"trainer-{number}"), f"trainer-{number}")
    return found


def test_a_share_of_the_consumers_uses_a_new_policy_and_the_others_its_baseline(
    setting: Setting, digests: list[str], tmp_path: Path
) -> None:
    names = consumers(setting, digests)
    for is_within_share, name in names.items():
        state, expected = tmp_path / name, digests[1] if is_within_share else digests[0]
        for _ in range(2):  # a consumer that starts again, or loses its state, gets the same one
            with setting.open(state=state, consumer=name) as subscriber:
                subscriber.poll()
                assert subscriber.policy is not None
    begun = setting.publisher.publish(2, digests[1], plan=partly(digests[0]))
    for is_within_share, name in names.items():
        state, expected = tmp_path / name, digests[1] if is_within_share else digests[0]
        for folder in (state, state, tmp_path / f"new-{name}"):
            with setting.open(state=folder, consumer=name) as subscriber:
                subscriber.poll()
                assert subscriber.policy is not None and subscriber.policy.digest == expected
                assert (subscriber.update, subscriber.is_within_share) == (begun, is_within_share)
                assert (folder / "current").resolve().name == expected
    whole = setting.publisher.publish(2, digests[1], is_for_all=True)
    for name in names.values():
        with setting.open(state=tmp_path / name, consumer=name) as subscriber:
            assert subscriber.poll() == whole
            assert subscriber.policy is not None and subscriber.policy.digest == digests[1]
            assert subscriber.is_within_share
    back = setting.publisher.publish(1, digests[0])
    for name in names.values():
        with setting.open(state=tmp_path / name, consumer=name) as subscriber:
            assert subscriber.poll() == back
            assert subscriber.policy is not None and subscriber.policy.digest == digests[0]


@pytest.mark.parametrize("was_within", [True, False])
def test_a_consumer_under_another_name_keeps_its_policy_until_it_has_the_other_one(
    setting: Setting, digests: list[str], tmp_path: Path, was_within: bool
) -> None:
    names = consumers(setting, digests)
    begun = setting.publisher.publish(2, digests[1], plan=partly(digests[0]))
    old, new = (digests[1], digests[0]) if was_within else (digests[0], digests[1])
    with setting.open(consumer=names[was_within]) as subscriber:
        assert subscriber.poll() == begun
    (setting.publisher.home.policies / new).rename(tmp_path / "late")
    for _ in range(2):
        with setting.open(consumer=names[not was_within]) as subscriber:
            assert (subscriber.poll(), subscriber.update) == (None, begun)
            assert subscriber.policy is not None and subscriber.policy.digest == old
            assert (setting.state / "current").resolve() == setting.state.resolve() / "policies" / old
            decided(subscriber.policy)
    (tmp_path / "late").rename(setting.publisher.home.policies / new)
    with setting.open(consumer=names[not was_within]) as subscriber:
        assert subscriber.poll() == begun
        assert subscriber.policy is not None and subscriber.policy.digest == new
        assert (setting.state / "current").resolve().name == new
        assert {path.name for path in (setting.state / "policies").iterdir()} == {old, new}
    (setting.state / "policies" / new / "weights.safetensors").write_bytes(b"damaged")
    with setting.open(consumer=names[not was_within]) as subscriber:
        assert subscriber.policy is None and not (setting.state / "current").is_symlink()


def test_the_name_of_a_consumer_is_drawn_once(setting: Setting, digests: list[str]) -> None:
    setting.publisher.publish(1, digests[0])
    found = set()
    for _ in range(3):
        with setting.open() as subscriber:
            subscriber.poll()
        found.add(json.loads((setting.state / "state.json").read_text())["consumer"])
    assert len(found) == 1 and len(found.pop()) == 32
    with pytest.raises(ConfigError, match="consumer: expected 1 to 128 characters, found 0"):
        setting.open(consumer="")
