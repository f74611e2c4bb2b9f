"""One order of controllers and families, whoever shows them."""

from __future__ import annotations

from simic.contracts.controllers import COMPARISON_CONTROLLERS, CONTROLLER_ORDER, SEARCHED, TRIAL_CONTROLLERS
from simic.controllers.plugins import CONTROLLERS
from simic.validation.criteria.return_over import BASELINES
from simic.validation.table import controller_rank, families_in_order


def test_every_list_of_controllers_follows_the_one_order() -> None:
    for names in (COMPARISON_CONTROLLERS, BASELINES, TRIAL_CONTROLLERS):
        assert sorted(names, key=controller_rank) == list(names)
    assert set(CONTROLLER_ORDER) == {*CONTROLLERS.names(), *SEARCHED, "champion", "candidate"}


def test_policies_under_names_of_their_own_stand_before_the_champion_in_the_order_they_were_named() -> None:
    names = ["candidate", "champion", "tamiyo/2 (b)", "policy a", "oracle", "wait"]
    expected = ["wait", "oracle", "tamiyo/2 (b)", "policy a", "champion", "candidate"]
    assert sorted(names, key=controller_rank) == expected


def test_families_stand_as_their_set_lists_them_and_strangers_last() -> None:
    assert families_in_order("benchmark", ["zeta", "fine", "cap", "alpha", "gain", "cap"]) == [
        "cap", "gain", "fine", "alpha", "zeta",
    ]  # fmt: skip
    assert families_in_order("own", ["b", "a", "b"]) == ["a", "b"]
