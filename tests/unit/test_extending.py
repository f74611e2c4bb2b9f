"""Every block of ``docs/extending.md`` runs, installed as a package of somebody else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.builders.export_snapshots import uneven_snapshot

from simic.runtime.home import Home

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(?:toml|python|sql)\n(?:#|--) (repository: )?(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH that holds the package ``scratch`` and its metadata, as pip would lay them out."""
    folder = tmp_path_factory.mktemp("site")
    files = {path: text for is_own, path, text in BLOCK.findall(PAGE.read_text("utf-8")) if not is_own}
    project = tomllib.loads(files.pop("scratch/pyproject.toml"))["project"]
    (folder / "scratch").mkdir()
    (folder / "scratch" / "__init__.py").touch()
    for path, text in files.items():
        (folder / path).write_text(text, "utf-8")
    metadata = folder / "scratch-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n", "utf-8")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    return folder


def run(folder: Path, program: str, *arguments: str) -> str:
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "tests")])
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_blueprint_family_and_controller_grow_a_host_together(installed: Path) -> None:
    """The new controller germinates the new blueprint in a host of the new family."""
    program = """
import numpy as np
from simic.contracts.settings.run import WorldConfig
from simic.contracts.controllers import ControllerSpec
from simic.controllers.factory import make
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.rollout import rollout
hosts = identify("tiny", range(12))
ensemble = Ensemble(hosts, WorldConfig(set="tiny", horizon=6))
controller = make(ControllerSpec(name="germinate_first"), hosts)
seeds = {name for step in rollout(ensemble, controller.decide, 0) for name in step.outcome.blueprint_ids}
print(sorted(name for name in seeds if name))
"""
    assert run(installed, program).strip() == "['bias', 'dense']"


def test_the_help_of_the_commands_names_the_installed_controller_and_export(installed: Path) -> None:
    program = """
from simic.cli.options import CONTROLLER_HELP, CONTROLLER_NAMES
from simic.cli.snapshots import EXPORT_HELP
print(CONTROLLER_NAMES)
print(EXPORT_HELP)
"""
    names, formats = run(installed, program).splitlines()
    assert names == "wait, random, explore, complete, heuristic, blind, symptom, oracle, expert, germinate_first"
    assert formats.startswith("minari: ") and formats.endswith("returns: installed: scratch.returns")


