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
from support.scenes import make_scene

from simic.contracts.config import NetworkConfig
from simic.controllers.features import encode
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.store import describe, save_policy
from simic.hosts.catalogue import blueprint_names
from simic.hosts.keys import STANDARD
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

    def simic(self, *lines: list[str]) -> list[dict[str, Any]]:
        """Verbs one after the other; their receipts."""
        decoder, text = json.JSONDecoder(), self.python("-c", VERBS, json.dumps([[*line, "--json"] for line in lines]))
        receipts = []
        while text := text.strip():
            receipt, end = decoder.raw_decode(text)
            receipts.append(receipt)
            text = text[end:]
        return receipts


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


def test_the_example_is_grown_under_a_policy_and_compared(place: Place) -> None:
    few = ["--hosts", "2", "--epochs", "6", "--workers", "1"]
    table = place.python(EXAMPLE / "compare.py", "--policy", str(place.policy), *few)
    assert "2 hosts of set own_cnn" in table
    rows = {line.split()[0]: line for line in table.splitlines() if "%" in line}
    assert set(rows) >= {"random", "heuristic", "schedule", str(place.policy)}


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


def test_the_page_shows_what_is_run_here() -> None:
    page = (ROOT / "docs" / "own-hosts.md").read_text()
    shown = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)
    sources = [(EXAMPLE / name).read_text() for name in ("own_cnn.py", "pyproject.toml", "README.md")]
    known = {line.partition("  #")[0].strip() for text in sources for line in text.splitlines()}
    assert len(shown) == 3
    assert [line for block in shown for line in block.splitlines() if line.strip() not in known] == []
