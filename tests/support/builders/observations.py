"""Hosts that never were: random states and masks of every shape, for tests of controllers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import OPS, Op
from simic.contracts.batches import OP_INDEX, Masks, Observations
from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import HardwareContext, HostGraph, LayerKind, LayerNode, SeedState, SystemState
from simic.hosts.plugins import blueprint_names

__all__ = ["BLUEPRINTS", "Scene", "make_scene"]

BLUEPRINTS = blueprint_names()


class Scene(NamedTuple):
    """States of N hosts, their columns, masks and uniforms."""

    states: list[SystemState]
    observations: Observations
    masks: Masks
    uniforms: NDArray[np.float64]


def _maybe(rng: np.random.Generator, value: Any) -> Any:
    return None if rng.random() < 0.3 else value


def _seed(rng: np.random.Generator) -> SeedState:
    stage = list(SeedStage)[rng.integers(len(SeedStage))]
    if stage is SeedStage.DORMANT:
        return SeedState(stage=stage, stage_epochs=int(rng.integers(20)))
    return SeedState(
        stage=stage,
        blueprint=BLUEPRINTS[rng.integers(len(BLUEPRINTS))],
        alpha=float(rng.random()),
        alpha_target=_maybe(rng, 0.7),
        stage_epochs=int(rng.integers(12)),
        age_epochs=_maybe(rng, int(rng.integers(20))),
        tempo=_maybe(rng, 5),
        gradient_norm=_maybe(rng, float(rng.exponential(3.0))),
        gradient_health=_maybe(rng, float(rng.random())),
        contribution=_maybe(rng, float(rng.normal(0, 0.1))),
        contribution_error=_maybe(rng, float(rng.uniform(0, 0.05))),
        contribution_epochs=_maybe(rng, int(rng.integers(4))),
        parameters=int(rng.integers(2000)),
        risk=_maybe(rng, float(rng.random())),
    )


def _layer(rng: np.random.Generator, kind: LayerKind) -> LayerNode:
    return LayerNode(
        kind=kind,
        width=int(rng.integers(1, 64)),
        hidden_width=_maybe(rng, int(rng.integers(1, 16))),
        is_linear=bool(rng.random() < 0.5),
        activation_spread=_maybe(rng, float(rng.exponential(1.0))),
        effective_dimension=_maybe(rng, float(rng.exponential(8.0))),
        weight_norm=_maybe(rng, float(rng.exponential(5.0))),
        gradient_norm=_maybe(rng, float(rng.exponential(1.0))),
    )


def _state(rng: np.random.Generator, slots: int, layers: int) -> SystemState:
    epoch = int(rng.integers(0, 20))
    history = [float(x) for x in rng.random(min(epoch + 1, 5))]
    kinds = [LayerKind.STEM, *[LayerKind.BLOCK] * max(layers - 2, 0), LayerKind.HEAD][:layers]
    return SystemState(
        epoch=epoch,
        horizon=20,
        seeds_alive=int(rng.integers(0, 2)),
        seeds_max=1,
        seed_parameters=int(rng.integers(0, 2000)),
        host_parameters=_maybe(rng, int(rng.integers(1, 5000))),
        train_samples=None if epoch == 0 else int(rng.integers(1, 512)),
        train_loss=None if epoch == 0 else float(rng.exponential(1.0)),
        train_accuracy=None if epoch == 0 else float(rng.random()),
        validation_loss=float(rng.exponential(1.0)),
        validation_accuracy=history[-1],
        train_loss_history=history[1:],
        validation_loss_history=history,
        validation_accuracy_history=history,
        slots=[_seed(rng) for _ in range(slots)],
        graph=HostGraph(
            layers=[_layer(rng, kind) for kind in kinds],
            connects=[(i, i + 1) for i in range(layers - 1)],
            monitors=[(i, i % layers) for i in range(slots)],
        ),
        hardware=HardwareContext(device="cpu", threads=1),
    )


def _masks(rng: np.random.Generator, observations: Observations) -> Masks:
    ptr = observations.slot_ptr
    slot = rng.random((int(ptr[-1]), len(OPS))) < 0.5
    slot[:, OP_INDEX[Op.WAIT]] = False
    op = np.array([slot[ptr[i] : ptr[i + 1]].any(0) for i in range(len(observations))]).reshape(-1, len(OPS))
    op[:, OP_INDEX[Op.WAIT]] = True
    blueprint = rng.random((len(observations), len(BLUEPRINTS))) < 0.7
    blueprint[:, 0] = True
    return Masks(op, slot, blueprint)


def make_scene(seed: int, hosts: int, *, slots: tuple[int, int] = (1, 4), layers: tuple[int, int] = (2, 6)) -> Scene:
    """``hosts`` random hosts with slots and layers counted in half-open ranges."""
    rng = np.random.default_rng(seed)
    states = [_state(rng, int(rng.integers(*slots)), int(rng.integers(*layers))) for _ in range(hosts)]
    observations = Observations.from_states(states, BLUEPRINTS)
    return Scene(states, observations, _masks(rng, observations), rng.random((hosts, 7)))
