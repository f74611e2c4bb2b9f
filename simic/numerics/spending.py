"""Error budget over judgements without a last one.

Each test spends a level; the levels of all tests that do not reject sum up to at most the budget. So the chance that
any true null hypothesis is ever rejected is at most the budget, if each test holds its level given what came before
(online fallback: Tian and Ramdas 2021, Online control of the familywise error rate, Statistical Methods in Medical
Research 30(4)).
"""

from __future__ import annotations

import math

__all__ = ["level"]

_EXPONENT = 1.5
"""Decay of the levels. With 2, a late judgement shows less; with 1.2, the first one does (ADR 29)."""
_SUM = 2.612375348685488
"""zeta(1.5), the sum of k^-1.5 over all k from 1. SciPy, which computes it, would be loaded for every query."""


def level(ordinal: int, budget: float, carried: float = 0.0) -> float:
    """Return the level of a judgement: ``carried`` plus budget k^-1.5 / zeta(1.5) for ``ordinal`` k, counted from 1.

    ``carried`` is the level of the judgement before if that one rejected its null hypothesis, else 0. Capped at the
    budget, which rounding could exceed.

    Raises:
        ValueError: if the ordinal is below 1, the budget not in (0, 0.5) or ``carried`` not in [0, budget].
    """
    if ordinal < 1 or not 0.0 < budget < 0.5 or not 0.0 <= carried <= budget:
        raise ValueError(f"expected an ordinal from 1, found {ordinal}, and 0 <= {carried} <= budget {budget} < 0.5")
    share = 1.0 / (math.pow(ordinal, _EXPONENT) * _SUM)
    return min(budget, budget * share + carried)
