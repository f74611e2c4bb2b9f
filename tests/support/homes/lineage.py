"""A home with a history: three policies, a champion, a rejection, a panic, a quarantine; nothing in it was trained."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from simic.app.receipts import ReceiptStore
from simic.contracts.results.gate import Criterion, GateDecision
from simic.contracts.results.receipts import PolicyVersion, SnapshotManifest, TrainingReport
from simic.ledgers import CANDIDATES_LEDGER, GATES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.sealed_receipts import decision_digest
from support.builders.judged_candidates import SIGNER
from support.builders.judged_candidates import number as number_judgement
from support.builders.judgements import judgement
from support.builders.reports import episode, episodes
from support.homes.champions import crown
from support.homes.pipeline import NOW, FixedClock, curate_all, drop, ingest_all, land

__all__ = ["FIRST", "REJECTED", "SECOND", "judge", "make_history", "shelve_training"]

FIRST, SECOND, REJECTED = "1" * 64, "2" * 64, "3" * 64
"""Policies: of round one; champion, going on from it; candidate, going on from the champion, turned away."""


def make_history(home: Home) -> list[SnapshotManifest]:
    """Fills ``home``; its snapshots, oldest first."""
    home.create()
    land(home, episodes(range(24)) + episode(30, governor_at=4) + episode(31)[:5], name="explored")
    first = curate_all(home, clock=FixedClock(NOW + timedelta(hours=1)))
    shelve_training(home, FIRST, first, None, hour=2)
    acted = {"controller": "learned", "policy_version": FIRST, "seed": 1}
    land(home, episodes(range(8), **acted), name="round")
    second = curate_all(home, clock=FixedClock(NOW + timedelta(hours=3)))
    shelve_training(home, SECOND, second, FIRST, hour=4)
    judge(home, SECOND, second, number=1, accepted=True, hour=5)
    branch = episode(0, seed=3, branch_of=episode(0)[0].run_id, branch_step=4)
    land(home, episodes(range(8), controller="learned", policy_version=SECOND, seed=2) + branch, name="night")
    drop(home, "torn", [b"{", episode(0)[0]])
    ingest_all(home)
    third = curate_all(home, clock=FixedClock(NOW + timedelta(hours=6)))
    shelve_training(home, REJECTED, third, SECOND, hour=7)
    judge(home, REJECTED, third, number=2, accepted=False, hour=8)
    return [first, second, third]


def shelve_training(home: Home, policy: str, snapshot: SnapshotManifest, start: str | None, *, hour: int) -> None:
    """As if ``policy`` had been trained on ``snapshot``, going on from ``start``."""
    report = TrainingReport(
        **_receipt(hour), digest=policy, path=str(home.policies / policy), snapshot_digest=snapshot.digest,
        start_digest=start, updates=3, episodes=20, passes=2.0, metrics={"policy_loss": 0.5}, curves_path="",
    )  # fmt: skip
    ReceiptStore(home, FixedClock(_moment(hour)), lambda: SIGNER, Keyring(home.keys)).save(report)


def judge(
    home: Home, policy: str, snapshot: SnapshotManifest, *, number: int, accepted: bool, hour: int
) -> GateDecision:
    """As if the registry had recorded ``policy`` as version ``number``, and promoted it if ``accepted``."""
    value = 5.0 if accepted else -5.0
    criteria = [
        Criterion(name="episodes", value=160.0, bound=150.0, comparison=">=", verdict="PASS", evidence="trials"),
        Criterion(name="return_over_wait", value=value, bound=0.0, comparison=">", evidence="trials",
                  verdict="PASS" if accepted else "FAIL"),
    ]  # fmt: skip
    gate = GateDecision(
        **_receipt(hour), policy_digest=policy, champion_digest=None, judgement=judgement(), accepted=accepted,
        criteria=criteria, digest=decision_digest(policy, None, snapshot.digest, judgement(), criteria),
    )  # fmt: skip
    version = PolicyVersion(
        **_receipt(hour), name="tamiyo", number=number, semantic_version=f"1.0.{number - 1}", digest=policy,
        reference=f"models:/tamiyo/{number}", aliases=["candidate"], previous=None, snapshot_digest=snapshot.digest,
        gate_digest=gate.digest, mlflow_run_id=f"run{number}",
    )  # fmt: skip
    number_judgement(home)
    for ledger, record in ((CANDIDATES_LEDGER, version), (GATES_LEDGER, gate)):
        Ledger(home.ledger / ledger).append(record.model_dump(mode="json"))
    if accepted:
        crown(home, version)
    return gate


def _moment(hour: int) -> datetime:
    return NOW + timedelta(hours=hour)


def _receipt(hour: int) -> dict[str, Any]:
    return {
        "code_version": "0.1.0+test",
        "config_digest": "c" * 64,
        "seed": 0,
        "started_at": _moment(hour),
        "finished_at": _moment(hour),
    }
