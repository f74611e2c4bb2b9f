"""The table of transitions is complete, free of contradictions, and what the design says."""

from __future__ import annotations

from collections import Counter

from simic.contracts.actions import OPS, Op
from simic.contracts.lifecycle import ALIVE_STAGES, TRANSITIONS, Gate, SeedStage, Trigger

S = SeedStage


TABLE = """
DORMANT     GERMINATED  ACTION    GERMINATE         G0
GERMINATED  TRAINING    EPOCH     -                 G1
TRAINING    BLENDING    ACTION    ADVANCE           G2
TRAINING    BLENDING    EPOCH     -                 G2
BLENDING    HOLDING     EPOCH     -                 G3
HOLDING     BLENDING    ACTION    SET_ALPHA_TARGET  -
HOLDING     FOSSILIZED  ACTION    FOSSILIZE         G4
GERMINATED  PRUNED      ACTION    PRUNE             -
GERMINATED  PRUNED      GOVERNOR  -                 -
TRAINING    PRUNED      ACTION    PRUNE             -
TRAINING    PRUNED      GOVERNOR  -                 -
BLENDING    PRUNED      ACTION    PRUNE             -
BLENDING    PRUNED      GOVERNOR  -                 -
HOLDING     PRUNED      ACTION    PRUNE             -
HOLDING     PRUNED      GOVERNOR  -                 -
HOLDING     BLENDING    FADE      -                 -
BLENDING    BLENDING    FADE      -                 -
BLENDING    PRUNED      FADED     -                 G3
PRUNED      EMBARGOED   EPOCH     -                 -
EMBARGOED   RESETTING   EPOCH     -                 -
RESETTING   DORMANT     EPOCH     -                 G5
"""
"""Source, target, trigger, operation and gate, as designed: written out, so that no row changes unseen."""


def test_the_table_is_the_designed_one() -> None:
    rows = [["-" if part is None else part.value for part in row] for row in TRANSITIONS]
    assert rows == [line.split() for line in TABLE.split("\n") if line]


def reachable(start: SeedStage) -> set[SeedStage]:
    found, open_stages = {start}, [start]
    while open_stages:
        stage = open_stages.pop()
        new = {t.target for t in TRANSITIONS if t.source is stage} - found
        found |= new
        open_stages += new
    return found


def test_no_row_appears_twice() -> None:
    keys = [(t.source, t.target, t.trigger, t.op) for t in TRANSITIONS]
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    assert len(TRANSITIONS) == 21


def test_every_stage_can_be_reached_from_an_empty_slot() -> None:
    assert reachable(S.DORMANT) == set(SeedStage)


def test_only_a_fossil_stays_for_ever() -> None:
    assert [stage for stage in SeedStage if reachable(stage) == {stage}] == [S.FOSSILIZED]
    for stage in set(SeedStage) - {S.FOSSILIZED}:
        assert S.DORMANT in reachable(stage)


def test_an_operation_belongs_to_action_rows_and_to_no_other() -> None:
    for row in TRANSITIONS:
        assert (row.op is not None) == (row.trigger is Trigger.ACTION)


def test_every_operation_but_waiting_moves_something() -> None:
    assert {row.op for row in TRANSITIONS if row.op is not None} == set(OPS) - {Op.WAIT}


def test_an_operation_leads_to_one_place_from_each_stage() -> None:
    moves = [(row.source, row.op) for row in TRANSITIONS if row.op is not None]
    assert len(set(moves)) == len(moves)


def test_every_gate_guards_exactly_its_step() -> None:
    guarded = {gate: {(t.source, t.target) for t in TRANSITIONS if t.gate is gate} for gate in Gate}
    assert guarded == {
        Gate.G0: {(S.DORMANT, S.GERMINATED)},
        Gate.G1: {(S.GERMINATED, S.TRAINING)},
        Gate.G2: {(S.TRAINING, S.BLENDING)},
        Gate.G3: {(S.BLENDING, S.HOLDING), (S.BLENDING, S.PRUNED)},
        Gate.G4: {(S.HOLDING, S.FOSSILIZED)},
        Gate.G5: {(S.RESETTING, S.DORMANT)},
    }


def test_the_living_can_be_pruned_by_decision_and_by_the_governor() -> None:
    for trigger in (Trigger.ACTION, Trigger.GOVERNOR):
        assert {t.source for t in TRANSITIONS if t.target is S.PRUNED and t.trigger is trigger} == ALIVE_STAGES


def test_a_pruned_slot_goes_back_one_way() -> None:
    path, stage = [], S.PRUNED
    while stage is not S.DORMANT:
        (row,) = [t for t in TRANSITIONS if t.source is stage]
        assert row.trigger is Trigger.EPOCH
        stage = row.target
        path.append(stage)
    assert path == [S.EMBARGOED, S.RESETTING, S.DORMANT]
