"""Ledger records of registered versions: promotions, candidates and gate decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers.policies import candidate_versions, gate_decisions
from simic.ledgers.promotions import History
from simic.runtime.home import Home

__all__ = ["LedgerRecords", "read_ledger_records", "unlisted_message"]


class LedgerRecords(NamedTuple):
    """Contents of the journal of promotions and of the ledgers of candidates and gate decisions, of one model."""

    history: History
    """Seen from that model."""
    candidates: Mapping[int, PolicyVersion]
    """The newest line about each recorded version, by number."""
    newest: int | None
    """Number of the version that was recorded last."""
    accepted: Mapping[str, bool]
    """Whether each gate decision accepts, by its digest. The last of several lines with one digest counts."""
    passed: frozenset[str]
    """Digests of policies that at least one decision on record accepts."""

    def known(self, number: int) -> PolicyVersion:
        """Return the recorded version with this number: the champion, a former champion or a candidate.

        Raises:
            IntegrityError: No ledger lists the version.
        """
        champion, promotion = self.history.champion, self.history.promotion_of(number)
        if champion is not None and champion.target == number:
            return champion.version
        if promotion is not None:
            return promotion.version
        if number in self.candidates:
            return self.candidates[number]
        raise IntegrityError(
            f"{unlisted_message(self.history.model, number)}; if its recording was cut short, judge and record that "
            "policy again"
        )


def read_ledger_records(home: Home, history: History) -> LedgerRecords:
    """Read the ledgers of candidates and gate decisions; ``history`` is the journal, verified, seen from the model."""
    recorded, decisions = candidate_versions(home, history.model), gate_decisions(home)
    return LedgerRecords(
        history,
        {version.number: version for version in recorded},
        recorded[-1].number if recorded else None,
        {decision.digest: decision.accepted for decision in decisions},
        frozenset(decision.policy_digest for decision in decisions if decision.accepted),
    )


def unlisted_message(model: str, number: int) -> str:
    """Return the error text for a version of a model that MLflow has and no ledger lists."""
    return (
        f"MLflow has {model} version {number}, which the ledger of candidates does not list: either it was "
        "not made by Simic, or the end of the ledger was lost. In the first case delete the version in MLflow, in the "
        "second restore the ledger from a backup"
    )
