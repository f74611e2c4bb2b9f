"""Judgements by hand, and those that a home's ledger begins."""

from __future__ import annotations

from typing import Any

from simic.app.container import Container
from simic.contracts.results.judgements import Judgement
from simic.ledgers.judgements import JudgementSubject, begin_judgement

__all__ = ["begun", "judgement"]


def judgement(**changes: Any) -> Judgement:
    return Judgement(**{"ordinal": 1, "attempts": 1, "budget": 0.025, "alpha": 0.0095, "spent": 0.0095, **changes})


def begun(app: Container, policy: str, champion: str | None = None) -> int:
    """The ordinal of a judgement that the home's ledger begins, or began before."""
    subject = JudgementSubject(app.config.world.set, policy, champion, app.provenance, "0" * 64)
    budget = app.config.gate.error_budget
    return begin_judgement(app.home, subject, budget, app.keyring, lambda: app.signer, app.clock).ordinal
