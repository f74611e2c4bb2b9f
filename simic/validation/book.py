"""The plan book of a set: whether it still speaks of the hosts as they are, and how it comes to disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from simic.contracts.config import RewardConfig
from simic.contracts.controllers import PlanBook
from simic.contracts.errors import ConfigError
from simic.controllers.plans import load_plans, search_command
from simic.runtime.code_version import tree_digest
from simic.trust.canonical import digest_of

__all__ = ["BOOKED", "book_digest", "current_book", "searched_world", "write_book"]

BOOKED = frozenset({"heuristic", "blind", "oracle", "expert"})
"""Controllers that follow what a book holds."""


_DEPENDS_ON = (
    "hosts",
    "contracts/lifecycle.py",
    "numerics/rewards.py",
    "controllers/heuristic.py",
    "controllers/schedule.py",
)


def searched_world(set_name: str, horizon: int, reward: RewardConfig) -> str:
    """Digest of what a search depends on: code of hosts, lifecycle, rewards and rules, the set, horizon and reward."""
    package = Path(__file__).resolve().parents[1]
    return digest_of(
        {
            "hosts": tree_digest(package, _DEPENDS_ON),
            "set": set_name,
            "horizon": horizon,
            "reward": reward.model_dump(mode="json"),
        }
    )


def current_book(set_name: str) -> PlanBook:
    """The book of a set, searched on the hosts as they are now; a missing or outdated one is a ConfigError.

    A world with another horizon, reward or law makes use of the same book, as any user of these controllers would.
    """
    book = load_plans(set_name)
    now = searched_world(set_name, book.horizon, book.reward)
    if book.world_digest != now:
        raise ConfigError(
            f"the plan book of set {set_name!r} was searched on other hosts ({book.world_digest[:12]}) than these "
            f"({now[:12]}), so its plans and rules need not be the best; run `{search_command(set_name)}`"
        )
    return book


def book_digest(set_name: str) -> str:
    """Of the current book, for the receipts of trials in which one of ``BOOKED`` takes part."""
    return digest_of(current_book(set_name))


def write_book(book: PlanBook, path: Path) -> None:
    """As pretty JSON with sorted keys; appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(book.model_dump(mode="json"), indent=2, sort_keys=True) + "\n", "utf-8")
    partial.replace(path)
