"""A candidate with everything a registry wants to know of it, without training or growing anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from simic.contracts.file_digest import FileDigest
from simic.contracts.results.gate import Criterion, GateDecision, ValidationReport, Verdict
from simic.contracts.results.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.contracts.results.trials import ControllerTrial, Estimate, FamilyTrial, TrialReport
from simic.contracts.settings.run import RunConfig
from simic.ledgers import JUDGEMENTS_LEDGER
from simic.ledgers.judgements import JudgementSubject, begin_judgement
from simic.registry.mlflow_run import CandidateRecord
from simic.runtime.home import Home
from simic.runtime.telemetry import JsonLinesSink
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import seal
from simic.trust.sealed_receipts import decision_digest
from support.builders.judgements import judgement

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SIGNER = Signer(b"s" * 32)


def ticking(start: datetime = NOW) -> Callable[[], datetime]:
    """A clock that moves a second a look."""
    moments = [start]

    def clock() -> datetime:
        moments[0] += timedelta(seconds=1)
        return moments[0]

    return clock


def receipt(seed: int = 0) -> dict[str, Any]:
    return {
        "code_version": "0.1.0+000000000000",
        "config_digest": "c" * 64,
        "seed": seed,
        "started_at": NOW,
        "finished_at": NOW + timedelta(minutes=5),
    }


def sealed_policy(home: Home, weights: bytes, *, hidden: int = 48, schema_version: int = 1) -> tuple[Path, str]:
    """A directory as a policy store leaves it, with weights that are no network; its path and digest."""
    directory = home.policies / f"policy-{weights.hex()}-{hidden}-{schema_version}"
    directory.mkdir(parents=True)
    (directory / "weights.safetensors").write_bytes(weights * 64)
    card = {
        "schema_version": schema_version,
        "architecture": "hetero-sage-2",
        "network": {"hidden": hidden, "layers": 2, "exploration": 0.02},
        "feature_version": "0123456789abcdef",
        "blueprints": ["gate", "norm"],
    }
    (directory / "card.json").write_text(json.dumps(card))
    return directory, seal(directory, SIGNER).digest


def number(home: Home) -> None:
    """Put the judgement on record that decisions by hand name, the first one."""
    if not (home.ledger / JUDGEMENTS_LEDGER).exists():
        subject = JudgementSubject("benchmark", "a" * 64, None, Provenance("0.1.0+0", "c" * 64, 0), "9" * 64)
        keyring = Keyring(home.keys)
        keyring.trust(SIGNER.public_bytes)
        begin_judgement(home, subject, 0.025, keyring, lambda: SIGNER, lambda: NOW)


def estimate(mean: float, half_width: float = 1.0, n: int = 160) -> Estimate:
    return Estimate(mean=mean, lower=mean - half_width, upper=mean + half_width, confidence=0.95, n=n)


def family_trial(over_wait: Estimate | None) -> FamilyTrial:
    return FamilyTrial(
        episodes=2, mean_return=3.0, over_wait=over_wait, test_accuracy=0.6, validation_accuracy=0.65,
        committed_parameters=100.0,
    )  # fmt: skip


def trials(names: tuple[str, ...] = ("wait", "blind", "candidate")) -> TrialReport:
    rows = [
        ControllerTrial(
            controller=name, episodes=2, mean_return=5.0, over_wait=None if name == "wait" else estimate(4.0),
            test_accuracy=0.7, validation_accuracy=0.7, committed_parameters=200.0, illegal_actions=0,
            governor_events=0, returns=[4.0, 6.0], test_accuracies=[0.7, 0.7],
            by_family={"cap": family_trial(None if name == "wait" else estimate(4.0))},
        )
        for name in names
    ]  # fmt: skip
    return TrialReport(
        **receipt(), set="benchmark", host_keys=[10, 11], families=["cap", "select"], controllers=rows,
        plans_digest="9" * 64,
    )  # fmt: skip


def judged(
    home: Home,
    weights: bytes = b"one",
    *,
    accepted: bool = True,
    champion: str | None = None,
    seed: int = 0,
    **policy: int,
) -> CandidateRecord:
    """Record of a freshly sealed policy, judged against ``champion``."""
    path, digest = sealed_policy(home, weights, **policy)
    number(home)
    return evidence_of(home, path, digest, accepted=accepted, champion=champion, seed=seed)


def evidence_of(
    home: Home,
    path: Path,
    digest: str,
    *,
    accepted: bool = True,
    champion: str | None = None,
    seed: int = 0,
    how: str = "by hand",
    ordinal: int = 1,
) -> CandidateRecord:
    """Evidence of another ``ordinal`` is that of another judgement; of another ``how``, that of another decision."""
    curves = home.runs / digest[:8] / "curves.jsonl"
    if not curves.exists():
        with JsonLinesSink(curves) as sink:
            for step in range(3):
                sink.log(step, {"policy_loss": 1.0 / (step + 1), "mean_ratio": 0.5})
            sink.log(3, {"policy_loss": float("nan")})
    figure = home.runs / digest[:8] / "paired_differences.png"
    figure.write_bytes(b"\x89PNG not really")
    return CandidateRecord(
        training=TrainingReport(
            **receipt(seed), digest=digest, path=str(path), snapshot_digest="d" * 64, start_digest=champion, updates=3,
            episodes=100, passes=2.0, metrics={"commit_rate": 0.8}, curves_path=str(curves),
        ),
        validation=ValidationReport(
            **receipt(), ordinal=ordinal, policy_digest=digest, champion_digest=champion, snapshot_digest="d" * 64,
            trials=trials(),
            differences={"wait": estimate(6.0), "blind": estimate(3.0)}, training_metrics={"commit_rate": 0.8},
            figures={"paired_differences": str(figure)},
        ),
        gate=decision(digest, accepted=accepted, champion=champion, how=how, ordinal=ordinal),
        snapshot=SnapshotManifest(
            **receipt(), digest="d" * 64, path=str(home.snapshots / "d"), sql_digest="e" * 64, ledger_digest="f" * 64,
            files=[FileDigest(name="steps.parquet", sha256="1" * 64, size_bytes=1)], ledger_parts=[],
            reward_family="basic", gamma=0.99, rows_in=10, rows_out=9, rejected={}, episodes={"train": 100},
        ),
        config=RunConfig(),
    )  # fmt: skip


def decision(
    digest: str, *, accepted: bool = True, champion: str | None = None, how: str = "by hand", ordinal: int = 1
) -> GateDecision:
    """Rejections come a minute before acceptances."""
    verdict = Verdict.PASS if accepted else Verdict.FAIL
    criteria = [
        Criterion(
            name="return_over_wait", value=5.0 if accepted else -5.0, bound=0.0, comparison=">", verdict=verdict,
            evidence=how,
        ),
        Criterion(name="episodes", value=160.0, bound=150.0, comparison=">=", verdict=Verdict.PASS, evidence=how),
    ]  # fmt: skip
    place = judgement(ordinal=ordinal)
    times = receipt() if accepted else {**receipt(), "finished_at": NOW + timedelta(minutes=4)}
    return GateDecision(
        **times, policy_digest=digest, champion_digest=champion, judgement=place, accepted=accepted,
        criteria=criteria, digest=decision_digest(digest, champion, "d" * 64, place, criteria),
    )  # fmt: skip
