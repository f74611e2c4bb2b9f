"""The worked example, installed as a user would install it, and grown by a policy that never saw it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.builders.observations import make_scene
from support.builders.profiles import write_tiny_profile

from simic.contracts.controllers import COMPARISON_CONTROLLERS, PlanBook
from simic.contracts.settings.network import NetworkConfig
from simic.controllers.features import encode
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.plans import PLANS_DIRECTORY
from simic.controllers.policy_files import describe, save_policy
from simic.hosts.host_sets import STANDARD
from simic.hosts.plugins import blueprint_names
from simic.trust.canonical import digest_of
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import seal

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_cnn"
NETWORK = NetworkConfig(hidden=8, layers=1, exploration=0.05)
VERBS = """
import json, sys
from simic.cli import main
for line in json.loads(sys.argv.pop()):
    sys.argv = ["simic", *line]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
SEARCH = """
import sys
from functools import partial
from simic.cli import main
from simic.validation.baselines import search
from simic.validation.baselines.halving import Rung
from simic.validation.baselines.symptom_tree import TreeSettings
plans = search.single_seeds
search.single_seeds = lambda *world: plans(*world)[::24]
search.SearchSettings = partial(
    search.SearchSettings, plan_rungs=(Rung(1_000, 1),), rule_candidates=2, rule_rungs=(Rung(1_000, 1),),
    extension_rungs=(Rung(1, 1),), duel_hosts=2, exchange_hosts=2, confirm_hosts=2,
    tree=TreeSettings(hosts=4, leaf_hosts=2),
)
main()
"""
"""The verb, with fewer candidates and hosts than it takes by itself."""


