"""The search verb: what it asks for and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.builders.plan_books import make_book

from simic.cli.trials import search
from simic.contracts.config import WorldConfig
from simic.contracts.controllers import Plan, PlanBook
from simic.runtime.progress import RichProgress


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
    path = tmp_path / "new" / "compound.json"
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
