"""Features: bounded, honest about what is absent, and blind to everything but the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.observations import BLUEPRINTS, make_scene

from simic.contracts.batches import SLOT_COLUMNS, SYSTEM_COLUMNS, Observations
from simic.contracts.field_report import StepMetrics
from simic.contracts.state import HardwareContext, SeedState, SystemState
from simic.controllers.features import BOUND, FEATURE_VERSION, FEATURES, encode, feature_names
from simic.controllers.graph import GraphBatch
from simic.replay.graph_table import GraphTable

TABLES = {"context": "context_x", "slot": "slot_x", "layer": "layer_x"}


def column(batch: GraphBatch, node: str, name: str) -> list[float]:
    index = feature_names(BLUEPRINTS)[node].index(name)
    return [round(value, 5) for value in getattr(batch, TABLES[node])[:, index].tolist()]


def encode_states(states: Sequence[SystemState]) -> GraphBatch:
    return encode(Observations.from_states(states, BLUEPRINTS))


def hand_made() -> SystemState:
    """One seed in TRAINING on layer 1 of three, everything else simple."""
    layers: list[dict[str, Any]] = [
        {"kind": "STEM", "width": 24, "is_linear": True, "activation_spread": 0.5, "effective_dimension": 3.0},
        {"kind": "BLOCK", "width": 24, "hidden_width": 3, "is_linear": False, "activation_spread": 1.5},
        {"kind": "HEAD", "width": 10, "is_linear": True},
    ]
    return SystemState.model_validate(
        {
            "epoch": 5,
            "horizon": 20,
            "seeds_alive": 1,
            "seeds_max": 2,
            "seed_parameters": 220,
            "host_parameters": 2000,
            "train_samples": 500,
            "train_loss": 0.5,
            "train_accuracy": 0.9,
            "validation_loss": 1.0,
            "validation_accuracy": 0.6,
            "train_loss_history": [0.5],
            "validation_loss_history": [2.0, 1.0],
            "validation_accuracy_history": [0.5, 0.55, 0.6],
            "slots": [
                {"stage": "DORMANT", "stage_epochs": 0},
                {
                    "stage": "TRAINING",
                    "blueprint": "gate",
                    "stage_epochs": 2,
                    "age_epochs": 2,
                    "tempo": 5,
                    "gradient_health": 1.0,
                    "contribution": -0.25,
                    "contribution_epochs": 0,
                    "parameters": 220,
                },
            ],
            "graph": {"layers": layers, "connects": [(0, 1), (1, 2)], "monitors": [(0, 0), (1, 1)]},
            "hardware": {"device": "cpu", "threads": 1},
        }
    )


def test_values_by_hand() -> None:
    batch = encode_states([hand_made()])
    expected: dict[tuple[str, str], list[float]] = {
        ("context", "epoch_fraction"): [0.25],
        ("context", "remaining_inverse"): [1 / 15],
        ("context", "budget_used"): [0.5],
        ("context", "budget_left"): [1.0],
        ("context", "accuracy_gap"): [0.3],
        ("context", "parameters_per_sample"): [np.log(4.0)],
        ("context", "loss_ratio"): [np.log(1.001) - np.log(0.501)],
        ("context", "validation_accuracy_delta_0"): [0.05],
        ("context", "validation_accuracy_delta_1"): [0.05],
        ("context", "validation_loss_delta_0"): [np.log(2.0) - np.log(3.0)],
        ("slot", "stage=DORMANT"): [1.0, 0.0],
        ("slot", "stage=TRAINING"): [0.0, 1.0],
        ("slot", "blueprint=gate"): [0.0, 1.0],
        ("slot", "contribution"): [0.0, -0.25],
        ("slot", "parameters"): [0.0, np.log(221.0)],
        ("slot", "tempo_left"): [0.0, np.log(4.0)],
        ("slot", "depth"): [0.0, 0.5],
        ("slot", "layer_is_linear"): [1.0, 0.0],
        ("slot", "layer_spread"): [np.log(1.5), np.log(2.5)],
        ("slot", "layer_spread_rise"): [0.0, np.log(2.5) - np.log(1.5)],
        ("slot", "layer_hidden_width"): [0.0, np.log(4.0)],
        ("slot", "layer_dimension"): [np.log(4.0), 0.0],
        ("layer", "kind=HEAD"): [0.0, 0.0, 1.0],
        ("layer", "depth"): [0.0, 0.5, 1.0],
        ("layer", "spread"): [np.log(1.5), np.log(2.5), 0.0],
        ("layer", "dimension"): [np.log(4.0), 0.0, 0.0],
    }
    for (node, name), values in expected.items():
        assert column(batch, node, name) == pytest.approx(values, abs=2e-5), f"{node}.{name}"


def test_absent_is_zero_with_its_flag_down() -> None:
    batch = encode_states([hand_made()])
    flags: dict[tuple[str, str], list[float]] = {
        ("context", "validation_accuracy_delta_1"): [1.0],
        ("context", "validation_accuracy_delta_2"): [0.0],
        ("context", "train_loss_delta_0"): [0.0],
        ("slot", "contribution"): [0.0, 1.0],
        ("slot", "gradient_norm"): [0.0, 0.0],
        ("slot", "risk"): [0.0, 0.0],
        ("slot", "tempo_left"): [0.0, 1.0],
        ("slot", "layer_spread_rise"): [0.0, 1.0],
        ("layer", "spread"): [1.0, 1.0, 0.0],
    }
    for (node, name), values in flags.items():
        assert column(batch, node, f"{name}_valid") == values, name
        assert all(value == 0.0 for value, flag in zip(column(batch, node, name), values, strict=True) if not flag)


def test_contribution_zero_differs_from_unmeasured() -> None:
    """M18: not measured is null, never 0."""
    state = hand_made()
    measured = state.slots[1].model_copy(update={"contribution": 0.0})
    unmeasured = state.slots[1].model_copy(update={"contribution": None})
    batch = encode_states([state.model_copy(update={"slots": [state.slots[0], s]}) for s in (measured, unmeasured)])
    assert column(batch, "slot", "contribution") == [0.0] * 4
    assert column(batch, "slot", "contribution_valid") == [0.0, 1.0, 0.0, 0.0]


def test_every_feature_is_finite_and_bounded_whatever_comes() -> None:
    state = hand_made()
    seed = SeedState(
        stage="BLENDING",
        blueprint="heavy",
        stage_epochs=10**7,
        gradient_norm=3e38,
        contribution=-1e30,
        parameters=10**7,
    )
    wild = state.model_copy(
        update={
            "train_loss": 1e38,
            "validation_loss": 0.0,
            "slots": [seed, seed],
            "validation_loss_history": [0.0, 3e38],
        }
    )
    batch = encode_states([wild, state])
    for name in TABLES.values():
        values = getattr(batch, name)
        assert torch.isfinite(values).all()
        assert values.abs().max() <= BOUND


def test_features_read_the_state_and_nothing_else() -> None:
    """D26: no reward, no metric, no identity among the features; what is not named as one changes nothing."""
    state = hand_made()
    other = state.model_copy(
        update={"committed_validation_accuracy": 0.1, "hardware": HardwareContext(device="cuda:3", threads=8)}
    )
    first, second = encode_states([state]), encode_states([other])
    assert all(torch.equal(getattr(first, name), getattr(second, name)) for name in TABLES.values())
    names = {name for columns in FEATURES.values() for name in columns}
    hidden = set(StepMetrics.model_fields) | {"family", "key", "set", "reward", "return", "outcome"}
    assert not names & hidden
    assert not [name for name in names if "test" in name or "committed" in name or "reward" in name]


def test_every_column_of_the_state_matters() -> None:
    """What the hosts measure reaches the controller: changing any column changes some feature."""
    scene = make_scene(3, 40)
    before = encode(scene.observations)
    for table, columns in (("system", SYSTEM_COLUMNS), ("slots", SLOT_COLUMNS)):
        for name in columns:
            values = getattr(scene.observations, table)
            is_constant = len(np.unique(values[name])) == 1
            changed = {**values, name: values[name] + 1 if is_constant else np.roll(values[name], 1)}
            after = encode(Observations(**{**vars(scene.observations), table: changed}))
            assert any(not torch.equal(getattr(before, x), getattr(after, x)) for x in ("context_x", "slot_x")), (
                f"{table}.{name} is ignored"
            )


def test_one_host_at_a_time_gives_the_same_bits() -> None:
    scene = make_scene(4, 25)
    together = encode(scene.observations)
    for row in range(25):
        alone = encode(scene.observations.take(np.array([row])))
        taken = GraphTable.of(together).take(torch.tensor([row]))
        assert all(torch.equal(getattr(alone, name), getattr(taken, name)) for name in TABLES.values())
        assert all(torch.equal(alone.edges[edge], taken.edges[edge]) for edge in alone.edges)


def test_names_are_unique_and_versioned() -> None:
    batch = encode(make_scene(0, 3).observations)
    for node, names in feature_names(BLUEPRINTS).items():
        assert len(set(names)) == len(names) == getattr(batch, TABLES[node]).shape[1]
    assert len(FEATURE_VERSION) == 16
    assert all(name.removesuffix("_valid") in names for names in FEATURES.values() for name in names)


def test_a_cycle_and_an_unmonitored_slot_are_survived() -> None:
    state = hand_made()
    graph = state.graph.model_copy(update={"connects": [(0, 1), (1, 0)], "monitors": []})
    batch = encode_states([state.model_copy(update={"graph": graph})])
    assert column(batch, "slot", "depth") == [0.0, 0.0]
    assert column(batch, "slot", "layer_spread_valid") == [0.0, 0.0]
    assert torch.isfinite(batch.layer_x).all()
