"""An action carries exactly the factors that matter to its operation."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from simic.contracts.actions import HEADS, OPS, RELEVANT_HEADS, Action, ActionMasks, BehaviourLogProb, Head, Op

VALUES: dict[Head, Any] = {
    Head.SLOT: 1,
    Head.BLUEPRINT: "mlp",
    Head.ALPHA_TARGET: 0.7,
    Head.ALPHA_SPEED: 3,
    Head.ALPHA_CURVE: "COSINE",
    Head.TEMPO: 5,
}


def factors(op: Op) -> dict[str, Any]:
    return {head.value: VALUES[head] for head in RELEVANT_HEADS[op] if head is not Head.OP}


def test_the_table_covers_every_operation_and_starts_with_op() -> None:
    assert set(RELEVANT_HEADS) == set(OPS)
    for heads in RELEVANT_HEADS.values():
        assert heads[0] is Head.OP
        assert len(set(heads)) == len(heads)


@pytest.mark.parametrize("op", OPS)
def test_the_relevant_factors_are_enough(op: Op) -> None:
    action = Action(op=op, **factors(op))
    assert Action.model_validate_json(action.model_dump_json()) == action


@pytest.mark.parametrize(("op", "head"), [(op, head) for op in OPS for head in HEADS if head is not Head.OP])
def test_one_factor_too_few_or_too_many_is_refused(op: Op, head: Head) -> None:
    values = factors(op)
    if head in RELEVANT_HEADS[op]:
        del values[head.value]
    else:
        values[head.value] = VALUES[head]
    with pytest.raises(ValidationError, match=head.value):
        Action(op=op, **values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha_target": 0.6},
        {"alpha_speed": 4},
        {"alpha_curve": "STEP"},
        {"slot": -1},
        {"slot": 1024},
        {"op": "EXPLODE"},
        {"extra": 1},
    ],
)
def test_values_outside_the_choices_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Action(**{"op": Op.ADVANCE, **factors(Op.ADVANCE), **wrong})


@pytest.mark.parametrize("name", ["Mlp", "mlp-2", "2mlp", "", "m" * 33, "../mlp"])
def test_blueprint_names_are_file_names(name: str) -> None:
    with pytest.raises(ValidationError, match="blueprint"):
        Action(op=Op.GERMINATE, slot=0, blueprint=name, tempo=3)


def test_the_joint_is_the_sum() -> None:
    assert BehaviourLogProb(op=-1.0, slot=-2.0, joint=-3.0).joint == -3.0
    with pytest.raises(ValidationError, match="is not the sum"):
        BehaviourLogProb(op=-1.0, slot=-2.0, joint=-1.0)


@pytest.mark.parametrize("value", [0.1, float("nan"), float("-inf"), -1e5])
def test_a_log_probability_is_finite_and_not_positive(value: float) -> None:
    with pytest.raises(ValidationError):
        BehaviourLogProb(op=value, joint=value)


def test_masks_have_one_row_per_operation() -> None:
    rows = [[True, False]] * len(OPS)
    masks = ActionMasks(op=[True] * len(OPS), slot=rows, blueprint=["mlp"])
    assert ActionMasks.model_validate_json(masks.model_dump_json()) == masks
    for spoilt in ({"op": [True]}, {"slot": rows[1:]}):
        with pytest.raises(ValidationError):
            ActionMasks(**{**masks.model_dump(), **spoilt})
