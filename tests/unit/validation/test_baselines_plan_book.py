"""Whether a plan book still speaks of the hosts as they are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.builders.plan_books import make_book

from simic.contracts.controllers import Plan
from simic.contracts.errors import ConfigError, DatasetError
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.lifecycle import GovernorConfig, LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split, split_of
from simic.controllers import plans
from simic.controllers.plans import load_plans, plan_path
from simic.hosts.batched.images import pictures_digest
from simic.trust.canonical import digest_of
from simic.validation.baselines import plan_book as book_module
from simic.validation.baselines.plan_book import (
    book_differences,
    book_of,
    current_book,
    missing_book_message,
    searched_world,
    write_book,
)

TOY, USUAL = WorldConfig(set="toy"), RewardConfig()


def test_a_book_searched_on_other_hosts_is_outdated_and_says_what_renews_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "PLANS_DIRECTORY", tmp_path)
    with pytest.raises(ConfigError, match=r"no plan book.*simic plans search --set toy"):
        current_book("toy")
    book = make_book(
        Plan(), {}, horizon=12, world_digest=searched_world(WorldConfig(set="toy", horizon=12), RewardConfig())
    )
    write_book(book, plan_path("toy"))
    assert current_book("toy") == book
    digest = digest_of(current_book("toy"))
    monkeypatch.setattr(book_module, "tree_digest", lambda *_: "f" * 64)
    with pytest.raises(ConfigError, match=r"other hosts.*simic plans search --set toy"):
        digest_of(current_book("toy"))
    renewed = make_book(
        Plan(), {}, horizon=12, world_digest=searched_world(WorldConfig(set="toy", horizon=12), RewardConfig())
    )
    write_book(renewed, plan_path("toy"))
    assert digest_of(current_book("toy")) != digest


@pytest.mark.parametrize(
    "other",
    [
        (TOY.model_copy(update={"set": "both"}), USUAL),
        (TOY.model_copy(update={"horizon": 21}), USUAL),
        (TOY, RewardConfig(rent=1.0)),
    ],
)
def test_set_horizon_and_reward_make_another_world(other: tuple[WorldConfig, RewardConfig]) -> None:
    assert searched_world(*other) != searched_world(TOY, USUAL)


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


@pytest.mark.parametrize("set_name", ["benchmark", "compound", "images", "varied"])
def test_the_shipped_book_was_searched_on_the_shipped_hosts(set_name: str) -> None:
    """A change in the hosts makes another world; then `simic plans search --set NAME` has to follow."""
    assert load_plans(set_name).world_digest == searched_world(WorldConfig(set=set_name), RewardConfig())


def test_an_outdated_book_of_the_home_is_refused_and_neither_the_shipped_one_nor_none_stands_in(tmp_path: Path) -> None:
    write_book(make_book(Plan(), {}, set="benchmark"), tmp_path / "benchmark.json")
    write_book(make_book(Plan(), {}, set="own"), tmp_path / "own.json")
    assert current_book("benchmark").world_digest != "0" * 64
    for name in ("benchmark", "own"):
        remedy = rf"{tmp_path}/{name}\.json.*other hosts.*simic plans search --set {name}`"
        with pytest.raises(ConfigError, match=remedy):
            book_of(name, tmp_path, is_required=False)


def test_only_a_set_that_simic_does_not_ship_may_do_without_a_book(tmp_path: Path) -> None:
    assert book_of("own", tmp_path, is_required=False) is None
    with pytest.raises(ConfigError, match=r"no plan book for set 'own'; run `simic plans search --set own`"):
        book_of("own", tmp_path, is_required=True)
    with pytest.raises(ConfigError, match=r"no plan book for set 'region_few'"):
        book_of("region_few", tmp_path, is_required=False)
    book = make_book(Plan(), {}, set="own", world_digest=searched_world(WorldConfig(set="own"), RewardConfig()))
    write_book(book, tmp_path / "own.json")
    assert book_of("own", tmp_path, is_required=False) == book


def test_families_of_modules_need_no_book_and_others_do(tmp_path: Path) -> None:
    for name in ("trunks", "series_gru"):
        assert book_of(name, tmp_path, is_required=False) is None
    with pytest.raises(ConfigError, match="no plan book for set 'region_few'"):
        book_of("region_few", tmp_path, is_required=False)


def test_trunks_is_judged_without_a_book_until_there_is_one(tmp_path: Path) -> None:
    assert book_of("trunks", tmp_path, is_required=False) is None
    with pytest.raises(ConfigError, match=r"no plan book for set 'trunks'; run `simic plans search --set trunks`"):
        book_of("trunks", tmp_path, is_required=True)
    write_book(make_book(Plan(), {}, set="trunks"), tmp_path / "trunks.json")
    with pytest.raises(ConfigError, match="other hosts"):
        book_of("trunks", tmp_path, is_required=False)


def _archive(path: Path, seed: int = 0) -> str:
    with path.open("wb") as file:
        np.savez(file, images=np.random.default_rng(seed).random((500, 8, 8)), labels=np.arange(500) % 10)
    return str(path)


def test_a_missing_book_is_reported_after_missing_pictures_and_with_the_override_of_the_user(tmp_path: Path) -> None:
    missing, archive = str(tmp_path / "gone"), _archive(tmp_path / "my pictures")
    with pytest.raises(DatasetError, match=rf"found nothing at {missing}; see world\.images"):
        book_of("match", tmp_path, is_required=True, images=missing)
    command = f"simic plans search --set match -o 'world.images={archive}'"
    with pytest.raises(ConfigError, match=re.escape(f"no plan book for set 'match'; run `{command}`, which makes one")):
        book_of("match", tmp_path, is_required=True, images=archive)
    assert f"`{command}` makes one" in missing_book_message("match", ["oracle"], archive)


def test_a_book_of_other_pictures_is_refused(tmp_path: Path) -> None:
    """The shipped one is of the digits; one of the user's pictures is neither for the digits nor for others."""
    mine, other = _archive(tmp_path / "mine"), _archive(tmp_path / "other", seed=1)
    assert current_book("images").pictures_digest is None
    with pytest.raises(ConfigError, match=r"searched on other pictures \(digits\).*-o world\.images=.*mine`"):
        current_book("images", images=mine)
    digest = pictures_digest(mine)
    write_book(current_book("images").model_copy(update={"pictures_digest": digest}), tmp_path / "images.json")
    assert current_book("images", tmp_path, mine).pictures_digest == digest
    for images in (other, None):
        with pytest.raises(ConfigError, match="other pictures"):
            current_book("images", tmp_path, images)
    assert current_book("benchmark", images=mine).set == "benchmark"  # its hosts read no pictures


