"""What reaches production's bus is refused unless a trusted key signed it, and the last good policy stays."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.builders.deciding_policies import SIGNER
from support.builders.published_policies import Publisher, sealed_by_digest
from support.servers.redis_buses import stream_bus
from support.servers.redis_server import RedisProcess

import simic
from simic.bus.codec import encode
from simic.bus.spool.bus import SpoolBus
from simic.catalogue.contract_schemas import example_of
from simic.contracts.names import POLICY_UPDATES
from simic.runtime.clock import utc_now
from simic.trust.keys import Keyring, Signer
from simic.trust.revocation import add_revocation
from simic.trust.seal import seal

STRANGER, SECOND = Signer(bytes(range(40, 72))), Signer(bytes(range(80, 112)))
ATTACKS: dict[str, Callable[[Place], str]] = {}
"""What is put in place and on the bus, and the reason that is expected; by name."""


class Place:
    """A publisher, a consumer with keys of its own, and one good policy that it follows."""

    def __init__(self, root: Path, made: Path, digests: list[str], bus: Any = None, url: str | None = None) -> None:
        self.publisher, self.digests, self.root = Publisher(root / "home", made, bus), digests, root
        self.policies, self.state = self.publisher.home.policies, root / "state"
        self.source = url or str(self.publisher.home.spool)
        self.keys = Keyring(root / "keys")
        for signer in (SIGNER, SECOND):
            self.keys.trust(signer.public_bytes)
        self.good = self.publisher.publish(1, digests[0])

    def open(self) -> simic.Subscriber:
        return simic.Subscriber(self.source, trusted_keys=self.root / "keys", state=self.state, policies=self.policies)

    def altered(self, change: Callable[[Path], None], signer: Signer | None = None) -> str:
        """A copy of the second policy under its digest, altered; sealed again by ``signer`` if there is one."""
        path = self.policies / self.digests[1]
        change(path)
        if signer is None:
            return self.digests[1]
        digest = seal(path, signer).digest
        path.rename(self.policies / digest)
        return digest


def attack(act: Callable[[Place], str]) -> Callable[[Place], str]:
    ATTACKS[act.__name__] = act
    return act


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def digests(made: Path) -> list[str]:
    return [sealed_by_digest(made, seed) for seed in range(3)]


@pytest.fixture(params=["spool", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path, made: Path, digests: list[str]) -> Iterator[Place]:
    if request.param == "spool":
        yield Place(tmp_path, made, digests)
        return
    with RedisProcess(tmp_path / "redis") as server:
        yield Place(tmp_path, made, digests, stream_bus(server), server.url)


@attack
def an_unknown_key(place: Place) -> str:
    place.publisher.put(place.publisher.signed(place.good, STRANGER, version="2.0.0"))
    return "is not trusted"


@attack
def a_revoked_key(place: Place) -> str:
    add_revocation(
        place.root / "keys", SECOND.key_id, SECOND.public_bytes, reason="leaked", at=utc_now(), signer=SIGNER
    )
    place.publisher.put(place.publisher.signed(place.good, SECOND, digest=place.digests[1]))
    return "revoked"


@attack
def an_edited_update(place: Place) -> str:
    signed = place.publisher.signed(place.good, digest=place.digests[1])
    place.publisher.put(signed.model_copy(update={"version": "9.0.0"}))
    return "does not match what was signed"


@attack
def an_edited_envelope(place: Place) -> str:
    signed = place.publisher.signed(place.good, digest=place.digests[1])
    place.publisher.put(signed, created_at=signed.issued_at + timedelta(hours=9))
    return "the envelope of update"


@attack
def another_update_of_the_same_moment(place: Place) -> str:
    signed = place.publisher.signed(place.good, digest=place.digests[1], issued_at=place.good.issued_at)
    place.publisher.put(signed)
    return "not after"


@attack
def an_older_update(place: Place) -> str:
    earlier = place.good.issued_at - timedelta(hours=1)
    place.publisher.put(place.publisher.signed(place.good, digest=place.digests[1], issued_at=earlier))
    return "an older update was put again"


@attack
def an_update_from_the_far_future(place: Place) -> str:
    issued_at = utc_now() + timedelta(hours=2)
    place.publisher.put(place.publisher.signed(place.good, digest=place.digests[1], issued_at=issued_at))
    return "compare the clocks"


@attack
def a_reference_to_another_policy(place: Place) -> str:
    signed = place.publisher.signed(place.good, digest=place.digests[1], reference="models:/karn/2")
    place.publisher.put(signed)
    return "is no version of tamiyo"


@attack
def a_reference_that_climbs(place: Place) -> str:
    place.publisher.put(place.publisher.signed(place.good, reference="models:/../../etc/1"))
    return "reference"


@attack
def an_absolute_reference(place: Place) -> str:
    place.publisher.put(place.publisher.signed(place.good, reference="/etc/passwd"))
    return "reference"


@attack
def a_digest_that_climbs(place: Place) -> str:
    place.publisher.put(place.publisher.signed(place.good, digest="../" * 21 + "x"))
    return "digest"


@attack
def a_link_in_place_of_the_policy(place: Place) -> str:
    path = place.policies / place.digests[1]
    path.rename(place.root / "elsewhere")
    path.symlink_to(place.root / "elsewhere")
    place.publisher.publish(2, place.digests[1])
    return "expected a directory"


@attack
def a_link_in_place_of_the_weights(place: Place) -> str:
    def change(path: Path) -> None:
        (path / "weights.safetensors").rename(place.root / "weights")
        (path / "weights.safetensors").symlink_to(place.root / "weights")

    place.publisher.publish(2, place.altered(change))
    return "cannot read weights.safetensors"


@attack
def a_pipe_in_place_of_the_weights(place: Place) -> str:
    def change(path: Path) -> None:
        (path / "weights.safetensors").unlink()
        os.mkfifo(path / "weights.safetensors")

    place.publisher.publish(2, place.altered(change))
    return "no plain file"


@attack
def a_flipped_byte_of_the_weights(place: Place) -> str:
    def change(path: Path) -> None:
        content = bytearray((path / "weights.safetensors").read_bytes())
        content[-1] ^= 1
        (path / "weights.safetensors").write_bytes(content)

    place.publisher.publish(2, place.altered(change))
    return "files differ from what was sealed"


@attack
def a_policy_that_a_stranger_sealed(place: Place) -> str:
    place.publisher.publish(2, place.altered(lambda _: None, STRANGER))
    return "is not trusted"


@attack
def another_policy_than_the_signed_digest(place: Place) -> str:
    path = place.policies / place.digests[1]
    shutil.rmtree(path)
    shutil.copytree(place.policies / place.digests[2], path)
    place.publisher.publish(2, place.digests[1])
    return "expected digest"


@attack
def files_that_are_larger_than_a_policy(place: Place) -> str:
    path = place.policies / place.digests[1]
    with (path / "weights.safetensors").open("r+b") as file:
        file.truncate(300 * 2**20)  # sparse
    place.publisher.publish(2, place.altered(lambda _: None, SIGNER))
    return "expected files of at most"


@attack
def a_file_that_grew_after_the_seal(place: Place) -> str:
    def change(path: Path) -> None:
        with (path / "weights.safetensors").open("r+b") as file:
            file.truncate(300 * 2**20)

    place.publisher.publish(2, place.altered(change))
    return "as its seal says; found 314572800"


@attack
def weights_of_a_huge_declared_shape(place: Place) -> str:
    def change(path: Path) -> None:
        header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
        (path / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)

    place.publisher.publish(2, place.altered(change, SIGNER))
    return "malformed"


@attack
def a_card_of_a_huge_network(place: Place) -> str:
    def change(path: Path) -> None:
        card = json.loads((path / "card.json").read_text())
        (path / "card.json").write_text(json.dumps(card | {"network": card["network"] | {"hidden": 10**9}}))

    place.publisher.publish(2, place.altered(change, SIGNER))
    return "card"


@attack
def a_policy_without_a_card(place: Place) -> str:
    place.publisher.publish(2, place.altered(lambda path: (path / "card.json").unlink(), SIGNER))
    return "card.json is missing"


@attack
def a_manifest_without_end(place: Place) -> str:
    def change(path: Path) -> None:
        with (path / "manifest.json").open("r+b") as file:
            file.truncate(2**40)

    place.publisher.publish(2, place.altered(change))
    return "is longer than"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_with_its_reason_and_the_good_policy_goes_on(
    place: Place, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    report = example_of("FieldReport")
    with place.open() as subscriber:
        assert subscriber.poll() == place.good
        before = subscriber.policy
        assert before is not None
        action = before.decide(report["state"], report["available"])
        reason = ATTACKS[name](place)
        with caplog.at_level(logging.WARNING, "simic.publication.follower"):
            assert subscriber.poll() is None
        (refusal,) = subscriber.refused
        assert reason in str(refusal.error) and reason in caplog.text
        assert (subscriber.refusals, subscriber.update, subscriber.policy) == (1, place.good, before)
        assert before.decide(report["state"], report["available"]) == action
        assert (place.state / "current").resolve().name == place.digests[0]
        assert [path.name for path in (place.state / "policies").iterdir()] == [place.digests[0]]
        after = place.publisher.signed(place.good, digest=place.digests[0], version="1.0.9")
        place.publisher.put(after, "after")
        assert subscriber.poll() == after  # a refused update does not block those after it


@pytest.mark.parametrize("line", [b"", b"{}", b"x" * 100_000, b"\xff\xfe", b'{"event_id": []}'])
def test_garbage_in_the_spool_is_refused_once(tmp_path: Path, made: Path, digests: list[str], line: bytes) -> None:
    place = Place(tmp_path, made, digests)
    place.publisher.bus.put(POLICY_UPDATES, "garbage", [line, encode(place.publisher.put(place.good))])
    folder = SpoolBus(place.publisher.home.spool).folder(POLICY_UPDATES, "incoming")
    (folder / "link.jsonl").symlink_to("/etc/passwd")
    (folder / "torn.jsonl.zst").write_bytes(b"no zstd")
    with place.open() as subscriber:
        assert subscriber.poll() == place.good
        assert subscriber.refusals == 2 + bool(line)
        assert (subscriber.poll(), subscriber.refusals) == (None, 2 + bool(line))


def test_a_key_that_was_revoked_meanwhile_does_not_vouch_at_the_next_start(
    tmp_path: Path, made: Path, digests: list[str]
) -> None:
    place = Place(tmp_path, made, digests)
    update = place.publisher.signed(place.good, SECOND, digest=digests[1])
    place.publisher.put(update)
    with place.open() as subscriber:
        assert subscriber.poll() == update
    add_revocation(tmp_path / "keys", SECOND.key_id, SECOND.public_bytes, reason="leaked", at=utc_now(), signer=SIGNER)
    with place.open() as subscriber:
        assert (subscriber.policy, subscriber.refusals) == (None, 1)
        assert not os.path.lexists(place.state / "current")
        assert subscriber.poll() is None
        assert place.publisher.publish(2, digests[2]) == subscriber.poll()


def test_a_stored_policy_that_was_damaged_is_fetched_again(tmp_path: Path, made: Path, digests: list[str]) -> None:
    place = Place(tmp_path, made, digests)
    with place.open() as subscriber:
        subscriber.poll()
    (place.state / "policies" / digests[0] / "card.json").write_bytes(b"{}")
    with place.open() as subscriber:
        assert (subscriber.policy, subscriber.refusals) == (None, 1)
        assert not os.path.lexists(place.state / "current")
        assert subscriber.poll() == place.good
        assert (place.state / "current").resolve().name == digests[0]


@pytest.mark.parametrize("content", [b"", b"{", b'{"accepted": 1}', b" " * (9 * 2**20)])
def test_an_edited_state_is_refused(tmp_path: Path, made: Path, digests: list[str], content: bytes) -> None:
    place = Place(tmp_path, made, digests)
    with place.open() as subscriber:
        subscriber.poll()
    (place.state / "state.json").write_bytes(content)
    with pytest.raises(simic.IntegrityError, match=r"state\.json was edited or damaged"):
        place.open()


CHILD = """
import os, signal, sys
import simic
simic.Subscriber
source, keys, state, policies = sys.argv[1:]
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.symlink", "os.rmdir"}

