"""Receipts about the difference of two policies."""

from __future__ import annotations

from datetime import UTC, datetime

from simic.contracts.episode import AttributionRecord, PairAttribution, SeedAttribution
from simic.contracts.results.policy_difference import (
    ActionChange,
    DifferenceGroup,
    DifferentState,
    GrownPair,
    Likeliest,
    PolicyDifference,
    Share,
)

__all__ = ["difference", "grown_pair"]

SHARE = Share(value=0.25, lower=0.2, upper=0.3)


def grown_pair(slots: int = 2) -> GrownPair:
    """A host on which the first policy ended with ``slots`` active seeds and the second with none."""
    seeds = [SeedAttribution(slot=slot, blueprint="gate", leave_one_out=0.125, shapley=0.0625) for slot in range(slots)]
    pairs = [PairAttribution(slots=(slot - 1, slot), interaction=-0.03125) for slot in range(1, slots)]
    account = AttributionRecord(nothing=0.25, everything=0.375, seeds=seeds, pairs=pairs)
    nothing = AttributionRecord(nothing=0.25, everything=0.25, seeds=[])
    return GrownPair(
        family="cap", host_key=15, first_return=39.0, second_return=0.0, first_attribution=account,
        second_attribution=nothing,
    )  # fmt: skip


def difference(*, first: str = "tamiyo/2", second: str = "tamiyo/1", family: str = "cap") -> PolicyDifference:
    """A receipt with one entry of everything; ``family`` is also the name of actions and run ids."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    state = DifferentState(
        run_id=family, set="benchmark", family=family, host_key=5, step=1, disagreement=1.0,
        first=Likeliest(action=family, probability=1.0), second=Likeliest(action="wait", probability=0.5),
    )  # fmt: skip
    return PolicyDifference(
        code_version="0.1.0", config_digest="0" * 64, seed=0, started_at=now, finished_at=now,
        first=first, second=second, first_digest=None, second_digest="1" * 64, snapshot_digest="2" * 64,
        sets=["benchmark"], episodes=1, hosts=1, left_out={"branches": 3}, states=4, disagreement=SHARE,
        by_slot_and_blueprint=SHARE, by_operation=Share(value=0.1), other_choice=0.5, confidence=0.95,
        groups=[
            DifferenceGroup(by=by, name=family, states=4, disagreement=SHARE, other_choice=0.5)
            for by in ("family", "epoch", "seeds")
        ],
        changes=[ActionChange(first=family, second="wait", states=2, share=0.5)], examples=[state], grown=[],
    )  # fmt: skip
