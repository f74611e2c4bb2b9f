"""Fixed plans on disk: one book per world, found by search and shipped with the code."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from simic.contracts.controllers import PlanBook
from simic.contracts.errors import ConfigError, ContractViolation

__all__ = ["PLANS_DIRECTORY", "load_plans", "plan_path"]

PLANS_DIRECTORY = Path(__file__).parent / "plans"


def plan_path(set_name: str) -> Path:
    """Where the book of a world lives."""
    return PLANS_DIRECTORY / f"{set_name}.json"


def load_plans(set_name: str) -> PlanBook:
    """The book of a world; ConfigError says how to make a missing one."""
    path = plan_path(set_name)
    if not path.is_file():
        known = sorted(other.stem for other in PLANS_DIRECTORY.glob("*.json"))
        raise ConfigError(
            f"no fixed plans for set {set_name!r} (known: {known}); run `simic plans search --set {set_name}`"
        )
    try:
        book = PlanBook.model_validate(json.loads(path.read_bytes()))
    except (ValidationError, ValueError) as error:
        raise ContractViolation(f"plan book {path.name} is malformed: {error}") from error
    if book.set != set_name:
        raise ContractViolation(f"plan book {path.name} belongs to set {book.set!r}")
    return book
