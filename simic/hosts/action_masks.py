"""Legal actions: one mask function for controllers, logs and ``transitions``.

Shapes: N hosts, S slots per host, K blueprints, A heads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, OPS, TEMPOS, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, STAGES, Masks, relevance
from simic.contracts.errors import IllegalActionError
from simic.contracts.lifecycle import SeedStage
from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.hosts import lifecycle_gates
from simic.hosts.lifecycle import SLOT_FIELDS, Slots

__all__ = ["check_actions", "legal_masks", "why_refused"]


def legal_masks(
    slots: Slots,
    rules: LifecycleConfig,
    *,
    live: NDArray[np.bool_],
    seeds_max: int,
    is_finite: NDArray[np.bool_],
    sane: NDArray[np.bool_],
) -> Masks:
    """Return the masks of legal actions, gates included.

    Args:
        slots: all slots, [N, S].
        rules: bounds of the gates, and least stays.
        live: [N], hosts whose episode continues; the others may only wait.
        seeds_max: limit of seeds alive or fossilised per host.
        is_finite: [N, S], seeds whose parameters are finite.
        sane: [K], blueprints that pass G0. They stay available while no slot is free, so that a head over
            blueprints always has a choice; ``op`` says whether one can be germinated.
    """
    has_room = slots.is_paying.sum(axis=1) < seeds_max
    dwelt = slots["stage_epochs"] >= rules.holding_epochs
    stable = lifecycle_gates.is_stable(
        rules,
        stage_epochs=slots["stage_epochs"],
        parameters=slots["parameters"],
        is_finite=is_finite,
        gradient_health=slots["gradient_health"],
    )
    impact = lifecycle_gates.has_impact(
        rules, contribution=slots["contribution"], contribution_epochs=slots["contribution_epochs"]
    )
    holding = slots.is_in(SeedStage.HOLDING) & dwelt
    legal = np.zeros((*slots["stage"].shape, len(OPS)), dtype=bool)
    legal[..., OP_INDEX[Op.GERMINATE]] = slots.is_in(SeedStage.DORMANT) & has_room[:, None] & sane.any()
    legal[..., OP_INDEX[Op.ADVANCE]] = slots.is_in(SeedStage.TRAINING) & stable.passed
    legal[..., OP_INDEX[Op.SET_ALPHA_TARGET]] = holding
    legal[..., OP_INDEX[Op.FOSSILIZE]] = holding & impact.passed
    legal[..., OP_INDEX[Op.PRUNE]] = slots.is_alive
    legal &= live[:, None, None]
    op: NDArray[np.bool_] = np.any(legal, axis=1)
    op[:, OP_INDEX[Op.WAIT]] = True
    return Masks(op, legal.reshape(-1, len(OPS)), np.broadcast_to(sane, (len(live), len(sane))).copy())


def check_actions(
    actions: NDArray[np.int16],
    masks: Masks,
    slot_ptr: NDArray[np.int64],
    keys: NDArray[np.int64],
    explain: Callable[[int], str] | None = None,
) -> None:
    """Raise IllegalActionError for the first action [N, A] that its masks forbid; ``explain`` says why, by row.

    ``slot_ptr`` [N + 1] holds the offsets of the hosts' slots in ``masks.slot``.
    """
    if actions.shape != (len(keys), len(HEADS)) or actions.dtype != np.int16:
        raise IllegalActionError(f"expected int16 {(len(keys), len(HEADS))}, found {actions.dtype} {actions.shape}")
    slots = np.diff(slot_ptr)
    sizes = {
        Head.OP: len(OPS),
        Head.SLOT: int(slots.max()),
        Head.BLUEPRINT: masks.blueprint.shape[1],
        Head.ALPHA_TARGET: len(ALPHA_TARGETS),
        Head.ALPHA_SPEED: len(ALPHA_SPEEDS),
        Head.ALPHA_CURVE: len(ALPHA_CURVES),
        Head.TEMPO: len(TEMPOS),
    }
    bound = np.array([sizes[head] for head in HEADS])
    ops = np.clip(actions[:, 0], 0, len(OPS) - 1)
    wanted = relevance(ops)
    in_range = np.where(wanted, (actions >= 0) & (actions < bound), actions == -1).all(axis=1)
    rows = np.arange(len(keys))
    wanted_slot = actions[:, HEAD_INDEX[Head.SLOT]]
    slot = np.clip(wanted_slot, 0, slots - 1)
    blueprint = np.clip(actions[:, HEAD_INDEX[Head.BLUEPRINT]], 0, bound[HEAD_INDEX[Head.BLUEPRINT]] - 1)
    allowed = (
        masks.op[rows, ops]
        & (~wanted[:, HEAD_INDEX[Head.SLOT]] | (masks.slot[slot_ptr[:-1] + slot, ops] & (slot == wanted_slot)))
        & (~wanted[:, HEAD_INDEX[Head.BLUEPRINT]] | masks.blueprint[rows, blueprint])
    )
    bad = np.flatnonzero(~(in_range & allowed))
    if len(bad):
        row = int(bad[0])
        legal = [op.value for op, good in zip(OPS, masks.op[row].tolist(), strict=True) if good]
        reason = "" if explain is None else f" ({explain(row)})"
        raise IllegalActionError(
            f"host {keys[row]}: action {actions[row].tolist()} is not legal{reason}; operations are {legal}"
        )


def why_refused(
    slots: Slots,
    rules: LifecycleConfig,
    action: NDArray[np.int16],
    host: int,
    *,
    seeds_max: int,
    is_finite: NDArray[np.bool_],
) -> str:
    """Return why one host's ``action`` [A] is illegal: the slot's stage, the seed limit, or a gate's reason."""
    op, slot = int(action[0]), int(action[HEAD_INDEX[Head.SLOT]])
    if not (0 < op < len(OPS) and 0 <= slot < slots["stage"].shape[1]):
        return "no such operation or slot"
    stage = STAGES[int(slots["stage"][host, slot])]
    if OPS[op] is Op.GERMINATE and stage is SeedStage.DORMANT:
        if slots.is_paying[host].sum() >= seeds_max:
            return f"the budget of {seeds_max} seeds is spent"
        return "a factor is out of range, or the blueprint is not offered here"
    own = {name: slots[name][host, slot] for name in SLOT_FIELDS}
    if OPS[op] is Op.ADVANCE and stage is SeedStage.TRAINING:
        evidence = {name: own[name] for name in ("stage_epochs", "parameters", "gradient_health")}
        verdict = lifecycle_gates.is_stable(rules, is_finite=is_finite[host, slot], **evidence)
        return f"G2: {verdict.reason}"
    if stage is SeedStage.HOLDING and OPS[op] in (Op.FOSSILIZE, Op.SET_ALPHA_TARGET):
        if own["stage_epochs"] < rules.holding_epochs:
            return f"it has been held for {own['stage_epochs']} epochs, expected at least {rules.holding_epochs}"
        verdict = lifecycle_gates.has_impact(
            rules, contribution=own["contribution"], contribution_epochs=own["contribution_epochs"]
        )
        return f"G4: {verdict.reason}"
    return f"slot {slot} is {stage.value}"
