"""``simic stage`` and ``simic promote`` of a policy that is the champion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.homes.champion_homes import own_champion_home, point_at
from support.servers.forked_commands import run_command

from simic.app.container import Container
from simic.app.promotion import champion_by
from simic.ledgers.policies import gate_decisions
from simic.registry.mlflow_store import open_client
from simic.runtime.settings import load_profile


@pytest.fixture
def app(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """A home with a champion that the real gate judged."""
    return Container(own_champion_home(home, tmp_path_factory), load_profile("default"), 0)


@pytest.mark.parametrize("verb", ["stage", "promote"])
def test_the_decision_that_made_the_champion_changes_no_registry(verb: str, app: Container) -> None:
    champion = app.registry.champion()
    assert champion is not None
    ledgers = {path.name: path.read_bytes() for path in app.home.ledger.iterdir()}
    runs = open_client(app.home.tracking_uri).get_run(champion.mlflow_run_id).to_dictionary()
    done = run_command(verb, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == champion.digest
    assert "the champion already; the registry was not changed" in done.stderr
    assert {path.name: path.read_bytes() for path in app.home.ledger.iterdir()} == ledgers
    assert open_client(app.home.tracking_uri).get_run(champion.mlflow_run_id).to_dictionary() == runs


def test_a_lost_gate_receipt_of_the_champion_is_made_again(app: Container) -> None:
    for path in (app.home.receipts / "gate").glob("*.json"):
        path.unlink()
    assert run_command("promote").returncode == 0
    assert list((app.home.receipts / "gate").glob("*.json"))


def test_another_decision_about_the_champion_is_recorded(app: Container) -> None:
    (decision,) = gate_decisions(app.home)
    assert champion_by(app, decision) is not None
    assert champion_by(app, decision.model_copy(update={"digest": "0" * 64})) is None
    done = run_command("promote", "-o", "gate.min_episodes=100000")
    assert (done.returncode, "was trained under configuration" in done.stderr) == (2, True)


def test_a_moved_alias_does_not_keep_a_candidate_from_being_judged(app: Container) -> None:
    (decision,) = gate_decisions(app.home)
    point_at(app.home, None)
    assert champion_by(app, decision) is not None, "the journal decides"
