"""The gate fails closed: whatever is not proven rejects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from list_criteria import BEGIN, END, PAGE, relisted
from support.builders.judgements import judgement
from support.builders.validation_reports import PROBES

from simic.contracts.errors import ConfigError
from simic.contracts.results.gate import GateDecision, Probe, ValidationReport, Verdict
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import ControllerTrial, Estimate, TrialReport
from simic.contracts.settings.run import GateConfig, TrialConfig
from simic.contracts.splits import Split, split_of
from simic.validation.baselines.plan_book import lacks_book, without_book
from simic.validation.criteria import CRITERIA
from simic.validation.criteria.regression import Metric
from simic.validation.criteria.return_over import BASELINES
from simic.validation.gate_bounds import Direction, page_text
from simic.validation.judging_keys import first_key
from simic.validation.promotion_gate import applied_criteria, decide, rejection_message
from simic.validation.trials import paired_estimate

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIGEST, CHAMPION = "a" * 64, "b" * 64
N = 160
START = first_key(1)
OTHER_KEYS = [key for key in range(20_000) if split_of("benchmark", key) is Split.TEST][:N]
"""Those of `simic trials`."""
KEYS = [key for key in range(START, START + 20_000) if split_of("benchmark", key) is Split.TEST][:N]
RECEIPT: dict[str, Any] = {
    "code_version": "0.1.0+0",
    "config_digest": "c" * 64,
    "seed": 0,
    "started_at": NOW,
    "finished_at": NOW,
}
CONFIG = GateConfig()
COMPARED = (*BASELINES, "symptom")
TRIAL = TrialConfig(bootstrap_samples=200, also_sets=("varied",))
FURTHER = [key for key in range(START, START + 20_000) if split_of("varied", key) is Split.TEST][:N]
TRAINING_HOST = next(key for key in range(START, START + 99) if split_of("varied", key) is Split.TRAIN)
FAMILIES = ["cap", "select"] * (N // 2)
HEALTHY = {"commit_rate": 0.8, "mean_ratio": 0.6, "policy_loss": -0.1}
FITTED = {"commit_rate": 0.8, "fitted_regret": 1.0, "q_explained_variance": 0.7}


def estimate(mean: float, half_width: float = 1.0, n: int = N, confidence: float = 0.95) -> Estimate:
    return Estimate.model_construct(
        mean=mean, lower=mean - half_width, upper=mean + half_width, confidence=confidence, n=n
    )


def trial(name: str, mean: float = 5.0, **changes: Any) -> ControllerTrial:
    fields: dict[str, Any] = {
        "controller": name, "episodes": N, "mean_return": mean, "over_wait": None, "test_accuracy": 0.7,
        "validation_accuracy": 0.7, "committed_parameters": 200.0, "illegal_actions": 0, "governor_events": 0,
        "by_family": {}, "returns": [mean] * N, "test_accuracies": [0.7] * N, "validation_accuracies": [0.7] * N,
        "validation_losses": [0.6] * N, "measured_steps": 400, "hacking_steps": 20, "ransomware_steps": 0,
    }  # fmt: skip
    return ControllerTrial.model_construct(**{**fields, **changes})


def tried_further(mean: float = 6.0, **changes: Any) -> TrialReport:
    """The candidate on the further set ``varied``, where never growing returns 5 on every host."""
    over = paired_estimate([mean] * N, [5.0] * N, TRIAL, RECEIPT["seed"], FAMILIES)
    rows = [trial("wait"), trial("candidate", mean, over_wait=over)]
    fields = {"set": "varied", "host_keys": FURTHER, "families": FAMILIES, "controllers": rows, "policy_digest": DIGEST}
    return TrialReport.model_construct(**{**RECEIPT, **fields, **changes})


def report(
    *,
    candidate: ControllerTrial | None = None,
    champion: ControllerTrial | None = None,
    keys: list[int] | None = None,
    set_name: str = "benchmark",
    plans_digest: str | None = "9" * 64,
    rivals: Mapping[str, float] | None = None,
    without: Sequence[str] = (),
    **changes: Any,
) -> ValidationReport:
    """The candidate returns 9 on every host, and a rival 5 unless ``rivals`` says otherwise: 4 less, or 2 with a
    champion of 7; differences are those of the rows unless ``changes`` says otherwise. Rivals ``without`` have no row.
    """
    means = {**dict.fromkeys([name for name in COMPARED if name not in without], 5.0), **(rivals or {})}
    candidate = candidate or trial("candidate", 9.0)
    rows = [*(trial(name, mean) for name, mean in means.items()), candidate, *([champion] if champion else [])]
    trials = TrialReport.model_construct(
        **RECEIPT, set=set_name, host_keys=KEYS if keys is None else keys, families=FAMILIES, controllers=rows,
        plans_digest=plans_digest, without_book=[] if plans_digest else without_book(COMPARED, None),
    )  # fmt: skip
    differences = {
        row.controller: paired_estimate(candidate.returns, row.returns, TRIAL, RECEIPT["seed"], FAMILIES)
        for row in rows
        if row.controller != "candidate"
    }
    fields: dict[str, Any] = {
        "policy_digest": DIGEST, "champion_digest": CHAMPION if champion else None, "snapshot_digest": "d" * 64,
        "trials": trials, "differences": differences, "training_metrics": HEALTHY, "figures": {},
        "probes": PROBES, "further": [tried_further()],
    }  # fmt: skip
    return ValidationReport.model_construct(**{**RECEIPT, **fields, **changes})


def judge(evidence: ValidationReport, config: GateConfig = CONFIG, own: Judgement | None = None) -> GateDecision:
    settings: dict[str, Any] = {"trial": TRIAL, "min_commit_rate": 0.02, "now": NOW}
    return decide(
        evidence, config, judgement=own or judgement(), provenance=Provenance("0.1.0+0", "c" * 64, 0), **settings
    )


def verdicts(decision: GateDecision) -> dict[str, Verdict]:
    return {criterion.name: criterion.verdict for criterion in decision.criteria}


def failing(decision: GateDecision) -> set[str]:
    return {name for name, verdict in verdicts(decision).items() if verdict is not Verdict.PASS}


@pytest.mark.parametrize("champion", [None, trial("champion", 7.0)])
def test_good_evidence_is_accepted(champion: ControllerTrial | None) -> None:
    decision = judge(report(champion=champion))
    assert decision.accepted
    assert failing(decision) == set()
    assert {f"return_over_{name}" for name in BASELINES} <= set(verdicts(decision))
    assert ("return_over_champion" in verdicts(decision)) == (champion is not None)


def test_every_criterion_tells_value_bound_and_evidence() -> None:
    decision = judge(report(champion=trial("champion", 7.0)))
    assert all(c.value is not None and c.evidence and c.comparison for c in decision.criteria)
    assert len({c.name for c in decision.criteria}) == len(decision.criteria)


CARRIES_OVER = "mean_over_wait_on_varied"


def test_a_small_loss_on_a_further_set_is_tolerated_and_a_harm_is_not() -> None:
    assert judge(report(further=[tried_further(4.75)])).accepted
    harmful = judge(report(further=[tried_further(4.5)]))
    assert failing(harmful) == {CARRIES_OVER}
    (line,) = [line for line in harmful.criteria if line.name == CARRIES_OVER]
    assert (line.value, line.bound, line.verdict) == (pytest.approx(-0.5), -0.3, Verdict.FAIL)
    strict = CONFIG.model_copy(update={"max_loss_on_further_sets": 0.0})
    assert failing(judge(report(further=[tried_further(4.75)]), strict)) == {CARRIES_OVER}


@pytest.mark.parametrize(
    "further",
    [
        [],
        [tried_further(set="compound")],
        [tried_further(policy_digest=None)],
        [tried_further(policy_digest="e" * 64)],
        [tried_further(host_keys=[*FURTHER[:-1], TRAINING_HOST])],
        [tried_further(host_keys=[key - START for key in FURTHER])],
        [tried_further(controllers=[trial("wait")])],
        [tried_further(controllers=[trial("wait"), trial("candidate", 6.0)])],
    ],
    ids=[
        "none",
        "another set",
        "nobody's",
        "another policy's",
        "a training host",
        "hosts of another judgement",
        "no candidate",
        "not compared",
    ],
)
def test_a_further_set_without_evidence_rejects(further: list[TrialReport]) -> None:
    assert verdicts(judge(report(further=further)))[CARRIES_OVER] is Verdict.MISSING


def test_edited_numbers_of_a_further_set_reject() -> None:
    rows = [trial("wait"), trial("candidate", 4.0, over_wait=tried_further().controllers[1].over_wait)]
    assert failing(judge(report(further=[tried_further(controllers=rows)]))) == {OTHER}


def test_the_set_of_the_run_is_no_further_one() -> None:
    evidence = report(set_name="varied", keys=FURTHER, further=[])
    assert CARRIES_OVER not in verdicts(judge(evidence))


DIFFERENCES = report().differences
OTHER = "other_than_its_episodes"
TREE = "mean_over_symptom"


def candidate_with(**changes: Any) -> ControllerTrial:
    return trial("candidate", 9.0, **changes)


MOSTLY_LESS = [0.695] * 97 + [0.71] * 63
"""Less accurate than never growing on 97 of 160 hosts."""

BAD_EVIDENCE: list[tuple[str, dict[str, Any], set[str], Verdict]] = [
    *(
        (f"no {name}", {"differences": {k: v for k, v in DIFFERENCES.items() if k != name}}, {f"return_over_{name}"},
         Verdict.MISSING)
        for name in BASELINES
    ),
    ("nothing compared", {"differences": {}},
     {TREE, *(f"return_over_{name}" for name in BASELINES)}, Verdict.MISSING),
    ("no tree", {"differences": {k: v for k, v in DIFFERENCES.items() if k != "symptom"}}, {TREE}, Verdict.MISSING),
    ("too few pairs with the tree", {"differences": {**DIFFERENCES, "symptom": estimate(4.0, 0.0, n=149)}},
     {TREE, OTHER}, Verdict.MISSING),
    ("NaN over the tree", {"differences": {**DIFFERENCES, "symptom": estimate(math.nan)}}, {TREE, OTHER},
     Verdict.MISSING),
    ("narrow intervals", {"differences": {**DIFFERENCES, "blind": estimate(4.0, 0.0, confidence=0.8)}},
     {OTHER}, Verdict.FAIL),
    ("made under other settings", {"config_digest": "f" * 64}, {"other_configuration"}, Verdict.FAIL),
    ("interval reaches zero", {"rivals": {"blind": 9.0}}, {"return_over_blind"}, Verdict.FAIL),
    ("NaN mean", {"differences": {**DIFFERENCES, "wait": estimate(math.nan)}}, {"return_over_wait", OTHER},
     Verdict.MISSING),
    ("NaN mean between finite bounds", {"differences": {**DIFFERENCES, "wait": Estimate.model_construct(
        mean=math.nan, lower=3.0, upper=5.0, confidence=0.95, n=N)}}, {"return_over_wait", OTHER}, Verdict.MISSING),
    ("infinite bound", {"differences": {**DIFFERENCES, "wait": estimate(math.inf)}}, {"return_over_wait", OTHER},
     Verdict.MISSING),
    ("too few pairs", {"differences": {**DIFFERENCES, "random": estimate(4.0, 0.0, n=149)}},
     {"return_over_random", OTHER}, Verdict.MISSING),
    ("too few episodes", {"candidate": candidate_with(episodes=149)}, {"episodes", OTHER}, Verdict.FAIL),
    ("hosts counted twice", {"keys": KEYS[:80] * 2}, {"episodes"}, Verdict.FAIL),
    ("training hosts", {"keys": list(range(START, START + N))}, {"hosts_outside_test_split"}, Verdict.FAIL),
    ("hosts of another judgement", {"keys": OTHER_KEYS}, {"hosts_of_other_judgements"}, Verdict.FAIL),
    ("no hosts", {"keys": []},
     {"hosts_of_other_judgements", "hosts_outside_test_split", "episodes", "success", OTHER}, Verdict.MISSING),
    ("worse on test data", {"candidate": candidate_with(test_accuracy=0.66, test_accuracies=[0.66] * N)},
     {"test_accuracy_regression_to_wait"}, Verdict.FAIL),
    ("NaN accuracy", {"candidate": candidate_with(validation_accuracies=[math.nan] * N)},
     {"validation_accuracy_regression_to_wait", "success", OTHER}, Verdict.MISSING),
    ("no validation accuracies", {"candidate": candidate_with(validation_accuracies=[])},
     {"validation_accuracy_regression_to_wait", "success"}, Verdict.MISSING),
    ("edited validation accuracy", {"candidate": candidate_with(validation_accuracy=0.9)}, {OTHER}, Verdict.FAIL),
    ("mostly less accurate than never growing", {"candidate": candidate_with(validation_accuracy=sum(MOSTLY_LESS) / N,
      validation_accuracies=MOSTLY_LESS)}, {"success"}, Verdict.FAIL),
    ("contributions that no host gained", {"candidate": candidate_with(hacking_steps=21)}, {"reward_hacking"},
     Verdict.FAIL),
    ("hosts held to ransom", {"candidate": candidate_with(ransomware_steps=9)}, {"ransomware"}, Verdict.FAIL),
    ("flags that nobody counted", {"candidate": candidate_with(measured_steps=None, hacking_steps=None,
      ransomware_steps=None)}, {"reward_hacking", "ransomware"}, Verdict.MISSING),
    ("illegal", {"candidate": candidate_with(illegal_actions=1)}, {"illegal_actions"}, Verdict.FAIL),
    ("panics", {"candidate": candidate_with(governor_events=4)}, {"governor_rate"}, Verdict.FAIL),
    *((f"failed probe {name}", {"probes": {**PROBES, name: Probe(value=1e6, count=8, detail="how")}}, {name},
       Verdict.FAIL) for name in PROBES),
    *((f"no probe {name}", {"probes": {key: found for key, found in PROBES.items() if key != name}}, {name},
       Verdict.MISSING) for name in PROBES),
    ("probes of nothing", {"probes": {name: Probe(value=0.0, count=0) for name in PROBES}}, set(PROBES),
     Verdict.MISSING),
    ("NaN in training", {"training_metrics": {**HEALTHY, "value_loss": math.nan}}, {"training_metrics_not_finite"},
     Verdict.FAIL),
    ("never commits", {"training_metrics": {**HEALTHY, "commit_rate": 0.0}}, {"commit_rate"}, Verdict.FAIL),
    ("NaN commit rate", {"training_metrics": {**HEALTHY, "commit_rate": math.nan}},
     {"commit_rate", "training_metrics_not_finite"}, Verdict.MISSING),
    ("off-policy", {"training_metrics": {**HEALTHY, "mean_ratio": 0.01}}, {"mean_ratio"}, Verdict.FAIL),
    ("off-policy on top of a distilled policy", {"training_metrics": {**HEALTHY, "expected_regret": 1.0,
      "mean_ratio": 0.01}}, {"mean_ratio"}, Verdict.FAIL),
    ("Q-functions that explain nothing", {"training_metrics": {**FITTED, "q_explained_variance": -0.1}},
     {"q_explained_variance"}, Verdict.FAIL),
    ("Q-functions that nothing checked", {"training_metrics": {"commit_rate": 0.8, "fitted_regret": 1.0}},
     {"q_explained_variance"}, Verdict.MISSING),
    ("no ratio and no regret", {"training_metrics": {"commit_rate": 0.8, "q_explained_variance": 0.7}},
     {"mean_ratio"}, Verdict.MISSING),
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


def test_a_rejection_names_what_did_not_pass_and_only_that() -> None:
    text = rejection_message(judge(report(rivals={"blind": 13.0}, probes={})))
    assert text.startswith(f"the gate rejected policy {DIGEST[:12]}: ")
    assert "return_over_blind is -4, needs > 0" in text
    assert "determinism_mismatches is missing, needs <= 0" in text
    assert "return_over_wait" not in text and "episodes" not in text
    decision = judge(report(probes={}))
    endings = ((None, ". There is still no champion of tamiyo"), ("c" * 64, ". The champion of tamiyo stays"))
    for champion, ending in endings:
        assert rejection_message(decision.model_copy(update={"champion_digest": champion})).endswith(ending)


@pytest.mark.parametrize("metrics", [FITTED, {"commit_rate": 0.8, "expected_regret": 1.0}], ids=["fitted", "distilled"])
def test_a_policy_learned_without_importance_ratios_needs_none(metrics: dict[str, float]) -> None:
    assert judge(report(training_metrics=metrics)).accepted


def test_trials_made_under_other_settings_do_not_count() -> None:
    evidence = report()
    trials = evidence.trials.model_copy(update={"config_digest": "f" * 64})
    assert failing(judge(evidence.model_copy(update={"trials": trials}))) == {"other_configuration"}


def test_the_opponent_that_is_not_judged_may_be_better() -> None:
    """The oracle only marks how much there is to gain."""
    evidence = report(rivals={"oracle": 18.0})
    oracle = evidence.differences["oracle"]
    assert (oracle.mean, judge(evidence).accepted) == (-9.0, True)


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
    assert {"episodes", "illegal_actions", "governor_rate", "test_accuracy_regression_to_wait"} <= failing(decision)


@pytest.mark.parametrize(("margin", "accepted"), [(3.99, True), (4.0, False), (4.01, False)])
def test_lower_bound_must_exceed_the_margin(margin: float, accepted: bool) -> None:
    assert judge(report(), CONFIG.model_copy(update={"margin_over_baselines": margin})).accepted is accepted


@pytest.mark.parametrize(("tree", "accepted"), [(9.49, True), (9.5, True), (9.51, False), (20.0, False)])
def test_a_candidate_may_trail_the_tree_by_half_a_point(tree: float, accepted: bool) -> None:
    decision = judge(report(rivals={"symptom": tree}))
    assert decision.accepted is accepted
    assert failing(decision) <= {TREE}
    looser = CONFIG.model_copy(update={"max_loss_to_symptom": 11.0})
    assert judge(report(rivals={"symptom": tree}), looser).accepted


@pytest.mark.parametrize(("tree", "accepted"), [(8.99, True), (9.0, False), (9.4, False)])
def test_lf33_on_varied_a_candidate_must_beat_the_tree(tree: float, accepted: bool) -> None:
    keys = [key for key in range(START, START + 20_000) if split_of("varied", key) is Split.TEST][:N]
    evidence = report(set_name="varied", keys=keys, rivals={"symptom": tree})
    decision = judge(evidence, CONFIG.model_copy(update={"max_loss_to_symptom": 11.0}))
    assert decision.accepted is accepted
    assert failing(decision) <= {TREE}


def test_lf51_a_plan_book_that_was_searched_with_other_settings_rejects() -> None:
    evidence = report()
    evidence.trials.book_differences.append("world.horizon 10 instead of 20")
    decision = judge(evidence)
    assert failing(decision) == {"plan_book_of_other_settings"}
    text = evidence_of(decision, "plan_book_of_other_settings")
    assert "world.horizon 10 instead of 20" in text and "simic plans search --set benchmark" in text


def test_without_a_tree_in_the_book_there_is_no_criterion_on_it() -> None:
    lacking = report(differences={name: found for name, found in DIFFERENCES.items() if name != "symptom"})
    lacking.trials.without_book.append("symptom")
    decision = judge(lacking)
    assert TREE not in verdicts(decision)
    assert decision.accepted
    assert any(line.startswith(TREE) for line in decision.absent)


def test_on_varied_a_book_without_a_tree_rejects() -> None:
    keys = [key for key in range(START, START + 20_000) if split_of("varied", key) is Split.TEST][:N]
    others = {name: found for name, found in DIFFERENCES.items() if name != "symptom"}
    lacking = report(set_name="varied", keys=keys, differences=others)
    lacking.trials.without_book.append("symptom")
    decision = judge(lacking)
    assert failing(decision) == {TREE}
    assert verdicts(decision)[TREE] is Verdict.MISSING


def test_a_comparison_with_the_tree_counts_even_if_the_report_says_that_there_is_none() -> None:
    trailing = report(rivals={"symptom": 20.0})
    trailing.trials.without_book.append("symptom")
    assert failing(judge(trailing)) == {TREE}


def test_the_champion_as_its_own_candidate_is_rejected() -> None:
    """Equal returns: the paired difference is exactly nothing."""
    decision = judge(report(champion=trial("champion", 9.0), champion_digest=DIGEST))
    assert failing(decision) == {"return_over_champion"}


def test_l19_waiting_is_rejected_for_its_returns_not_for_policy_health() -> None:
    rivals = {name: 0.0 if name == "wait" else 3.0 for name in BASELINES}
    decision = judge(report(candidate=trial("candidate", 0.0, committed_parameters=0.0), rivals=rivals))
    assert failing(decision) == {TREE, *(f"return_over_{name}" for name in BASELINES)}


def test_a_criterion_that_had_nothing_to_judge_is_listed_as_absent() -> None:
    decision = judge(report())
    why = "no sufficient estimate from a log beside the trials, in all and by each controller that logged"
    assert decision.absent == [f"log_contradiction ({why})"]
    assert f"Without a line: {decision.absent[0]}." in page_text(decision)
    assert judge(report(), CONFIG.model_copy(update={"without": ("log_contradiction",)})).absent == []


def test_a_champion_must_be_compared_with_even_if_its_trial_is_absent() -> None:
    decision = judge(report(champion_digest=CHAMPION))
    assert verdicts(decision)["return_over_champion"] is Verdict.MISSING
    assert verdicts(decision)["test_accuracy_regression_to_champion"] is Verdict.MISSING


def test_regression_is_measured_against_the_champion_and_never_growing() -> None:
    strong = trial("champion", 7.0, test_accuracy=0.8, test_accuracies=[0.8] * N)
    weak = candidate_with(test_accuracy=0.75, test_accuracies=[0.75] * N)
    decision = judge(report(champion=strong, candidate=weak))
    assert failing(decision) == {"test_accuracy_regression_to_champion"}
    row = next(c for c in decision.criteria if c.name == "test_accuracy_regression_to_champion")
    assert row.value == pytest.approx(0.05 / 0.8)
    low = trial("champion", 7.0, test_accuracy=0.65, test_accuracies=[0.65] * N)
    lower = candidate_with(test_accuracy=0.64, test_accuracies=[0.64] * N)
    assert failing(judge(report(champion=low, candidate=lower))) == {"test_accuracy_regression_to_wait"}, (
        "small losses against one champion after the other do not add up"
    )


def test_a_regression_that_the_hosts_cannot_exclude_rejects() -> None:
    """The mean loss is 3 % in both; only the spread over hosts differs."""
    for spread, accepted in ((0.05, True), (0.2, False)):
        accuracies = [0.679 + spread * (-1) ** (row // 2) for row in range(N)]
        mean = sum(accuracies) / N
        decision = judge(report(candidate=candidate_with(test_accuracy=mean, test_accuracies=accuracies)))
        assert decision.accepted is accepted
        assert failing(decision) <= {"test_accuracy_regression_to_wait"}


def test_d25_direction_of_a_metric_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rent is a loss once the table says that less is better."""
    metrics = {"rent": Metric("rents", Direction.LOWER)}
    monkeypatch.setattr("simic.validation.criteria.regression.METRICS", metrics)
    rivals = [trial(name, rents=[1.0] * N) for name in COMPARED]
    for rent, found in ((1.04, set()), (1.1, {"rent_regression_to_wait"}), (0.5, set())):
        evidence = report(candidate=candidate_with(rents=[rent] * N))
        rows = [*rivals, evidence.trials.controllers[-1]]
        trials = evidence.trials.model_copy(update={"controllers": rows})
        assert failing(judge(evidence.model_copy(update={"trials": trials}))) == found


