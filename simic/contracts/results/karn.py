"""Receipt of a training of Karn, the controller that proposes blueprints."""

from __future__ import annotations

from typing import Literal, TypeAlias

from simic.contracts.base import Count, Digest, Finite, Text
from simic.contracts.results.receipts import Receipt, TrainingReport

__all__ = ["KarnReport", "Trained"]


class KarnReport(Receipt):
    """A trained Karn, in ``data/karn/<digest>``."""

    stage: Literal["karn"] = "karn"
    digest: Digest
    """Digest of its sealed directory."""
    path: Text
    """Sealed directory of the Karn."""
    snapshot_digest: Digest
    sets: list[Text]
    """Host sets of the training episodes, sorted."""
    comparisons: Count
    """Pairs of decision and slot with two or more tried blueprints that it learned from."""
    germinations: Count
    """Germinations of ordinary episodes that it learned from."""
    undrawn: Count
    """Germinations of ordinary episodes that were left out, because their blueprint was not drawn among several."""
    updates: Count
    metrics: dict[str, Finite]
    """Means over the last pass; with comparisons also regrets on held-out hosts in points per comparison: of Karn, of
    its likeliest blueprint, of the ranking that is best for all hosts, and of a uniform choice."""


Trained: TypeAlias = TrainingReport | KarnReport
"""The training of a version of a registered model."""
