"""``simic stage`` and ``simic promote`` of a policy that is the champion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders.judged_candidates import SIGNER, judged, ticking
from support.homes.mlflow_databases import furnished_home
from support.servers.forked_commands import run_command

from simic.app.container import Container
from simic.app.promotion import champion_by
from simic.contracts.config import RunConfig
from simic.registry.mlflow_run import CandidateRecord


@pytest.fixture
def container(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Container:
    home = furnished_home(tmp_path / "place", tmp_path_factory)
    monkeypatch.setenv("SIMIC_HOME", str(home.root))
    found = Container(home, RunConfig(), 0, clock=ticking())
    found.__dict__["signer"] = SIGNER
    return found


@pytest.fixture
def champion(container: Container) -> CandidateRecord:
    evidence = judged(container.home)
    container.receipts.save(evidence.validation)
    container.registry.promote(container.registry.record(evidence), evidence.validation, evidence.gate)
    return evidence


@pytest.mark.parametrize("verb", ["stage", "promote"])
def test_the_judgement_that_made_the_champion_is_not_repeated(
    verb: str, container: Container, champion: CandidateRecord
) -> None:
    before = {path: path.read_bytes() for path in container.home.ledger.iterdir()}
    done = run_command(verb, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == champion.training.digest
    assert "the champion already; nothing was changed" in done.stderr
    assert {path: path.read_bytes() for path in container.home.ledger.iterdir()} == before


def test_a_later_judgement_of_the_champion_is_judged(container: Container, champion: CandidateRecord) -> None:
    assert champion_by(container, champion.validation) is not None
    assert champion_by(container, champion.validation.model_copy(update={"ordinal": 2})) is None
