"""Checks of the doctor on policies: journal of promotions, ledgers, registry, outbox.

Later checks rely on earlier ones: nothing is compared with a damaged journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from simic.app.checks.health import counted, damaged, healthy, repairable, repaired, summarise
from simic.app.checks.key_checks import RESEAL
from simic.contracts.errors import IntegrityError, SimicError
from simic.contracts.names import MODEL_NAME, MODELS
from simic.contracts.results.lake import Check, Health
from simic.ledgers import POLICIES_LEDGER
from simic.ledgers.judgements import check_judgements
from simic.ledgers.ledger import Ledger
from simic.ledgers.policies import (
    candidate_versions,
    check_candidates,
    check_entry,
    extend_list,
    gate_decisions,
    list_difference,
)
from simic.ledgers.promotions import History, Operation, PromotionJournal, UnvouchedError
from simic.publication.publish import LOCK_WAIT_S, digests_in_updates, open_outbox
from simic.registry.registry import Registry
from simic.runtime.files import move_to_damaged
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.trust.keys import Keyring
from simic.trust.sealed_receipts import check_decision

__all__ = ["examine_policies"]

_BACKUP = "restore it from a backup: nothing else proves who was promoted"
_LOCK_WAIT_S = 60.0


def examine_policies(
    home: Home, registry_of: Callable[[str], Registry], *, is_deep: bool, is_repair: bool
) -> Iterator[Check]:
    """Run every check on registered models: policies and Karn.

    ``registry_of`` is called only for a model of which something was recorded, and if no damage was found before. A
    repair rewrites what follows from the journal: the list of champions, the alias and the tags. It does not change the
    journal, except for an entry that a killed process left open.
    """
    yield _examine_outbox(home, is_repair=is_repair)
    try:
        history = _read_journal(home)
    except (SimicError, ValueError) as error:
        yield damaged("journal of promotions", str(error), _remedy(error))
        return
    listed = list(_examine_list(home, history, is_repair=is_repair))
    decisions = [*_examine_decisions(home, history), _examine_candidates(home)]
    yield from [*listed, *decisions, _examine_judgements(home)]
    if _is_damaged([*listed, *decisions]):
        return
    for model in MODELS:
        if _has_registry(home, history.of(model)):
            yield from _examine_model(home, history.of(model), registry_of, is_deep=is_deep, is_repair=is_repair)


def _examine_model(
    home: Home, history: History, registry_of: Callable[[str], Registry], *, is_deep: bool, is_repair: bool
) -> Iterator[Check]:
    """Settle what was begun with a model, and compare its registry with the ledgers."""
    begun = history.open_entry
    unfinished = (
        "" if begun is None else f"the {begun.operation.value} of version {begun.target} was started but not finished"
    )
    if unfinished and not is_repair:
        yield repairable(
            _name("champion", history.model),
            unfinished,
            "the next `simic promote` or `simic rollback` of the model finishes it",
        )
        return
    try:
        opened = registry_of(history.model)  # which settles what was begun
        if unfinished:
            history = _read_journal(home).of(history.model)
            yield repaired(
                _name("champion", history.model), unfinished, f"finished as {history.entries[-1].phase.value}"
            )
        update_digests = digests_in_updates(open_outbox(home), history.model)
        yield from _examine_registry(opened, history, update_digests, is_deep=is_deep, is_repair=is_repair)
    except (SimicError, ValueError) as error:
        yield damaged(_name("registry", history.model), str(error), "see the message")


def _remedy(error: Exception) -> str:
    return f"{RESEAL}; the file itself is intact" if isinstance(error, UnvouchedError) else _BACKUP


def _read_journal(home: Home) -> History:
    return PromotionJournal(home.ledger, Keyring(home.keys)).read()


def _examine_list(home: Home, history: History, *, is_repair: bool) -> Iterator[Check]:
    """Compare the list of champions with the journal; a repair derives it again unless the journal seems truncated."""
    name, problem = "list of champions", list_difference(home, history)
    lacking = len(history.changes) - len(Ledger(home.ledger / POLICIES_LEDGER).read())
    if problem is None and lacking:
        summary = f"a killed process left out the newest {lacking} changes of champion"
        if is_repair:
            with exclusive(home.locks / "registry", "listing the champions", _LOCK_WAIT_S):
                extend_list(home, history)
            yield repaired(name, summary, "listed as the journal says")
        else:
            yield repairable(name, summary, "list them, as the next command would")
    elif problem is None:
        yield healthy(name, f"{len(history.changes)} changes of champion, as journalled")
    elif not problem.is_derived:
        yield damaged(name, problem.text, "one of the two files lost or gained lines: restore both from one backup")
    elif not is_repair:
        yield repairable(name, problem.text, "make it again from the journal")
    else:
        with exclusive(home.locks / "registry", "listing the champions", _LOCK_WAIT_S):
            where = move_to_damaged(home.ledger / POLICIES_LEDGER)
            extend_list(home, history)
        yield repaired(name, problem.text, f"moved to {where}, and made again from the journal")


def _examine_decisions(home: Home, history: History) -> Iterator[Check]:
    """Check that every decision matches its digest, and that every candidate and champion has a decision."""
    problems = []
    try:
        decisions = {decision.digest: decision for decision in gate_decisions(home)}
        candidates = [version for model in MODELS for version in candidate_versions(home, model)]
    except SimicError as error:
        yield damaged("gate decisions", str(error), "restore that ledger from a backup")
        return
    for candidate in candidates:
        decision = decisions.get(candidate.gate_digest)
        try:
            if decision is None:
                claim = f"version {candidate.number} was judged by gate decision {candidate.gate_digest}"
                raise IntegrityError(f"{claim}, which the ledger of gate decisions does not hold")
            if decision.policy_digest != candidate.digest:
                claim = f"gate decision {decision.digest} judges policy {decision.policy_digest}"
                raise IntegrityError(f"{claim}, the ledger of candidates says {candidate.digest}")
            check_decision(decision, candidate.snapshot_digest)
        except IntegrityError as error:
            problems.append(str(error))
    staged = [entry for model in MODELS if (entry := history.of(model).staged) is not None]
    for entry in (*history.changes, *staged):
        try:
            if entry.operation is not Operation.ROLLBACK:
                check_entry(home, entry, decisions)
        except IntegrityError as error:
            problems.append(str(error))
    if not problems:
        yield healthy("gate decisions", f"{counted(len(decisions), 'decision')}, all unchanged")
    for problem in dict.fromkeys(problems):
        yield damaged("gate decisions", problem, "restore data/ledger/gates.jsonl or candidates.jsonl from a backup")


def _examine_candidates(home: Home) -> Check:
    """Check the seal of every line of the ledger of candidates."""
    try:
        count = check_candidates(home, Keyring(home.keys))
    except SimicError as error:
        return damaged("candidates", str(error), "restore data/ledger/candidates.jsonl from a backup")
    return healthy("candidates", f"{counted(count, 'line')}, all as sealed")


def _examine_judgements(home: Home) -> Check:
    """Check seal and order of every line of the ledger of judgements, and that decisions name no later one."""
    try:
        count = len(check_judgements(home, Keyring(home.keys)))
    except SimicError as error:
        return damaged("judgements", str(error), "restore data/ledger/judgements.jsonl from a backup")
    return healthy("judgements", f"{counted(count, 'judgement')}, in their order and as sealed")


def _has_registry(home: Home, history: History) -> bool:
    if history.model == MODEL_NAME:
        return bool(history.entries) or home.mlflow_database.exists()
    return bool(history.entries) or bool(candidate_versions(home, history.model))


def _name(what: str, model: str) -> str:
    """Return the name of a check of one model, which differs from those of the others."""
    return what if model == MODEL_NAME else f"{what} of {model}"


def _examine_registry(
    registry: Registry, history: History, update_digests: frozenset[str], *, is_deep: bool, is_repair: bool
) -> Iterator[Check]:
    """Compare MLflow with the ledgers; with ``is_deep`` also every byte of every version with its seal."""
    name = _name("registry", history.model)
    broken = registry.damaged_versions() if is_deep else []
    champion = None if history.champion is None else history.champion.target
    for version, problem in broken:
        which = f"{MODELS[version.name]} {version.name}/{version.number}"
        if version.number == champion:
            yield damaged(
                which, f"the champion: {problem}", "restore it from a backup, or `simic rollback --reason ...`"
            )
        else:
            yield damaged(which, problem, "restore it from a backup; it is refused wherever it is asked for")
    differences = registry.differences(update_digests)
    for note in (difference for difference in differences if difference.is_note):
        yield healthy(name, note.text)
    findings = [difference for difference in differences if not difference.is_note]
    judged = "every byte as sealed" if is_deep else "--deep reads their bytes"
    if not findings:
        yield healthy(name, f"alias and tags of {counted(registry.count(), 'version')} as the ledgers say ({judged})")
        return
    is_mended = False
    if is_repair and all(difference.is_repairable or difference.lets_repair_go_on for difference in findings):
        registry.repair(update_digests)
        kept = {difference for difference in differences if not difference.is_repairable}
        is_mended = kept.issuperset(registry.differences(update_digests))
    for difference in findings:
        if is_mended and difference.is_repairable:
            yield repaired(name, difference.text, "restored to what the ledgers say")
        elif difference.is_repairable:
            yield repairable(name, difference.text, "restore what the ledgers say")
        else:
            yield damaged(name, difference.text, "see the message")


def _examine_outbox(home: Home, *, is_repair: bool) -> Check:
    """Check the signatures of updates. Those delivered before a key was revoked stay: they hold plans of rollouts."""
    broken = open_outbox(home).damaged(is_pending=True)
    broken += open_outbox(home, including_revoked=True).damaged(is_pending=False)
    if not broken:
        return healthy("outbox", "every update as it was signed")
    summary = summarise([f"{path.relative_to(home.root)}: {problem}" for path, problem in broken])
    if not is_repair:
        return repairable("outbox", summary, "move them away; `simic publish` signs again what production lacks")
    with exclusive(home.locks / "publish", "examining the outbox", LOCK_WAIT_S):
        for path, _ in broken:
            move_to_damaged(path)
    return repaired("outbox", summary, "moved away; `simic publish` signs again what production lacks")


def _is_damaged(checks: Sequence[Check]) -> bool:
    """Return whether a check failed, so that comparing the registry would be meaningless."""
    return any(check.health in (Health.DAMAGED, Health.REPAIRABLE) for check in checks)
