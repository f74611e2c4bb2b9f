"""The life of a seed in a real host, epoch by epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.builders.ensembles import action, ensemble, prove, stack, stage_of, state_digest, step_with, waits

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import ConfigError, IllegalActionError
from simic.contracts.lifecycle import SeedStage
from simic.hosts.batched import training
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import SETS, STANDARD, HostSet
from simic.hosts.interfaces import DataSplit
from simic.hosts.plugins import blueprint_names

S = SeedStage
NORM, GATE, DROPOUT, HEAVY = map(blueprint_names().index, ("norm", "gate", "dropout", "heavy"))
OFFERED = sorted(map(blueprint_names().index, STANDARD))


def _slot(grown: Ensemble, name: str, host: int = 0, slot: int = 0) -> float:
    observed = grown.observe()
    return float(observed.slots[name][observed.slot_ptr[host] + slot])


def test_the_happy_path_takes_the_epochs_its_dwell_times_ask_for() -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE, blueprint=GATE))
    assert stage_of(grown) is S.TRAINING, "the probe passes in the same boundary step"
    assert (_slot(grown, "age_epochs"), _slot(grown, "stage_epochs")) == (1, 1)
    step_with(grown, action(Op.ADVANCE, alpha_speed=0))
    assert (stage_of(grown), _slot(grown, "alpha"), _slot(grown, "stage_epochs")) == (S.HOLDING, 1.0, 0)
    assert not grown.masks().op[0, OP_INDEX[Op.FOSSILIZE]], "holding has its own dwell"
    step_with(grown)
    prove(grown)
    assert grown.masks().op[0, OP_INDEX[Op.FOSSILIZE]]
    step_with(grown, action(Op.FOSSILIZE))
    assert (stage_of(grown), _slot(grown, "alpha")) == (S.FOSSILIZED, 1.0)
    assert grown.masks().op[0].tolist() == [op is Op.WAIT for op in Op], "the budget is spent for good"


def test_a_slow_ramp_passes_through_its_curve() -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE, alpha_speed=1))
    seen = [(stage_of(grown), _slot(grown, "alpha"))]
    for _ in range(2):
        step_with(grown)
        seen.append((stage_of(grown), _slot(grown, "alpha")))
    third = np.float32(1 / 3)
    assert seen == [(S.BLENDING, third), (S.BLENDING, np.float32(2 / 3)), (S.HOLDING, 1.0)]


def test_alpha_can_be_retargeted_while_holding() -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE))
    step_with(grown)
    step_with(grown, action(Op.SET_ALPHA_TARGET, alpha_target=0, alpha_speed=1))
    assert stage_of(grown) is S.BLENDING
    assert 0.5 < _slot(grown, "alpha") < 1.0
    step_with(grown)
    step_with(grown)
    assert (stage_of(grown), _slot(grown, "alpha"), _slot(grown, "alpha_target")) == (S.HOLDING, 0.5, 0.5)


def test_a_seed_blends_by_itself_when_its_tempo_has_run_out() -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE, tempo=0))
    stages = []
    for _ in range(6):
        stages.append((stage_of(grown), _slot(grown, "alpha")))
        step_with(grown)
    third, two = np.float32(1 / 3), np.float32(2 / 3)
    assert stages == [(S.TRAINING, 0), (S.TRAINING, 0), (S.BLENDING, 0), (S.BLENDING, third), (S.BLENDING, two),
                      (S.HOLDING, 1)]  # fmt: skip


def test_pruning_frees_the_budget_at_once_and_the_slot_after_an_embargo() -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE, blueprint=NORM))
    step_with(grown, action(Op.PRUNE))
    stages = []
    for _ in range(5):
        stages.append(stage_of(grown))
        assert grown.masks().op[0, OP_INDEX[Op.GERMINATE]], "another slot may take a seed"
        assert bool(grown.masks().slot[0, OP_INDEX[Op.GERMINATE]]) == (stage_of(grown) is S.DORMANT)
        step_with(grown)
    assert stages == [S.EMBARGOED, S.EMBARGOED, S.RESETTING, S.DORMANT, S.DORMANT]


@pytest.mark.parametrize("stage", [S.GERMINATED, S.BLENDING])
def test_a_seed_can_be_pruned_before_it_trains_and_while_it_blends(stage: S, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = ensemble([1])
    if stage is S.GERMINATED:
        monkeypatch.setattr("simic.hosts.batched.host_batch.probe_seeds", lambda *_: np.zeros((1, 3)))
    step_with(grown, action(Op.GERMINATE))
    if stage is S.BLENDING:
        step_with(grown, action(Op.ADVANCE, alpha_speed=3))
    assert stage_of(grown) is stage
    assert grown.masks().slot[0, OP_INDEX[Op.PRUNE]]
    outcome = step_with(grown, action(Op.PRUNE))
    assert stage_of(grown) is S.EMBARGOED
    assert _slot(grown, "alpha") == 0.0
    assert (outcome.rent_parameters[0], outcome.governor[0]) == (0, None)


def test_a_felt_seed_can_be_pruned_by_ramp() -> None:
    grown = ensemble([1], prune_epochs=3)
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE))
    step_with(grown, action(Op.PRUNE))
    seen = []
    for _ in range(4):
        assert not grown.masks().op[0, [OP_INDEX[Op.SET_ALPHA_TARGET], OP_INDEX[Op.FOSSILIZE]]].any()
        seen.append((stage_of(grown), _slot(grown, "alpha")))
        outcome = step_with(grown)
        seen[-1] += (int(outcome.rent_parameters[0]),)
    two, third = np.float32(2 / 3), np.float32(1 / 3)
    assert seen == [(S.BLENDING, two, 220), (S.BLENDING, third, 220), (S.PRUNED, 0, 0), (S.EMBARGOED, 0, 0)]


def test_a_fading_seed_pruned_again_goes_at_once_and_an_unfelt_one_never_fades() -> None:
    grown = ensemble([1, 2], prune_epochs=3)
    step_with(grown, action(Op.GERMINATE), action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE), action(Op.PRUNE))
    assert stage_of(grown, host=1) is S.EMBARGOED
    step_with(grown, action(Op.PRUNE))
    assert stage_of(grown) is S.BLENDING
    step_with(grown, action(Op.PRUNE))
    assert (stage_of(grown), _slot(grown, "alpha")) == (S.EMBARGOED, 0.0)


def test_a_blending_seed_that_its_host_does_not_feel_yet_goes_at_once() -> None:
    grown = ensemble([1], prune_epochs=5)
    step_with(grown, action(Op.GERMINATE, tempo=0))
    step_with(grown)
    step_with(grown)
    assert (stage_of(grown), _slot(grown, "alpha")) == (S.BLENDING, 0.0)
    assert step_with(grown, action(Op.PRUNE)).rent_parameters[0] == 0
    assert stage_of(grown) is S.EMBARGOED


def test_g1_probes_a_seed_in_the_network_its_host_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed that the host feels is part of that network."""
    grown = ensemble([1], world_set="compound")
    step_with(grown, action(Op.GERMINATE, slot=0, blueprint=NORM))
    step_with(grown, action(Op.ADVANCE))
    seen = []
    probe = stack(grown).probe
    monkeypatch.setattr(
        stack(grown), "probe", lambda assignment, epoch: (seen.append(assignment), probe(assignment, epoch))[1]
    )
    step_with(grown, action(Op.GERMINATE, slot=1, blueprint=GATE))
    (assignment,) = seen
    assert assignment.alpha.tolist() == [[1.0, 0.0, 0.0]]
    assert assignment.is_incubating.tolist() == [[False, True, False]]


