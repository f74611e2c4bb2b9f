"""The ledger of moves: the paths at which a home lay, newest last."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, UtcDatetime
from simic.ledgers import MOVES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home

__all__ = ["Move", "last_place"]

PathText = Annotated[str, Field(max_length=16_384)]


class Move(Contract):
    """One line of the ledger: the home is now at another path."""

    schema_version: Literal[1] = 1
    at: UtcDatetime
    source: PathText | None
    """Absolute path before; null for a new home, or one made before there was this ledger."""
    target: PathText
    """Absolute path from now on."""
    mlflow: Count
    """Addresses rewritten in MLflow's database."""
    prefect: Count
    """Paths of results rewritten in Prefect's database and files."""


def last_place(home: Home) -> str | None:
    """Return the absolute path at which the home lay when its paths were last rewritten, if they ever were."""
    lines = Ledger(home.ledger / MOVES_LEDGER).read()
    return Move.model_validate(lines[-1]).target if lines else None
