"""What the doctor and `simic bus forward` say about a bus that is not a server with a spool in front."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.homes.pipeline import TOPIC, FixedClock

from simic.app.bus_admin import examine_bus, forward
from simic.app.checks.doctor import Doctor
from simic.bus.factory import BusSpec
from simic.bus.spool.bus import SpoolBus
from simic.contracts.errors import ConfigError, TransientError
from simic.contracts.results.lake import Health
from simic.runtime.home import Home
from simic.runtime.progress import NoProgress


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BusSpec:
    monkeypatch.setenv("REDIS_URL", "file:")
    return BusSpec(tmp_path / "data" / "spool", has_url=True)


def test_the_spool_as_a_bus_with_a_url_has_no_server_to_forward_to(spec: BusSpec) -> None:
    with pytest.raises(ConfigError, match=r"the bus 'spool', which REDIS_URL names, has no server to forward to"):
        forward(spec, None, NoProgress())


@pytest.mark.parametrize("url", ["file:", "file:elsewhere"])
def test_every_check_of_the_doctor_has_a_name_of_its_own(
    tmp_path: Path, spec: BusSpec, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    home = Home(tmp_path)
    doctor = Doctor(
        home, SpoolBus(home.spool), lambda _: None, code_version="x", clock=FixedClock(), progress=NoProgress(),
        bus=spec,
    )  # fmt: skip
    names = [check.name for check in doctor.examine().checks]
    assert {"spool", "bus spool"} < set(names) and len(names) == len(set(names))


@pytest.mark.parametrize(
    ("url", "name"), [("file:elsewhere", "bus spool"), ("carrier-pigeon://loft", "redis"), ("redis://", "redis")]
)
def test_only_for_a_server_that_was_opened_reports_wait_in_the_spool(
    spec: BusSpec, monkeypatch: pytest.MonkeyPatch, url: str, name: str
) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    (check,) = examine_bus(spec)
    assert (check.name, check.health) == (name, Health.DAMAGED)
    assert "correct REDIS_URL" in check.remedy and "forward" not in check.remedy


def test_a_bus_without_a_server_that_fails_does_not_send_to_forward(
    spec: BusSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_bus: SpoolBus, topic: str) -> int:
        assert topic == TOPIC
        raise TransientError("the folder cannot be read")

    monkeypatch.setattr(SpoolBus, "pending", fail)
    (check,) = examine_bus(spec)
    assert check.health is Health.DAMAGED and "REDIS_URL" in check.remedy and "forward" not in check.remedy


def test_for_a_server_that_is_away_reports_wait_in_the_spool(spec: BusSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    (check,) = examine_bus(spec._replace(config=spec.config.model_copy(update={"connect_attempts": 1})))
    assert check.health is Health.DAMAGED and "`simic bus forward` sends them on" in check.remedy
