"""Shell completion of controllers, policies, snapshots, sets and profiles.

Completion runs at every TAB in any folder, so nothing here opens the registry, loads torch or MLflow, or creates a
directory. A damaged file gives no completions, because an error message would appear in the command line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from simic.contracts.controllers import CONTROLLER_ORDER, SEARCHED
from simic.contracts.errors import ConfigError
from simic.contracts.names import CANDIDATE, CHAMPION, KARN, LEARNED, MODEL_NAME, MODELS, SHORT
from simic.controllers.plugins import CONTROLLERS
from simic.hosts.host_sets import SETS
from simic.hosts.plugins import family_names
from simic.ledgers import CANDIDATES_LEDGER
from simic.runtime.home import Home, resolve_home
from simic.runtime.settings import profile_names

__all__ = ["NAMED", "controller_list", "controllers", "models", "policies", "profiles", "sets", "snapshots", "starts"]

_NOT_NAMED = frozenset({"schedule", LEARNED, CHAMPION, CANDIDATE, *SEARCHED})
NAMED = tuple(name for name in dict.fromkeys([*CONTROLLER_ORDER, *CONTROLLERS.names()]) if name not in _NOT_NAMED)
"""Controllers that need no parameter; installed ones last."""
_FOLDER = re.compile(r"[0-9a-f]{16,64}")
MOST_BYTES = 4 * 1024 * 1024
"""Largest number of bytes of a ledger that are read for version numbers, from its end."""


def profiles(incomplete: str) -> list[str]:
    """Return the shipped profiles."""
    return _fitting(profile_names(), incomplete)


def models(incomplete: str) -> list[str]:
    """Return the registered models."""
    return _fitting(MODELS, incomplete)


def sets(incomplete: str) -> list[str]:
    """Return shipped sets and families, including installed ones."""
    return _fitting([*SETS, *family_names()], incomplete)


def controllers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the controllers, then the policies of this home; behind the + of a policy, the Karns it may consult."""
    home = _home(ctx)
    policy, plus, _ = incomplete.partition("+")
    if plus:
        known = [] if home is None else [CHAMPION, *_digests(home.karn)]
        return _fitting([f"{policy}+{KARN}", *(f"{policy}+{KARN}/{name}" for name in known)], incomplete)
    return _fitting([*NAMED, CHAMPION, *_policies(home)], incomplete)


def controller_list(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions for the last of several arms of a comparison, separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    taken = set(before.split(","))
    names = [*_fitting(SEARCHED, last), *controllers(ctx, last)]
    return [f"{before}{comma}{name}" for name in names if name not in taken]


def policies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the champion, then every policy of this home by version and digest."""
    return _fitting([CHAMPION, *_policies(_home(ctx))], incomplete)


def starts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names that a training run may start from."""
    return [*_fitting(["nothing"], incomplete), *policies(ctx, incomplete)]


def snapshots(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the beginnings of the digests of this home's snapshots."""
    home = _home(ctx)
    return [] if home is None else _fitting(_digests(home.snapshots), incomplete)


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _home(ctx: typer.Context) -> Home | None:
    """Return the home of this command line, named before or after the verb; None if there is none."""
    place: Any = ctx  # the parents of a context are contexts of Click
    while place is not None and place.params.get("home") is None:
        place = place.parent
    try:
        return resolve_home() if place is None else Home(Path(place.params["home"]))
    except ConfigError:
        return None


def _policies(home: Home | None) -> list[str]:
    return [] if home is None else [*_versions(home), *_digests(home.policies)]


def _versions(home: Home) -> list[str]:
    """Yield version numbers from the ledger of candidates, newest first; invalid lines are skipped."""
    try:
        with (home.ledger / CANDIDATES_LEDGER).open("rb") as source:
            source.seek(max(0, os.fstat(source.fileno()).st_size - MOST_BYTES))
            lines = source.read(MOST_BYTES).splitlines()
    except OSError:
        return []
    return [f"{MODEL_NAME}/{number}" for line in reversed(lines) if (number := _number(line)) is not None]


def _number(line: bytes) -> int | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_policy = isinstance(record, dict) and record.get("name") == MODEL_NAME
    number = record.get("number") if is_policy else None
    return number if isinstance(number, int) else None


def _digests(folder: Path) -> list[str]:
    try:
        return sorted(path.name[:SHORT] for path in folder.iterdir() if _FOLDER.fullmatch(path.name))
    except OSError:
        return []
