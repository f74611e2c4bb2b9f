"""A Karn that was judged with a policy, as a registry wants to know of it; nothing is trained or grown."""

from __future__ import annotations

from typing import Any

from simic.contracts.names import KARN
from simic.registry.mlflow_run import CandidateRecord
from simic.runtime.home import Home
from simic.trust.sealed_receipts import decision_digest
from support.builders.judged_candidates import SIGNER, estimate, evidence_of, number, trials
from support.builders.karns import karn_report, sealed_karn

__all__ = ["judged_karn"]


def judged_karn(
    home: Home, consulted_by: str, *, seed: int = 0, accepted: bool = True, champion: str | None = None
) -> CandidateRecord:
    """Record of a freshly sealed Karn that policy ``consulted_by`` consulted, judged against Karn ``champion``."""
    number(home)
    digest = sealed_karn(home, SIGNER, seed)
    made = evidence_of(home, home.karn / digest, digest, accepted=accepted, champion=champion)
    own: dict[str, Any] = {"model": KARN, "consulted_by": consulted_by}
    found = decision_digest(
        digest, champion, made.snapshot.digest, made.gate.judgement, made.gate.criteria, consulted_by
    )
    report = made.validation.model_copy(
        update={
            **own, "trials": trials(("wait", "policy_alone", "candidate")),
            "differences": {"wait": estimate(6.0), "policy_alone": estimate(2.0)},
            "training_metrics": {"policy_loss": 0.5},
        }
    )  # fmt: skip
    training = karn_report(digest).model_copy(update={"path": str(home.karn / digest)})
    return made._replace(
        training=training, validation=report, gate=made.gate.model_copy(update={**own, "digest": found})
    )
