"""Lifecycle transitions caused by actions and by the end of an epoch.

Shapes: N hosts, S slots, A heads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, TEMPOS, AlphaCurve, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, STAGE_INDEX
from simic.contracts.lifecycle import Gate, SeedStage, Trigger
from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.hosts import lifecycle_gates
from simic.hosts.lifecycle import Slots, automatic, ramp

__all__ = ["addressed_slots", "apply_actions", "end_epoch", "move_alpha", "pass_probe"]

_TARGETS = np.array(ALPHA_TARGETS, dtype=np.float32)
_SPEEDS = np.array(ALPHA_SPEEDS)
_TEMPOS = np.array(TEMPOS)
_LINEAR = ALPHA_CURVES.index(AlphaCurve.LINEAR)


def addressed_slots(actions: NDArray[np.int16], slots: int) -> NDArray[np.bool_]:
    """Return bool [N, S]: the slot that each action [N, A] addresses."""
    named: NDArray[np.bool_] = actions[:, HEAD_INDEX[Head.SLOT], None] == np.arange(slots)
    return named


def apply_actions(
    slots: Slots, actions: NDArray[np.int16], sizes: NDArray[np.int32], prune_epochs: int
) -> NDArray[np.bool_]:
    """Apply one action per host to the slots.

    Args:
        slots: all slots, changed in place.
        actions: int16 [N, A], legal.
        sizes: int32 [S, K], parameters of each blueprint in each slot.
        prune_epochs: epochs over which alpha of a pruned active seed falls to 0; 0 prunes at once. A seed that is
            pruned again while it fades is removed at once.

    Returns:
        bool [N, S]: where a seed germinated.
    """
    named = addressed_slots(actions, slots["stage"].shape[1])
    fading = named & (actions[:, 0] == OP_INDEX[Op.PRUNE])[:, None]
    fading &= slots.is_in(SeedStage.BLENDING, SeedStage.HOLDING) & ~slots.is_fading & (prune_epochs > 0)
    fading &= slots["alpha"] > 0
    if fading.any():
        slots.move(fading, Trigger.FADE)
        slots.start_ramp(fading, 0.0, prune_epochs, _LINEAR)
    chosen: dict[Op, NDArray[np.bool_]] = {}
    named &= ~fading
    for op in (Op.GERMINATE, Op.ADVANCE, Op.SET_ALPHA_TARGET, Op.FOSSILIZE, Op.PRUNE):
        chosen[op] = named & (actions[:, 0] == OP_INDEX[op])[:, None]
        if chosen[op].any():
            slots.move(chosen[op], Trigger.ACTION, op)
    born = chosen[Op.GERMINATE]
    rows, places = np.nonzero(born)
    slots["blueprint"][born] = actions[rows, HEAD_INDEX[Head.BLUEPRINT]]
    slots["tempo"][born] = _TEMPOS[actions[rows, HEAD_INDEX[Head.TEMPO]]]
    slots["parameters"][born] = sizes[places, actions[rows, HEAD_INDEX[Head.BLUEPRINT]]]
    slots["age_epochs"][born] = 0
    ramped = chosen[Op.ADVANCE] | chosen[Op.SET_ALPHA_TARGET]
    factors = actions[np.nonzero(ramped)[0]]
    slots.start_ramp(
        ramped,
        _TARGETS[factors[:, HEAD_INDEX[Head.ALPHA_TARGET]]],
        _SPEEDS[factors[:, HEAD_INDEX[Head.ALPHA_SPEED]]],
        factors[:, HEAD_INDEX[Head.ALPHA_CURVE]],
    )
    return born


def pass_probe(slots: Slots, gradient_norm: NDArray[np.float64], live: NDArray[np.bool_]) -> None:
    """Move germinated seeds to TRAINING where the probe's ``gradient_norm`` [N, S] passes G1."""
    verdict = lifecycle_gates.has_gradient(parameters=slots["parameters"], gradient_norm=gradient_norm)
    where = slots.is_in(SeedStage.GERMINATED) & verdict.passed & live[:, None]
    if where.any():
        slots.move(where, Trigger.EPOCH)


def move_alpha(slots: Slots, live: NDArray[np.bool_]) -> None:
    """Set alpha of blending seeds for the epoch that begins."""
    where = slots.is_in(SeedStage.BLENDING) & live[:, None]
    slots["ramp_done"][where] += 1
    names = ("alpha_start", "alpha_target", "ramp_done", "ramp_epochs", "ramp_curve")
    slots["alpha"][where] = ramp(*(slots[name][where] for name in names))


def end_epoch(
    slots: Slots,
    live: NDArray[np.bool_],
    is_finite: NDArray[np.bool_],
    is_clear: NDArray[np.bool_],
    rules: LifecycleConfig,
) -> NDArray[np.bool_]:
    """Age the slots of ``live`` hosts [N] and apply every automatic transition that is due, one per slot.

    Returns:
        bool [N, S]: slots that entered RESETTING; the caller clears their parameters.
    """
    slots.grow_older(live)
    verdicts = {
        Gate.G2: lifecycle_gates.is_stable(
            rules,
            stage_epochs=slots["stage_epochs"],
            parameters=slots["parameters"],
            is_finite=is_finite,
            gradient_health=slots["gradient_health"],
        ),
        Gate.G3: lifecycle_gates.has_reached_target(alpha=slots["alpha"], alpha_target=slots["alpha_target"]),
        Gate.G5: lifecycle_gates.is_reset(is_clear=is_clear),
    }
    due = {
        (SeedStage.TRAINING, Trigger.EPOCH): slots["stage_epochs"] >= slots["tempo"],
        (SeedStage.EMBARGOED, Trigger.EPOCH): slots["stage_epochs"] >= rules.embargo_epochs,
        (SeedStage.BLENDING, Trigger.EPOCH): ~slots.is_fading,
        (SeedStage.BLENDING, Trigger.FADED): slots.is_fading,
    }
    before = slots["stage"].copy()
    entered: dict[SeedStage, NDArray[np.bool_]] = {}
    for row in automatic():
        if row.source is SeedStage.GERMINATED:
            continue
        where = (before == STAGE_INDEX[row.source]) & live[:, None] & due.get((row.source, row.trigger), True)
        if row.gate is not None:
            where &= verdicts[row.gate].passed
        if where.any():
            slots.move(where, row.trigger, row.op)
        entered[row.target] = where | entered.get(row.target, False)
    slots.start_ramp(entered[SeedStage.BLENDING], 1.0, rules.automatic_ramp_epochs, _LINEAR)
    slots.clear(entered[SeedStage.DORMANT])
    return entered[SeedStage.RESETTING]
