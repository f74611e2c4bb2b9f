"""One scale, told by the settings: no set of hosts has one of its own that another would lack."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from support.builders.reports import episode
from support.homes.pipeline import curate_all, drop, ingest_all

from simic.catalogue.query import query
from simic.contracts.errors import ConfigError
from simic.contracts.rewards import RewardConfig
from simic.hosts.plugins import is_modular
from simic.runtime.home import Home


def progress(home: Home, set_name: str, scale: float) -> list[float]:
    """Points for progress, step by step, of one episode that says it is of that set."""
    drop(home, "a", episode(3, set_name=set_name))
    ingest_all(home)
    curate_all(home, reward=RewardConfig(accuracy_scale=scale))
    return [row["reward_progress"] for row in query(home, "SELECT reward_progress FROM rewards ORDER BY step")]


def test_m4_a_set_that_nobody_heard_of_has_the_same_scale_as_the_others(tmp_path: Path) -> None:
    known = progress(Home(tmp_path / "known"), "benchmark", 100.0)
    assert any(known)
    assert progress(Home(tmp_path / "new"), "nobody_heard_of_it", 100.0) == known
    assert progress(Home(tmp_path / "scaled"), "benchmark", 200.0) == pytest.approx([2 * points for points in known])


@pytest.mark.parametrize("scale", [None, 0, -1, float("nan")])
def test_m4_without_a_scale_there_is_no_reward(scale: float | None) -> None:
    with pytest.raises(ValidationError, match="accuracy_scale"):
        RewardConfig(accuracy_scale=scale)  # type: ignore[arg-type]


def test_m4_hosts_of_an_unknown_set_are_refused_with_the_names_of_the_known() -> None:
    with pytest.raises(ConfigError, match=r"'nobody_heard_of_it'.*known: "):
        is_modular("nobody_heard_of_it")
