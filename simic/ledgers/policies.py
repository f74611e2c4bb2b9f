"""Records about policies: trainings, gate decisions, candidates and changes of champion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.names import MODEL_NAME
from simic.contracts.results.gate import GateDecision
from simic.contracts.results.receipts import SEAL_FIELDS, PolicyVersion, TrainingReport
from simic.ledgers import CANDIDATES_LEDGER, GATES_LEDGER, POLICIES_LEDGER, PROMOTIONS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.promotions import History, PromotionEntry, PromotionJournal
from simic.runtime.home import Home
from simic.runtime.receipt_paths import placed
from simic.trust.keys import Keyring, Signer
from simic.trust.records import sign_record, verify_record
from simic.trust.sealed_receipts import check_decision, read_receipt

__all__ = [
    "ListDifference",
    "ancestors",
    "candidate_versions",
    "champion_history",
    "champion_versions",
    "check_candidates",
    "check_entry",
    "extend_list",
    "gate_decisions",
    "is_candidate_trusted",
    "list_difference",
    "newest_decision",
    "parse_record",
    "read_history",
    "seal_candidate",
    "trainings",
]


M = TypeVar("M", bound=BaseModel)
_CANDIDATE = "candidate"
"""Purpose in the seal of a line of the ledger of candidates."""


def read_history(home: Home, keyring: Keyring | None = None, model: str = MODEL_NAME) -> History:
    """Read the journal of promotions, seen from a registered model, and compare the list of champions with it.

    The list may lack the newest lines, because a process may be killed before it writes them.

    Args:
        home: home of the ledgers.
        keyring: trusted keys; the home's own if None.
        model: name of the model.

    Raises:
        IntegrityError: for a damaged line, or if journal and list differ.
    """
    listed = Ledger(home.ledger / POLICIES_LEDGER).read()  # before the journal, which is written first
    history = PromotionJournal(home.ledger, keyring or Keyring(home.keys)).read()
    if (difference := list_difference(home, history, listed)) is not None:
        raise IntegrityError(difference.text)
    return history.of(model)


def champion_history(home: Home, keyring: Keyring | None = None, model: str = MODEL_NAME) -> History:
    """Read the journal like ``read_history`` and check the gate's decision on the present champion.

    Raises:
        IntegrityError: as ``read_history``, or if the decision is missing or edited.
    """
    history = read_history(home, keyring, model)
    if history.champion is not None:
        check_entry(home, history.promotion(history.champion))
    return history


def champion_versions(home: Home, model: str = MODEL_NAME) -> list[PolicyVersion]:
    """Return every change of a model's champion, oldest first. Raises IntegrityError as ``champion_history`` does."""
    return [entry.version for entry in champion_history(home, model=model).done]


def check_entry(home: Home, entry: PromotionEntry, decisions: Mapping[str, GateDecision] | None = None) -> GateDecision:
    """Return the gate decision behind a promotion, which is on record, accepted and unedited.

    Args:
        home: home of the ledgers.
        entry: the promotion.
        decisions: all gate decisions by digest, if the caller has read them.

    Raises:
        IntegrityError: if it is not.
    """
    version, ledger = entry.version, home.ledger / GATES_LEDGER
    claim = f"the journal promotes version {version.number} by gate decision {version.gate_digest}"
    decision = _decision(ledger, version.gate_digest) if decisions is None else decisions.get(version.gate_digest)
    if decision is None:
        raise IntegrityError(f"{claim}, which {ledger} does not hold; restore it from a backup")
    check_decision(decision, version.snapshot_digest)
    if decision.model != version.name:
        raise IntegrityError(
            f"{claim}, but in {ledger} that decision is about {decision.model}, and the journal expects "
            f"{version.name}; restore it from a backup"
        )
    if not decision.accepted or decision.policy_digest != version.digest:
        verdict = "accepts" if decision.accepted else "rejects"
        raise IntegrityError(
            f"{claim}, but in {ledger} that decision {verdict} policy {decision.policy_digest}, and the journal "
            f"expects {version.digest} accepted; restore it from a backup"
        )
    return decision


class ListDifference(NamedTuple):
    """A difference between the list of champions and the journal."""

    text: str
    """Both sides, and the next step."""
    is_derived: bool
    """Whether the journal is complete, because it is at least as long as the list, so the list can be rebuilt."""


def list_difference(
    home: Home, history: History, listed: Sequence[Mapping[str, Any]] | None = None
) -> ListDifference | None:
    """Return the first difference, or None if line i of the list is the journal's i-th change of champion."""
    place, done = home.ledger / POLICIES_LEDGER, history.changes
    lines = Ledger(place).read() if listed is None else listed
    if len(lines) > len(done):
        text = (
            f"{place} lists {len(lines)} changes of champion, but {PROMOTIONS_LEDGER} knows {len(done)}: the last "
            f"lines of the journal are missing. Restore {PROMOTIONS_LEDGER} from a backup; if lines were added to the "
            f"list instead, move the list away: it is rebuilt from the journal"
        )
        return ListDifference(text, is_derived=False)
    for number, (line, entry) in enumerate(zip(lines, done, strict=False), 1):
        if line != entry.version.model_dump(mode="json"):
            text = (
                f"{place}, line {number}: it lists version {line.get('number')} with digest {line.get('digest')}, but "
                f"{PROMOTIONS_LEDGER} made version {entry.target} with digest {entry.digest} champion then, or they "
                f"differ in another field; `simic doctor --repair` lists it as the journal says"
            )
            return ListDifference(text, is_derived=True)
    return None


