"""A network that is cut between Simic and Redis, anywhere within an answer: nothing is lost, nothing is doubled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from support.builders.deciding_policies import SIGNER
from support.builders.published_policies import Publisher, sealed_by_digest
from support.builders.reports import BLUEPRINTS, episodes, line
from support.homes.pipeline import PROVENANCE
from support.servers.redis_buses import TOPIC, stream_bus
from support.servers.redis_server import RedisProcess
from support.servers.tcp_proxy import Network, TcpProxy

import simic
from simic.catalogue.query import query
from simic.contracts.errors import TransientError
from simic.contracts.results.receipts import IngestReceipt
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.runtime.clock import utc_now
from simic.runtime.home import Home

RECOVERY_S, CUT_TIMES = 30.0, 6
CUTS = [network for network in Network if network is not Network.WHOLE]
QUICK = {"deadline_s": 0.4, "connect_attempts": 2}


class Away(NamedTuple):
    """A server, and the network to it."""

    server: RedisProcess
    proxy: TcpProxy

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.proxy.port}/0"


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Away]:
    with RedisProcess(tmp_path / "redis") as server, TcpProxy(server.port) as proxy:
        yield Away(server, proxy)


def ingest_over(away: Away, home: Home, **settings: float) -> IngestReceipt:
    bus = stream_bus(away.url, batch=7, reclaim_idle_s=0.001, **settings)
    config = IngestConfig(batch_reports=20)
    return ingest(bus, home, config, frozenset(BLUEPRINTS), provenance=PROVENANCE, clock=utc_now)


@pytest.mark.parametrize("network", CUTS, ids=lambda network: network.value)
def test_reports_land_once_however_often_the_network_is_cut(away: Away, tmp_path: Path, network: Network) -> None:
    """Each cut comes after a random number of bytes of the server's answers."""
    home, good, cuts = Home(tmp_path / "home"), episodes(range(15)), 0
    home.create()
    stream_bus(away.server).put(TOPIC, "a", map(line, good))
    for answered in np.random.default_rng(CUTS.index(network)).integers(1, 40_000, CUT_TIMES).tolist():
        away.proxy.cut_after(answered, network)
        try:
            ingest_over(away, home, **QUICK)
        except TransientError as error:
            assert "Redis at 127.0.0.1" in str(error)
        cuts += away.proxy.is_cut
        away.proxy.set(Network.WHOLE)
    assert cuts >= CUT_TIMES // 2
    healed = time.monotonic()
    ingest_over(away, home)
    stream_bus(away.server).replay(TOPIC)  # what no consumer could acknowledge three times
    receipt = ingest_over(away, home)
    assert time.monotonic() - healed < RECOVERY_S
    assert (receipt.lost, receipt.lag, receipt.dead_lettered) == (0, 0, 0)
    rows = query(home, "SELECT report_id FROM reports ORDER BY report_id")
    assert [row["report_id"] for row in rows] == sorted(report.report_id for report in good)
    assert query(home, "SELECT DISTINCT reason FROM quarantine WHERE reason <> 'duplicate'") == []


@pytest.mark.parametrize("network", CUTS, ids=lambda network: network.value)
def test_a_consumer_keeps_its_policy_while_the_network_is_cut_and_follows_afterwards(
    away: Away, tmp_path: Path, network: Network
) -> None:
    digests = [sealed_by_digest(tmp_path / "made", seed) for seed in range(2)]
    publisher = Publisher(tmp_path / "home", tmp_path / "made", stream_bus(away.server))
    settings = {"trusted_keys": [SIGNER.public_bytes.hex()], "state": tmp_path / "state"}
    with simic.Subscriber(f"{away.url}?socket_timeout=0.3", policies=publisher.home.policies, **settings) as subscriber:
        publisher.publish(1, digests[0])
        subscriber.poll()
        away.proxy.set(network)
        newer = publisher.publish(2, digests[1])
        with pytest.raises(simic.TransientError, match="Redis"):
            subscriber.poll()
        assert subscriber.policy is not None and subscriber.policy.digest == digests[0]
        away.proxy.set(Network.WHOLE)
        healed = time.monotonic()
        assert subscriber.poll() == newer
        assert time.monotonic() - healed < RECOVERY_S
        assert subscriber.policy.digest == digests[1]


@pytest.mark.parametrize("network", CUTS, ids=lambda network: network.value)
def test_an_update_that_was_put_while_the_network_is_cut_is_there_at_most_twice_and_counts_once(
    away: Away, tmp_path: Path, network: Network
) -> None:
    """Without an answer nobody knows whether it arrived, so it is put again; consumers take its number once."""
    digest = sealed_by_digest(tmp_path / "made", 0)
    bus = stream_bus(away.url, **QUICK)
    publisher = Publisher(tmp_path / "home", tmp_path / "made", bus)
    away.proxy.set(network)
    with pytest.raises(TransientError, match="Redis"):
        publisher.publish(1, digest)
    away.proxy.set(Network.WHOLE)
    update = Publisher(tmp_path / "home", tmp_path / "made", stream_bus(away.url, **QUICK)).publish(1, digest)
    state, keys = tmp_path / "state", [SIGNER.public_bytes.hex()]
    with simic.Subscriber(
        away.server.url, policies=publisher.home.policies, trusted_keys=keys, state=state
    ) as follower:
        assert follower.poll() == update
        assert (follower.poll(), follower.refused) == (None, ())
