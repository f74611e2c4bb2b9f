"""Policies that a home's own key sealed, and that its real gate, registry and journal judge; nothing is trained."""

from __future__ import annotations

from pathlib import Path

from simic.app import promotion
from simic.app.container import Container
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.receipts import PolicyVersion
from simic.trust.seal import seal
from support.builders.judged_candidates import evidence_of, sealed_policy
from support.builders.judgements import begun
from support.builders.validation_reports import validation_of

__all__ = ["crowned", "policy_of", "validated"]


def validated(
    app: Container, weights: bytes = b"one", *, margin: float = 3.0, champion: str | None = None
) -> ValidationReport:
    """A policy better than all its rivals by ``margin`` points on the mean, validated; its receipts stored."""
    path, digest = sealed_policy(app.home, weights)
    seal(path, app.signer)
    evidence = evidence_of(app.home, path, digest)
    own = {"config_digest": app.provenance.config_digest, "metrics": {"commit_rate": 0.8, "mean_ratio": 0.6}}
    training = app.save_receipt(evidence.training.model_copy(update=own))
    app.save_receipt(evidence.snapshot)
    ordinal = begun(app, digest, champion)
    return app.save_receipt(
        validation_of(training, app.config, app.provenance, margin=margin, champion=champion, ordinal=ordinal)
    )


def crowned(app: Container, weights: bytes = b"one", champion: str | None = None) -> PolicyVersion:
    """A champion in place of ``champion``."""
    report = validated(app, weights, champion=champion)
    decision = promotion.decide(app, report)
    return promotion.promote(app, promotion.record(app, report, decision), report, decision)


def policy_of(app: Container, weights: bytes = b"one") -> Path:
    """Where such a policy lies."""
    return next(app.home.policies.glob(f"policy-{weights.hex()}-*"))
