"""A home in which a champion is rolled out to a share of production."""

from __future__ import annotations

from datetime import datetime, timedelta

from simic.app import promotion
from simic.app.container import Container
from simic.bus.spool.bus import SpoolBus
from simic.contracts.names import MODEL_NAME, POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate
from simic.ledgers.policies import read_history
from simic.publication import publish as publication
from simic.runtime.clock import utc_now
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from support.builders.reports import episode
from support.homes.champion_homes import FORMER
from support.homes.pipeline import land

__all__ = ["PARTIAL", "RollingOut"]

PARTIAL = {"rollout.start": "partial", "rollout.min_episodes": 30}


class RollingOut:
    """A home whose former champion all consumers have, and whose champion is rolled out to a share."""

    def __init__(self, home: Home) -> None:
        self.home, self.ahead = home, timedelta()
        self.container = Container(home, load_profile("quick", PARTIAL), 0, clock=self.now)
        former = next(entry for entry in read_history(home).done if entry.target == FORMER)
        publication.publish(
            former.version, former.validation, (MODEL_NAME,), bus=self.container.open_bus(),
            signer=self.container.signer, home=home, provenance=self.container.provenance, clock=self.now,
        )  # fmt: skip
        self.former = former.digest
        self.begun: PolicyUpdate = promotion.publish_champion(self.container).update

    def now(self) -> datetime:
        """The clock, set forward by ``ahead``."""
        return utc_now() + self.ahead

    def report(self, good: int, bad: int = 0, first: int = 0, **arguments: object) -> None:
        """Whole episodes of the champion; in the bad ones the governor panics."""
        fields = {"issued_at": self.begun.issued_at + timedelta(minutes=1), "policy_version": self.begun.digest}
        rows = [
            report
            for key in range(good + bad)
            for report in episode(
                first + key,
                truncate_at=None if key < bad else 0,
                governor_at=0 if key < bad else None,
                **{**fields, **arguments},
            )
        ]
        land(self.home, rows, name=f"reports-{first}", clock=lambda: self.now() + timedelta(hours=1))

    def champion(self) -> int:
        """Number of the champion."""
        found = self.container.registry.champion()
        assert found is not None
        return found.number

    def updates(self) -> int:
        """How many updates are on the bus."""
        return SpoolBus(self.home.spool).pending(POLICY_UPDATES)