class Place(NamedTuple):
    """A machine on which the example was installed."""

    environment: dict[str, str]
    policy: Path

    def python(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=self.environment, cwd=self.environment["SIMIC_HOME"], check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def verb(self, *arguments: str | Path, code: int = 0) -> str:
        """The installed command; what it printed on stdout."""
        command = Path(sys.executable).with_name("simic")
        done = subprocess.run([command, *arguments], env=self.environment, check=False, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def fresh(self, home: Path) -> Place:
        """The same machine with nothing in its home but a tiny recipe."""
        home.mkdir()
        small = {"horizon": 4, "min_experiences": 20, "min_episodes": 3}
        write_tiny_profile(home / "tiny.toml", 0, 8, world_set="own_cnn", margin=1000.0, **small)
        return self._replace(environment={**self.environment, "SIMIC_HOME": str(home)})

    def simic(self, *lines: list[str]) -> list[dict[str, Any]]:
        """Verbs one after the other; their receipts."""
        decoder, text = json.JSONDecoder(), self.python("-c", VERBS, json.dumps([[*line, "--json"] for line in lines]))
        receipts = []
        while text := text.strip():
            receipt, end = decoder.raw_decode(text)
            receipts.append(receipt)
            text = text[end:]
        return receipts


class Judged(NamedTuple):
    """A fresh home after a run on the own set that no plan book was searched for."""

    place: Place
    profile: Path
    run: dict[str, Any]
    """The receipt."""


def sealed_policy(home: Path) -> Path:
    """Untrained, but willing to act; sealed before the example's blueprint was installed, and shy of ``dropout``."""
    names = blueprint_names()
    network = PolicyNetwork(NetworkShape.of(NETWORK, names), seed=2)
    network.set_normaliser(fit_normaliser(encode(make_scene(0, 60).observations), names))
    with torch.no_grad():
        network.op_head[-1].weight.mul_(100.0)
    germinated = [name for name in STANDARD if name != "dropout"]
    card = describe(
        network, NETWORK, set_name="benchmark", snapshot_digest=None, code_version="x", config_digest="d" * 64,
        germinated=germinated,
    )  # fmt: skip
    save_policy(home / "policy", network, card)
    signer = Signer(b"k" * 32)
    Keyring(home / "data" / "keys").trust(signer.public_bytes)
    seal(home / "policy", signer)
    return home / "policy"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """``pip install`` of the example, and a home with a policy in it."""
    folder = tmp_path_factory.mktemp("own_cnn")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", folder / "site", folder / "source"], check=True
    )
    home = folder / "home"
    path = os.pathsep.join(map(str, (folder / "site", ROOT)))
    return Place({**os.environ, "PYTHONPATH": path, "SIMIC_HOME": str(home), "COLUMNS": "200"}, sealed_policy(home))


@pytest.fixture(scope="module")
def judged(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    fresh, shipped = place.fresh(tmp_path_factory.mktemp("judged") / "home"), sorted(PLANS_DIRECTORY.iterdir())
    profile = Path(fresh.environment["SIMIC_HOME"]) / "tiny.toml"
    run = json.loads(fresh.verb("run", "--profile", profile, "--json", code=3))
    assert sorted(PLANS_DIRECTORY.iterdir()) == shipped
    return Judged(fresh, profile, run)


def test_the_example_is_grown_under_a_policy_and_compared(place: Place) -> None:
    few = ["--hosts", "2", "--epochs", "6", "--workers", "1"]
    table = place.python(EXAMPLE / "compare.py", "--policy", str(place.policy), *few)
    assert "2 hosts of set own_cnn" in table
    rows = {line.split()[0]: line for line in table.splitlines() if "%" in line}
    assert set(rows) >= {"random", "heuristic", "schedule", "policy"}
    assert str(place.policy) not in table, "a path would push the numbers off the screen"


def test_the_comparison_with_a_missing_champion_ends_with_a_message_and_its_exit_code(place: Place) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "compare.py", "--policy", "champion"],
        env=place.environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("ConfigError: ") and "champion" in done.stderr
    assert "Traceback" not in done.stderr


def test_verbs_know_the_familys_name_as_a_set(place: Place) -> None:
    world = ["--set", "own_cnn", "-o", "world.horizon=5", "-o", "world.workers=1"]
    collected, ingested, trials = place.simic(
        ["collect", *world, "--controller", str(place.policy), "--host-keys", "0:6"],
        ["ingest"],
        ["trials", *world, "--controllers", f"random,{place.policy}", "--host-keys", "0:2"],
    )
    assert (collected["set"], collected["episodes"], collected["governor_events"]) == ("own_cnn", 6, 0)
    assert collected["actions"]["GERMINATE"] > 0
    assert (ingested["landed"], ingested["quarantined"]) == (30, 0)
    assert trials["families"] == ["own_cnn"] * 2
    assert [row["illegal_actions"] for row in trials["controllers"]] == [0, 0, 0]


def test_a_fresh_home_trains_and_judges_on_the_own_set_without_a_book(judged: Judged) -> None:
    """The decision says what it lacks for want of a plan book."""
    trials, decision = judged.run["validation"]["trials"], judged.run["decision"]
    assert [row["controller"] for row in trials["controllers"]] == ["wait", "random", "heuristic", "candidate"]
    assert (trials["plans_digest"], trials["without_book"]) == (None, ["heuristic", "blind", "symptom", "oracle"])
    assert len(set(trials["host_keys"])) == 3, "more than hosts_per_family, because the gate asks for 3"
    criteria = {line["name"]: line for line in decision["criteria"]}
    assert criteria["episodes"]["verdict"] == "PASS"
    assert criteria["plan_book"]["evidence"].endswith("`simic plans search --set own_cnn` makes one")
    assert "default rules" in criteria["return_over_heuristic"]["evidence"]
    assert "return_over_blind" not in criteria


def test_a_book_searched_in_the_home_makes_another_judgement_with_all_baselines(judged: Judged) -> None:
    """Nothing is written into the package."""
    place, profile, shipped = judged.place, judged.profile, sorted(PLANS_DIRECTORY.iterdir())
    place.python("-c", SEARCH, "plans", "search", "--profile", profile)
    book = PlanBook.model_validate_json((profile.parent / "data" / "plans" / "own_cnn.json").read_bytes())
    assert book.set == "own_cnn"
    assert sorted(PLANS_DIRECTORY.iterdir()) == shipped
    query = "SELECT evidence FROM gates WHERE criterion = 'plan_book'"
    found, asked = place.simic(["validate", "--profile", str(profile)], ["sql", query])
    assert ["no comparison with blind" in row["evidence"] for row in asked] == [True]
    report, earlier = found["trials"], judged.run["validation"]
    assert [row["controller"] for row in report["controllers"]] == [*COMPARISON_CONTROLLERS, "candidate"]
    assert (report["plans_digest"], report["without_book"]) == (digest_of(book), [])
    assert (earlier["ordinal"], found["ordinal"]) == (1, 2), "another plan book makes another judgement"
    assert not set(report["host_keys"]) & set(earlier["trials"]["host_keys"])
    decision = json.loads(place.verb("promote", "--profile", profile, "--json", code=3))
    criteria = {line["name"]: line for line in decision["criteria"]}
    assert criteria["plan_book"]["evidence"] == f"plan book {digest_of(book)[:12]} of set own_cnn"
    assert criteria["return_over_blind"]["value"] is not None


def test_the_page_shows_what_is_run_here() -> None:
    page = (ROOT / "docs" / "own-hosts.md").read_text()
    shown = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)
    sources = [(EXAMPLE / name).read_text() for name in ("own_cnn.py", "pyproject.toml", "README.md")]
    known = {line.partition("  #")[0].strip() for text in sources for line in text.splitlines()}
    assert len(shown) == 3
    assert [line for block in shown for line in block.splitlines() if line.strip() not in known] == []