def extend_list(home: Home, history: History) -> list[PolicyVersion]:
    """Append the changes of champion that the list lacks and return them; callers hold the registry's lock."""
    ledger = Ledger(home.ledger / POLICIES_LEDGER)
    versions = [entry.version for entry in history.changes[len(ledger.read()) :]]
    for version in versions:
        ledger.append(version.model_dump(mode="json"))
    return versions


def candidate_versions(home: Home, model: str = MODEL_NAME) -> list[PolicyVersion]:
    """Return every judged candidate of a model as it was registered, accepted or not, oldest first."""
    return [version for version in _lines(home.ledger / CANDIDATES_LEDGER, PolicyVersion) if version.name == model]


def seal_candidate(version: PolicyVersion, signer: Signer) -> dict[str, Any]:
    """Return the signed record of a candidate, a line of the ledger of candidates."""
    return sign_record(version.model_dump(mode="json"), _CANDIDATE, signer)


def check_candidates(home: Home, keyring: Keyring) -> int:
    """Verify the seal of every candidate on record and return the number of lines.

    A key that was revoked later counts: versions are numbered after all candidates, also those that it sealed. What may
    be promoted is decided by ``is_candidate_trusted``.

    Raises:
        IntegrityError: for the first line that no key of this home sealed, or that was edited.
    """
    path, identifying = home.ledger / CANDIDATES_LEDGER, keyring.including_revoked()
    records = Ledger(path).read()
    for number, record in enumerate(records, 1):
        verify_record(record, _CANDIDATE, identifying, f"{path}, line {number}")
    return len(records)


def is_candidate_trusted(home: Home, keyring: Keyring, model: str, number: int) -> bool:
    """Return whether a trusted key, not revoked since, sealed the newest line about a version of a model."""
    path, wanted = home.ledger / CANDIDATES_LEDGER, (model, number)
    newest = [record for record in Ledger(path).read() if (record.get("name"), record.get("number")) == wanted][-1:]
    try:
        return bool([verify_record(record, _CANDIDATE, keyring, str(path)) for record in newest])
    except IntegrityError:
        return False


def gate_decisions(home: Home) -> list[GateDecision]:
    """Return every decision of the gate, oldest first."""
    return list(_lines(home.ledger / GATES_LEDGER, GateDecision))


def _decision(path: Path, digest: str) -> GateDecision | None:
    """Return the last decision with a digest; other lines are not parsed, so damage of one hides no other."""
    records = [
        (number, record) for number, record in enumerate(Ledger(path).read(), 1) if record.get("digest") == digest
    ]
    return parse_record(f"{path}, line {records[-1][0]}", records[-1][1], GateDecision) if records else None


def newest_decision(home: Home, keyring: Keyring, model: str) -> GateDecision | None:
    """Return the newest decision of the gate about a registered model; None before the first.

    Raises:
        IntegrityError: if no trusted key sealed it, or a newer line was edited, which may have been about the model.
    """
    path, identifying = home.ledger / GATES_LEDGER, keyring.including_revoked()
    for number, record in reversed(list(enumerate(Ledger(path).read(), 1))):
        place = f"{path}, line {number}"
        try:
            if read_receipt(GateDecision, record, identifying, place).model == model:
                return read_receipt(GateDecision, record, keyring, place)
        except ContractError as error:
            raise IntegrityError(f"{place}: not a decision of the gate that this version reads") from error
    return None


def trainings(home: Home) -> list[TrainingReport]:
    """Return the training of every policy, oldest first; the first counts if a policy was trained again."""
    folder = home.receipts / str(TrainingReport.model_fields["stage"].default)
    first: dict[str, TrainingReport] = {}
    for path in sorted(folder.glob("*.json")):
        training = parse_record(path, path.read_bytes(), TrainingReport)
        first.setdefault(training.digest, training)
    return [placed(training, home) for training in first.values()]


def ancestors(policy: str, known: dict[str, TrainingReport]) -> Iterator[TrainingReport]:
    """Yield the training of ``policy``, then that of the policy it started from, and so on while known."""
    seen: set[str] = set()
    digest: str | None = policy
    while digest is not None and digest not in seen and (training := known.get(digest)) is not None:
        seen.add(digest)
        yield training
        digest = training.start_digest


def parse_record(place: object, record: Any, model: type[M]) -> M:
    """Validate bytes of JSON or a plain record as a contract; a seal beside the fields is not verified.

    Raises:
        IntegrityError: if it is not valid; the message begins with ``place``.
    """
    try:
        fields = json.loads(record) if isinstance(record, bytes) else record
        if isinstance(fields, dict):
            fields = {name: value for name, value in fields.items() if name not in SEAL_FIELDS}
        return model.model_validate(fields)
    except ValidationError as error:
        raise IntegrityError(f"{place}: not a {model.__name__}: {describe_faults(error, 'record')}") from error
    except ValueError as error:
        raise IntegrityError(f"{place}: not a {model.__name__}: not JSON: {error}") from error


def _lines(path: Path, model: type[M]) -> Iterator[M]:
    for number, record in enumerate(Ledger(path).read(), 1):
        yield parse_record(f"{path}, line {number}", record, model)
