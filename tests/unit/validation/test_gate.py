"""The gate fails closed: whatever is not proven rejects."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from simic.contracts.config import GateConfig
from simic.contracts.receipts import (
    ControllerTrial,
    Estimate,
    GateDecision,
    Provenance,
    TrialReport,
    ValidationReport,
    Verdict,
)
from simic.contracts.splits import Split, split_of
from simic.validation.gate import BASELINES, Direction, decide

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIGEST, OTHER = "a" * 64, "b" * 64
N = 160
KEYS = [key for key in range(20_000) if split_of("benchmark", key) is Split.TEST][:N]
RECEIPT: dict[str, Any] = {
    "code_version": "0.1.0+0",
    "config_digest": "c" * 64,
    "seed": 0,
    "started_at": NOW,
    "finished_at": NOW,
}
CONFIG = GateConfig()
HEALTHY = {"commit_rate": 0.8, "mean_ratio": 0.6, "policy_loss": -0.1}


def estimate(mean: float, half_width: float = 1.0, n: int = N, confidence: float = 0.95) -> Estimate:
    return Estimate.model_construct(
        mean=mean, lower=mean - half_width, upper=mean + half_width, confidence=confidence, n=n
    )


def trial(name: str, mean: float = 5.0, **changes: Any) -> ControllerTrial:
    fields: dict[str, Any] = {
        "controller": name, "episodes": N, "mean_return": mean, "over_wait": None, "test_accuracy": 0.7,
        "validation_accuracy": 0.7, "committed_parameters": 200.0, "illegal_actions": 0, "governor_events": 0,
        "by_family": {}, "returns": [mean] * N, "test_accuracies": [0.7] * N,
    }  # fmt: skip
    return ControllerTrial.model_construct(**{**fields, **changes})


def report(
    *,
    candidate: ControllerTrial | None = None,
    champion: ControllerTrial | None = None,
    keys: list[int] | None = None,
    **changes: Any,
) -> ValidationReport:
    rows = [*(trial(name) for name in BASELINES), candidate or trial("candidate"), *([champion] if champion else [])]
    trials = TrialReport.model_construct(
        **RECEIPT, set="benchmark", host_keys=KEYS if keys is None else keys, families=["cap"] * N, controllers=rows,
        plans_digest=None,
    )  # fmt: skip
    differences = {name: estimate(4.0) for name in BASELINES}
    if champion is not None:
        differences["champion"] = estimate(2.0)
    fields: dict[str, Any] = {
        "policy_digest": DIGEST, "champion_digest": OTHER if champion else None, "snapshot_digest": "d" * 64,
        "trials": trials, "differences": differences, "training_metrics": HEALTHY, "figures": {},
        "probes": {"determinism_mismatches": 0.0},
    }  # fmt: skip
    return ValidationReport.model_construct(**{**RECEIPT, **fields, **changes})


def judge(evidence: ValidationReport, config: GateConfig = CONFIG) -> GateDecision:
    return decide(evidence, config, min_commit_rate=0.02, provenance=Provenance("0.1.0+0", "c" * 64, 0), now=NOW)


def verdicts(decision: GateDecision) -> dict[str, Verdict]:
    return {criterion.name: criterion.verdict for criterion in decision.criteria}


def failing(decision: GateDecision) -> set[str]:
    return {name for name, verdict in verdicts(decision).items() if verdict is not Verdict.PASS}


@pytest.mark.parametrize("champion", [None, trial("champion")])
def test_good_evidence_is_accepted(champion: ControllerTrial | None) -> None:
    decision = judge(report(champion=champion))
    assert decision.accepted
    assert failing(decision) == set()
    assert {f"return_over_{name}" for name in BASELINES} <= set(verdicts(decision))
    assert ("return_over_champion" in verdicts(decision)) == (champion is not None)


def test_every_criterion_tells_value_bound_and_evidence() -> None:
    decision = judge(report(champion=trial("champion")))
    assert all(c.value is not None and c.evidence and c.comparison for c in decision.criteria)
    assert len({c.name for c in decision.criteria}) == len(decision.criteria)


DIFFERENCES = {name: estimate(4.0) for name in BASELINES}
BAD_EVIDENCE: list[tuple[str, dict[str, Any], set[str], Verdict]] = [
    *(
        (f"no {name}", {"differences": {k: v for k, v in DIFFERENCES.items() if k != name}}, {f"return_over_{name}"},
         Verdict.MISSING)
        for name in BASELINES
    ),
    ("nothing compared", {"differences": {}}, {"confidence", *(f"return_over_{name}" for name in BASELINES)},
     Verdict.MISSING),
    ("narrow intervals", {"differences": {**DIFFERENCES, "blind": estimate(4.0, confidence=0.8)}}, {"confidence"},
     Verdict.FAIL),
    ("confidence unknown", {"differences": {**DIFFERENCES, "blind": estimate(4.0, confidence=math.nan)}},
     {"confidence"}, Verdict.MISSING),
    ("made under other settings", {"config_digest": "f" * 64}, {"other_configuration"}, Verdict.FAIL),
    ("interval reaches zero", {"differences": {**DIFFERENCES, "blind": estimate(1.0, 1.0)}}, {"return_over_blind"},
     Verdict.FAIL),
    ("NaN mean", {"differences": {**DIFFERENCES, "wait": estimate(math.nan)}}, {"return_over_wait"}, Verdict.MISSING),
    ("infinite bound", {"differences": {**DIFFERENCES, "wait": estimate(math.inf)}}, {"return_over_wait"},
     Verdict.MISSING),
    ("too few pairs", {"differences": {**DIFFERENCES, "random": estimate(9.0, 1.0, n=149)}}, {"return_over_random"},
     Verdict.MISSING),
    ("too few episodes", {"candidate": trial("candidate", episodes=149)}, {"episodes"}, Verdict.FAIL),
    ("hosts counted twice", {"keys": KEYS[:80] * 2}, {"episodes"}, Verdict.FAIL),
    ("training hosts", {"keys": list(range(N))}, {"hosts_outside_test_split"}, Verdict.FAIL),
    ("no hosts", {"keys": []}, {"hosts_outside_test_split", "episodes"}, Verdict.MISSING),
    ("worse on test data", {"candidate": trial("candidate", test_accuracy=0.66)}, {"test_accuracy_regression"},
     Verdict.FAIL),
    ("NaN accuracy", {"candidate": trial("candidate", validation_accuracy=math.nan)},
     {"validation_accuracy_regression"}, Verdict.MISSING),
    ("illegal", {"candidate": trial("candidate", illegal_actions=1)}, {"illegal_actions"}, Verdict.FAIL),
    ("panics", {"candidate": trial("candidate", governor_events=4)}, {"governor_rate"}, Verdict.FAIL),
    ("not deterministic", {"probes": {"determinism_mismatches": 1.0}}, {"determinism_mismatches"}, Verdict.FAIL),
    ("determinism unknown", {"probes": {}}, {"determinism_mismatches"}, Verdict.MISSING),
    ("NaN in training", {"training_metrics": {**HEALTHY, "value_loss": math.nan}}, {"training_metrics_not_finite"},
     Verdict.FAIL),
    ("never commits", {"training_metrics": {**HEALTHY, "commit_rate": 0.0}}, {"commit_rate"}, Verdict.FAIL),
    ("NaN commit rate", {"training_metrics": {**HEALTHY, "commit_rate": math.nan}},
     {"commit_rate", "training_metrics_not_finite"}, Verdict.MISSING),
    ("off-policy", {"training_metrics": {**HEALTHY, "mean_ratio": 0.01}}, {"mean_ratio"}, Verdict.FAIL),
    ("nothing of training", {"training_metrics": {}}, {"commit_rate", "mean_ratio", "training_metrics_not_finite"},
     Verdict.MISSING),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected", "verdict"), [row[1:] for row in BAD_EVIDENCE],
                         ids=[row[0] for row in BAD_EVIDENCE])  # fmt: skip
def test_d27_gate_fails_closed(changes: dict[str, Any], expected: set[str], verdict: Verdict) -> None:
    decision = judge(report(**changes))
    assert not decision.accepted
    assert failing(decision) == expected
    assert verdict in {verdicts(decision)[name] for name in expected}


def test_trials_made_under_other_settings_do_not_count() -> None:
    evidence = report()
    trials = evidence.trials.model_copy(update={"config_digest": "f" * 64})
    assert failing(judge(evidence.model_copy(update={"trials": trials}))) == {"other_configuration"}


def test_the_opponent_that_is_not_judged_may_be_less_certain() -> None:
    """The oracle only marks how much there is to gain."""
    assert judge(report(differences={**DIFFERENCES, "oracle": estimate(-9.0, confidence=0.6)})).accepted


def test_a_missing_value_is_null_and_never_zero() -> None:
    decision = judge(report(differences={}, probes={}))
    missing = [c for c in decision.criteria if c.verdict is Verdict.MISSING]
    assert missing
    assert all(c.value is None for c in missing)


def test_no_candidate_row_rejects_everything_about_it() -> None:
    evidence = report()
    rows = [row for row in evidence.trials.controllers if row.controller != "candidate"]
    trials = evidence.trials.model_copy(update={"controllers": rows})
    decision = judge(evidence.model_copy(update={"trials": trials}))
    assert {"episodes", "illegal_actions", "governor_rate", "test_accuracy_regression"} <= failing(decision)


@pytest.mark.parametrize(("margin", "accepted"), [(2.99, True), (3.0, False), (3.01, False)])
def test_lower_bound_must_exceed_the_margin(margin: float, accepted: bool) -> None:
    assert judge(report(), CONFIG.model_copy(update={"margin_over_baselines": margin})).accepted is accepted


def test_the_champion_as_its_own_candidate_is_rejected() -> None:
    """Equal returns: the paired difference is exactly nothing."""
    champion = trial("champion")
    differences = {**DIFFERENCES, "champion": estimate(0.0, 0.0)}
    decision = judge(report(champion=champion, differences=differences, champion_digest=DIGEST))
    assert failing(decision) == {"return_over_champion"}


def test_l19_waiting_is_rejected_for_its_returns_not_for_policy_health() -> None:
    differences = {name: estimate(0.0, 0.0) if name == "wait" else estimate(-3.0) for name in BASELINES}
    decision = judge(report(candidate=trial("candidate", 0.0, committed_parameters=0.0), differences=differences))
    assert failing(decision) == {f"return_over_{name}" for name in BASELINES}


def test_a_champion_must_be_compared_with_even_if_its_trial_is_absent() -> None:
    decision = judge(report(champion_digest=OTHER))
    assert verdicts(decision)["return_over_champion"] is Verdict.MISSING
    assert verdicts(decision)["test_accuracy_regression"] is Verdict.MISSING


def test_regression_is_measured_against_the_champion_when_there_is_one() -> None:
    strong = trial("champion", test_accuracy=0.8)
    decision = judge(report(champion=strong, candidate=trial("candidate", test_accuracy=0.75)))
    assert failing(decision) == {"test_accuracy_regression"}
    row = next(c for c in decision.criteria if c.name == "test_accuracy_regression")
    assert row.value == pytest.approx(0.05 / 0.8)


def test_d25_direction_of_a_metric_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """More parameters are a loss once the table says that fewer are better."""
    monkeypatch.setattr("simic.validation.gate.REGRESSION_METRICS", {"committed_parameters": Direction.LOWER})
    grown = trial("candidate", committed_parameters=220.0)
    assert failing(judge(report(candidate=grown))) == {"committed_parameters_regression"}
    shrunk = trial("candidate", committed_parameters=150.0)
    assert judge(report(candidate=shrunk)).accepted


def test_digest_follows_evidence_and_not_the_clock() -> None:
    first = judge(report())
    later = decide(
        report(), CONFIG, min_commit_rate=0.02, provenance=Provenance("0.1.0+1", "c" * 64, 1),
        now=datetime(2027, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    assert first.digest == later.digest
    assert first.digest != judge(report(policy_digest=OTHER)).digest
    assert first.digest != judge(report(differences={**DIFFERENCES, "wait": estimate(4.1)})).digest
