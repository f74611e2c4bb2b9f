"""Homes with champions in a real registry: made once, copied often."""

from __future__ import annotations

from pathlib import Path

import pytest

from simic.app.container import Container
from simic.registry.mlflow_store import open_client
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.keys import Keyring
from support.builders.judged_candidates import SIGNER, judged, ticking
from support.builders.sealed_policies import crowned
from support.homes.mlflow_databases import furnish
from support.homes.templates import copy_of

__all__ = [
    "FORMER",
    "PRESENT",
    "TURNED_AWAY",
    "crowned_home",
    "first_champion_home",
    "open_home",
    "own_champion_home",
    "point_at",
    "show_tag",
    "weights_of",
]

FORMER, PRESENT, TURNED_AWAY = 1, 2, 3
"""Versions: the champion before, the champion, and a candidate that the gate rejected."""
_CONTENT = {FORMER: b"one", PRESENT: b"two", TURNED_AWAY: b"bad"}


def crowned_home(root: Path, factory: pytest.TempPathFactory) -> Home:
    """A former champion, a champion and a rejected candidate; nothing was published yet."""
    return copy_of("crowned", _crown_two, root, factory)


def first_champion_home(root: Path, factory: pytest.TempPathFactory) -> Home:
    """One champion, which the signer of the tests sealed and promoted; its weights are ``b"one"``."""
    return copy_of("first-champion", _crown_first, root, factory)


def own_champion_home(root: Path, factory: pytest.TempPathFactory) -> Home:
    """One champion; the home's own key signed it, its receipts and the journal, and the real gate judged it."""
    return copy_of("own-champion", _crown_own, root, factory)


def open_home(home: Home) -> Container:
    """A process's view of it: nothing is remembered from another one."""
    return Container(home, load_profile("quick"), 0)


def point_at(home: Home, number: int | None, alias: str = "champion") -> None:
    """Move the alias as anybody can who reaches MLflow."""
    client = open_client(home.tracking_uri)
    if number is None:
        client.delete_registered_model_alias("tamiyo", alias)
    else:
        client.set_registered_model_alias("tamiyo", alias, str(number))


def show_tag(home: Home, number: int, key: str, value: str) -> None:
    """Edit a tag likewise."""
    open_client(home.tracking_uri).set_model_version_tag("tamiyo", str(number), key, value)


def weights_of(home: Home, number: int) -> Path:
    """The weights that the registry stores for a version."""
    found = (home.artifacts / "models").rglob("weights.safetensors")
    return next(path for path in found if path.read_bytes().startswith(_CONTENT[number]))


def _crown_two(home: Home) -> None:
    furnish(home)
    registry = open_home(home).registry
    champion = None
    for number in (FORMER, PRESENT):
        evidence = judged(home, _CONTENT[number], champion=champion)
        champion = registry.promote(registry.record(evidence), evidence.validation, evidence.gate).digest
    registry.record(judged(home, _CONTENT[TURNED_AWAY], accepted=False, champion=champion))


def _crown_first(home: Home) -> None:
    furnish(home)
    registry = Registry(home, Keyring(home.keys), signer=lambda: SIGNER, clock=ticking())
    evidence = judged(home, b"one")
    registry.promote(registry.record(evidence), evidence.validation, evidence.gate)


def _crown_own(home: Home) -> None:
    furnish(home)
    crowned(Container(home, load_profile("default"), 0))
