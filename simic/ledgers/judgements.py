"""The ledger of judgements: who was judged, in which order, at which level.

A line is written before any host is grown, because evidence that was seen counts whether or not a decision follows.
Judging again what a line names already, with the same settings and code, gives the same evidence and adds no line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from simic.contracts.errors import IntegrityError
from simic.contracts.names import MODEL_NAME, judged_name
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.judgements import Judgement, JudgementEntry
from simic.contracts.results.receipts import Provenance
from simic.ledgers import GATES_LEDGER, JUDGEMENTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.policies import gate_decisions, parse_record
from simic.numerics.spending import level
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.trust.keys import Keyring, Signer
from simic.trust.records import sign_record, verify_record
from simic.trust.sealed_receipts import read_receipt

__all__ = ["JudgementSubject", "begin_judgement", "check_judgements", "judgement_of", "judgements", "next_judgement"]

_PURPOSE = "judgement"
_WAIT_S = 30.0
_BACKUP = "restore data/ledger/judgements.jsonl from a backup"


class JudgementSubject(NamedTuple):
    """Candidate, rival and world of a judgement. Equal subjects have equal evidence and share a judgement."""

    set: str
    policy_digest: str
    champion_digest: str | None
    provenance: Provenance
    world_digest: str
    """As in a ``JudgementEntry``."""
    model: str = MODEL_NAME
    """Registered model of the candidate."""


def judgements(home: Home, keyring: Keyring) -> list[JudgementEntry]:
    """Return every judgement that began in this home, in their order.

    Raises:
        IntegrityError: for a line that no key of this home sealed, or that is out of order.
    """
    path, identifying = home.ledger / JUDGEMENTS_LEDGER, keyring.including_revoked()
    entries = []
    for number, record in enumerate(Ledger(path).read(), 1):
        place = f"{path}, line {number}"
        entry = parse_record(place, verify_record(record, _PURPOSE, identifying, place), JudgementEntry)
        if entry.ordinal != number:
            raise IntegrityError(f"{place}: expected judgement {number}, found {entry.ordinal}; {_BACKUP}")
        entries.append(entry)
    return entries


def check_judgements(home: Home, keyring: Keyring) -> list[JudgementEntry]:
    """Return every judgement, as ``judgements``, if none that was decided is missing.

    Raises:
        IntegrityError: as ``judgements``, or if the gate decided on a later judgement: the last lines are missing.
    """
    entries = judgements(home, keyring)
    decided = max((decision.judgement.ordinal for decision in gate_decisions(home)), default=0)
    if decided > len(entries):
        raise IntegrityError(
            f"{home.ledger / JUDGEMENTS_LEDGER}: expected {decided} judgements or more, because {GATES_LEDGER} has a "
            f"decision on judgement {decided}, found {len(entries)}; {_BACKUP}"
        )
    return entries


def begin_judgement(
    home: Home, subject: JudgementSubject, budget: float, keyring: Keyring, signer: Callable[[], Signer], clock: Clock
) -> JudgementEntry:
    """Return the judgement of a subject; a new one gets the next ordinal and its level, and is written first.

    Args:
        home: Home of the ledger.
        subject: What is judged.
        budget: ``gate.error_budget``.
        keyring: Keys of the home.
        signer: Called if a line is written.
        clock: Gives the time of the line.

    Raises:
        IntegrityError: as ``check_judgements``.
        TransientError: if another process holds the ledger.
    """
    with exclusive(home.locks / "judgements", "beginning a judgement", _WAIT_S):
        entries = check_judgements(home, keyring)
        if (known := next((entry for entry in entries if _subject(entry) == subject), None)) is not None:
            return known
        accepted = _accepted(home, keyring)
        rival = (subject.model, subject.champion_digest)
        against = sum((earlier.model, earlier.champion_digest) == rival for earlier in entries)
        entry = JudgementEntry(
            **next_judgement(entries, accepted, against, budget).model_dump(),
            model=subject.model,
            set=subject.set,
            policy_digest=subject.policy_digest,
            champion_digest=subject.champion_digest,
            **subject.provenance._asdict(),
            world_digest=subject.world_digest,
            begun_at=clock(),
        )
        record = sign_record(entry.model_dump(mode="json"), _PURPOSE, signer())
        Ledger(home.ledger / JUDGEMENTS_LEDGER).append(record)
        return entry


def next_judgement(earlier: Sequence[Judgement], accepted: Collection[int], against: int, budget: float) -> Judgement:
    """Return the judgement after ``earlier``, all of a home in their order, with its level.

    ``accepted`` holds the ordinals of accepted candidates, whose levels are not spent; ``against`` is the number of
    earlier judgements against the same champion.
    """
    carried = earlier[-1].alpha if earlier and earlier[-1].ordinal in accepted else 0.0
    ordinal = len(earlier) + 1
    alpha = level(ordinal, budget, min(carried, budget))
    spent = alpha + sum(judgement.alpha for judgement in earlier if judgement.ordinal not in accepted)
    return Judgement(ordinal=ordinal, attempts=1 + against, budget=budget, alpha=alpha, spent=spent)


def judgement_of(home: Home, report: ValidationReport, keyring: Keyring) -> Judgement:
    """Return the judgement for which the evidence of a report was collected.

    Raises:
        IntegrityError: as ``judgements``, or if the ledger does not know it.
    """
    entries = judgements(home, keyring)
    mine = JudgementSubject(
        report.trials.set,
        report.policy_digest,
        report.champion_digest,
        Provenance(report.code_version, report.config_digest, report.seed),
        "",
        report.model,
    )
    entry = entries[report.ordinal - 1] if report.ordinal <= len(entries) else None
    if entry is None or _subject(entry)._replace(world_digest="") != mine:
        recorded = "nothing" if entry is None else f"{judged_name(entry.model, entry.policy_digest)} on {entry.set}"
        raise IntegrityError(
            f"the validation report of {judged_name(report.model, report.policy_digest)} on {report.trials.set} is "
            f"evidence for judgement {report.ordinal}, for which {home.ledger / JUDGEMENTS_LEDGER} has {recorded}, or "
            "other settings or code; run `simic validate` again"
        )
    return entry.judgement


def _subject(entry: JudgementEntry) -> JudgementSubject:
    return JudgementSubject(
        entry.set,
        entry.policy_digest,
        entry.champion_digest,
        Provenance(entry.code_version, entry.config_digest, entry.seed),
        entry.world_digest,
        entry.model,
    )


def _accepted(home: Home, keyring: Keyring) -> set[int]:
    """Return the ordinals of accepted candidates, whose levels are not spent; only sealed decisions count."""
    path, identifying = home.ledger / GATES_LEDGER, keyring.including_revoked()
    records = [(number, record) for number, record in enumerate(Ledger(path).read(), 1) if record.get("accepted")]
    return {
        read_receipt(GateDecision, record, identifying, f"{path}, line {number}").judgement.ordinal
        for number, record in records
    }
