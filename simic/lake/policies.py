"""What is on record about policies: their trainings, judgements and promotions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import GateDecision, PolicyVersion, TrainingReport
from simic.lake.ledger import Ledger
from simic.runtime.settings import Home

__all__ = [
    "CANDIDATES_LEDGER",
    "GATES_LEDGER",
    "POLICIES_LEDGER",
    "ancestors",
    "candidate_versions",
    "champion_versions",
    "gate_decisions",
    "parse_record",
    "trainings",
]

POLICIES_LEDGER = "policies.jsonl"
"""Name of the ledger of ``PolicyVersion`` lines, one per change of champion."""
GATES_LEDGER = "gates.jsonl"
"""Name of the ledger of ``GateDecision`` lines."""
CANDIDATES_LEDGER = "candidates.jsonl"
"""Name of the ledger of ``PolicyVersion`` lines, one per judgement of a registered candidate."""

M = TypeVar("M", bound=BaseModel)


def champion_versions(home: Home) -> list[PolicyVersion]:
    """Every change of champion, oldest first."""
    return list(_lines(home.ledger / POLICIES_LEDGER, PolicyVersion))


def candidate_versions(home: Home) -> list[PolicyVersion]:
    """Every judged candidate as it was registered, accepted or not, oldest first."""
    return list(_lines(home.ledger / CANDIDATES_LEDGER, PolicyVersion))


def gate_decisions(home: Home) -> list[GateDecision]:
    """Every decision of the gate, oldest first."""
    return list(_lines(home.ledger / GATES_LEDGER, GateDecision))


def trainings(home: Home) -> list[TrainingReport]:
    """Every policy that was trained here, oldest first; one that was trained again counts once."""
    folder = home.receipts / str(TrainingReport.model_fields["stage"].default)
    first: dict[str, TrainingReport] = {}
    for path in sorted(folder.glob("*.json")):
        training = parse_record(path, path.read_bytes(), TrainingReport)
        first.setdefault(training.digest, training)
    return list(first.values())


def ancestors(policy: str, known: dict[str, TrainingReport]) -> Iterator[TrainingReport]:
    """The training of ``policy``, then that of the policy it started from, and so on as far as they are known."""
    seen: set[str] = set()
    digest: str | None = policy
    while digest is not None and digest not in seen and (training := known.get(digest)) is not None:
        seen.add(digest)
        yield training
        digest = training.start_digest


def parse_record(place: object, record: Any, model: type[M]) -> M:
    """Bytes of JSON or a plain record as a contract; raises IntegrityError that names ``place``."""
    try:
        return model.model_validate_json(record) if isinstance(record, bytes) else model.model_validate(record)
    except ValidationError as error:
        raise IntegrityError(f"{place}: not a {model.__name__}: {error.errors()[0]['msg']}") from error


def _lines(path: Path, model: type[M]) -> Iterator[M]:
    for number, record in enumerate(Ledger(path).read(), 1):
        yield parse_record(f"{path}, line {number}", record, model)
