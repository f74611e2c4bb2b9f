"""Candidates for networks that Simic cannot grow, from a log to the decision of the gate, by the verbs alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
from support.builders.logged_networks import EPOCHS, keys_of, logged
from support.homes.mlflow_databases import furnished_home

from simic.app.artifacts import resolve_training
from simic.app.container import Container
from simic.catalogue.query import query
from simic.cli.console import errors_become_exit_codes
from simic.cli.main import app
from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.results.receipts import CollectionReceipt
from simic.contracts.splits import Split
from simic.controllers.network import PolicyNetwork
from simic.controllers.policy_files import load_policy, save_policy
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.seal import seal

LAB = Path(__file__).parents[2] / "examples" / "foreign_reports" / "lab.toml"
SMALL = """
[gate]
evidence = "reports"
without = ["slot_counts", "finite_outputs", "mask_respect", "repeatability"]  # the slow probes
"""
LEARNING = """
cloning_passes = 12
value_passes = 1
vtrace_passes = 1
awr_temperature = 100.0
network.hidden = 16
"""


class Lab(NamedTuple):
    """A home with a log, and a policy that learned from a good teacher."""

    home: Home
    profile: Path
    call: Callable[..., tuple[int, str]]
    """Exit code and output of a verb with the profile."""


@pytest.fixture
def lab(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Lab:
    home = furnished_home(tmp_path / "home", tmp_path_factory)
    monkeypatch.setenv("SIMIC_HOME", str(home.root))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the edge sets its own
    text = LAB.read_text().replace("horizon = 8", f"horizon = {EPOCHS}").replace('"vtrace"', '"awr"')
    profile = tmp_path / "lab.toml"
    profile.write_text(text.replace("min_experiences = 500", f"min_experiences = 100\n{LEARNING}") + SMALL)
    incoming = home.spool / "tamiyo.field_reports" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / "teacher.jsonl").write_bytes(logged(keys_of(Split.TRAIN, 200), 0.97, 0.0, "teacher"))
    (incoming / "lab.jsonl").write_bytes(logged(keys_of(Split.TEST, 600), 0.5, 0.35, "lab"))

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
            typer.main.get_command(app)([*words, "--profile", str(profile)], prog_name="simic")
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    for verb in ("ingest", "curate", "train"):
        code, output = call(verb)
        assert code == 0, output
    return Lab(home, profile, call)


def report_more(lab: Lab, name: str, lines: bytes) -> None:
    """Land further reports, and curate."""
    (lab.home.spool / "tamiyo.field_reports" / "incoming" / f"{name}.jsonl").write_bytes(lines)
    for verb in ("ingest", "curate"):
        code, output = lab.call(verb)
        assert code == 0, output


def planted(lab: Lab, change: Callable[[PolicyNetwork], None]) -> str:
    """The trained policy with other weights, sealed, with the receipt of a training; its digest."""
    container = Container(lab.home, load_profile(str(lab.profile)), 0)
    training = resolve_training(container, None)
    network, card = load_policy(Path(training.path))
    with torch.no_grad():
        change(network)
    draft = lab.home.policies / "draft"
    save_policy(draft, network, card)
    digest = seal(draft, container.signer).digest
    path = draft.rename(lab.home.policies / digest)
    container.save_receipt(training.model_copy(update={"digest": digest, "path": str(path), "curves_path": "none"}))
    return digest


def waits(network: PolicyNetwork) -> None:
    network.op_head[-1].bias[OP_INDEX[Op.WAIT]] += 100.0


def seldom_grows(network: PolicyNetwork) -> None:
    """GERMINATE with a probability of about 0.2, whatever the state; nothing else changes."""
    network.op_head[-1].weight[OP_INDEX[Op.GERMINATE]] = network.op_head[-1].weight[OP_INDEX[Op.WAIT]]
    network.op_head[-1].bias[OP_INDEX[Op.GERMINATE]] = network.op_head[-1].bias[OP_INDEX[Op.WAIT]] - 1.4


def acts_as_nobody_did(network: PolicyNetwork) -> None:
    network.slot_head[-1].weight.neg_()
    network.slot_head[-1].bias.neg_()


def test_only_a_candidate_that_the_log_shows_to_be_better_is_promoted(lab: Lab) -> None:
    good = resolve_training(Container(lab.home, load_profile(str(lab.profile)), 0), None).digest
    code, output = lab.call("validate", "-o", "gate.evidence=trials")
    assert code == 2
    assert "Simic has no code of these hosts" in output
    reasons = {
        planted(lab, waits): {"log_return_over_behaviour", "log_return_over_wait"},
        planted(lab, seldom_grows): {"log_return_over_behaviour"},
        planted(lab, acts_as_nobody_did): {"log_mean_weight_lower_candidate"},
    }
    for digest, expected in reasons.items():
        assert lab.call("validate", "--policy", digest)[0] == 0
        code, output = lab.call("promote")
        assert code == 3, output
        assert all(f"{name} is" in output for name in expected), output
    assert lab.call("validate", "--policy", good)[0] == 0
    code, output = lab.call("promote")
    assert code == 0, output
    assert "Judgement 4 of this home" in output
    page = (lab.home.runs / good[:16] / "gate" / "gate.md").read_text()
    assert "no host was grown" in page
    assert "Criteria that need grown episodes do not apply: plan_book, " in page
    assert "600 episodes of 600 held-out hosts" in page
    assert f"600 by lab; horizons in epochs: {EPOCHS};" in page
    (card,) = (path for path in lab.home.artifacts.rglob("model_card.md") if good in path.read_text())
    assert "No trial: its return is estimated" in card.read_text()
    judged = query(lab.home, 'SELECT "set", accepted FROM judgements ORDER BY ordinal')
    assert judged == [{"set": "graftnet", "accepted": is_last} for is_last in (False, False, False, True)]


def test_a_log_whose_bad_episodes_are_missing_promotes_nobody(lab: Lab) -> None:
    """Seven of 607 held-out trainings broke down after their first reports."""
    lines = logged(keys_of(Split.TEST, 607)[600:], 0.97, 0.0, "lab").splitlines()
    ends = [json.loads(line)["final_state"] is not None for line in lines]
    report_more(lab, "broken", b"\n".join(line for line, is_end in zip(lines, ends, strict=True) if not is_end) + b"\n")
    assert lab.call("validate")[0] == 0
    code, output = lab.call("promote")
    assert code == 3, output
    assert "log_cut_off is 0.01153, needs <= 0.01" in output
    page = next(lab.home.runs.glob("*/gate/gate.md")).read_text()
    assert "7 unfinished. A crashed training and one that still runs look alike." in page


def test_each_set_is_judged_by_controllers_with_enough_hosts(lab: Lab) -> None:
    report_more(lab, "guest", logged(keys_of(Split.TEST, 640)[600:], 0.5, 0.35, "guest"))
    code, output = lab.call("validate", "--json")
    assert code == 0, output
    log = json.JSONDecoder().raw_decode(output)[0]["log"]
    assert log["left_out"]["of a set and controller with fewer than 50 hosts"] == 40
    assert [(one["behaviour"], one["hosts"]) for one in log["groups"]] == [("lab", 600)]
    assert (log["behaviours"], log["episodes"], log["horizons"]) == ({"lab": 600}, 600, [EPOCHS])
    container = Container(lab.home, load_profile(str(lab.profile)), 0)
    both = resolve_training(container, None).model_copy(update={"sets": ["graftnet", "graphnet"]})
    container.save_receipt(both)
    code, output = lab.call("validate")
    assert code == 2, output
    assert "too few held-out episodes on graphnet" in output


def test_what_judges_is_not_shown_before_and_a_set_that_was_grown_here_is_not_judged_so(lab: Lab) -> None:
    container = Container(lab.home, load_profile(str(lab.profile)), 0)
    digest = resolve_training(container, None).digest

    def evaluated(*options: str) -> dict[str, Any]:
        code, output = lab.call("evaluate", digest, "--no-model", "--json", *options)
        assert code == 0, output
        found: dict[str, Any] = json.JSONDecoder().raw_decode(output)[0]
        return found

    shown = evaluated()
    assert (shown["episodes"], shown["left_out"]["held out for the gate"]) == (0, 600)
    assert evaluated("-o", "gate.evidence=trials")["episodes"] == evaluated("--held-out")["episodes"] == 600
    now = container.clock()
    collected = CollectionReceipt(
        **container.provenance._asdict(), started_at=now, finished_at=now, controller="explore", policy_digest=None,
        set="graftnet", host_keys_digest="0" * 64, episodes=1, reports=1, reports_digest="0" * 64, governor_events=0,
        actions={}, mean_return=None, test_accuracy=None,
    )  # fmt: skip
    container.save_receipt(collected)
    code, output = lab.call("validate")
    assert code == 2, output
    assert "this home grew hosts of graftnet itself" in output


def test_a_snapshot_at_other_prices_than_those_of_the_judgement_judges_nobody(lab: Lab) -> None:
    """Whoever curates would set the points by which the gate judges."""
    assert lab.call("curate", "-o", "curate.reward.rent=0")[0] == 0
    code, output = lab.call("validate")
    assert code == 2
    assert "was curated at other prices" in output
    assert "rent 0 instead of" in output
    assert query(lab.home, "FROM judgements") == []
    assert lab.call("curate")[0] == 0
    assert lab.call("validate")[0] == 0
