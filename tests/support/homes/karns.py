"""Homes with a champion of policies that decides, and Karns that it may consult; nothing is trained."""

from __future__ import annotations

from typing import NamedTuple

from simic.app.container import Container
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.receipts import PolicyVersion
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from support.builders.judged_candidates import SIGNER, evidence_of, number
from support.builders.karns import karn_report, sealed_karn
from support.builders.published_policies import sealed_by_digest

__all__ = ["SETTINGS", "KarnHome", "crowned", "karn_home"]

SETTINGS = {
    "world.horizon": 6, "world.workers": 1, "trial.hosts_per_family": 1,
    "trial.bootstrap_samples": 200, "gate.min_episodes": 8,
}  # fmt: skip
"""Trials of a second."""


class KarnHome(NamedTuple):
    """A home and its champion of policies."""

    app: Container
    champion: PolicyVersion

    def karn(self, seed: int = 0) -> KarnReport:
        """Seal a Karn, as its training does, and keep the receipt."""
        digest = sealed_karn(self.app.home, self.app.signer, seed)
        made = {
            "path": str(self.app.home.karn / digest), "config_digest": self.app.provenance.config_digest,
            "metrics": {"policy_loss": 0.5}, "finished_at": self.app.clock(),
        }  # fmt: skip
        return self.app.save_receipt(karn_report(digest).model_copy(update=made))


def karn_home(home: Home, seed: int = 0, **settings: object) -> KarnHome:
    """Make such a home; ``settings`` have ``__`` for the dot."""
    home.create()
    named = {name.replace("__", "."): value for name, value in settings.items()}
    app = Container(home, load_profile("quick", {**SETTINGS, **named}), 0)
    number(home)
    return KarnHome(app, crowned(app, seed))


def crowned(app: Container, seed: int, champion: str | None = None) -> PolicyVersion:
    """Make a policy that decides champion."""
    digest = sealed_by_digest(app.home.policies, seed, SIGNER)
    evidence = evidence_of(app.home, app.home.policies / digest, digest, champion=champion)
    app.save_receipt(evidence.snapshot)
    return app.registry.promote(app.registry.record(evidence), evidence.validation, evidence.gate)
