"""The plain training loop of examples/grow_loop, with and without fresh statistics of batch normalisation."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "grow_loop"


def scores(done: dict[str, Any], arm: str) -> list[float]:
    return [one["score"] for one in done["trainings"] if one["arm"] == arm]


def test_fresh_statistics_change_both_accuracies_and_not_what_grows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    module = import_module("grow_loop")

    def found(*words: str) -> dict[str, Any]:
        """Return what the example prints after two trainings of each kind."""
        monkeypatch.setattr(sys, "argv", ["grow_loop.py", "--runs", "2", "--small", "--json", *words])
        assert module.main() == 0
        done: dict[str, Any] = json.loads(capsys.readouterr().out)
        return done

    usual, fresh = found(), found("--fresh-statistics")
    assert usual["kept"] == fresh["kept"] != {}
    for arm in ("plain", "grown"):
        assert scores(usual, arm) != scores(fresh, arm)
    gains = [grown - plain for plain, grown in zip(scores(fresh, "plain"), scores(fresh, "grown"), strict=True)]
    assert fresh["differences"][0]["difference"]["mean"] == pytest.approx(sum(gains) / len(gains))