@pytest.mark.parametrize("operator", ["add", "multiply", "gate"])
def test_seeds_grow_under_any_operator(operator: str) -> None:
    grown, own = ensemble(range(5), blend=operator), ensemble(range(5))
    for hosts in (grown, own):
        hosts.step(np.stack([action(Op.GERMINATE, blueprint=GATE)] * 5))
        hosts.step(np.stack([action(Op.ADVANCE)] * 5))
    assert np.isfinite(grown.observe().slots["risk"][::3]).all()
    same = np.array_equal(grown.observe().slots["risk"], own.observe().slots["risk"], equal_nan=True)
    assert same == (operator == "gate"), "gate's own operator is gate"


@pytest.mark.parametrize("blueprint", OFFERED)
def test_g5_a_reset_slot_equals_one_never_used(blueprint: int) -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE, blueprint=blueprint))
    step_with(grown, action(Op.ADVANCE))
    assert grown._slots.digest(0, 0) != grown._slots.digest(0, 1)
    step_with(grown, action(Op.PRUNE))
    for _ in range(3):
        step_with(grown)
    assert stage_of(grown) is S.DORMANT
    assert grown._slots.digest(0, 0) == grown._slots.digest(0, 1)
    assert not any(store[0].any() for store in stack(grown).seeds)


