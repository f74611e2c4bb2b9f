"""kill -9 at random moments of staging, promotion, rollout and rollback: one champion, one update per step."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.builders.judged_candidates import judged
from support.faults.fork_context import fork_context
from support.faults.promotion_lives import live, opened, tell
from support.homes.mlflow_databases import furnished_home

from simic.bus.codec import unwrap
from simic.contracts.policy_update import PolicyUpdate
from simic.ledgers.policies import read_history
from simic.publication.publish import open_outbox
from simic.runtime.home import Home

LOADED = [
    "mlflow",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "simic.bus.spool.bus",
    "simic.publication.publish",
    "simic.registry.registry",
    "sqlalchemy.dialects.sqlite",
]
"""Modules that the server of the processes loads once; it does not know the path of the tests."""
KILLS = int(os.environ.get("SIMIC_PROMOTION_KILLS", "3"))
"""A run with 200 takes some minutes."""


def check(home: Home, digests: set[str]) -> None:
    """What the next start finds."""
    registry = opened(home)
    history = read_history(home)
    assert history.open_entry is None
    assert registry.differences() == []
    champion = registry.champion()
    assert champion is not None and champion.digest in digests
    tell(home, registry)
    updates = [unwrap(event, PolicyUpdate) for event in open_outbox(home).delivered()]
    steps = [(update.digest, update.rollout is not None) for update in updates]
    assert all(one != after for one, after in pairwise(steps)), "a step was told twice"
    assert steps[-1][0] == champion.digest
    assert open_outbox(home).waiting() == []


def test_kills_at_random_moments_leave_one_champion_and_one_update_per_step(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = furnished_home(tmp_path / "place", tmp_path_factory)
    registry, first = opened(home), judged(home, b"one")
    champion = registry.promote(registry.record(first), first.validation, first.gate)
    second = judged(home, b"two", champion=champion.digest)
    tell(home, registry)
    arguments = (str(home.root), second.training.path, second.training.digest, champion.digest)
    round_s = live(*arguments, rounds=1)
    context = fork_context(LOADED)
    rng = random.Random(15)  # noqa: S311
    for _ in range(KILLS):
        process = context.Process(target=live, args=arguments)
        process.start()
        time.sleep(rng.uniform(0.0, 1.5 * round_s))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        check(home, {champion.digest, second.training.digest})
