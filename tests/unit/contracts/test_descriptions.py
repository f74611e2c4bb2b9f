"""The descriptions of fields, which ``simic schema NAME`` prints: each is understood without its neighbours."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import walk_packages

import simic.contracts
from simic.contracts.base import Contract

LEANS_ON_ANOTHER = re.compile(r"(Of|That|Those|The same|As|Its)\b|.*\bnext (two|three|four)\b", re.DOTALL)


def contracts_below(kind: type[Contract]) -> set[type[Contract]]:
    return {kind}.union(*(contracts_below(one) for one in kind.__subclasses__()))


def test_every_description_stands_alone() -> None:
    for module in walk_packages(simic.contracts.__path__, "simic.contracts."):
        import_module(module.name)
    leaning = [
        f"{contract.__name__}.{name}: {field.description}"
        for contract in contracts_below(Contract)
        if contract.__module__.startswith("simic.contracts.")
        for name, field in contract.model_fields.items()
        if field.description and LEANS_ON_ANOTHER.match(field.description)
    ]
    assert sorted(leaning) == []
