"""The script behind `make ablations`, shrunken: two homes, two pages; and its recipes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
from support.servers.forked_commands import run_command

from simic.app.recipes import differing_settings
from simic.cli.recipes import parse_recipes
from simic.contracts.recipes import RecipeComparison

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ablations"
SMALL = (
    "world.horizon=6", "world.workers=1", "train.min_experiences=20", "train.min_commit_rate=0", "train.q_updates=2",
    "train.distil_passes=2", "train.batch_sequences=8", "train.vtrace_passes=1", "train.cloning_passes=1",
    "train.value_passes=1", "train.network.hidden=8", "train.network.layers=1", "trial.bootstrap_samples=200",
)  # fmt: skip


def test_recipes_differ_from_the_first_of_their_page_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    module = import_module("ablations")
    assert {path.stem for path in EXAMPLE.glob("*.toml")} == {*module.FIRST, *module.SECOND}
    for names in (module.FIRST, module.SECOND):
        settings = differing_settings(parse_recipes([str(EXAMPLE / f"{name}.toml") for name in names], None))
        assert all(one.startswith("train.") for own in settings for one in own)
        assert len({json.dumps(own) for own in settings}) == len(names), "no two are the same"


def test_both_pages_are_written_and_a_second_call_makes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    module = import_module("ablations")
    monkeypatch.setattr(module, "FIRST", module.FIRST[:1] + module.FIRST[-1:])
    asked: list[tuple[str, str]] = []

    def verb(home: Path, words: Sequence[str]) -> str:
        asked.append((home.name, words[0]))
        done = run_command(*words, env={**os.environ, "SIMIC_HOME": str(home)}, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    overrides = [word for one in SMALL for word in ("-o", one)]
    sizes = ["--episodes", "40", "--seeds", "1", "--hosts", "2"]
    options = module.parse(["--home", str(tmp_path), "--out", str(tmp_path), *sizes, *overrides])
    ablations = module.Ablations(options, verb)
    ablations.second(ablations.first())
    parts = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/data/ab/*.json"))]
    assert len(parts) == len(module.FIRST) + len(module.SECOND)
    assert asked.count(("first", "collect")) == asked.count(("second", "collect")) == 1

    first, second = (_comparison(tmp_path / name) for name in ("first", "second"))
    assert [one.name for one in first.recipes] == list(module.FIRST)
    assert first.start_digest is None
    assert second.start_digest is not None
    assert second.is_against_first
    for name in ("ablations.md", "ablations-second-night.md"):
        text = (tmp_path / name).read_text()
        assert "simic ab examples/ablations/" in text
        assert (tmp_path / name).with_suffix(".png").is_file()
    assert f"from policy {second.start_digest[:12]}" in (tmp_path / "ablations-second-night.md").read_text()
    query = "SELECT DISTINCT family FROM episodes ORDER BY 1"
    found = json.loads(verb(tmp_path / "second", ["sql", query, "--json"]))
    assert [row["family"] for row in found] == ["fine", "gain", "noisy"]

    ablations.second(ablations.first())
    assert asked.count(("first", "collect")) == asked.count(("second", "collect")) == 1
    assert parts == [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/data/ab/*.json"))]


def _comparison(home: Path) -> RecipeComparison:
    (path, *_) = sorted((home / "data" / "receipts" / "ab").glob("*.json"))
    return RecipeComparison.model_validate_json(path.read_bytes())
