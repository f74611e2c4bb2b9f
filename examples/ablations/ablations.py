"""The recipes of this folder, each trained with several seeds and judged on the same hosts, as one page.

Usage: python examples/ablations/ablations.py [--home FOLDER] [--out FILE.md] [--episodes 800] [--seeds 5] [--hosts 24]
    [--parts log,karn,night-0,night-1,night-2,rounds] [-o section.key=value]

A first home collects one exploring log and curates it once; `simic ab` trains the recipes of the parts `log` and `karn`
on it. Policies of the first recipe collect second logs in homes of their own, on hosts without two families, and the
recipes of `night-N` start from policy N on its log alone. Recipes of `rounds` collect their own experience.
Killed, the same command continues; remove the homes to begin anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LEFT_OUT = 'world.without=["cap", "select"]'
"""Families that the second log lacks: those on which growing gains most."""
SEALS_FISHER = "train.ewc.weight=1"
"""Seals the Fisher information of the first log with the policy; a training from nothing has no penalty."""

NIGHTS = 3
"""Number of second nights: another policy and another log can answer otherwise."""


class Part(NamedTuple):
    """One comparison: recipes of which each later one is compared with the first."""

    title: str
    about: str
    recipes: tuple[str, ...]


PARTS = {
    "log": Part(
        "From one log",
        "All recipes train on one log of exploring episodes, without a simulator.",
        ("vtrace", "ppo", "awr", "fitted_q", "cloning", "curriculum", "prioritised"),
    ),
    "karn": Part(
        "Karn",
        "The policies of both recipes are the same, trained on the log above; one consults Karn, trained on it too.",
        ("vtrace", "karn"),
    ),
    **{
        f"night-{seed}": Part(
            f"Second night {seed + 1} of {NIGHTS}",
            f"All recipes start from the policy that seed {seed} of V-trace gave on the log above and train on its "
            "episodes, in a log that lacks the families `cap` and `select`. Hosts of all families judge, so these two "
            "show what was forgotten.",
            ("second_night", "lora", "ewc"),
        )
        for seed in range(NIGHTS)
    },
    "rounds": Part(
        "In rounds",
        "Every recipe collects exploring episodes and trains, then twice collects with its policy and trains on.",
        ("rounds_vtrace", "rounds_ppo", "rounds_awr"),
    ),
}

Verb = Callable[[Path, Sequence[str]], str]
Comparison = dict[str, Any]
"""A receipt of `simic ab`."""


def simic(home: Path, words: Sequence[str]) -> str:
    """Run a verb in a home, with its progress on stderr, and return what it printed."""
    command = [sys.executable, "-m", "simic", "--home", str(home), *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - own words
    return done.stdout


class Ablations:
    """The homes, and the size of what is made in them."""

    def __init__(self, options: argparse.Namespace, verb: Verb = simic) -> None:
        self._verb, self._options = verb, options
        self._overrides = [word for one in options.override for word in ("-o", one)]

    def write(self) -> None:
        """Make every part and write the page with its plots."""
        made = {name: self._make(name) for name in self._options.parts}
        out: Path = self._options.out
        for name in made:
            shutil.copyfile(self._part(name).with_suffix(".png"), _plot(out, name))
        texts = {name: self._part(name).read_text("utf-8") for name in made}
        out.write_text("\n\n".join([*_summary(made), *_chapters(texts, out)]) + "\n", encoding="utf-8")

    def _make(self, name: str) -> Comparison:
        if name == "rounds":
            return self._compare(self._home(name), name, [])
        first = self._home("first")
        snapshot = self._log(first, "explore", self._options.episodes)
        if not name.startswith("night-"):
            return self._compare(first, name, ["--snapshot", snapshot])
        night = self._home(name)
        start = self._first_policy(snapshot, name.removeprefix("night-"), night)
        later = self._log(night, start, self._options.episodes // 2, "-o", LEFT_OUT)
        return self._compare(night, name, ["--snapshot", later, "--start", start])

    def _home(self, name: str) -> Path:
        path: Path = self._options.home / name
        return path

    def _first_policy(self, snapshot: str, seed: str, night: Path) -> str:
        """Return the policy that V-trace and ``seed`` give on ``snapshot``; the home ``night`` has it too."""
        first = self._home("first")
        trained = self._json(
            first, "train", "--snapshot", snapshot, "--start", "nothing", "--resume", "--seed", seed, "--profile",
            _file(PARTS["log"].recipes[0]), "-o", SEALS_FISHER, *self._overrides,
        )  # fmt: skip
        for name in ("keys", f"policies/{trained['digest']}"):  # the second home trusts what the first one sealed
            if not (night / "data" / name).exists():
                shutil.copytree(first / "data" / name, night / "data" / name)
        return str(trained["digest"])[:12]

    def _log(self, home: Path, controller: str, episodes: int, *settings: str) -> str:
        """Collect a log unless there is one, and return its snapshot; landed rows and snapshots are not made twice."""
        if not any((home / "data" / "receipts" / "collect").glob("*.json")):
            size = ("-o", f"collect.episodes={episodes}", *settings)
            self._verb(home, ["collect", "--controller", controller, *size, *self._overrides])
        self._verb(home, ["ingest"])
        return str(self._json(home, "curate", *self._overrides)["digest"])[:12]

    def _compare(self, home: Path, name: str, given: Sequence[str]) -> Comparison:
        home.mkdir(parents=True, exist_ok=True)
        size = ("--seeds", str(self._options.seeds), "--hosts", str(self._options.hosts))
        out = ("--against-first", "--out", str(self._part(name)))
        found: Comparison = self._json(
            home, "ab", *map(_file, PARTS[name].recipes), *given, *size, *out, *self._overrides
        )
        return found

    def _part(self, name: str) -> Path:
        """Return the page that `simic ab` writes for a part."""
        return self._home(f"{name}.md")

    def _json(self, home: Path, *words: str) -> Any:
        return json.loads(self._verb(home, [*words, "--json"]))


def _file(recipe: str) -> str:
    return str((HERE / f"{recipe}.toml").relative_to(ROOT))


def _plot(page: Path, part: str) -> Path:
    return page.with_name(f"{page.stem}-{part}.png")


def _summary(made: dict[str, Comparison]) -> Iterator[str]:
    """Return the head of the page: every recipe against the first of its part, in points."""
    yield "# Ablations"
    yield (
        "`make ablations` writes this page: recipes of [examples/ablations](../examples/ablations/README.md), each "
        "trained with several seeds and judged on the same hosts. A recipe differs from the first one of its part in "
        "the settings shown. The verdict is that of a rank test over trainings and not of the interval, so the two may "
        "differ ([ADR 43](adr/0043-recipes-are-compared-over-trainings.md)). A second night trains again from a "
        "policy, on a log that lacks two families. What is not better in every comparison stays off by default."
    )
    header = ("part", "recipe", "settings", "return", "over never growing", "against", "difference", "verdict")
    rows = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, found in made.items():
        pairs = {one["recipe"]: one for one in found["pairs"]}
        for arm in found["recipes"]:
            pair = pairs.get(arm["name"])
            settings = ", ".join(f"`{key}={value}`" for key, value in arm["settings"].items())
            figures = (f"{arm['mean_return']:.1f}", f"{arm['over_wait']:+.1f}")
            verdict = ("", "-", "") if pair is None else (pair["against"], _interval(pair), pair["verdict"])
            rows.append(f"| {' | '.join((PARTS[name].title, arm['name'], settings, *figures, *verdict))} |")
    yield "\n".join(rows)


def _interval(pair: dict[str, Any]) -> str:
    found = pair["difference"]
    return f"{found['mean']:+.1f} [{found['lower']:+.1f}, {found['upper']:+.1f}]"


def _chapters(texts: dict[str, str], out: Path) -> Iterator[str]:
    """Return the pages of the parts as chapters of one page."""
    for name, text in texts.items():
        yield f"## {PARTS[name].title}"
        yield PARTS[name].about
        body = text.split("\n\n", 1)[1].replace(f"]({name}.png)", f"]({_plot(out, name).name})")
        yield "\n".join(f"#{line}" if line.startswith("## ") else line for line in body.rstrip().splitlines())


def _parts(words: str) -> list[str]:
    chosen = words.split(",")
    if unknown := [name for name in chosen if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]}; parts: {', '.join(PARTS)}")
    return chosen


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, default=Path("build/ablations"), help="folder of the homes")
    parser.add_argument("--out", type=Path, default=Path("docs/ablations.md"), help="the page; plots lie beside it")
    parser.add_argument("--episodes", type=int, default=800, help="episodes of the first log; the second has half")
    parser.add_argument("--seeds", type=int, default=5, help="training seeds of each recipe")
    parser.add_argument("--hosts", type=int, default=24, help="judging hosts of each family")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"any of {','.join(PARTS)}, in this order")
    parser.add_argument("-o", "--override", action="append", default=[], help="a setting of all verbs")
    return parser.parse_args(arguments)


def main() -> None:
    """Write the page."""
    os.chdir(ROOT)  # the page names its recipes from there
    Ablations(parse()).write()


if __name__ == "__main__":
    main()
