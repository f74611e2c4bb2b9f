"""Whether a plan book still speaks of the hosts as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.books import make_book

from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import Plan
from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split, split_of
from simic.controllers import plans
from simic.controllers.plans import load_plans, plan_path
from simic.validation import book as book_module
from simic.validation.book import book_digest, current_book, searched_world, write_book


def test_a_book_searched_on_other_hosts_is_outdated_and_says_what_renews_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "PLANS_DIRECTORY", tmp_path)
    with pytest.raises(ConfigError, match=r"no plan book.*simic plans search --set toy --out .*toy\.json"):
        current_book("toy")
    book = make_book(Plan(), {}, horizon=12, world_digest=searched_world("toy", 12, RewardConfig()))
    write_book(book, plan_path("toy"))
    assert current_book("toy") == book
    digest = book_digest("toy")
    monkeypatch.setattr(book_module, "tree_digest", lambda *_: "f" * 64)
    with pytest.raises(ConfigError, match=r"other hosts.*simic plans search --set toy --out .*toy\.json"):
        book_digest("toy")
    renewed = make_book(Plan(), {}, horizon=12, world_digest=searched_world("toy", 12, RewardConfig()))
    write_book(renewed, plan_path("toy"))
    assert book_digest("toy") != digest


@pytest.mark.parametrize(
    "other", [("both", 20, RewardConfig()), ("toy", 21, RewardConfig()), ("toy", 20, RewardConfig(rent=1.0))]
)
def test_set_horizon_and_reward_make_another_world(other: tuple[str, int, RewardConfig]) -> None:
    assert searched_world(*other) != searched_world("toy", 20, RewardConfig())


def test_the_shipped_book_holds_no_test_host_and_a_plan_for_each_family() -> None:
    book = load_plans("benchmark")
    for keys in (book.host_keys, book.confirm_keys, book.heuristic.host_keys):
        assert {split_of("benchmark", key) for key in keys} == {Split.TRAIN}
    assert set(book.by_family) == {"cap", "select", "gain", "noisy", "fine"}
    oracle = float(np.mean([worth.mean for worth in book.family_over_wait.values()]))
    assert 0 < book.blind_over_wait.lower <= book.blind_over_wait.mean < oracle


def test_the_shipped_rules_are_no_worse_than_those_written_down_by_hand() -> None:
    found = load_plans("benchmark").heuristic
    assert found.over_wait.lower > 0
    assert found.over_wait.mean >= found.by_hand_over_wait.mean


def test_the_shipped_book_was_searched_on_the_shipped_hosts() -> None:
    """A change in the hosts makes another world; then `simic plans search --set benchmark --out ...` has to follow."""
    assert load_plans("benchmark").world_digest == searched_world("benchmark", WorldConfig().horizon, RewardConfig())