@pytest.mark.parametrize("set_name", ["benchmark", "compound", "images", "varied"])
def test_the_shipped_trees_are_fitted_on_training_hosts_of_their_own_and_beat_the_blind_plan(set_name: str) -> None:
    book = load_plans(set_name)
    assert book.symptom is not None
    fitted, others = set(book.symptom.host_keys), {*book.host_keys, *book.confirm_keys, *book.heuristic.host_keys}
    assert {split_of(set_name, key) for key in fitted} == {Split.TRAIN}
    assert not fitted & others
    assert book.symptom.over_wait.n == book.blind_over_wait.n
    assert book.symptom.over_wait.lower > book.blind_over_wait.mean


def test_lf51_each_setting_that_decides_the_best_plan_is_compared_with_that_of_the_run() -> None:
    book, world = make_book(Plan(), {}), WorldConfig()
    assert book_differences(book, world, RewardConfig()) == []
    assert book_differences(None, world.model_copy(update={"horizon": 10}), RewardConfig()) == []
    other = world.model_copy(update={"horizon": 10, "prune_epochs": 3, "blend": "add", "chunk": 8})
    assert book_differences(book, other, RewardConfig(rent=1.0)) == [
        "world.horizon 10 instead of 20",
        "world.prune_epochs 3 instead of 0",
        "world.blend add instead of own",
        "curate.reward.rent 1.0 instead of 3.0",
    ]


def test_cr09_a_book_of_other_rules_is_another_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the rule that differs from those of the run; a book whose rules were changed by hand is outdated."""
    monkeypatch.setattr(plans, "PLANS_DIRECTORY", tmp_path)
    lifecycle, governor = LifecycleConfig(embargo_epochs=4), GovernorConfig(lost_accuracy=0.3)
    other = TOY.model_copy(update={"lifecycle": lifecycle, "governor": governor})
    own = make_book(Plan(), {}, lifecycle=lifecycle, governor=governor, world_digest=searched_world(other, USUAL))
    write_book(own, plan_path("toy"))
    assert book_differences(current_book("toy"), other, USUAL) == []
    assert book_differences(current_book("toy"), TOY, USUAL) == [
        "world.lifecycle.embargo_epochs 2 instead of 4",
        "world.governor.lost_accuracy 0.1 instead of 0.3",
    ]
    write_book(own.model_copy(update={"governor": GovernorConfig()}), plan_path("toy"))
    with pytest.raises(ConfigError, match="other hosts"):
        current_book("toy")


@pytest.mark.parametrize("law", [(3, "own"), (0, "add")])
def test_lf52_pruning_and_blending_make_another_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, law: tuple[int, str]
) -> None:
    prune_epochs, blend = law
    usual = searched_world(TOY, USUAL)
    own = searched_world(TOY.model_copy(update={"prune_epochs": prune_epochs, "blend": blend}), USUAL)
    assert own != usual
    monkeypatch.setattr(plans, "PLANS_DIRECTORY", tmp_path)
    write_book(make_book(Plan(), {}, prune_epochs=prune_epochs, blend=blend, world_digest=own), plan_path("toy"))
    assert (current_book("toy").prune_epochs, current_book("toy").blend) == law
    write_book(make_book(Plan(), {}, prune_epochs=prune_epochs, blend=blend, world_digest=usual), plan_path("toy"))
    with pytest.raises(ConfigError, match="other hosts"):
        current_book("toy")


def test_lf34_no_page_says_that_a_baseline_could_not_be_better() -> None:
    """Baselines are searched; neither the heuristic is as strong as can be, nor is the oracle a bound."""
    root = Path(__file__).parents[3]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "simic").rglob("*.py")]
    boasts = re.compile(r"as (high|strong|good) as (we|can|could)|oracle[^.|;]{0,40}\bupper bound", re.IGNORECASE)
    found = {path.name: boasts.findall(" ".join(path.read_text("utf-8").split())) for path in pages}
    assert {name: hits for name, hits in found.items() if hits} == {}
