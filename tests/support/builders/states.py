"""Hypothesis strategies for the wire forms of states; every float fits float32, as in the columns."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import (
    HISTORY_EPOCHS,
    HardwareContext,
    HostGraph,
    LayerKind,
    LayerNode,
    SeedState,
    SystemState,
)

__all__ = ["BLUEPRINTS", "HARDWARE", "layers", "seeds", "states"]

BLUEPRINTS = ("gate", "mlp", "norm", "relu")
HARDWARE = HardwareContext(device="cpu", threads=1)

SMALL = st.integers(0, 10_000_000)
UNIT = st.floats(0.0, 1.0, width=32)
NON_NEGATIVE = st.floats(0.0, 1e6, width=32)
FINITE = st.floats(-1e6, 1e6, width=32)


def maybe(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Absent or present."""
    return st.none() | strategy


@st.composite
def seeds(draw: DrawFn) -> SeedState:
    """A slot in any stage."""
    stage = draw(st.sampled_from(SeedStage))
    return SeedState(
        stage=stage,
        blueprint=None if stage is SeedStage.DORMANT else draw(st.sampled_from(BLUEPRINTS)),
        alpha=draw(UNIT),
        alpha_target=draw(maybe(UNIT)),
        stage_epochs=draw(SMALL),
        age_epochs=draw(maybe(SMALL)),
        tempo=draw(maybe(SMALL)),
        gradient_norm=draw(maybe(NON_NEGATIVE)),
        gradient_health=draw(maybe(UNIT)),
        contribution=draw(maybe(FINITE)),
        contribution_error=draw(maybe(NON_NEGATIVE)),
        contribution_epochs=draw(maybe(SMALL)),
        parameters=draw(SMALL),
        risk=draw(maybe(UNIT)),
    )


layers: SearchStrategy[LayerNode] = st.builds(
    LayerNode,
    kind=st.sampled_from(LayerKind),
    width=SMALL,
    hidden_width=maybe(SMALL),
    is_linear=st.booleans(),
    activation_spread=maybe(NON_NEGATIVE),
    effective_dimension=maybe(NON_NEGATIVE),
    weight_norm=maybe(NON_NEGATIVE),
    gradient_norm=maybe(NON_NEGATIVE),
)


@st.composite
def states(draw: DrawFn) -> SystemState:
    """A host of any shape: no slots or several, any edges, histories of any length."""
    horizon = draw(st.integers(1, 100_000))
    slots = draw(st.lists(seeds(), max_size=3))
    nodes = draw(st.lists(layers, min_size=1, max_size=4))
    layer, slot = st.integers(0, len(nodes) - 1), st.integers(0, max(0, len(slots) - 1))
    return SystemState(
        epoch=draw(st.integers(0, horizon)),
        horizon=horizon,
        seeds_alive=draw(SMALL),
        seeds_max=draw(SMALL),
        seed_parameters=draw(st.integers(0, 2**53)),
        host_parameters=draw(maybe(st.integers(0, 2**53))),
        train_samples=draw(maybe(st.integers(0, 2**53))),
        train_loss=draw(maybe(NON_NEGATIVE)),
        train_accuracy=draw(maybe(UNIT)),
        validation_loss=draw(NON_NEGATIVE),
        validation_accuracy=draw(UNIT),
        train_loss_history=draw(st.lists(FINITE, max_size=HISTORY_EPOCHS)),
        validation_loss_history=draw(st.lists(FINITE, max_size=HISTORY_EPOCHS)),
        validation_accuracy_history=draw(st.lists(FINITE, max_size=HISTORY_EPOCHS)),
        slots=slots,
        graph=HostGraph(
            layers=nodes,
            connects=draw(st.lists(st.tuples(layer, layer), max_size=4)),
            monitors=draw(st.lists(st.tuples(slot, layer), max_size=3)) if slots else [],
        ),
        hardware=HARDWARE,
    )
