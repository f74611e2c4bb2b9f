"""Plan books on disk: one per set of hosts, found by search and shipped with the code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from simic.contracts.controllers import Plan, PlanBook
from simic.contracts.errors import ConfigError, ContractViolation
from simic.contracts.state import HostIdentity

__all__ = ["PLANS_DIRECTORY", "family_plans", "load_plans", "one_set", "plan_path", "search_command"]

PLANS_DIRECTORY = Path(__file__).parent / "plans"


def plan_path(set_name: str) -> Path:
    """Where the book of a set lives."""
    return PLANS_DIRECTORY / f"{set_name}.json"


def search_command(set_name: str) -> str:
    """What makes or renews the book of a set."""
    return f"simic plans search --set {set_name} --out {plan_path(set_name)}"


def load_plans(set_name: str) -> PlanBook:
    """The book of a set; ConfigError for a missing one and ContractViolation for a malformed one name the remedy."""
    path = plan_path(set_name)
    if not path.is_file():
        known = sorted(other.stem for other in PLANS_DIRECTORY.glob("*.json"))
        raise ConfigError(f"no plan book for set {set_name!r} (known: {known}); run `{search_command(set_name)}`")
    try:
        book = PlanBook.model_validate(json.loads(path.read_bytes()))
    except ValueError as error:
        raise ContractViolation(
            f"plan book {path.name} is malformed or of another version of Simic ({_first_problem(error)}); "
            f"run `{search_command(set_name)}`"
        ) from error
    if book.set != set_name:
        raise ContractViolation(
            f"plan book {path.name} belongs to set {book.set!r}, expected {set_name!r}; "
            f"run `{search_command(set_name)}`"
        )
    return book


def _first_problem(error: ValueError) -> str:
    """The first of possibly many, on one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def one_set(hosts: Sequence[HostIdentity]) -> str | None:
    """The set of all hosts, or nothing where there are none; hosts of several sets are a ConfigError."""
    names = {host.set for host in hosts}
    if len(names) > 1:
        raise ConfigError(f"a plan book serves one set of hosts at a time, found {sorted(names)}")
    return next(iter(names), None)


def family_plans(hosts: Sequence[HostIdentity]) -> list[Plan]:
    """The best plan of each host's family; a family that the book does not know is a ConfigError."""
    name = one_set(hosts)
    by_family: Mapping[str, Plan] = {} if name is None else load_plans(name).by_family
    missing = sorted({host.family for host in hosts} - set(by_family))
    if name is not None and missing:
        raise ConfigError(f"no plan for families {missing} of set {name!r}; run `{search_command(name)}`")
    return [by_family[host.family] for host in hosts]
