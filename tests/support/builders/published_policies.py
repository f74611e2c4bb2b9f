"""Policies that decide, published as `simic publish` does; only the judging is left out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from simic.bus.codec import encode, envelop
from simic.bus.protocol import Bus
from simic.bus.spool.bus import SpoolBus
from simic.contracts.envelope import EventEnvelope
from simic.contracts.names import POLICY_UPDATE_TYPE, POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate, RolloutPlan, ValidationSummary
from simic.contracts.results.receipts import PolicyVersion, Provenance
from simic.publication.publish import publish, sign_update
from simic.runtime.clock import Clock, utc_now
from simic.runtime.home import Home
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import seal
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.judged_candidates import receipt

__all__ = ["Publisher", "sealed_by_digest"]

SUMMARY = ValidationSummary(
    episodes=160, return_over_wait=6.0, lower_bound=5.0, confidence=0.95, gate_digest="a" * 64, without=[],
    evidence="trials",
)  # fmt: skip


def sealed_by_digest(folder: Path, seed: int, signer: Signer = SIGNER) -> str:
    """A policy that decides, below ``folder`` under its digest."""
    built = sealed_decider(folder / f"seed-{seed}", seed=seed)
    digest = seal(built, signer).digest
    built.rename(folder / digest)
    return digest


class Publisher:
    """A home with copies of the policies in ``made``, which it publishes over its spool or another bus."""

    def __init__(self, root: Path, made: Path | None = None, bus: Bus | None = None, clock: Clock = utc_now) -> None:
        self.home, self.clock = Home(root), clock
        self.home.create()
        if made is not None:
            shutil.copytree(made, self.home.policies, dirs_exist_ok=True)
        Keyring(self.home.keys).trust(SIGNER.public_bytes)
        self.bus = SpoolBus(self.home.spool) if bus is None else bus

    def publish(
        self,
        number: int,
        digest: str,
        targets: tuple[str, ...] = ("tamiyo",),
        plan: RolloutPlan | None = None,
        *,
        is_for_all: bool = False,
        name: str = "tamiyo",
        summary: ValidationSummary = SUMMARY,
    ) -> PolicyUpdate:
        """The signed update about version ``number``, which is on the bus."""
        version = PolicyVersion(
            **receipt(), name=name, number=number, semantic_version=f"1.0.{number}", digest=digest,
            reference=f"models:/{name}/{number}", aliases=["champion"], previous=None, snapshot_digest="d" * 64,
            gate_digest="a" * 64, mlflow_run_id="run",
        )  # fmt: skip
        return publish(
            version, summary, targets, bus=self.bus, signer=SIGNER, home=self.home,
            provenance=Provenance("0.1.0+0", "c" * 64, 0), clock=self.clock, plan=plan,
            is_for_all=is_for_all,
        ).update  # fmt: skip

    def put(self, update: PolicyUpdate, name: str = "again", **envelope: Any) -> EventEnvelope:
        """Puts an update as it is, past the outbox, as whoever reaches the bus can."""
        event = envelop(update, type_=POLICY_UPDATE_TYPE, source="simic", created_at=update.issued_at)
        event = event.model_copy(update=envelope)
        self.bus.put(POLICY_UPDATES, name, [encode(event)])
        return event

    def signed(self, like: PolicyUpdate, signer: Signer = SIGNER, **fields: Any) -> PolicyUpdate:
        """Another update, signed by whoever holds the key."""
        return sign_update(like.model_copy(update={"issued_at": self.clock(), **fields}), signer)
