"""What every bus promises, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.servers.redis_buses import TOPIC, datas, drain, stream_bus
from support.servers.redis_server import RedisProcess

from simic.bus.codec import encode, envelop
from simic.bus.protocol import Bus
from simic.bus.redis.fallback import SpoolFallbackBus
from simic.bus.spool.bus import SpoolBus
from simic.contracts.base import Contract
from simic.contracts.envelope import EventEnvelope, Priority
from simic.contracts.errors import ContractError
from simic.contracts.names import POLICY_UPDATES
from simic.runtime.clock import utc_now

Opener = Callable[[], Bus]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process


@pytest.fixture(params=["spool", "redis", "spilling"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same bus anew each time, as a restarted process would."""
    if request.param == "spool":
        return lambda: SpoolBus(tmp_path)
    server: RedisProcess = request.getfixturevalue("server")
    server.client.flushall()
    if request.param == "redis":
        return lambda: stream_bus(server)
    return lambda: SpoolFallbackBus(SpoolBus(tmp_path / "spool"), stream_bus(server), tmp_path / "locks")


def test_what_was_put_comes_in_order_until_acknowledged(opened: Opener) -> None:
    bus = opened()
    bus.put(TOPIC, "a", [b"1", b"2"])
    bus.put(TOPIC, "b", [b"3"])
    assert bus.pending(TOPIC) > 0
    assert list(drain(bus)) == [b"1", b"2", b"3"]
    assert bus.pending(TOPIC) == 0
    assert list(bus.claim(TOPIC)) == []


def test_pd5_what_was_not_acknowledged_comes_again_under_the_same_names(opened: Opener) -> None:
    """PD-5: a consumer that dies in between loses nothing, and the places of the lines do not change."""
    opened().put(TOPIC, "a", [b"old", b"older"])

    def places(bus: Bus) -> list[tuple[str, int, bytes]]:
        return [(d.source, line.number, line.data) for d in bus.claim(TOPIC) for line in d.open(100)]

    first = places(opened())
    restarted = opened()
    restarted.put(TOPIC, "b", [b"new"])
    again = places(restarted)
    assert again[:2] == first
    assert [data for _, _, data in again] == [b"old", b"older", b"new"]
    assert restarted.counters(TOPIC).retried > 0


def test_a_restart_counts_what_it_delivers_again_and_what_still_waits(opened: Opener) -> None:
    bus = opened()
    bus.put(TOPIC, "a", [b"1"])
    assert bus.counters(TOPIC)[:4] == (0, 0, 0, 0)
    assert len(list(bus.claim(TOPIC))) == 1
    assert bus.counters(TOPIC) == (0, 0, 0, 0, 1)
    list(drain(bus))
    assert bus.counters(TOPIC) == (1, 0, 0, 0, 0)
    assert bus.status(TOPIC).pending == bus.status(TOPIC).undelivered == 0


def test_a_delivery_can_be_read_twice_and_acknowledged_twice(opened: Opener) -> None:
    bus = opened()
    bus.put(TOPIC, "a", [b"1", b"2"])
    (delivery,) = bus.claim(TOPIC)
    assert datas(delivery) == datas(delivery) == [b"1", b"2"]
    bus.ack(delivery)
    bus.ack(delivery)
    assert list(bus.claim(TOPIC)) == []


def test_long_lines_are_cut_and_flagged_and_harm_no_other(opened: Opener) -> None:
    bus = opened()
    bus.put(TOPIC, "a", [b"1", b"x" * 3000, b"2"])
    (delivery,) = bus.claim(TOPIC)
    lines = list(delivery.open(1000))
    assert [(len(line.data), line.defect is None) for line in lines] == [(1, True), (1000, False), (1, True)]


def test_a_producer_that_fails_midway_publishes_nothing(opened: Opener) -> None:
    def failing() -> Iterator[bytes]:
        yield b"1"
        raise ZeroDivisionError

    bus = opened()
    with pytest.raises(ZeroDivisionError):
        bus.put(TOPIC, "a", failing())
    assert list(bus.claim(TOPIC)) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "a\n"])
def test_names_and_topics_are_plain(opened: Opener, name: str) -> None:
    bus = opened()
    with pytest.raises(ContractError):
        bus.put(TOPIC, name, [b"1"])
    with pytest.raises(ContractError):
        bus.put(name, "a", [b"1"])


def test_every_bus_carries_the_same_envelope_with_the_lines_of_a_put(opened: Opener) -> None:
    bus, began = opened(), utc_now()
    bus.put(TOPIC, "some-name", [b"1", b"2"])
    bus.put(TOPIC, "another", [b"3"])
    found = {line.data: line.envelope for delivery in opened().claim(TOPIC) for line in delivery.open(100)}
    expected = EventEnvelope(
        event_id="0" * 32, type="tamiyo.field_report", source="simic", created_at=began, ttl_s=7 * 86_400, payload=b"",
        correlation_id="some-name",
    )  # fmt: skip
    for data, name in ((b"1", "some-name"), (b"2", "some-name"), (b"3", "another")):
        envelope = found[data]
        assert envelope is not None and began <= envelope.created_at <= utc_now()
        own = {"event_id", "payload", "created_at"}
        assert envelope.model_dump(exclude=own) == {**expected.model_dump(exclude=own), "correlation_id": name}


def test_topics_do_not_mix_and_an_envelope_comes_out_as_it_went_in(opened: Opener) -> None:
    class Told(Contract):
        what: str

    bus = opened()
    envelope = envelop(Told(what="ä"), type_="innovation.policy_update", source="simic", created_at=utc_now())
    sent = encode(
        envelope.model_copy(update={"ttl_s": 77, "priority": Priority.HIGH, "correlation_id": "c", "max_attempts": 9})
    )
    bus.put(POLICY_UPDATES, "p", [sent])
    assert list(bus.claim(TOPIC)) == []
    assert list(drain(bus, POLICY_UPDATES)) == [sent]


def test_many_lines_are_many_deliveries_and_none_is_missing(opened: Opener) -> None:
    bus = opened()
    sent = [b"%d" % number for number in range(1234)]
    bus.put(TOPIC, "a", sent)
    assert list(drain(bus)) == sent
