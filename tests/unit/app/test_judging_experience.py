"""Trials that land: real hosts, the real bus and the real lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.builders.deciding_policies import sealed_decider
from support.builders.judged_candidates import evidence_of
from support.homes.pipeline import FixedClock

from simic.app import data, training
from simic.app.comparisons import comparison
from simic.app.container import Container
from simic.catalogue.query import query
from simic.cli.compare import compare
from simic.contracts.errors import ConfigError
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import CollectionReceipt, TrainingReport
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys
from simic.ledgers.judgements import judgements
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.seal import MANIFEST_NAME, seal

SMALL = {
    "world.set": "benchmark", "world.horizon": 4, "world.workers": 1, "trial.also_hosts_per_family": 1,
    "trial.bootstrap_samples": 200,
}  # fmt: skip
KEYS = draw_keys("benchmark", Split.TEST, 3)


def opened(home: Path, *, lands: bool) -> Container:
    Home(home).create()
    return Container(Home(home), load_profile("quick", {**SMALL, "trial.land": lands}), 0, clock=FixedClock())


def policy(app: Container) -> TrainingReport:
    path = app.home.policies / "decider"
    sealed_decider(path)
    (path / MANIFEST_NAME).unlink()
    digest = seal(path, app.signer).digest
    return evidence_of(app.home, path, digest).training.model_copy(update={"metrics": {}})


def rows(app: Container, sql: str) -> list[dict[str, Any]]:
    data.ingest(app)
    return query(app.home, sql)


def test_a_comparison_lands_once_what_its_receipt_says(tmp_path: Path) -> None:
    app = opened(tmp_path, lands=True)
    found = comparison.compare(app, ["heuristic", "wait"], KEYS, Split.TEST)
    comparison.compare(app, ["heuristic", "wait"], KEYS[:2], Split.TEST)
    landed = rows(
        app,
        "SELECT controller, host_key, accuracy_after, test_accuracy, is_complete, judgement, role, policy, "
        "count(*) OVER () AS episodes FROM judging_episodes ORDER BY controller, host_key",
    )
    assert {row["episodes"] for row in landed} == {2 * len(KEYS)}, "a repetition lands nothing"
    assert all(row["is_complete"] and row["judgement"] is row["role"] is row["policy"] is None for row in landed)
    for trial in found.trials.controllers:
        tested = dict(zip(found.trials.host_keys, trial.test_accuracies, strict=True))
        own = [row for row in landed if row["controller"] == trial.controller]
        assert {row["host_key"]: row["test_accuracy"] for row in own} == pytest.approx(tested)
    assert data.curate(app).rejected == {"judging": 2 * len(KEYS) * SMALL["world.horizon"]}


def test_a_judgement_that_lands_is_the_one_that_does_not_and_so_is_the_next(tmp_path: Path) -> None:
    app, lands = opened(tmp_path, lands=False), opened(tmp_path, lands=True)
    candidate = policy(app)
    without = training.try_further(app, candidate, None, "benchmark")
    landed = training.try_further(lands, candidate, None, "benchmark")
    assert landed.controllers == without.controllers
    assert len(judgements(app.home, app.keyring)) == 1, "landing begins no other judgement"
    found = rows(
        app,
        'SELECT judgement, role, policy, "set", list(DISTINCT host_key ORDER BY host_key) AS hosts, count(*) AS n '
        "FROM judging_episodes WHERE policy IS NOT NULL GROUP BY ALL",
    )
    shared = {"judgement": 1, "role": "candidate", "policy": candidate.digest, "set": "benchmark"}
    assert found == [{**shared, "hosts": sorted(landed.host_keys), "n": len(landed.host_keys)}]
    (arms,) = query(app.home, "SELECT count(*) AS n FROM judging_episodes WHERE judgement = 1")
    assert arms["n"] == len(landed.host_keys) * len(landed.controllers)
    assert app.receipts.count(CollectionReceipt) == 0, "this number chooses the training hosts that come next"


def test_only_test_hosts_land(tmp_path: Path, home: Path) -> None:
    app = opened(tmp_path, lands=True)
    with pytest.raises(ConfigError, match=r"found host \d+ of set benchmark in the train split and 1 others"):
        comparison.compare(app, ["random", "wait"], draw_keys("benchmark", Split.TRAIN, 2), Split.TEST)
    with pytest.raises(ConfigError, match="in the validation split"):
        comparison.compare_until_decided(app, ["random", "wait"], Split.VALIDATION)
    Home(home).create()
    with pytest.raises(ConfigError, match="leave --land out"):
        compare(["random", "wait"], host_keys="0:9", world_set="benchmark", land=True)
    assert app.open_bus().pending(FIELD_REPORTS) == 0
