"""A process that promotes, rolls out and rolls back for ever, until it is killed."""

from __future__ import annotations

import time
from pathlib import Path

from simic.bus.spool.bus import SpoolBus
from simic.contracts.policy_update import RolloutPlan
from simic.contracts.results.receipts import Provenance
from simic.ledgers.policies import read_history
from simic.publication.publish import publish
from simic.registry.registry import Registry
from simic.runtime.clock import utc_now
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from support.builders.judged_candidates import SIGNER, evidence_of

__all__ = ["live", "opened", "tell"]


def opened(home: Home) -> Registry:
    return Registry(home, Keyring(home.keys), signer=lambda: SIGNER, clock=utc_now)


def tell(home: Home, registry: Registry, plan: RolloutPlan | None = None, *, is_for_all: bool = False) -> None:
    """Publish the champion."""
    with registry.certified() as entry:
        publish(
            entry.version, entry.validation, ["tamiyo"], bus=SpoolBus(home.spool), signer=SIGNER, home=home,
            provenance=Provenance("0.1.0+0", "c" * 64, 0), clock=utc_now, plan=plan, is_for_all=is_for_all,
        )  # fmt: skip


def live(root: str, path: str, digest: str, champion: str, rounds: int | None = None) -> float:
    """Go on from whatever an earlier life left; return the seconds of a round if there are only so many."""
    home, began = Home(Path(root)), time.monotonic()
    registry = opened(home)
    plan = RolloutPlan(
        share=0.1, hours=24.0, min_success=0.8, min_episodes=50, baseline=champion, baseline_version="1.0.0"
    )
    done = 0
    while rounds is None or done < rounds:
        # A judgement promotes once, so each round has its own.
        ordinal = read_history(home).next_number
        evidence = evidence_of(home, Path(path), digest, champion=champion, ordinal=ordinal)
        version = registry.record(evidence)
        registry.stage(version, evidence.validation, evidence.gate)
        registry.promote(version, evidence.validation, evidence.gate)
        tell(home, registry, plan)
        tell(home, registry, is_for_all=True)
        registry.rollback("in a test")
        tell(home, registry)
        done += 1
    return (time.monotonic() - began) / done