def follow(left):
    def watch(name, arguments):
        # Every change of the file system below the state is one point at which to be killed, before it takes place.
        nonlocal left
        is_change = name in CHANGES or (name == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if is_change and any(isinstance(one, (str, os.PathLike)) and state in os.fspath(one) for one in arguments[:2]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with simic.Subscriber(source, trusted_keys=keys, state=state, policies=policies) as subscriber:
        sys.addaudithook(watch)
        subscriber.poll()

for line in sys.stdin:
    if (pid := os.fork()) == 0:
        follow(int(line))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_kill_9_at_every_change_of_a_swap_leaves_a_verified_policy(
    tmp_path: Path, made: Path, digests: list[str]
) -> None:
    place = Place(tmp_path, made, digests)
    with place.open() as subscriber:
        subscriber.poll()
    place.publisher.publish(2, digests[1])
    with place.open() as subscriber:
        subscriber.poll()  # now a swap also removes the policy before the previous one
    newest = place.publisher.publish(3, digests[2])
    untouched = tmp_path / "untouched"
    shutil.copytree(place.state, untouched, symlinks=True)
    ends, kills = set(), 0
    command = [sys.executable, "-c", CHILD, place.source, *map(str, (tmp_path / "keys", place.state, place.policies))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        for point in range(60):
            shutil.rmtree(place.state)
            shutil.copytree(untouched, place.state, symlinks=True)
            server.stdin.write(f"{point}\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
            linked = (place.state / "current").resolve()
            assert simic.load_policy(linked, trusted_keys=tmp_path / "keys").digest == linked.name
            ends.add(linked.name)
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
            _check_start_after_kill(place, newest)
        else:
            raise AssertionError("the swap never ended")
        server.stdin.close()
    assert kills >= 8
    assert ends == set(digests[1:])


def _check_start_after_kill(place: Place, newest: simic.PolicyUpdate) -> None:
    with place.open() as subscriber:
        subscriber.poll()
        assert (subscriber.update, subscriber.refused) == (newest, ())
    assert {path.name for path in (place.state / "policies").iterdir()} == set(place.digests[1:])
    assert {path.name for path in place.state.iterdir()} == {".lock", "current", "policies", "state.json"}