def test_med_2_momentum_starts_at_zero_in_a_reused_slot_and_the_new_seed_is_another() -> None:
    grown = ensemble([1])
    first = step_with(grown, action(Op.GERMINATE))
    born = stack(grown).seeds.parameters[0, 0].clone()
    assert stack(grown).seeds.momentum[0, 0].any()
    step_with(grown, action(Op.PRUNE))
    for _ in range(3):
        step_with(grown)
    assert not stack(grown).seeds.momentum[0, 0].any()
    second = step_with(grown, action(Op.GERMINATE))
    assert (first.seed_ids, second.seed_ids) == (["0/1"], ["0/2"])
    assert not torch.equal(born, stack(grown).seeds.parameters[0, 0])


def test_drl_2_a_pruned_seed_never_moves() -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.PRUNE))
    before = stack(grown).seeds.parameters.clone()
    step_with(grown)
    assert before[0, 0].any()
    assert torch.equal(stack(grown).seeds.parameters, before)


@pytest.mark.parametrize("blueprint", OFFERED)
def test_an_incubating_seed_leaves_no_trace_in_its_host(blueprint: int) -> None:
    alone, growing = ensemble([0, 1, 2, 3]), ensemble([0, 1, 2, 3])
    growing.step(np.stack([action(Op.GERMINATE, slot=host % 3, blueprint=blueprint, tempo=1) for host in range(4)]))
    alone.step(waits(4))
    for _ in range(2):
        alone.step(waits(4))
        growing.step(waits(4))
    assert torch.equal(stack(alone).weights.flat, stack(growing).weights.flat)
    assert np.array_equal(alone.observe().system["validation_loss"], growing.observe().system["validation_loss"])


def test_l6_a_seed_trained_in_isolation_learns_its_own_blended_loss() -> None:
    """Where scale runs wild, a norm that only trained beside its host helps the moment it is switched on."""
    keys = list(range(2, 52, 5))
    grown = ensemble(keys)
    grown.step(np.stack([action(Op.GERMINATE, slot=2, blueprint=NORM, tempo=2)] * len(keys)))
    for _ in range(4):
        grown.step(waits(len(keys)))
    off, on = grown._slots["alpha"], grown._slots["alpha"].copy()
    on[:, 2] = 1.0
    without, blended = (grown._evaluate(DataSplit.VALIDATION, alpha) for alpha in (off, on))
    assert not off.any()
    assert (blended.loss < 0.8 * without.loss).mean() >= 0.9


def test_l6_switching_on_a_seed_that_only_trained_in_isolation_raises_accuracy() -> None:
    """Where capacity is short; a seed trained on its host's gradient alone would answer at chance."""
    keys = list(range(0, 100, 5))
    grown = ensemble(keys)
    grown.step(np.stack([action(Op.GERMINATE, slot=1, blueprint=HEAVY, tempo=2)] * len(keys)))
    for _ in range(6):
        grown.step(waits(len(keys)))
    off, on = grown._slots["alpha"], grown._slots["alpha"].copy()
    on[:, 1] = 1.0
    gained = grown._evaluate(DataSplit.VALIDATION, on).accuracy - grown._evaluate(DataSplit.VALIDATION, off).accuracy
    assert not off.any()
    assert gained.mean() > 3 * gained.std(ddof=1) / np.sqrt(len(keys)) > 0


