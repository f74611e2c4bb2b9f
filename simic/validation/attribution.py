"""Exact attribution of a grown host's accuracy to its active seeds, as a record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import isfinite

from simic.contracts.episode import AttributionRecord, PairAttribution, SeedAttribution, SlotRecord
from simic.hosts.counterfactual import Attribution

__all__ = ["attribution_record"]


def attribution_record(attribution: Attribution, row: int, slots: Sequence[SlotRecord]) -> AttributionRecord:
    """Return the attribution of host ``row``, whose ``slots`` are those after its last epoch."""
    seeds = [
        SeedAttribution(
            slot=slot,
            blueprint=record.blueprint,
            leave_one_out=float(attribution.leave_one_out[row, slot]),
            shapley=float(attribution.shapley[row, slot]),
        )
        for slot, record in enumerate(slots)
        if record.blueprint is not None and isfinite(attribution.shapley[row, slot])
    ]
    return AttributionRecord(
        nothing=float(attribution.nothing[row]),
        everything=float(attribution.everything[row]),
        seeds=seeds,
        pairs=[
            PairAttribution(
                slots=(one.slot, other.slot), interaction=float(attribution.pairs[row, one.slot, other.slot])
            )
            for one, other in combinations(seeds, 2)
        ],
    )
