"""Ledgers: append-only files of JSON lines in ``data/ledger``, their names and their records."""

from __future__ import annotations

__all__ = [
    "CANDIDATES_LEDGER",
    "COLLECTIONS_LEDGER",
    "GATES_LEDGER",
    "JUDGEMENTS_LEDGER",
    "MOVES_LEDGER",
    "PARTS_LEDGER",
    "PINS_LEDGER",
    "POLICIES_LEDGER",
    "PROMOTIONS_LEDGER",
    "RUNS_LEDGER",
]

PARTS_LEDGER = "ingest.jsonl"
"""Operations on the lake: a ``Part`` per ingested batch, and the operations of ``lake.log``."""
PINS_LEDGER = "pins.jsonl"
"""``Pin`` lines: snapshots that are kept, or no longer."""
COLLECTIONS_LEDGER = "collections.jsonl"
"""``CollectionEntry`` lines: collections of this home in which a policy explores."""
RUNS_LEDGER = "runs.jsonl"
"""``RunEntry`` lines: retraining runs opened, resumed and closed."""
MOVES_LEDGER = "moves.jsonl"
"""``Move`` lines: changes of the home's path."""
JUDGEMENTS_LEDGER = "judgements.jsonl"
"""Sealed ``JudgementEntry`` lines: judgements that began, in their order."""
GATES_LEDGER = "gates.jsonl"
"""Sealed ``GateDecision`` lines."""
CANDIDATES_LEDGER = "candidates.jsonl"
"""Sealed ``PolicyVersion`` lines, one per judgement of a registered candidate."""
PROMOTIONS_LEDGER = "promotions.jsonl"
"""Signed and chained ``PromotionEntry`` lines: the only record that decides who is champion."""
POLICIES_LEDGER = "policies.jsonl"
"""``PolicyVersion`` lines, one per change of champion, derived from the journal of promotions.

No reader takes the champion from this file. It only proves that the end of the journal was not cut off, which the
journal's own chain of digests cannot show (ADR 18).
"""
