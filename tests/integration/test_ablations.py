"""The script behind `make ablations`, shrunken; and its recipes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
from support.servers.forked_commands import run_command

from simic.app.comparisons.recipes import differing_settings
from simic.cli.recipes import parse_recipes
from simic.contracts.results.comparison import LEVEL
from simic.contracts.results.recipes import RecipeComparison
from simic.validation.recipes import least_p

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ablations"
SMALL = (
    "world.horizon=6", "world.workers=1", "train.min_experiences=20", "train.min_commit_rate=0", "train.q_updates=2",
    "train.distil_passes=2", "train.batch_sequences=8", "train.vtrace_passes=1", "train.cloning_passes=1",
    "train.value_passes=1", "train.round_passes=1", "train.network.hidden=8", "train.network.layers=1",
    "karn.passes=2", "karn.min_examples=2", "collect.episodes=40", "collect.rounds=1",
    "collect.round_episodes=10", "trial.bootstrap_samples=200",
)  # fmt: skip


def test_recipes_differ_from_the_first_of_their_part_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    module = import_module("ablations")
    assert {path.stem for path in EXAMPLE.glob("*.toml")} == {
        name for one in module.PARTS.values() for name in one.recipes
    }
    for part in module.PARTS.values():
        recipes = parse_recipes([str(EXAMPLE / f"{name}.toml") for name in part.recipes], None)
        settings = differing_settings(recipes)
        assert all(one.startswith("train.") or one == "controller.karn" for own in settings for one in own)
        assert len({json.dumps(own) for own in settings}) == len(recipes), "no two are the same"
        assert least_p(5, len(recipes) - 1) <= LEVEL, "five seeds, the default, can show a difference"


def test_the_page_has_every_part_and_a_second_call_makes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    module = import_module("ablations")
    log, rounds = module.PARTS["log"], module.PARTS["rounds"]
    monkeypatch.setitem(module.PARTS, "log", log._replace(recipes=(log.recipes[0], log.recipes[-1])))
    for seed in range(1, module.NIGHTS):
        monkeypatch.delitem(module.PARTS, f"night-{seed}")
    monkeypatch.setitem(module.PARTS, "rounds", rounds._replace(recipes=rounds.recipes[:2]))
    asked: list[tuple[str, str]] = []

    def verb(home: Path, words: Sequence[str]) -> str:
        asked.append((home.name, words[0]))
        done = run_command(*words, env={**os.environ, "SIMIC_HOME": str(home)}, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    overrides = [word for one in SMALL for word in ("-o", one)]
    sizes = ["--episodes", "40", "--seeds", "1", "--hosts", "2"]
    page = tmp_path / "page.md"
    options = module.parse(["--home", str(tmp_path / "homes"), "--out", str(page), *sizes, *overrides])
    ablations = module.Ablations(options, verb)
    ablations.write()
    parts = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("homes/*/data/ab/*.json"))]
    assert len(parts) == 2 + 1 + 3 + 2, "both parts on the first log have one recipe in common"
    assert asked.count(("first", "collect")) == asked.count(("night-0", "collect")) == 1

    log, karn = _comparisons(tmp_path / "homes" / "first")
    (second,) = _comparisons(tmp_path / "homes" / "night-0")
    assert log.snapshot_digest == karn.snapshot_digest is not None
    assert [one.name for one in log.recipes] == ["vtrace", "prioritised"]
    assert [one.policies[0].karn_digest is None for one in karn.recipes] == [True, False]
    assert (log.start_digest, second.is_against_first) == (None, True)
    text = page.read_text()
    assert f"from policy {str(second.start_digest)[:12]}" in text
    for name, part in module.PARTS.items():
        assert f"\n## {part.title}\n" in text
        assert f"](page-{name}.png)" in text
        assert page.with_name(f"page-{name}.png").is_file()
        assert all(f"| {part.title} | {recipe} | `" in text for recipe in part.recipes)
    query = "SELECT DISTINCT family FROM episodes ORDER BY 1"
    found = json.loads(verb(tmp_path / "homes" / "night-0", ["sql", query, "--json"]))
    assert [row["family"] for row in found] == ["fine", "gain", "noisy"]

    ablations.write()
    assert asked.count(("first", "collect")) == asked.count(("night-0", "collect")) == 1
    assert parts == [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("homes/*/data/ab/*.json"))]


def _comparisons(home: Path) -> list[RecipeComparison]:
    """In the order in which they were made."""
    found = [
        RecipeComparison.model_validate_json(path.read_bytes()) for path in (home / "data/receipts/ab").glob("*.json")
    ]
    return sorted(found, key=lambda one: one.started_at)
