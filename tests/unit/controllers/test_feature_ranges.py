"""What of a state lies outside the data that a policy learned from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.builders.deciding_policies import sealed_decider
from support.builders.observations import BLUEPRINTS, make_scene

from simic.contracts.batches import Observations
from simic.contracts.feature_ranges import FeatureRange, FeatureRanges, OutOfRange
from simic.contracts.state import HardwareContext, SystemState
from simic.controllers.feature_ranges import MARGIN, joined_ranges, out_of_range, ranges_of
from simic.controllers.features import encode, feature_names, in_unit_of_state
from simic.controllers.policy_files import PolicyCard, load_policy

SCENE = make_scene(0, 40).observations
RANGES = ranges_of(encode(SCENE), BLUEPRINTS)
_OF_SLOTS = (
    "alpha",
    "alpha_target",
    "stage_epochs",
    "age_epochs",
    "tempo",
    "parameters",
    "gradient_norm",
    "gradient_health",
    "contribution",
    "contribution_error",
    "contribution_epochs",
    "risk",
)
_OF_LAYERS = {
    "width": "width",
    "hidden_width": "hidden_width",
    "spread": "activation_spread",
    "dimension": "effective_dimension",
    "weight_norm": "weight_norm",
    "gradient_norm": "gradient_norm",
}
"""Fields of a layer by the feature that holds them."""


def found_in(state: SystemState, ranges: FeatureRanges = RANGES) -> dict[str, OutOfRange]:
    graph = encode(Observations.from_states([state], BLUEPRINTS))
    return {f"{one.node}.{one.feature}": one for one in out_of_range(graph, ranges, BLUEPRINTS)}


def changed(state: SystemState, **fields: Any) -> SystemState:
    return SystemState.model_validate({**json.loads(state.model_dump_json()), **fields})


def some_state() -> SystemState:
    return SCENE.take(np.array([0])).to_states(HardwareContext(device="cpu", threads=1))[0]


@given(st.integers(0, 2**31 - 1), st.integers(1, 12))
def test_no_state_of_the_data_is_outside_its_own_ranges(seed: int, hosts: int) -> None:
    observations = make_scene(seed, hosts).observations
    ranges = ranges_of(encode(observations), BLUEPRINTS)
    for row in range(hosts):
        assert out_of_range(encode(observations.take(np.array([row]))), ranges, BLUEPRINTS) == []


def test_a_wider_network_is_told_in_the_unit_of_the_state() -> None:
    state = some_state()
    layers = [layer.model_copy(update={"width": 50_000}) for layer in state.graph.layers]
    wide = state.model_copy(update={"graph": state.graph.model_copy(update={"layers": layers})})
    one = found_in(wide)["layer.width"]
    widths = SCENE.layers["width"]
    assert one.value == pytest.approx(50_000, rel=1e-5)
    assert (one.lower, one.upper) == pytest.approx((widths.min(), widths.max()), rel=1e-5)
    assert str(one) == f"layer 0 width 5e+04, in training {widths.min():.3g} to {widths.max():.3g}"


def test_numbers_of_the_context_are_those_of_the_state() -> None:
    state = changed(some_state(), validation_loss=9e4, train_loss=8e4, horizon=90_000, epoch=0)
    found = found_in(state)
    assert found["context.validation_loss"].value == pytest.approx(9e4, rel=1e-4)
    assert found["context.train_loss"].value == pytest.approx(8e4, rel=1e-4)
    assert found["context.remaining_epochs"].value == pytest.approx(90_000, rel=1e-4)


def test_a_value_may_lie_beyond_a_range_by_a_share_of_its_width() -> None:
    graph = encode(SCENE.take(np.array([0])))
    column = feature_names(BLUEPRINTS)["context"].index("validation_accuracy")
    value = float(graph.context_x[0, column])

    def with_upper(upper: float) -> list[str]:
        ranges = {node: list(known) for node, known in RANGES.items()}
        ranges["context"][column] = FeatureRange(lower=upper - 1.0, upper=upper)
        return [one.feature for one in out_of_range(graph, ranges, BLUEPRINTS)]

    assert with_upper(value - 0.9 * MARGIN) == []
    assert with_upper(value - 1.1 * MARGIN) == ["validation_accuracy"]


def test_a_number_that_was_always_absent_is_out_of_range_once_it_is_there() -> None:
    ranges = {node: list(known) for node, known in RANGES.items()}
    column = feature_names(BLUEPRINTS)["context"].index("train_loss")
    ranges["context"][column] = None
    present = changed(some_state(), train_loss=0.5, train_accuracy=0.5)
    one = found_in(present, ranges)["context.train_loss"]
    assert (one.lower, one.upper) == (None, None)
    assert str(one).endswith("in training absent")
    unmeasured = encode(Observations.from_states([changed(some_state(), train_loss=None)], BLUEPRINTS))
    always = ranges_of(encode(Observations.from_states([present], BLUEPRINTS)), BLUEPRINTS)
    told = [str(one) for one in out_of_range(unmeasured, always, BLUEPRINTS)]
    assert "train_loss absent, in training always present" in told
    without = changed(some_state(), train_loss=None, train_accuracy=None, train_loss_history=[])
    assert "context.train_loss" not in found_in(without, ranges)


def test_absent_numbers_count_for_no_range() -> None:
    """They are stored as 0, which is no measurement."""
    present = [changed(some_state(), train_loss=0.5, train_accuracy=0.5), changed(some_state(), train_loss=None)]
    ranges = ranges_of(encode(Observations.from_states(present, BLUEPRINTS)), BLUEPRINTS)
    known = ranges["context"][feature_names(BLUEPRINTS)["context"].index("train_loss")]
    assert known is not None and known.lower == known.upper == pytest.approx(np.log(1.5))


def test_ranges_of_two_data_sets_hold_for_both() -> None:
    other = make_scene(7, 40).observations
    both = joined_ranges(RANGES, ranges_of(encode(other), BLUEPRINTS))
    for observations in (SCENE, other):
        for row in range(40):
            assert out_of_range(encode(observations.take(np.array([row]))), both, BLUEPRINTS) == []
    unknown: FeatureRanges = {node: [None] * len(known) for node, known in RANGES.items()}
    assert joined_ranges(unknown, RANGES) == joined_ranges(RANGES, unknown) == RANGES


def test_a_card_keeps_the_ranges_and_refuses_others(tmp_path: Path) -> None:
    card = load_policy(sealed_decider(tmp_path / "policy", learned_from=SCENE)).card
    assert card.feature_ranges == RANGES
    short = {**RANGES, "slot": RANGES["slot"][1:]}
    for wrong in (short, {"slot": RANGES["slot"]}):
        with pytest.raises(ValidationError, match="feature_ranges: expected one per column"):
            PolicyCard.model_validate(card.model_copy(update={"feature_ranges": wrong}).model_dump())
    with pytest.raises(ValidationError, match="expected lower <= upper"):
        FeatureRange(lower=1.0, upper=0.5)
    for beyond in (12.5, 1000.0, 1e308):
        with pytest.raises(ValidationError, match="less than or equal to 12"):
            FeatureRange(lower=0.0, upper=beyond)


def test_a_host_without_slots_has_ranges_and_findings_of_its_layers() -> None:
    bare = some_state().model_copy(update={"slots": [], "seeds_alive": 0, "seed_parameters": 0})
    bare = bare.model_copy(update={"graph": bare.graph.model_copy(update={"monitors": []})})
    graph = encode(Observations.from_states([bare], BLUEPRINTS))
    assert set(ranges_of(graph, BLUEPRINTS)["slot"]) == {None}
    assert all(one.node != "slot" for one in found_in(bare).values())


def test_every_number_is_told_as_the_state_has_it() -> None:
    """Against the state itself: a feature that is a logarithm in one place and not in the other would show."""
    for state in SCENE.to_states(HardwareContext(device="cpu", threads=1)):
        graph = encode(Observations.from_states([state], BLUEPRINTS))
        told = {
            node: {
                name: [in_unit_of_state(name, value) for value in x[:, column].tolist()]
                for column, name in enumerate(feature_names(BLUEPRINTS)[node])
            }
            for node, x in (("context", graph.context_x), ("slot", graph.slot_x), ("layer", graph.layer_x))
        }
        wanted = {
            ("context", name): [getattr(state, name)]
            for name in ("seed_parameters", "validation_loss", "validation_accuracy", "train_loss", "train_accuracy")
        }
        wanted["context", "remaining_epochs"] = [state.horizon - state.epoch]
        for name in _OF_SLOTS:
            wanted["slot", name] = [getattr(slot, name) for slot in state.slots]
        for name, field in _OF_LAYERS.items():
            wanted["layer", name] = [getattr(layer, field) for layer in state.graph.layers]
        for (node, name), values in wanted.items():
            expected = [0.0 if value is None else min(float(value), math.expm1(12.0)) for value in values]
            assert told[node][name] == pytest.approx(expected, rel=1e-4, abs=1e-5), f"{node} {name}"
