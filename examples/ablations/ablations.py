"""The recipes of this folder, each trained with several seeds, as two pages: one log, and a second night.

Usage: python examples/ablations/ablations.py [--home FOLDER] [--out FOLDER] [--episodes 800] [--seeds 5] [--hosts 24]
    [-o section.key=value]

A first home collects one exploring log and curates it once; `simic ab` trains the recipes of FIRST on it. Then one
policy of the first recipe collects a second log in a second home, on hosts without two families, and the recipes of
SECOND start from that policy on this log alone. All families judge, so the page shows what was forgotten. Killed, the
same command continues; remove the homes to begin anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
FIRST = ("vtrace", "ppo", "awr", "fitted_q", "cloning", "curriculum", "prioritised")
SECOND = ("second_night", "lora", "ewc")
"""Recipes of each page; the others are compared with the first."""
LEFT_OUT = 'world.without=["cap", "select"]'
"""Families that the second log lacks: those on which growing gains most."""
SEALS_FISHER = "train.ewc.weight=1"
"""Seals the Fisher information of the first log with the policy; a training from nothing has no penalty."""

Verb = Callable[[Path, Sequence[str]], str]


def simic(home: Path, words: Sequence[str]) -> str:
    """Run a verb in a home, with its progress on stderr, and return what it printed."""
    command = [sys.executable, "-m", "simic", "--home", str(home), *words]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - own words
    return done.stdout


class Ablations:
    """Both homes, and the size of what is made in them."""

    def __init__(self, options: argparse.Namespace, verb: Verb = simic) -> None:
        self._verb, self._options = verb, options
        self._first, self._second = options.home / "first", options.home / "second"
        self._overrides = [word for one in options.override for word in ("-o", one)]

    def first(self) -> str:
        """Write the page of objectives and sampling; return the snapshot."""
        snapshot = self._log(self._first, "explore", self._options.episodes)
        self._compare(self._first, FIRST, "ablations.md", ["--snapshot", snapshot])
        return snapshot

    def second(self, snapshot: str) -> None:
        """Write the page of a second night, from the policy that seed 0 of the first recipe gives on ``snapshot``."""
        trained = self._json(
            self._first, "train", "--snapshot", snapshot, "--start", "nothing", "--resume", "--profile",
            self._recipe(FIRST[0]), "-o", SEALS_FISHER, *self._overrides,
        )  # fmt: skip
        for name in ("keys", f"policies/{trained['digest']}"):  # the second home trusts what the first one sealed
            if not (self._second / "data" / name).exists():
                shutil.copytree(self._first / "data" / name, self._second / "data" / name)
        start = str(trained["digest"])[:12]
        later = self._log(self._second, start, self._options.episodes // 2, "-o", LEFT_OUT)
        self._compare(self._second, SECOND, "ablations-second-night.md", ["--snapshot", later, "--start", start])

    def _log(self, home: Path, controller: str, episodes: int, *settings: str) -> str:
        """Collect a log unless there is one, and return its snapshot; landed rows and snapshots are not made twice."""
        if not any((home / "data" / "receipts" / "collect").glob("*.json")):
            size = ("-o", f"collect.episodes={episodes}", *settings)
            self._verb(home, ["collect", "--controller", controller, *size, *self._overrides])
        self._verb(home, ["ingest"])
        return str(self._json(home, "curate", *self._overrides)["digest"])[:12]

    def _compare(self, home: Path, recipes: Sequence[str], page: str, given: Sequence[str]) -> None:
        size = ("--seeds", str(self._options.seeds), "--hosts", str(self._options.hosts))
        out = ("--against-first", "--out", str(self._options.out / page))
        print(self._verb(home, ["ab", *map(self._recipe, recipes), *given, *size, *out, *self._overrides]))

    def _json(self, home: Path, *words: str) -> Any:
        return json.loads(self._verb(home, [*words, "--json"]))

    @staticmethod
    def _recipe(name: str) -> str:
        return str((HERE / f"{name}.toml").relative_to(ROOT))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "ablations", help="folder of the two homes")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the pages")
    parser.add_argument("--episodes", type=int, default=800, help="episodes of the first log; the second has half")
    parser.add_argument("--seeds", type=int, default=5, help="training seeds of each recipe")
    parser.add_argument("--hosts", type=int, default=24, help="judging hosts of each family")
    parser.add_argument("-o", "--override", action="append", default=[], help="a setting of all verbs")
    return parser.parse_args(arguments)


def main() -> None:
    """Write both pages."""
    ablations = Ablations(parse())
    ablations.second(ablations.first())


if __name__ == "__main__":
    main()