@pytest.mark.parametrize(
    ("setting", "bound", "verdict"),
    [
        ("min_validation_accuracy", 0.7, Verdict.PASS),
        ("min_validation_accuracy", 0.71, Verdict.FAIL),
        ("max_validation_loss", 0.6, Verdict.PASS),
        ("max_validation_loss", 0.59, Verdict.FAIL),
    ],
)
def test_a_set_may_define_least_accuracy_and_largest_loss(setting: str, bound: float, verdict: Verdict) -> None:
    name = setting.partition("_")[2]
    asked = CONFIG.model_copy(update={setting: bound})
    assert name not in verdicts(judge(report()))
    assert verdicts(judge(report(), asked))[name] is verdict
    unknown = report(candidate=candidate_with(validation_accuracies=[], validation_losses=[]))
    assert verdicts(judge(unknown, asked))[name] is Verdict.MISSING


def test_a_candidate_that_grows_nothing_has_no_flagged_step() -> None:
    idle = candidate_with(measured_steps=0, hacking_steps=0, ransomware_steps=0)
    assert judge(report(candidate=idle)).accepted


def test_a_criterion_that_is_left_out_is_named_and_no_other_is() -> None:
    lost = report(rivals={"blind": 13.0}, probes={})
    decision = judge(lost, CONFIG.model_copy(update={"without": ("return_over",)}))
    assert (failing(decision), decision.without) == (set(PROBES), ["return_over"])
    assert "Left out by gate.without: return_over." in page_text(decision)
    with pytest.raises(ConfigError, match=r"gate\.without: expected criteria of .*return_over.*, found return_ower"):
        judge(lost, CONFIG.model_copy(update={"without": ("return_ower",)}))


