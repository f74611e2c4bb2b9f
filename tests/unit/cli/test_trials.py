"""The search verb: what it asks for and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from support.builders.plan_books import fitted_tree, make_book

from simic.cli.options import _split
from simic.cli.trials import BookPart, search, trials
from simic.contracts.controllers import Plan, PlanBook, TreeLeaf
from simic.contracts.errors import ConfigError
from simic.contracts.results.trials import TrialReport
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.runtime.home import Home
from simic.runtime.progress import RichProgress
from simic.validation.baselines.plan_book import searched_world, write_book


def test_a_search_shows_how_far_it_is_and_writes_one_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rules and plans of the named set, drawn by the named seed, in one file."""
    book = make_book(Plan(), {}, set="compound")
    asked: list[dict[str, Any]] = []

    def stand_in(world: WorldConfig, reward: object, **options: Any) -> PlanBook:
        asked.append({"set": world.set, **options})
        with options["progress"].task("plans 1/4", 1) as advance:
            advance(1)
        return book

    monkeypatch.setattr("simic.validation.baselines.search.search_plans", stand_in)
    path = tmp_path / "compound.json"
    search(out=path, world_set="compound", seed=4)
    assert PlanBook.model_validate_json(path.read_bytes()) == book
    (call,) = asked
    assert (call["set"], call["seed"], type(call["progress"])) == ("compound", 4, RichProgress)
    printed = capsys.readouterr()
    assert str(path) in printed.out
    assert "plans 1/4: 1/1" in printed.err


def test_a_search_without_a_file_keeps_its_book_in_the_home(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = make_book(Plan(), {}, set="compound")
    monkeypatch.setattr("simic.validation.baselines.search.search_plans", lambda *_, **__: book)
    search(world_set="compound")
    path = home / "data" / "plans" / "compound.json"
    assert PlanBook.model_validate_json(path.read_bytes()) == book
    assert str(path) in capsys.readouterr().out
    assert [item.name for item in path.parent.iterdir()] == ["compound.json"]
    search(world_set="compound", as_json=True)
    assert PlanBook.model_validate_json(capsys.readouterr().out) == book


def test_the_tree_alone_keeps_plans_and_rules_of_the_present_book(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A book of an earlier version gets its tree; an outdated one is refused before a host is grown."""
    digest = searched_world(WorldConfig(set="compound"), RewardConfig())
    book = make_book(Plan(), {}, set="compound", world_digest=digest, seed=3)
    path = home / "data" / "plans" / "compound.json"
    write_book(book, path)
    tree = fitted_tree([TreeLeaf(plan=0)], [Plan()])

    def stand_in(world: WorldConfig, found: PlanBook, **_: Any) -> PlanBook:
        assert (world.set, found) == ("compound", book)
        return found.model_copy(update={"symptom": tree})

    monkeypatch.setattr("simic.app.evidence.plan_books.add_tree", stand_in)
    search(world_set="compound", only=BookPart.SYMPTOM)
    assert PlanBook.model_validate_json(path.read_bytes()) == book.model_copy(update={"symptom": tree})
    write_book(book.model_copy(update={"world_digest": "0" * 64}), path)
    with pytest.raises(ConfigError, match="other hosts"):
        search(world_set="compound", only=BookPart.SYMPTOM)


def test_lf61_hosts_are_named_or_drawn_from_a_split_and_not_both() -> None:
    with pytest.raises(ConfigError, match="--host-keys names the hosts, so --split has no meaning"):
        trials(controllers="random", host_keys="0:4", split=Split.VALIDATION)
    with pytest.raises(ConfigError, match="--host-keys names the hosts, so --hosts has no meaning"):
        trials(controllers="random", host_keys="0:4", hosts=2)
    with pytest.raises(ConfigError, match="--host-keys names the hosts, so --draw has no meaning"):
        trials(controllers="random", host_keys="0:4", draw=1)
    with pytest.raises(typer.BadParameter, match="expected train, validation, test, found 'valid'"):
        _split("valid")


def test_costs_are_always_shown_other_rents_and_static_networks_if_asked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Home(home).create()
    asked: dict[str, Any] = {
        "controllers": "random",
        "host_keys": "0:4",
        "override": ["world.horizon=4", "world.workers=1"],
    }
    trials(**asked)
    plain = capsys.readouterr().out
    assert "extra compute" in plain and "rent x" not in plain and "minus static" not in plain
    trials(**asked, rent_sweep=True, static=True)
    shown = capsys.readouterr().out
    assert "rent x 0.25" in shown and "test minus static" in shown
    trials(**asked, rent_sweep=True, static=True, as_json=True)
    found = TrialReport.model_validate_json(capsys.readouterr().out)
    random = next(row for row in found.controllers if row.controller == "random")
    assert [one.factor for one in random.by_rent] == [0.0, 0.25, 1.0, 4.0, 16.0]
    assert [one.same for one in random.static] == ["epochs", "compute"]
