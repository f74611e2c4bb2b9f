"""The engine moves slots along the table of transitions and nowhere else."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from simic.contracts.actions import Op
from simic.contracts.batches import STAGE_INDEX, STAGES
from simic.contracts.errors import IllegalActionError
from simic.contracts.lifecycle import ALIVE_STAGES, TRANSITIONS, SeedStage, Transition, Trigger
from simic.hosts.lifecycle import SLOT_FIELDS, Slots

ONE = np.array([[True, False]])
LEGAL = {(row.source, row.trigger, row.op) for row in TRANSITIONS}
MOVES = list(product(SeedStage, Trigger, (None, *Op)))


def _slots_in(stage: SeedStage) -> Slots:
    slots = Slots(1, 2)
    slots["stage"][0, 0] = STAGE_INDEX[stage]
    slots["stage_epochs"][:] = 7
    return slots


def _name(row: Transition) -> str:
    return f"{row.source.value}-{row.trigger.value}-{row.target.value}"


@pytest.mark.parametrize("row", TRANSITIONS, ids=_name)
def test_med_1_every_row_of_the_table_is_a_move(row: Transition) -> None:
    slots = _slots_in(row.source)
    slots.move(ONE, row.trigger, row.op)
    assert STAGES[slots["stage"][0, 0]] is row.target
    assert slots["stage_epochs"].tolist() == [[0, 7]], "only the slot that moved starts a new stage"


@pytest.mark.parametrize(("source", "trigger", "op"), [move for move in MOVES if move not in LEGAL])
def test_every_other_move_is_refused(source: SeedStage, trigger: Trigger, op: Op | None) -> None:
    slots = _slots_in(source)
    with pytest.raises(IllegalActionError, match=source.value):
        slots.move(ONE, trigger, op)
    assert STAGES[slots["stage"][0, 0]] is source


def test_a_pruned_seed_neither_pays_nor_acts_nor_keeps_measurements() -> None:
    slots = _slots_in(SeedStage.HOLDING)
    for name in ("parameters", "alpha", "alpha_target", "contribution", "contribution_epochs", "risk", "gradient_norm"):
        slots[name][0, 0] = 1
    slots["blueprint"][0, 0] = 2
    slots.move(ONE, Trigger.ACTION, Op.PRUNE)
    assert slots["alpha"][0, 0] == 0
    assert slots["parameters"][0, 0] == 0
    assert slots["contribution_epochs"][0, 0] == -1
    assert all(np.isnan(slots[name][0, 0]) for name in ("alpha_target", "contribution", "risk", "gradient_norm"))
    assert slots["blueprint"][0, 0] == 2, "which seed it was stays known until the slot is reset"


def test_clear_leaves_nothing_of_the_seed() -> None:
    slots = Slots(1, 2)
    for name in SLOT_FIELDS:
        if name != "stage":
            slots[name][0, 0] = 3
    assert slots.digest(0, 0) != slots.digest(0, 1)
    slots.clear(ONE)
    assert slots.digest(0, 0) == slots.digest(0, 1)


@pytest.mark.parametrize("stage", SeedStage)
def test_seeds_alive_or_kept_grow_older_and_pay(stage: SeedStage) -> None:
    slots = _slots_in(stage)
    slots["age_epochs"][0, 0] = 4
    slots.grow_older(np.array([True]))
    is_paying = stage in ALIVE_STAGES or stage is SeedStage.FOSSILIZED
    assert slots.is_alive[0, 0] == (stage in ALIVE_STAGES)
    assert slots.is_paying[0, 0] == is_paying
    assert slots["age_epochs"][0, 0] == (5 if is_paying else 4)
    assert slots["stage_epochs"][0, 0] == 8
