"""A gate decision is what its digest was taken of, and its verdict what its criteria come to."""

import pytest
from support.builders.judged_candidates import decision

from simic.contracts.errors import IntegrityError
from simic.trust.sealed_receipts import check_decision

SNAPSHOT = "d" * 64


@pytest.mark.parametrize("accepted", [True, False])
def test_a_decision_as_it_was_made_is_believed(accepted):
    check_decision(decision("a" * 64, accepted=accepted), SNAPSHOT)


@pytest.mark.parametrize("change", [{"policy_digest": "b" * 64}, {"champion_digest": "b" * 64}, {"digest": "b" * 64}])
def test_a_decision_about_something_else_is_refused(change):
    with pytest.raises(IntegrityError, match="expected digest"):
        check_decision(decision("a" * 64).model_copy(update=change), SNAPSHOT)


def test_a_decision_on_another_snapshot_is_refused():
    with pytest.raises(IntegrityError, match="expected digest"):
        check_decision(decision("a" * 64), "e" * 64)


def test_an_edited_criterion_is_refused():
    made = decision("a" * 64, accepted=False)
    criteria = [made.criteria[0].model_copy(update={"value": 99.0}), *made.criteria[1:]]
    with pytest.raises(IntegrityError, match="edited"):
        check_decision(made.model_copy(update={"criteria": criteria}), SNAPSHOT)


def test_a_verdict_that_its_criteria_do_not_come_to_is_refused():
    made = decision("a" * 64, accepted=False).model_copy(update={"accepted": True})
    with pytest.raises(IntegrityError, match="says accepted, but its criteria give rejected"):
        check_decision(made, SNAPSHOT)
