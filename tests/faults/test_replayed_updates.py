"""An update about a version that is not champion never reaches the bus, however it came to wait in the outbox."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from support.homes.champion_homes import FORMER, PRESENT, crowned_home, open_home
from support.servers.redis_server import RedisProcess

from simic.app import promotion
from simic.app.checks.doctor import open_doctor
from simic.bus.codec import decode, unwrap
from simic.bus.spool.bus import SpoolBus
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import TransientError
from simic.contracts.names import POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate
from simic.runtime.home import Home


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return crowned_home(tmp_path / "place", tmp_path_factory)


def told(home: Home) -> list[str]:
    """What production takes from the bus now, in the order of creation."""
    bus, events = SpoolBus(home.spool), []
    for delivery in bus.claim(POLICY_UPDATES):
        events += [decode(EventEnvelope, line.data) for line in delivery.open(1 << 20)]
        bus.ack(delivery)
    return [unwrap(event, PolicyUpdate).reference for event in sorted(events, key=lambda event: event.created_at)]


def test_an_update_that_waited_for_the_bus_is_not_delivered_once_its_version_was_rolled_back(
    place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_bus: SpoolBus, topic: str, _name: str, _lines: Iterable[bytes]) -> str:
        raise TransientError(f"{topic} is away")

    with monkeypatch.context() as absent, pytest.raises(TransientError):
        absent.setattr(SpoolBus, "put", away)
        promotion.publish_champion(open_home(place))
    promotion.roll_back(open_home(place), "harmful")
    assert promotion.publish_champion(open_home(place)).delivered
    assert told(place) == [f"models:/tamiyo/{FORMER}"]
    assert len(list((place.outbox / "superseded").glob("*.json"))) == 1
    assert open_doctor(open_home(place)).examine().is_healthy


def test_a_rollback_while_redis_is_away_waits_in_the_outbox_and_not_in_the_spool(
    place: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update in the spool would count as delivered, and production would keep the bad policy."""
    server = RedisProcess(tmp_path / "redis")
    monkeypatch.setenv("REDIS_URL", server.url)
    promotion.roll_back(open_home(place), "harmful")
    with pytest.raises(TransientError, match="is away"):
        promotion.publish_champion(open_home(place))
    assert len(list((place.outbox / "pending").glob("*.json"))) == 1
    assert list(place.spool.rglob("*.jsonl*")) == []
    with server:
        assert promotion.publish_champion(open_home(place)).delivered
        assert server.client.xlen(POLICY_UPDATES) == 1


def test_a_delivered_update_moved_back_among_those_that_wait_is_not_delivered_again(place: Home) -> None:
    promotion.publish_champion(open_home(place))
    (done,) = (place.outbox / "done").glob("*.json")
    promotion.roll_back(open_home(place), "harmful")
    promotion.publish_champion(open_home(place))
    assert told(place) == [f"models:/tamiyo/{PRESENT}", f"models:/tamiyo/{FORMER}"]
    done.rename(place.outbox / "pending" / done.name)
    assert not promotion.publish_champion(open_home(place)).delivered
    assert told(place) == []