def test_a_zero_gradient_keeps_a_seed_out_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = ensemble([1])
    monkeypatch.setattr("simic.hosts.batched.host_batch.probe_seeds", lambda *_: np.zeros((1, 3)))
    step_with(grown, action(Op.GERMINATE))
    assert stage_of(grown) is S.GERMINATED
    monkeypatch.setattr("simic.hosts.batched.host_batch.probe_seeds", training.probe_seeds)
    step_with(grown)
    assert stage_of(grown) is S.TRAINING


@pytest.mark.parametrize(
    "row",
    [
        action(Op.ADVANCE),
        action(Op.PRUNE),
        action(Op.FOSSILIZE),
        action(Op.GERMINATE, slot=3),
        action(Op.GERMINATE, blueprint=blueprint_names().index("low_rank")),
        action(Op.GERMINATE, blueprint=len(blueprint_names())),
        action(Op.GERMINATE, tempo=3),
        np.array([6, -1, -1, -1, -1, -1, -1], dtype=np.int16),
        np.array([-1, -1, -1, -1, -1, -1, -1], dtype=np.int16),
        np.array([0, 0, -1, -1, -1, -1, -1], dtype=np.int16),
        np.array([1, 0, -1, -1, -1, -1, 0], dtype=np.int16),
    ],
)
def test_drl_8_an_action_outside_its_masks_is_refused_and_changes_nothing(row: np.ndarray) -> None:
    grown = ensemble([1, 2], horizon=4)
    before = state_digest(grown)
    with pytest.raises(IllegalActionError, match="host 1"):
        step_with(grown, row)
    assert state_digest(grown) == before


def test_a_refusal_says_which_gate_or_what_else_stands_against_it() -> None:
    grown = ensemble([1], horizon=20)

    def refused(row: np.ndarray) -> str:
        with pytest.raises(IllegalActionError) as caught:
            step_with(grown, row)
        return str(caught.value)

    assert "slot 0 is DORMANT" in refused(action(Op.FOSSILIZE))
    assert "not offered" in refused(action(Op.GERMINATE, blueprint=len(blueprint_names())))
    step_with(grown, action(Op.GERMINATE))
    assert "slot 0 is TRAINING" in refused(action(Op.GERMINATE))
    assert "budget of 1 seeds is spent" in refused(action(Op.GERMINATE, slot=1))
    grown._slots["gradient_health"][0, 0] = 0.1
    assert "G2: gradient unhealthy" in refused(action(Op.ADVANCE))
    grown._slots["gradient_health"][0, 0] = 1.0
    step_with(grown, action(Op.ADVANCE))
    assert "held for 0 epochs, expected at least 1" in refused(action(Op.FOSSILIZE))
    step_with(grown)
    grown._slots["contribution"][0, 0] = -0.5
    assert "G4: contribution is negative" in refused(action(Op.FOSSILIZE))


def test_actions_of_the_wrong_shape_or_type_are_refused() -> None:
    grown = ensemble([1], horizon=4)
    for actions in (waits(2), waits(1).astype(np.int64), waits(1)[:, :6]):
        with pytest.raises(IllegalActionError, match="expected int16"):
            grown.step(actions)


@pytest.mark.parametrize(("contribution", "age"), [(-0.01, 0), (float("nan"), 0), (0.1, 2), (0.1, -1)])
def test_g4_a_seed_without_fresh_proof_cannot_be_kept(contribution: float, age: int) -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE))
    step_with(grown)
    prove(grown)
    assert grown.masks().op[0, OP_INDEX[Op.FOSSILIZE]]
    grown._slots["contribution"][0, 0], grown._slots["contribution_epochs"][0, 0] = contribution, age
    assert not grown.masks().op[0, OP_INDEX[Op.FOSSILIZE]]
    with pytest.raises(IllegalActionError, match="host 1"):
        step_with(grown, action(Op.FOSSILIZE))


