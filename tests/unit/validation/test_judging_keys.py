"""A judgement or a collection draws no host of the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from simic.app.container import Container
from simic.app.training_hosts import training_keys
from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.hosts.host_sets import host_set
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.validation.judging_keys import KEY_STRIDE, first_key, require_own_keys
from simic.validation.report import held_out_hosts

SMALL = 200


def test_a_draw_ends_before_the_first_key_of_the_next_one() -> None:
    start = first_key(3)
    keys = [start, start + KEY_STRIDE - 1]
    assert require_own_keys(keys, start) == keys
    assert require_own_keys([], start) == []
    with pytest.raises(ConfigError, match=r"3 hosts are too many for one draw: the first 2 are its own"):
        require_own_keys([*keys, first_key(4)], start)


def test_a_collection_of_few_families_that_reaches_the_next_one_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simic.validation.judging_keys.KEY_STRIDE", SMALL)
    app = Container(Home(home), load_profile("quick"), 0)
    families = host_set("benchmark").families
    whole, one = WorldConfig(), WorldConfig(without=families[1:])
    count = SMALL // 2
    assert len(training_keys(app, whole, count, "explore", 0, 0)) == count
    with pytest.raises(ConfigError, match="leave out fewer families"):
        training_keys(app, one, count, "explore", 0, 0)


def test_a_judgement_that_reaches_the_next_one_is_refused_before_a_host_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simic.validation.judging_keys.KEY_STRIDE", SMALL)
    assert held_out_hosts(1, WorldConfig(), TrialConfig(hosts_per_family=1), 5)
    with pytest.raises(ConfigError, match="ask for fewer at a time"):
        held_out_hosts(1, WorldConfig(), TrialConfig(hosts_per_family=1), SMALL)
