"""The location of a home: created, opened, and updated after a move.

MLflow and Prefect store absolute paths. The first writer in a home that was moved or copied rewrites them under a lock
and appends a line to ``data/ledger/moves.jsonl``, so the old location is neither read nor written again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from simic.app.checks.health import damaged, healthy, repairable, repaired, summarise
from simic.app.prefect_results import results_elsewhere, rewrite_results
from simic.contracts.errors import ConfigError, SimicError
from simic.contracts.results.lake import Check
from simic.ledgers import MOVES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.moves import Move, last_place
from simic.registry.locations import locations, rewrite_locations
from simic.runtime.clock import Clock
from simic.runtime.home import Home, HomeUse
from simic.runtime.locks import exclusive

__all__ = ["examine_place", "has_moved", "open_home", "settle", "settle_registry"]

_LOCK, _WAIT_S = "place", 120.0
_NAME = "place"


def open_home(home: Home, use: HomeUse, clock: Clock) -> None:
    """Prepare the home for its use.

    Raises:
        ConfigError: if the home does not exist or is not writable and ``use`` requires it.
    """
    if use in (HomeUse.LOOK, HomeUse.CHANGE):
        home.require()
    if use in (HomeUse.CHANGE, HomeUse.MAKE):
        home.create()
        settle(home, clock())


def has_moved(home: Home) -> bool:
    """Return whether the home was moved or copied since its paths were last rewritten."""
    return last_place(home) != str(home.root)


def settle(home: Home, at: datetime, *, is_forced: bool = False) -> Move | None:
    """Rewrite the paths of an earlier location in MLflow and Prefect, and record the move; None if there was none.

    ``is_forced`` searches both even if the ledger shows no move. Repeating the call after a kill is safe: rewriting is
    idempotent, and the ledger's line comes last.
    """
    if not is_forced and not has_moved(home):
        return None
    with exclusive(home.locks / _LOCK, "settling a home that was moved", _WAIT_S):
        source = last_place(home)
        if not is_forced and source == str(home.root):
            return None  # another process did it while this one waited for the lock
        move = Move(
            at=at, source=source, target=str(home.root), mlflow=rewrite_locations(home), prefect=rewrite_results(home)
        )
        Ledger(home.ledger / MOVES_LEDGER).append(move.model_dump(mode="json"))
        return move


def settle_registry(home: Home, at: datetime) -> None:
    """Rewrite earlier paths before a command that only reads opens the registry, because they decide which files are
    read.

    Raises:
        ConfigError: if the registry names another location and the home is not writable.
    """
    if not has_moved(home) or not locations(home):
        return
    try:
        home.require_writable()
    except ConfigError as error:
        raise ConfigError(
            f"the home was moved from {last_place(home) or 'elsewhere'} to {home.root}, and its registry still names "
            f"the old place: run `simic init` once, with permission to write. {error}"
        ) from error
    settle(home, at)


def examine_place(home: Home, at: datetime, *, is_repair: bool) -> Iterator[Check]:
    """Check that no record of MLflow or Prefect points outside the home; a repair rewrites those of an earlier
    location."""
    try:
        mlflow, results = locations(home), results_elsewhere(home)
    except SimicError as error:
        yield damaged(_NAME, str(error), "see the message")
        return
    foreign = [location.found for location in mlflow if location.wanted is None]
    count = len(mlflow) - len(foreign) + len(results)
    if foreign:
        summary = f"{len(foreign)} addresses in MLflow's database are outside the home: {summarise(foreign)}"
        yield damaged(_NAME, summary, "simic did not make them: move those experiments or runs in MLflow")
    if not count:
        if not foreign:
            yield healthy(_NAME, f"{home.root}; no record of MLflow or Prefect points elsewhere")
        return
    examples = [
        *(location.found for location in mlflow if location.wanted is not None),
        *(result.path for result in results),
    ]
    summary = f"{count} records of MLflow and Prefect name an earlier place of this home: {summarise(examples)}"
    if not is_repair:
        yield repairable(_NAME, summary, "rewrite them, as the next command that writes does")
        return
    settle(home, at, is_forced=True)
    yield repaired(_NAME, summary, f"rewritten to {home.root}; the line in {MOVES_LEDGER} says so")
