"""Columns and wire forms tell the same story."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.action_rows import actions_to_rows
from support.builders.reports import episode
from support.builders.states import BLUEPRINTS, HARDWARE, states

from simic.contracts.actions import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEADS,
    OPS,
    RELEVANT_HEADS,
    TEMPOS,
    Action,
    BehaviourLogProb,
    Head,
    Op,
)
from simic.contracts.batches import (
    HEAD_INDEX,
    OP_INDEX,
    SLOT_COLUMNS,
    SYSTEM_COLUMNS,
    Masks,
    Observations,
    action_of,
    log_prob_of,
    masks_of,
    relevance,
)
from simic.contracts.errors import ContractError
from simic.contracts.state import SystemState

BATCHES = st.lists(states(), max_size=4)
CHOICES = {
    Head.SLOT: range(3),
    Head.BLUEPRINT: BLUEPRINTS,
    Head.ALPHA_TARGET: ALPHA_TARGETS,
    Head.ALPHA_SPEED: ALPHA_SPEEDS,
    Head.ALPHA_CURVE: ALPHA_CURVES,
    Head.TEMPO: TEMPOS,
}
ALL_ACTIONS = [
    Action(op=op, **{head.value: value for head, value in zip(heads, values, strict=True)})
    for op in OPS
    for heads in [RELEVANT_HEADS[op][1:]]
    for values in itertools.product(*(CHOICES[head] for head in heads))
]


@settings(max_examples=50)
@given(BATCHES)
def test_states_survive_the_way_through_columns(batch: list[SystemState]) -> None:
    observations = Observations.from_states(batch, BLUEPRINTS)
    assert len(observations) == len(batch)
    assert observations.to_states(HARDWARE) == batch


@settings(max_examples=50)
@given(BATCHES)
def test_columns_have_the_declared_shapes_and_types(batch: list[SystemState]) -> None:
    observations = Observations.from_states(batch, BLUEPRINTS)
    slots = sum(len(state.slots) for state in batch)
    assert {name: column.dtype for name, column in observations.slots.items()} == SLOT_COLUMNS
    assert {name: column.shape for name, column in observations.system.items()} == dict.fromkeys(
        SYSTEM_COLUMNS, (len(batch),)
    )
    assert all(column.shape == (slots,) for column in observations.slots.values())


@settings(max_examples=50)
@given(st.data())
def test_taking_rows_is_taking_states(data: st.DataObject) -> None:
    batch = data.draw(st.lists(states(), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=6))
    taken = Observations.from_states(batch, BLUEPRINTS).take(np.array(rows, dtype=np.int64))
    assert taken.to_states(HARDWARE) == [batch[row] for row in rows]


def test_a_real_episode_survives_with_its_final_state() -> None:
    reports = episode(3)
    final = reports[-1].final_state
    assert final is not None
    batch = [report.state for report in reports] + [final.model_copy(update={"committed_validation_accuracy": None})]
    names = ("attention", "bottleneck", "gate", "mlp", "norm", "relu")
    observations = Observations.from_states(batch, names)
    for restored, state in zip(observations.to_states(batch[0].hardware), batch, strict=True):
        _assert_close(restored.model_dump(), state.model_dump())


def _assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _assert_close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            _assert_close(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6)
    else:
        assert found == expected


def test_committed_accuracy_is_written_into_final_states_only_when_given() -> None:
    batch = [report.state for report in episode(0)][:2]
    observations = Observations.from_states(batch, ("mlp",))
    committed = np.array([0.25, 0.5], dtype=np.float32)
    final = observations.to_states(HARDWARE, committed)
    assert [state.committed_validation_accuracy for state in final] == [0.25, 0.5]
    assert [state.committed_validation_accuracy for state in observations.to_states(HARDWARE)] == [None, None]


def test_histories_end_with_now_and_begin_with_nothing() -> None:
    state = episode(0)[2].state
    row = Observations.from_states([state], ("mlp",)).history["validation_accuracy_history"][0]
    assert np.isnan(row[:2]).all()
    assert row[-1] == np.float32(state.validation_accuracy)


def test_an_unknown_blueprint_is_named() -> None:
    state = episode(0)[4].state
    with pytest.raises(ContractError, match=r"unknown blueprints \['mlp'\]; known blueprints: gate"):
        Observations.from_states([state], ("gate",))


@pytest.mark.parametrize(
    ("field", "spoil", "message"),
    [
        ("system", lambda t: {k: v for k, v in t.items() if k != "epoch"}, "system: columns differ by .'epoch'."),
        ("slots", lambda t: t | {"alpha": t["alpha"].astype(np.float64)}, "slots.alpha: expected float32"),
        ("layers", lambda t: t | {"width": t["width"][:-1]}, r"layers.width: expected int32 \[8\], found int32 \(7,\)"),
        ("history", lambda t: t | {"train_loss_history": np.zeros((2, 4), np.float32)}, "history train_loss_history"),
        ("connects", lambda edges: edges[:, 1:], r"edges \(2, 5\) do not match"),
        ("monitors_ptr", lambda ptr: np.append(ptr, ptr[-1]), r"do not match their offsets for 2 hosts"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(field: str, spoil: Any, message: str) -> None:
    batch = [report.state for report in episode(0)][:2]
    observations = Observations.from_states(batch, ("mlp",))
    with pytest.raises(ContractError, match=message):
        dataclasses.replace(observations, **{field: spoil(getattr(observations, field))})


def test_every_action_there_is_survives_the_way_through_rows() -> None:
    rows = actions_to_rows(ALL_ACTIONS, BLUEPRINTS)
    assert rows.dtype == np.int16
    assert len(np.unique(rows, axis=0)) == len(ALL_ACTIONS) == 1 + 3 * 4 * 3 + 2 * 3 * 3 * 4 * 3 + 3 + 3
    assert [action_of(row, BLUEPRINTS) for row in rows] == ALL_ACTIONS


def test_rows_mark_exactly_the_relevant_heads() -> None:
    rows = actions_to_rows(ALL_ACTIONS, BLUEPRINTS)
    np.testing.assert_array_equal(rows >= 0, relevance(rows[:, HEAD_INDEX[Head.OP]]))


def test_no_actions_are_no_rows() -> None:
    assert actions_to_rows([], BLUEPRINTS).shape == (0, len(HEADS))


def test_log_probabilities_keep_absent_apart_from_certain() -> None:
    row = np.full(len(HEADS), np.nan, dtype=np.float32)
    row[HEAD_INDEX[Head.OP]], row[HEAD_INDEX[Head.SLOT]] = -0.5, 0.0
    assert log_prob_of(row) == BehaviourLogProb(op=-0.5, slot=0.0, joint=-0.5)


def test_rounding_above_certainty_is_mended() -> None:
    row = np.full(len(HEADS), np.nan, dtype=np.float32)
    row[0] = 1e-7
    assert log_prob_of(row) == BehaviourLogProb(op=0.0, joint=0.0)


def test_masks_of_one_host_are_cut_out_of_the_batch_and_turned() -> None:
    slot_ptr = np.array([0, 1, 3], dtype=np.int64)
    masks = Masks(
        op=np.eye(6, dtype=np.bool_)[:2],
        slot=np.zeros((3, len(OPS)), dtype=np.bool_),
        blueprint=np.array([[True] * 4, [False, True, False, True]]),
    )
    masks.slot[2, OP_INDEX[Op.PRUNE]] = True
    wire = masks_of(masks, 1, slot_ptr, BLUEPRINTS)
    assert wire.op == [False, True, False, False, False, False]
    assert wire.slot == [[False, False]] * 5 + [[False, True]]
    assert wire.blueprint == ["mlp", "relu"]
    taken = masks.take(np.array([1, 0]), slot_ptr)
    assert taken.slot[:, OP_INDEX[Op.PRUNE]].tolist() == [False, True, False]
    assert taken.op.tolist() == [masks.op[1].tolist(), masks.op[0].tolist()]
