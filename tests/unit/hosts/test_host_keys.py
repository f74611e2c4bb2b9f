"""Keys name hosts; splits never share one."""

from __future__ import annotations

import pytest

from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split, split_of
from simic.hosts.keys import KEY_LIMIT, SETS, draw_keys, identify

FAMILIES = SETS["benchmark"].families


def test_a_key_fixes_its_family() -> None:
    hosts = identify("benchmark", [0, 1, 2, 3, 4, 5, 12])
    assert [host.family for host in hosts] == ["cap", "select", "gain", "noisy", "fine", "cap", "gain"]
    assert hosts[-1].key == 12


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("count", [5, 23])
def test_drawn_keys_are_balanced_ascending_and_of_their_split(split: Split, count: int) -> None:
    keys = draw_keys("benchmark", split, count)
    assert keys == sorted(set(keys))
    assert len(keys) == count
    assert all(split_of("benchmark", key) is split for key in keys)
    found = [sum(key % 5 == family for key in keys) for family in range(5)]
    assert max(found) - min(found) <= 1


def test_later_draws_continue_without_overlap() -> None:
    first = draw_keys("benchmark", Split.TRAIN, 20)
    second = draw_keys("benchmark", Split.TRAIN, 20, start=first[-1] + 1)
    assert not set(first) & set(second)
    assert draw_keys("benchmark", Split.TRAIN, 0) == []


def test_wrong_names_and_keys_are_configuration_errors() -> None:
    with pytest.raises(ConfigError, match="benchmark"):
        identify("benchmrk", [0])
    for key in (-1, KEY_LIMIT):
        with pytest.raises(ConfigError, match="host keys"):
            identify("benchmark", [key])
    with pytest.raises(ConfigError, match="fewer than 5 test"):
        draw_keys("benchmark", Split.TEST, 5, start=KEY_LIMIT - 3)
