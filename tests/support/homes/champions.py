"""Champions in the ledgers of a home, signed and chained as a registry would write them; there is no MLflow."""

from __future__ import annotations

from simic.contracts.policy_update import ValidationSummary
from simic.contracts.results.gate import GateDecision
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import GATES_LEDGER, POLICIES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.policies import gate_decisions
from simic.ledgers.promotions import History, Operation, Phase, PromotionEntry, PromotionJournal
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.sealed_receipts import decision_digest
from support.builders.judged_candidates import SIGNER, number
from support.builders.judgements import judgement

__all__ = ["crown", "journal_of", "open_entry"]


def journal_of(home: Home) -> PromotionJournal:
    """Trusts the signer of the tests."""
    keyring = Keyring(home.keys)
    keyring.trust(SIGNER.public_bytes)
    return PromotionJournal(home.ledger, keyring, lambda: SIGNER)


def open_entry(history: History, version: PolicyVersion, *, is_rollback: bool = False) -> PromotionEntry:
    """The beginning of a move to ``version``."""
    source = None if history.champion is None else history.champion.target
    former = history.promotion_of(version.number)
    return PromotionEntry(
        entry=history.next_number,
        phase=Phase.OPEN,
        operation=Operation.ROLLBACK if is_rollback else Operation.PROMOTE,
        source=source,
        restores=former.entry if is_rollback and former is not None else None,
        version=version.model_copy(update={"aliases": [], "previous": source}),
        validation=ValidationSummary(
            episodes=160, return_over_wait=6.0, lower_bound=5.0, confidence=0.95, gate_digest=version.gate_digest
        ),
        tags={"digest": version.digest},
        reason="in a test",
        at=version.finished_at,
    )


def crown(home: Home, version: PolicyVersion, *, is_rollback: bool = False) -> PolicyVersion:
    """Make ``version`` champion; without a decision on record, one that accepted it is put there."""
    if not any(decision.digest == version.gate_digest for decision in gate_decisions(home)):
        version = version.model_copy(update={"gate_digest": _accept(home, version)})
    journal = journal_of(home)
    entry = open_entry(journal.read(), version, is_rollback=is_rollback)
    journal.append(entry)
    journal.append(entry.model_copy(update={"phase": Phase.DONE}))
    Ledger(home.ledger / POLICIES_LEDGER).append(entry.version.model_dump(mode="json"))
    return entry.version


def _accept(home: Home, version: PolicyVersion) -> str:
    common = version.model_dump(include={"code_version", "config_digest", "seed", "started_at", "finished_at"})
    digest = decision_digest(version.digest, None, version.snapshot_digest, judgement(), [])
    decision = GateDecision(
        **common,
        policy_digest=version.digest,
        champion_digest=None,
        judgement=judgement(),
        accepted=True,
        criteria=[],
        digest=digest,
    )
    number(home)
    if not any(known.digest == digest for known in gate_decisions(home)):
        Ledger(home.ledger / GATES_LEDGER).append(decision.model_dump(mode="json"))
    return digest