@pytest.mark.parametrize(
    ("line", "criterion"),
    [
        ("return_over_heuristic", "return_over"),
        ("log_return_over_behaviour", "log_return_over"),
        ("test_accuracy_regression_to_wait", "regression"),
        ("mean_over_wait_on_varied", "mean_over_wait_on"),
    ],
)
def test_a_line_that_is_left_out_in_place_of_its_criterion_is_refused_with_its_name(line: str, criterion: str) -> None:
    with pytest.raises(ConfigError, match=f"found {line}; {line} is a line of criterion {criterion}, which"):
        applied_criteria([line])


def test_every_line_of_a_decision_leads_to_its_criterion() -> None:
    lines = {one.name for one in judge(report()).criteria} - set(CRITERIA.names())
    for line in lines:
        with pytest.raises(ConfigError, match="is a line of criterion"):
            applied_criteria([line])
    assert {"return_over_wait", "test_accuracy_regression_to_wait"} <= lines


def test_a_gate_without_any_criterion_accepts_nothing() -> None:
    assert not judge(report(), CONFIG.model_copy(update={"without": CRITERIA.names()})).accepted


def test_the_page_lists_every_criterion() -> None:
    page = PAGE.read_text("utf-8")
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    assert relisted(page) == page, "make criteria"
    assert all(f"| `{name}` |" in page for name in CRITERIA.names())


