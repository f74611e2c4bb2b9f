"""What a chunk of episodes came to, gathered while its reports stream by.

Shapes: N hosts, T steps.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.config import RewardConfig
from simic.contracts.field_report import FieldReport
from simic.numerics.rewards import basic_return, basic_rewards

__all__ = ["ChunkSummary", "Tally"]

_NOT_CONTENT = {"issued_at"}
"""Collecting the same again happens at another moment and is still the same."""


class ChunkSummary(NamedTuple):
    """Plain data, small enough to travel between processes."""

    policy_version: str | None
    reports: int
    actions: dict[str, int]
    """Decisions per operation."""
    governor_events: int
    returns: list[float]
    """Undiscounted, per host."""
    test_accuracies: list[float]
    """Per host."""
    report_digests: list[str]
    """Per host: SHA-256 over the lines of its reports in step order, but for the moment of issue."""


class Tally:
    """Counts reports as they pass; memory is four numbers per step."""

    def __init__(self, hosts: int, horizon: int) -> None:
        shape = (horizon, hosts)
        self._horizon = horizon
        self._before, self._after, self._rent = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._governor = np.zeros(shape, dtype=bool)
        self._test = np.full(hosts, np.nan)
        self._digests = [hashlib.sha256() for _ in range(hosts)]
        self._actions: Counter[str] = Counter()

    def note(self, host: int, report: FieldReport) -> None:
        """Take one report into account."""
        metrics, at = report.metrics, (report.step, host)
        self._before[at], self._after[at] = metrics.validation_accuracy_before, metrics.validation_accuracy_after
        self._rent[at] = metrics.rent_parameters
        self._governor[at] = report.governor is not None
        if metrics.test_accuracy is not None:
            self._test[host] = metrics.test_accuracy
        self._digests[host].update(report.model_dump_json(exclude=_NOT_CONTENT).encode() + b"\n")
        self._actions[report.action.op.value] += 1

    def returns(self, reward: RewardConfig) -> NDArray[np.float64]:
        """Undiscounted return [N]; steps that never ran count 0."""
        rewards = basic_rewards(
            accuracy_before=self._before,
            accuracy_after=self._after,
            rent_parameters=self._rent,
            governor=self._governor,
            accuracy_scale=reward.accuracy_scale,
            rent=reward.rent,
            rent_parameters_scale=reward.rent_parameters,
            horizon=self._horizon,
            governor_penalty=reward.governor_penalty,
        )
        return basic_return(rewards)

    def summary(self, policy_version: str | None, reward: RewardConfig) -> ChunkSummary:
        """The sums so far."""
        return ChunkSummary(
            policy_version=policy_version,
            reports=self._actions.total(),
            actions=dict(self._actions),
            governor_events=int(self._governor.sum()),
            returns=self.returns(reward).tolist(),
            test_accuracies=self._test.tolist(),
            report_digests=[digest.hexdigest() for digest in self._digests],
        )