def test_rent_is_paid_while_alive_or_kept_and_not_in_the_epoch_of_a_prune() -> None:
    grown = ensemble([1, 2], horizon=8)
    plan = [
        (action(Op.GERMINATE, blueprint=NORM), action(Op.GERMINATE, blueprint=GATE)),
        (action(Op.ADVANCE), action(Op.ADVANCE)),
        (),
        (action(Op.FOSSILIZE), action(Op.PRUNE)),
        (),
    ]
    outcomes = []
    for rows in plan:
        prove(grown)
        outcomes.append(step_with(grown, *rows))
    assert [outcome.rent_parameters.tolist() for outcome in outcomes] == [[48, 220]] * 3 + [[48, 0]] * 2
    assert [outcome.committed_parameters.tolist() for outcome in outcomes] == [[0, 0]] * 3 + [[48, 0]] * 2
    assert grown.observe().system["seed_parameters"].tolist() == [48, 0]


def test_seed_and_blueprint_of_an_action_are_named() -> None:
    grown = ensemble([1, 2], horizon=6)
    outcome = step_with(grown, action(Op.GERMINATE, slot=2, blueprint=NORM))
    assert (outcome.seed_ids, outcome.blueprint_ids) == (["2/1", None], ["norm", None])
    outcome = step_with(grown, action(Op.PRUNE, slot=2))
    assert (outcome.seed_ids, outcome.blueprint_ids) == (["2/1", None], ["norm", None])


def test_budget_counts_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "crowded", HostSet(SETS["benchmark"].families, seeds_max=2))
    grown = ensemble([1], world_set="crowded")
    step_with(grown, action(Op.GERMINATE, slot=0))
    assert grown.masks().slot[:, OP_INDEX[Op.GERMINATE]].tolist() == [False, True, True]
    step_with(grown, action(Op.GERMINATE, slot=2))
    assert not grown.masks().op[0, OP_INDEX[Op.GERMINATE]]
    assert grown.observe().system["seeds_alive"].tolist() == [2]


def test_l10_the_last_step_reports_the_network_to_be_kept() -> None:
    grown = ensemble([1, 6], horizon=4)
    step_with(grown, action(Op.GERMINATE), action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE), action(Op.ADVANCE))
    step_with(grown)
    prove(grown)
    outcome = step_with(grown, action(Op.FOSSILIZE))
    system = grown.observe().system
    assert outcome.terminated.all()
    assert np.array_equal(outcome.validation_accuracy_after, outcome.committed_validation_accuracy)
    assert outcome.validation_accuracy_after[0] == system["validation_accuracy"][0]
    without = system["validation_accuracy"][1] - _raw_contribution(grown, 1)
    assert outcome.validation_accuracy_after[1] == pytest.approx(without), "an uncommitted seed does not count"
    assert system["validation_accuracy"][1] != outcome.validation_accuracy_after[1]


def _raw_contribution(grown: Ensemble, host: int) -> float:
    measured = grown._evaluate(DataSplit.VALIDATION, grown._slots["alpha"])
    return float(measured.accuracy[host] - measured.accuracy_without[host, 0])


def test_a_finished_host_is_frozen_and_may_only_wait() -> None:
    grown = ensemble([1], horizon=4)
    outcomes = [grown.step(waits(1)) for _ in range(4)]
    assert [bool(outcome.terminated[0]) for outcome in outcomes] == [False] * 3 + [True]
    assert np.isfinite(outcomes[-1].test_accuracy).all()
    assert np.isnan([outcome.test_accuracy[0] for outcome in outcomes[:-1]]).all()
    before = state_digest(grown)
    assert grown.masks().op[0].tolist() == [op is Op.WAIT for op in Op]
    outcome = grown.step(waits(1))
    assert not outcome.live.any()
    assert not outcome.terminated.any()
    assert state_digest(grown) == before


def test_an_ensemble_without_hosts_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        ensemble([])