def test_digest_follows_evidence_and_not_the_clock() -> None:
    first = judge(report())
    later = decide(
        report(), CONFIG, judgement=judgement(), trial=TRIAL, min_commit_rate=0.02,
        provenance=Provenance("0.1.0+1", "c" * 64, 1), now=datetime(2027, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    assert first.digest == later.digest
    assert first.digest != judge(report(policy_digest=CHAMPION)).digest
    assert first.digest != judge(report(differences={**DIFFERENCES, "wait": estimate(4.1)})).digest


def own_report(**changes: Any) -> ValidationReport:
    """Of a set that Simic does not ship, which has no plan book and so no comparison with blind."""
    keys = [key for key in range(START, START + 20_000) if split_of("own_cnn", key) is Split.TEST][:N]
    own: dict[str, Any] = {"set_name": "own_cnn", "keys": keys, "plans_digest": None, "without": ["blind"]}
    return report(**{**own, **changes})


def evidence_of(decision: GateDecision, name: str) -> str:
    return next(criterion.evidence for criterion in decision.criteria if criterion.name == name)


def test_an_own_set_without_a_book_is_judged_without_blind_and_the_decision_says_so() -> None:
    decision = judge(own_report())
    assert decision.accepted
    assert lacks_book(decision)
    assert "return_over_blind" not in verdicts(decision)
    text = evidence_of(decision, "plan_book")
    assert "no plan book for set own_cnn" in text
    assert "no comparison with blind, symptom and oracle" in text
    assert "`simic plans search --set own_cnn`" in text
    assert "heuristic on its default rules" in evidence_of(decision, "return_over_heuristic")


def test_an_own_set_with_a_book_is_judged_as_a_shipped_one() -> None:
    decision = judge(own_report(plans_digest="9" * 64))
    assert failing(decision) == {"return_over_blind"}
    assert not lacks_book(decision)
    whole = judge(own_report(plans_digest="9" * 64, without=()))
    assert whole.accepted
    assert "plan book 999999999999" in evidence_of(whole, "plan_book")
    assert "default rules" not in evidence_of(whole, "return_over_heuristic")


@pytest.mark.parametrize("set_name", ["benchmark", "compound", "images", "varied", "cap"])
def test_a_shipped_set_is_never_judged_without_its_book(set_name: str) -> None:
    keys = [key for key in range(START, START + 20_000) if split_of(set_name, key) is Split.TEST][:N]
    assert failing(judge(report(set_name=set_name, keys=keys, plans_digest=None))) == {"plan_book"}
    lacking = report(set_name=set_name, keys=keys, plans_digest=None, without=["blind"])
    assert failing(judge(lacking)) == {"plan_book", "return_over_blind"}


def test_a_book_can_be_asked_for_in_every_set() -> None:
    strict = CONFIG.model_copy(update={"require_plan_book": True})
    assert failing(judge(own_report(), strict)) == {"plan_book", "return_over_blind"}
    assert judge(own_report(plans_digest="9" * 64, without=()), strict).accepted


def test_what_was_compared_is_judged_with_or_without_a_book() -> None:
    lost = own_report(without=(), rivals={"blind": 13.0})
    assert failing(judge(lost)) == {"return_over_blind"}


@pytest.mark.parametrize("lost", ["wait", "random", "heuristic"])
def test_without_a_book_every_other_baseline_is_still_needed(lost: str) -> None:
    found = failing(judge(own_report(without=["blind", lost])))
    assert f"return_over_{lost}" in found
    others = {name for name in found - {f"return_over_{lost}"} if not name.endswith("_regression_to_wait")}
    assert others <= ({"success"} if lost == "wait" else set())
