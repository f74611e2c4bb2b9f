"""Evidence of a log beside trials: which episodes are used, and when there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders.deciding_policies import sealed_decider
from support.builders.learning import HORIZON, bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.app.container import Container
from simic.app.evidence.judging import log_beside_trials
from simic.contracts.results.log_evidence import LogEvidence
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import RunConfig, WorldConfig
from simic.contracts.splits import Split, split_of
from simic.runtime.home import Home
from simic.trust.seal import MANIFEST_NAME, seal

Rows = list[dict[str, Any]]
HELD_OUT = [key for key in range(1000) if split_of("benchmark", key) is Split.TEST][:60]
TRAINED = [key for key in range(60) if split_of("benchmark", key) is Split.TRAIN]


def with_terms(rows: Rows) -> Rows:
    return [{**row, "reward_progress": row["reward"], "reward_rent": 0.0, "reward_penalty": 0.0} for row in rows]


def by_two_controllers(rows: Rows) -> Rows:
    """Each logged half of the hosts."""
    return [{**row, "policy_version": None, "controller": "ab"[row["host_key"] % 2]} for row in rows]


@pytest.fixture
def beside(home: Path) -> Callable[..., LogEvidence | None]:
    """The evidence about a sealed policy that learned from a snapshot of the given hosts."""

    def found(keys: list[int], change: Callable[[Rows], Rows] = with_terms, **world: Any) -> LogEvidence | None:
        place = Home(home)
        place.create()
        # Episodes of three epochs are shorter than any that the settings allow.
        played = WorldConfig().model_copy(update={"horizon": HORIZON, **world})
        container = Container(place, RunConfig().model_copy(update={"world": played}), 0)
        policy = sealed_decider(place.policies / "one")
        (policy / MANIFEST_NAME).unlink()
        digest = seal(policy, container.signer).digest
        learned = write_snapshot(home / "s", bandit_episodes(keys), change=change, reward=RewardConfig())
        Path(learned.path).rename(place.snapshots / learned.digest[:16])
        training = TrainingReport(
            **container.provenance._asdict(), started_at=learned.started_at, finished_at=learned.finished_at,
            digest=digest, path=str(policy), snapshot_digest=learned.digest, start_digest=None, updates=1,
            episodes=len(keys), passes=1.0, metrics={}, curves_path="curves",
        )  # fmt: skip
        return log_beside_trials(container, training)

    return found


def test_the_log_beside_trials_is_that_of_the_held_out_hosts(beside: Callable[..., LogEvidence | None]) -> None:
    found = beside([*HELD_OUT, *TRAINED])
    assert found is not None
    assert sorted(found.host_keys) == HELD_OUT
    assert found.left_out == {"not held out": len(TRAINED)}
    assert len(found.returns) == len(HELD_OUT)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda row: {**row, "log_prob_behaviour": None}, "that cannot be evaluated on"),
        (lambda row: {**row, "reward_progress": float("nan")}, "that cannot be evaluated on"),
        (lambda row: {**row, "state": {**row["state"], "horizon": HORIZON + 1}}, "of another horizon than the trials"),
    ],
    ids=["no propensity", "no finite reward", "another horizon"],
)
def test_an_episode_that_cannot_judge_is_left_out_alone(
    beside: Callable[..., LogEvidence | None], spoil: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    def change(rows: Rows) -> Rows:
        return [spoil(row) if row["host_key"] == HELD_OUT[7] else row for row in with_terms(rows)]

    found = beside(HELD_OUT, change)
    assert found is not None
    assert sorted(found.host_keys) == sorted({*HELD_OUT} - {HELD_OUT[7]})
    assert found.left_out == {reason: 1}
    assert found.horizons == [HORIZON]


def test_episodes_that_cannot_judge_count_towards_no_controller(beside: Callable[..., LogEvidence | None]) -> None:
    def change(rows: Rows) -> Rows:
        return [{**row, "log_prob_behaviour": None} if row["host_key"] in HELD_OUT[:11] else row for row in rows]

    assert beside(HELD_OUT, lambda rows: change(with_terms(rows))) is None, "49 hosts are left"


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        (TRAINED, {}),
        (HELD_OUT[:49], {}),
        (HELD_OUT, {"horizon": 8}),
        (HELD_OUT, {"set": "varied"}),
        (HELD_OUT, {"change": lambda rows: rows}),
        (HELD_OUT, {"change": lambda rows: by_two_controllers(with_terms(rows))}),
    ],
    ids=["trained on", "too few", "another horizon", "another set", "no terms of the reward", "too few of each"],
)
def test_without_enough_comparable_episodes_there_is_none(
    beside: Callable[..., LogEvidence | None], keys: list[int], options: dict[str, Any]
) -> None:
    assert beside(keys, **options) is None
