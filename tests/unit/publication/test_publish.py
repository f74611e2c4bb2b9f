"""Publication: signed, and exactly once per version and target."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.builders.judged_candidates import NOW, SIGNER, receipt, ticking

from simic.bus.codec import decode, encode, unwrap
from simic.bus.protocol import Delivery
from simic.bus.spool.bus import SpoolBus
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.names import POLICY_UPDATE_TYPE, POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate, ValidationSummary
from simic.contracts.results.receipts import PolicyVersion, Provenance, PublicationReceipt
from simic.publication.publish import open_outbox, publish, verify_update
from simic.runtime.home import Home
from simic.trust.keys import Keyring

SUMMARY = ValidationSummary(
    episodes=160, return_over_wait=6.0, lower_bound=5.0, confidence=0.95, gate_digest="a" * 64
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Home:
    home = Home(tmp_path / "place")
    home.create()
    Keyring(home.keys).trust(SIGNER.public_bytes)
    return home


@pytest.fixture
def bus(place: Home) -> SpoolBus:
    return SpoolBus(place.spool)


def version(number: int = 3, digest: str = "b" * 64) -> PolicyVersion:
    return PolicyVersion(
        **receipt(), name="tamiyo", number=number, semantic_version=f"1.0.{number}", digest=digest,
        reference=f"models:/tamiyo/{number}", aliases=["champion"], previous=None, snapshot_digest="d" * 64,
        gate_digest="a" * 64, mlflow_run_id="run",
    )  # fmt: skip


def send(
    place: Home, bus: SpoolBus, targets: tuple[str, ...] = ("tamiyo",), of: PolicyVersion | None = None
) -> PublicationReceipt:
    return publish(
        of or version(), SUMMARY, targets, bus=bus, signer=SIGNER, home=place,
        provenance=Provenance("0.1.0+0", "c" * 64, 0), clock=ticking(),
    )  # fmt: skip


def received(bus: SpoolBus) -> list[EventEnvelope]:
    """What a consumer would make of everything on the bus, each event once."""
    events: dict[str, EventEnvelope] = {}
    for delivery in bus.claim(POLICY_UPDATES):
        for line in delivery.open(1 << 20):
            event = decode(EventEnvelope, line.data)
            events.setdefault(event.event_id, event)
        bus.ack(delivery)
    return list(events.values())


class _DyingBus(SpoolBus):
    """Puts, and then the process ends."""

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        super().put(topic, name, lines)
        raise KeyboardInterrupt


class _AbsentBus(SpoolBus):
    """Nobody answers."""

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        raise TransientError(f"{topic} is away")

    def claim(self, topic: str) -> Iterator[Delivery]:
        raise TransientError(f"{topic} is away")


def test_an_update_is_signed_and_points_at_the_registry(place: Home, bus: SpoolBus) -> None:
    answer = send(place, bus)
    (event,) = received(bus)
    assert (event.event_id, event.type) == (answer.event_id, POLICY_UPDATE_TYPE)
    update = unwrap(event, PolicyUpdate)
    assert update == answer.update
    assert (update.version, update.reference, update.targets) == ("1.0.3", "models:/tamiyo/3", ["tamiyo"])
    assert update.validation == SUMMARY
    assert update.issued_at > NOW
    keyring = Keyring(place.keys)
    keyring.trust(SIGNER.public_bytes)
    verify_update(update, keyring)
    with pytest.raises(IntegrityError):
        verify_update(update.model_copy(update={"reference": "models:/tamiyo/4"}), keyring)


def test_d24_payload_bytes_survive_json(place: Home, bus: SpoolBus) -> None:
    send(place, bus)
    (event,) = received(bus)
    assert json.loads(event.model_dump_json())["payload"]
    assert decode(EventEnvelope, event.model_dump_json().encode()) == event


def test_d28_publishing_again_delivers_nothing(place: Home, bus: SpoolBus) -> None:
    first = send(place, bus)
    second = send(place, bus)
    assert (first.delivered, second.delivered) == (True, False)
    assert second.update == first.update
    assert len(received(bus)) == 1
    assert send(place, bus).delivered is False
    assert bus.pending(POLICY_UPDATES) == 0


def test_a_new_target_hears_of_it_and_the_old_one_does_not_again(place: Home, bus: SpoolBus) -> None:
    send(place, bus, ("tamiyo", "lab"))
    answer = send(place, bus, ("lab", "edge"))
    assert answer.delivered
    assert answer.update.targets == ["edge"]
    assert sorted(t for event in received(bus) for t in unwrap(event, PolicyUpdate).targets) == [
        "edge",
        "lab",
        "tamiyo",
    ]


def test_another_version_is_another_update(place: Home, bus: SpoolBus) -> None:
    send(place, bus)
    assert send(place, bus, of=version(4, "e" * 64)).delivered
    assert len(received(bus)) == 2


def test_going_back_to_an_earlier_version_is_news_again(place: Home, bus: SpoolBus) -> None:
    """The clock stands still between the calls, as coarse or corrected clocks do."""
    former, later = version(), version(4, "e" * 64)
    answers = [send(place, bus, of=of) for of in (former, later, former, former)]
    assert [answer.delivered for answer in answers] == [True, True, True, False]
    assert answers[3].event_id == answers[2].event_id
    events = sorted(received(bus), key=lambda event: event.created_at)
    assert [unwrap(event, PolicyUpdate).version for event in events] == ["1.0.3", "1.0.4", "1.0.3"]
    assert [event.event_id for event in events] == [answer.event_id for answer in answers[:3]]


def test_a_crash_while_going_back_delivers_once(place: Home, bus: SpoolBus) -> None:
    former, later = version(), version(4, "e" * 64)
    send(place, bus, of=former)
    send(place, bus, of=later)
    with pytest.raises(KeyboardInterrupt):
        send(place, _DyingBus(place.spool), of=former)
    assert [send(place, bus, of=former).delivered for _ in range(2)] == [True, False]
    assert len(received(bus)) == 3


def test_only_the_target_that_left_a_version_hears_of_it_again(place: Home, bus: SpoolBus) -> None:
    former, later = version(), version(4, "e" * 64)
    send(place, bus, ("tamiyo", "lab"), of=former)
    send(place, bus, ("tamiyo",), of=later)
    assert send(place, bus, ("tamiyo", "lab"), of=former).update.targets == ["tamiyo"]


def test_a_crash_between_putting_and_marking_delivers_once(place: Home, bus: SpoolBus) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(place, _DyingBus(place.spool))
    answer = send(place, bus)
    assert answer.delivered
    (event,) = received(bus)
    assert event.event_id == answer.event_id
    assert send(place, bus).delivered is False
    assert received(bus) == []


def test_a_crash_after_the_consumer_took_it_is_recognised_by_the_event_id(place: Home, bus: SpoolBus) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(place, _DyingBus(place.spool))
    (before,) = received(bus)
    send(place, bus)
    (again,) = received(bus)
    assert again == before


def test_an_update_waits_in_the_outbox_while_the_bus_is_away(place: Home, bus: SpoolBus) -> None:
    for _ in range(2):
        with pytest.raises(TransientError):
            send(place, _AbsentBus(place.spool))
    assert send(place, bus).delivered
    assert [unwrap(event, PolicyUpdate).version for event in received(bus)] == ["1.0.3"]


def test_a_waiting_update_about_another_version_is_never_delivered(place: Home, bus: SpoolBus) -> None:
    former, later = version(), version(4, "e" * 64)
    with pytest.raises(TransientError):
        send(place, _AbsentBus(place.spool), of=later)
    with pytest.raises(TransientError):
        send(place, _AbsentBus(place.spool), of=former)
    assert send(place, bus, of=former).delivered
    assert [unwrap(event, PolicyUpdate).version for event in received(bus)] == ["1.0.3"]
    assert [unwrap(event, PolicyUpdate).version for event in open_outbox(place).superseded()] == ["1.0.4"]
    assert send(place, bus, of=former).delivered is False
    assert send(place, bus, of=later).delivered, "what was set aside was not heard"


def test_a_target_that_may_have_heard_of_another_version_is_told_again(place: Home, bus: SpoolBus) -> None:
    """The process died after it put the update about version 4: only the bus knows."""
    former, later = version(), version(4, "e" * 64)
    send(place, bus, of=former)
    with pytest.raises(KeyboardInterrupt):
        send(place, _DyingBus(place.spool), of=later)
    assert [send(place, bus, of=former).delivered for _ in range(2)] == [True, False]
    events = sorted(received(bus), key=lambda event: event.created_at)
    assert [unwrap(event, PolicyUpdate).version for event in events] == ["1.0.3", "1.0.4", "1.0.3"]


@pytest.mark.parametrize("is_copied", [False, True], ids=["moved", "copied"])
@pytest.mark.parametrize("place_of", [0, 1], ids=["about-this-version", "about-another"])
def test_an_old_update_that_was_put_back_among_those_that_wait_is_not_delivered_again(
    place: Home, bus: SpoolBus, place_of: int, is_copied: bool
) -> None:
    former, later = version(), version(4, "e" * 64)
    for of in (former, later, former):
        send(place, bus, of=of)
    received(bus)
    done = place.outbox / "done" / f"{open_outbox(place).delivered()[place_of].event_id}.json"
    (place.outbox / "pending" / done.name).write_bytes(done.read_bytes())
    if not is_copied:
        done.unlink()
    assert send(place, bus, of=former).delivered is False
    assert received(bus) == []


@pytest.mark.parametrize(
    "change",
    [
        {"reference": "models:/tamiyo/4"},
        {"digest": "e" * 64},
        {"targets": ["everybody"]},
        {"signature": "0" * 128},
    ],
)
def test_an_update_edited_while_it_waits_is_not_delivered(
    place: Home, bus: SpoolBus, change: dict[str, object]
) -> None:
    with pytest.raises(TransientError):
        send(place, _AbsentBus(place.spool))
    (waiting,) = (place.outbox / "pending").glob("*.json")
    event = decode(EventEnvelope, waiting.read_bytes())
    edited = unwrap(event, PolicyUpdate).model_copy(update=change)
    waiting.write_bytes(encode(event.model_copy(update={"payload": encode(edited)})))
    with pytest.raises(IntegrityError, match=r"differs from what was signed.*simic doctor --repair"):
        send(place, bus)
    assert bus.pending(POLICY_UPDATES) == 0
    assert waiting.exists()


@pytest.mark.parametrize("change", [{"type": "innovation.other"}, {"created_at": NOW}, {"payload": b"{}"}])
def test_an_envelope_edited_while_it_waits_is_not_delivered(
    place: Home, bus: SpoolBus, change: dict[str, object]
) -> None:
    with pytest.raises(TransientError):
        send(place, _AbsentBus(place.spool))
    (waiting,) = (place.outbox / "pending").glob("*.json")
    event = decode(EventEnvelope, waiting.read_bytes())
    waiting.write_bytes(encode(event.model_copy(update=change)))
    with pytest.raises(IntegrityError, match="differs from what was signed"):
        send(place, bus)
    assert bus.pending(POLICY_UPDATES) == 0


def test_an_update_by_a_key_no_longer_trusted_is_not_delivered(place: Home, bus: SpoolBus) -> None:
    with pytest.raises(TransientError):
        send(place, _AbsentBus(place.spool))
    (place.keys / f"{SIGNER.key_id}.pub").unlink()
    with pytest.raises(IntegrityError, match="not trusted"):
        send(place, bus)
    assert bus.pending(POLICY_UPDATES) == 0


def test_a_delivered_update_that_was_edited_does_not_count_and_is_told_again(place: Home, bus: SpoolBus) -> None:
    """Else whoever edits the file keeps production from ever hearing of the champion."""
    other = version(4, "e" * 64)
    send(place, bus)
    (done,) = (place.outbox / "done").glob("*.json")
    event = decode(EventEnvelope, done.read_bytes())
    edited = unwrap(event, PolicyUpdate).model_copy(update={"version": other.semantic_version, "digest": other.digest})
    done.write_bytes(encode(event.model_copy(update={"payload": encode(edited)})))
    assert send(place, bus, of=other).delivered
    assert open_outbox(place).damaged(is_pending=False)[0][0] == done


def test_an_update_needs_a_target(place: Home, bus: SpoolBus) -> None:
    with pytest.raises(ConfigError, match="target"):
        send(place, bus, ())
