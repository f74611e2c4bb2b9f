"""The gate on Karn: better than the champion alone, and than it with the present Karn; it fails closed."""

from __future__ import annotations

from typing import Any

import pytest
from unit.validation.test_promotion_gate import CHAMPION, CONFIG, failing, judge, report, trial, verdicts

from simic.contracts.names import KARN
from simic.contracts.results.gate import Verdict
from simic.contracts.results.trials import ControllerTrial
from simic.trust.sealed_receipts import check_decision
from simic.validation.promotion_gate import rejection_message

POLICY = "e" * 64
ONLY_POLICIES = ("heuristic", "blind", "random", "symptom")


def karn_report(alone: float = 5.0, champion: ControllerTrial | None = None, **changes: Any) -> Any:
    """Karn brings the policy to 9 points a host; alone it has fewer."""
    own = {"model": KARN, "consulted_by": POLICY, "training_metrics": {"policy_loss": 0.5}, "further": []}
    found = report(
        champion=champion,
        rivals={"policy_alone": alone},
        without=ONLY_POLICIES,
        plans_digest=None,
        **{**own, **changes},
    )
    return found


def test_a_better_pair_is_accepted_without_what_only_policies_must_show() -> None:
    decision = judge(karn_report())
    assert decision.accepted and failing(decision) == set()
    found = verdicts(decision)
    assert "return_over_policy_alone" in found and "return_over_champion" not in found
    assert {"plan_book", "commit_rate", "mean_ratio", "return_over_wait"}.isdisjoint(found)
    assert {"artifact", "illegal_actions", "success", "test_accuracy_regression_to_policy_alone"} <= found.keys()
    assert (decision.model, decision.consulted_by) == (KARN, POLICY)
    check_decision(decision, "d" * 64)


@pytest.mark.parametrize("alone", [9.0, 9.5])
def test_no_better_than_the_champion_alone_is_rejected(alone: float) -> None:
    decision = judge(karn_report(alone))
    assert not decision.accepted and failing(decision) == {"return_over_policy_alone"}
    assert rejection_message(decision).startswith("the gate rejected Karn aaaaaaaaaaaa: return_over_policy_alone is")


def test_the_present_karn_must_be_beaten_too() -> None:
    assert judge(karn_report(champion=trial("champion", 7.0))).accepted
    assert failing(judge(karn_report(champion=trial("champion", 9.0)))) == {"return_over_champion"}
    missing = karn_report(champion_digest=CHAMPION)
    assert verdicts(judge(missing))["return_over_champion"] is Verdict.MISSING


def test_without_the_champion_alone_nothing_is_accepted() -> None:
    found = karn_report()
    rows = [row for row in found.trials.controllers if row.controller != "policy_alone"]
    bare = found.model_copy(
        update={
            "trials": found.trials.model_copy(update={"controllers": rows}),
            "differences": {name: one for name, one in found.differences.items() if name != "policy_alone"},
        }
    )
    assert verdicts(judge(bare))["return_over_policy_alone"] is Verdict.MISSING


def test_another_policy_gives_another_decision() -> None:
    decision = judge(karn_report())
    other = judge(karn_report(consulted_by="f" * 64))
    assert decision.digest != other.digest
    with pytest.raises(Exception, match="it was edited"):
        check_decision(decision.model_copy(update={"consulted_by": "f" * 64}), "d" * 64)


def test_margin_is_that_of_a_champion() -> None:
    strict = CONFIG.model_copy(update={"margin_over_champion": 5.0})
    assert failing(judge(karn_report(), strict)) == {"return_over_policy_alone"}
