"""Trials and trainings of a proof with figures that can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from simic.contracts.results.proof import ProofTraining, ProofTrial

__all__ = ["FAMILIES", "proof_training", "proof_trial"]

FAMILIES = ("cap", "gain", "cap", "gain")
_AT = datetime(2026, 1, 6, tzinfo=UTC)
_COMMON: dict[str, Any] = {
    "code_version": "0.1.0+test", "torch_version": "2.0", "config_digest": "c" * 64, "started_at": _AT,
}  # fmt: skip


def proof_trial(controller: str, returns: Sequence[float], families: Sequence[str] = FAMILIES) -> ProofTrial:
    """A trial on hosts 10, 11, ... of ``benchmark``; the test accuracy is the return in per cent."""
    return ProofTrial(
        **_COMMON, finished_at=_AT, seed=0, set="benchmark", world_digest="d" * 64, processor="p",
        controller=controller, policy_digest=None, plans_digest=None, families=list(families),
        host_keys=list(range(10, 10 + len(returns))), returns=list(returns), parameters=[8] * len(returns),
        test_accuracies=[value / 100 for value in returns],
        validation_accuracies=[value / 50 for value in returns], host_parameters=[32] * len(returns),
        extra_compute=[value / 200 for value in returns], rents=[value / 4 for value in returns],
        decisions=[20] * len(returns), decision_multiply_adds=[1000] * len(returns),
        controller_compute=[0.25] * len(returns), probe_compute=[0.125] * len(returns),
        test_returns=[value - 10 for value in returns], episodes_grown=[1] * len(returns),
        illegal_actions=0, governor_events=0, static=[],
    )  # fmt: skip


def proof_training(seed: int, without: Sequence[str] = (), failure: str | None = None) -> ProofTraining:
    """A training that the gate accepted, unless it failed; its policy has the seed as its first character."""
    return ProofTraining(
        **_COMMON, finished_at=_AT, seed=seed, set="benchmark", without=list(without), world_digest="d" * 64,
        plans_digest=None, policy_digest=None if failure else f"{seed:x}" * 64, failure=failure, snapshot_digest=None,
        episodes=100, accepted=failure is None, failed_criteria=[],
    )  # fmt: skip
