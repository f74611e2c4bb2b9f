"""``simic karn train``, and a policy that consults the result while it grows real hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard as zstd
from support.builders.learning import bandit_branches
from support.builders.snapshots import write_snapshot
from unit.controllers.test_learned_controller import make_policy

from simic.app.container import Container
from simic.app.training import collect as collect_hosts
from simic.cli.compare import compare
from simic.cli.karn import train
from simic.contracts.errors import TrainingError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import consulting_name
from simic.contracts.results.comparison import Comparison
from simic.contracts.results.karn import KarnReport
from simic.controllers.policy_files import save_policy
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.seal import seal

SETTINGS = ["karn.passes=2", "train.min_experiences=1"]
WORLD = {"world.horizon": 6, "world.workers": 1}


@pytest.fixture
def snapshot(home: Path) -> Path:
    Home(home).create()
    write_snapshot(home / "snapshot", bandit_branches(range(90)), split="train")
    return home / "snapshot"


@pytest.fixture
def policy(home: Path, snapshot: Path) -> Path:
    app, made = Container(Home(home), load_profile("quick"), 0), make_policy()
    folder = app.home.tmp / "policy"
    save_policy(folder, made.network, made.card)
    return folder.rename(app.home.policies / seal(folder, app.signer).digest)


def trained(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> KarnReport:
    train(str(snapshot), override=SETTINGS, as_json=True)
    return KarnReport.model_validate_json(capsys.readouterr().out)


def test_the_verb_trains_seals_and_reports(home: Path, snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = trained(snapshot, capsys)
    assert (Home(home).karn / found.digest / "card.json").is_file()
    assert found.comparisons > 64 and found.updates == 2
    assert {"held_out_regret", "held_out_fixed_regret"} <= found.metrics.keys()
    assert trained(snapshot, capsys).digest == found.digest, "equal snapshot, settings and seed"
    train(str(snapshot), override=SETTINGS)
    assert found.digest[:12] in capsys.readouterr().out


def test_too_little_experience_ends_in_an_error_and_leaves_no_karn(home: Path, snapshot: Path) -> None:
    with pytest.raises(TrainingError, match=r"karn\.min_examples 5000"):
        train(str(snapshot), override=[*SETTINGS, "karn.min_examples=5000"])
    assert not list(Home(home).karn.glob("*"))


def test_reports_say_which_karn_was_consulted_by_which_policy(
    home: Path, policy: Path, snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    karn = trained(snapshot, capsys).digest
    app = Container(
        Home(home), load_profile("quick", {**WORLD, "controller.karn": "consult", "controller.karn_digest": karn}), 0
    )
    receipt = collect_hosts(app, policy.name, [0, 1, 2])
    assert (receipt.controller, receipt.policy_digest) == (consulting_name(karn), policy.name)
    (path,) = app.home.spool.rglob("*.jsonl.zst")
    with zstd.open(path) as file:
        reports = [FieldReport.model_validate_json(line) for line in file.read().splitlines()]
    assert reports and {one.controller for one in reports} == {consulting_name(karn)}
    assert {one.policy_version for one in reports} == {policy.name}


def test_on_and_off_are_compared_on_the_same_hosts(
    policy: Path, snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    karn = trained(snapshot, capsys).digest
    override = [f"{name}={json.dumps(value)}" for name, value in WORLD.items()]
    compare([f"{policy.name}+karn", policy.name], host_keys="0:4", override=override, as_json=True)
    found = Comparison.model_validate_json(capsys.readouterr().out)
    (pair,) = found.pairs
    alone = f"policy {policy.name[:8]}"
    assert (pair.controller, pair.against) == (f"{alone}+karn/{karn[:8]}", alone)
    assert {row.controller for row in found.trials.controllers} == {"wait", pair.controller, pair.against}
