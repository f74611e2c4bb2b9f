"""Keys name hosts; splits never share one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from support.fakes.custom_hosts import ToyFamily, install

from simic.contracts.errors import ConfigError
from simic.contracts.names import KEY_LIMIT
from simic.contracts.splits import Split, split_of
from simic.hosts.host_sets import (
    MODULES,
    SETS,
    HostSet,
    draw_keys,
    host_set,
    identify,
)

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


@pytest.mark.parametrize("count", [6, 20])
def test_families_that_are_left_out_are_never_drawn_and_the_others_stay_balanced(count: int) -> None:
    keys = draw_keys("benchmark", Split.TRAIN, count, without=("noisy", "cap"))
    assert len(keys) == count
    found = Counter(host.family for host in identify("benchmark", keys))
    assert set(found) == {"select", "gain", "fine"}
    assert max(found.values()) - min(found.values()) <= 1


def test_a_family_that_the_set_lacks_and_the_last_one_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match=r"no family nosy; its families: cap, select, gain, noisy, fine"):
        draw_keys("benchmark", Split.TRAIN, 5, without=("nosy",))
    with pytest.raises(ConfigError, match="no family is left"):
        draw_keys("noisy", Split.TRAIN, 5, without=("noisy",))


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


def test_a_familys_name_is_a_set_of_that_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_set("cap") == HostSet(("cap",), seeds_max=1)
    install(monkeypatch, {"toy": ToyFamily()})
    assert host_set("toy") == HostSet(("toy",), seeds_max=2, kind=MODULES, needs_book=False)
    keys = draw_keys("toy", Split.TEST, 3)
    assert [host.family for host in identify("toy", keys)] == ["toy"] * 3


class Bare:
    """Inherits nothing."""

    def host(self, key: int) -> None: ...


def test_what_a_family_does_not_say_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"bare": Bare()})
    assert host_set("bare") == HostSet(("bare",), seeds_max=1, kind=MODULES, needs_book=False)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("seeds_max", 0, "seeds_max must be a whole number from 1, found 0"),
        ("seeds_max", 1.5, "seeds_max must be a whole number from 1, found 1.5"),
        ("blueprints", ("norm", "nrom"), r"unknown blueprints \['nrom'\]; known blueprints: .*norm"),
    ],
)
def test_a_family_that_wants_the_impossible_is_refused(
    attribute: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Bare()
    setattr(family, attribute, value)
    install(monkeypatch, {"bare": family})
    with pytest.raises(ConfigError, match=f"family 'bare'.*{message}"):
        host_set("bare")


@pytest.mark.parametrize(
    ("thing", "found"),
    [(Bare, "the class Bare"), (object(), "neither"), (type("Both", (Bare,), {"recipe": print})(), "host")],
)
def test_a_family_is_an_instance_with_one_kind_of_host(
    thing: object, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, {"odd": thing})
    with pytest.raises(ConfigError, match=f"family 'odd': expected an instance with either.*{found}"):
        host_set("odd")


def test_shipped_sets_cost_no_torch() -> None:
    program = (
        "import sys; from simic.hosts.host_sets import SETS, identify; [identify(name, range(9)) for name in SETS];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
