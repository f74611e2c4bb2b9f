"""The bounds that the gate judges, from the results per host in a validation report.

All are at the level of the judgement. A bound is None where its evidence is missing, not finite or of another shape.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.names import ALONE, CANDIDATE, CHAMPION
from simic.contracts.results.gate import GateDecision
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.trials import TrialReport
from simic.numerics.mean_bounds import lower_bound

__all__ = ["POWER", "Bound", "Direction", "difference_bound", "judgement_text", "loss_bound", "page_text"]

POWER = 0.8
"""Chance with which the smallest detectable difference is found."""


class Direction(str, Enum):
    """The better direction of a metric."""

    HIGHER = "HIGHER"
    LOWER = "LOWER"


class Bound(NamedTuple):
    """A confidence bound of a paired comparison over hosts."""

    estimate: float
    bound: float
    """Lower bound of a difference, or upper bound of a loss."""
    detectable: float
    """Smallest true difference whose lower bound exceeds 0 with ``POWER``."""


def difference_bound(trials: TrialReport, other: str, alpha: float) -> Bound | None:
    """Return the lower bound of the candidate's mean return less that of ``other``, in points, paired by host."""
    pair = _pair(trials, other, "returns")
    if pair is None:
        return None
    bound = lower_bound(pair[0] - pair[1], alpha, trials.families, POWER)
    return Bound(float(bound.mean), float(bound.lower), float(bound.detectable))


def loss_bound(trials: TrialReport, reference: str, field: str, direction: Direction, alpha: float) -> Bound | None:
    """Return the upper bound of the candidate's loss of a metric, as a share of the mean of ``reference``.

    ``field`` is one of a ``ControllerTrial`` with an entry per host. The loss is a ratio of two means over the same
    hosts, so its error is that of the residuals (Cochran 1977, Sampling Techniques, section 6.4). None without a mean
    to lose from.
    """
    pair = _pair(trials, reference, field)
    if pair is None or not (base := float(pair[1].mean())):
        return None
    after, before = pair
    loss = before - after if direction is Direction.HIGHER else after - before
    share = float(loss.mean()) / abs(base)
    bound = lower_bound(share * before * np.sign(base) - loss, alpha, trials.families, POWER)
    return Bound(share, share - float(bound.lower) / abs(base), float(bound.detectable) / abs(base))


def judgement_text(judgement: Judgement, champion: str | None) -> str:
    """Return in one sentence which judgement this is, against the champion of that digest, and what it may spend."""
    against = "without a champion" if champion is None else f"against champion {champion[:12]}"
    return (
        f"Judgement {judgement.ordinal} of this home, attempt {judgement.attempts} {against}: bounds at "
        f"level {judgement.alpha:.2g}; with it {judgement.spent:.3g} of the error budget {judgement.budget:g} is spent"
    )


def page_text(decision: GateDecision) -> str:
    """Return which judgement a decision is, what it may spend and what it could show, for the page of the gate.

    What it could show is that to the champion, for Karn to the champion alone, or else to the baseline for which it is
    largest.
    """
    text = judgement_text(decision.judgement, decision.champion_digest)
    if decision.without:
        text += f". Left out by gate.without: {', '.join(decision.without)}"
    if decision.evidence == "reports":
        text += (
            ". Judged from logged episodes of held-out hosts: no host was grown, and nothing is known of actions that "
            f"the log lacks. Criteria that need grown episodes do not apply: {', '.join(decision.absent) or 'none'}"
        )
    elif decision.absent:
        text += f". Without a line: {', '.join(decision.absent)}"
    detectable = {line.name: line.detectable for line in decision.criteria if line.detectable is not None}
    if not detectable:
        return f"{text}."
    own = [f"{kind}return_over_{row}" for kind in ("", "log_") for row in (CHAMPION, ALONE)]
    champions = [name for name in own if name in detectable]
    name = champions[0] if champions else max(detectable, key=lambda criterion: detectable[criterion])
    other = name.rpartition("return_over_")[2]
    return (
        f"{text}. A candidate {detectable[name]:.2f} points better than {other} passes that bound with {POWER:.0%} "
        "power."
    )


def _pair(trials: TrialReport, other: str, field: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return a field [n] of the candidate and of ``other``."""
    rows = {row.controller: row for row in trials.controllers}
    if CANDIDATE not in rows or other not in rows:
        return None
    ours, theirs = (np.asarray(getattr(rows[name], field), dtype=np.float64) for name in (CANDIDATE, other))
    fits = ours.shape == theirs.shape == (len(trials.families),) and len(ours) >= 2
    return (ours, theirs) if fits and np.isfinite(ours).all() and np.isfinite(theirs).all() else None
