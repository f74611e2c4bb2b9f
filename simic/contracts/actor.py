"""Who changed which policy is live."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract

__all__ = ["Actor"]


class Actor(Contract):
    """A person's account, a machine and a run; the patterns leave no room for a path."""

    operator: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$")]
    """Login name of the account."""
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}$")]
    """Name of the machine."""
    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """Id of the retraining run, as in ``data/ledger/runs.jsonl``; null for a command by hand."""