def test_the_criterion_judges_unless_the_settings_leave_it_out(installed: Path, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from simic.contracts.settings.run import RunConfig
from simic.contracts.results.receipts import Provenance
from simic.runtime.home import Home
from simic.validation.promotion_gate import decide
from support.builders.judged_candidates import NOW, evidence_of, sealed_policy
from support.builders.judgements import judgement
from support.builders.validation_reports import validation_of
config, provenance = RunConfig(), Provenance("0.1.0+0", "c" * 64, 0)
config = config.model_copy(update={"trial": config.trial.model_copy(update={"bootstrap_samples": 200})})
home = Home(Path(sys.argv[1]))
report = validation_of(evidence_of(home, *sealed_policy(home, b"one")).training, config, provenance, margin=2.0)
for without in ((), ("small_networks",)):
    gate = config.gate.model_copy(update={"without": without})
    decision = decide(report, gate, judgement=judgement(), trial=config.trial, min_commit_rate=0.0,
                      provenance=provenance, now=NOW)
    print([f"{line.value:g} {line.verdict.value}" for line in decision.criteria if line.name == "small_networks"],
          decision.without)
"""
    assert run(installed, program, str(tmp_path)).splitlines() == ["['200 PASS'] []", "[] ['small_networks']"]


def test_the_export_format_writes_verified_episodes(installed: Path, tmp_path: Path) -> None:
    manifest = uneven_snapshot(tmp_path / "snapshot")
    program = """
import sys
from pathlib import Path
from simic.replay.exports import EXPORTS
from simic.contracts.results.receipts import SnapshotManifest
from support.builders.reports import BLUEPRINTS
manifest = SnapshotManifest.model_validate_json(sys.argv[1])
card = EXPORTS.load("returns").write(manifest, "train", Path(sys.argv[2]), blueprints=BLUEPRINTS, code_version="1")
print(card.format, card.episodes, [file.path for file in card.files])
"""
    out = tmp_path / "out"
    found = run(installed, program, manifest.model_dump_json(), str(out)).strip()
    assert found == f"returns {manifest.episodes['train']} ['README.md', 'returns.csv']"
    assert len((out / "returns.csv").read_text("utf-8").splitlines()) == 1 + manifest.episodes["train"]


def test_the_bus_delivers_until_acknowledged(installed: Path) -> None:
    program = """
from pathlib import Path
from simic.bus.factory import BusSpec, open_bus
from simic.contracts.errors import ConfigError
spec = BusSpec(Path("spool"), has_url=True)
bus = open_bus(spec, {"REDIS_URL": "memory:"})
bus.put("topic", "a", [b"1", b"2"])
(delivery,) = bus.claim("topic")
assert [line.data for line in delivery.open(100)] == [b"1", b"2"] and bus.pending("topic") == 1
bus.ack(delivery)
assert bus.pending("topic") == 0 and not list(bus.claim("topic"))
try:
    open_bus(spec, {"REDIS_URL": "memories://"})
except ConfigError as error:
    print(error)
"""
    assert "schemes file, memory, redis, rediss, found the scheme 'memories'" in run(installed, program)


def test_the_verbs_work_on_the_bus_and_the_doctor_opens_it(installed: Path, tmp_path: Path) -> None:
    def simic(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(installed), str(ROOT)])
        settings = {"PYTHONPATH": path, "REDIS_URL": "memory:", "SIMIC_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "simic", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **settings})

    Home(tmp_path / "home").create()
    topics = json.loads(simic("bus", "status", "--json").stdout)
    assert {topic["transport"] for topic in topics} == {"memory"}
    forwarded = simic("bus", "forward")
    assert forwarded.returncode == 2 and "'memory'" in forwarded.stderr
    checks = {check["name"]: check for check in json.loads(simic("doctor", "--json").stdout)["checks"]}
    assert checks["memory"]["health"] == "healthy"


def test_a_mistake_in_a_reward_family_is_an_error_of_every_verb_that_names_file_and_line(tmp_path: Path) -> None:
    """The families are made when the commands are imported, before any verb runs."""
    shutil.copytree(ROOT / "simic", tmp_path / "simic", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "simic" / "curation" / "sql" / "rewards" / "hasty.sql"
    wrong_line = b"-- summary: haste\n-- constant cost = 1 points\nSELECT 1\n", ": line 2: expected `-- constant name"
    wrong_bytes = b"-- summary: \xff\n", ": expected SQL in UTF-8, found"
    script = "from simic.cli import main; main()"
    for (content, told), *words in (
        (wrong_line, "-m", "simic", "--help"),
        (wrong_line, "-m", "simic", "doctor"),
        (wrong_line, "-c", script, "curate", "--json"),
        (wrong_line, "-c", script, "run"),
        (wrong_bytes, "-c", script, "up"),
    ):
        file.write_bytes(content)
        result = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "SIMIC_HOME": str(tmp_path / "home")},
        )
        assert (result.returncode, result.stdout) == (2, ""), result.stderr
        assert result.stderr.startswith(f"ConfigError: {file}{told}") and result.stderr.count("\n") == 1
        assert "; correct the line" in result.stderr or "; restore or correct the file" in result.stderr
    assert not (tmp_path / "home").exists()


def test_the_reward_family_is_one_file_of_the_repository(tmp_path: Path) -> None:
    """In a copy of the package, settings, help and curation know it, and its constant prices the rows."""
    shutil.copytree(ROOT / "simic", tmp_path / "simic", ignore=shutil.ignore_patterns("__pycache__"))
    for is_own, path, text in BLOCK.findall(PAGE.read_text("utf-8")):
        if is_own:
            (tmp_path / path).write_text(text, "utf-8")
    program = """
from pathlib import Path
from typing import get_type_hints
import pickle
import pyarrow.parquet as pq
from simic.contracts.errors import ConfigError
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from support.homes.pipeline import curate_all, land
from support.builders.reports import episode
settings = {"curate.reward.family": "hasty", "curate.reward.epoch_cost": 0.5}
reward = load_profile("default", settings).curate.reward
assert pickle.loads(pickle.dumps(reward)) == reward
try:
    load_profile("default", settings | {"curate.reward.epoch_cost": 11})
except ConfigError as error:
    assert "curate.reward" in str(error) and "less than or equal to 10" in str(error)
else:
    raise AssertionError("a constant above its bound")
from simic.cli.stages import curate
assert "minimal, hasty" in get_type_hints(curate, include_extras=True)["reward"].__metadata__[0].help
home = Home(Path("home"))
land(home, episode(1))
manifest = curate_all(home, reward=reward)
rows = pq.read_table(Path(manifest.path) / "steps.parquet").column("reward_effort")
print(manifest.reward_family, set(rows.to_pylist()))
"""
    path = os.pathsep.join([str(tmp_path), str(ROOT / "tests")])
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "hasty {-0.5}"
