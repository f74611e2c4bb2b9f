"""A host that blows up is stopped in the same step, and what is left of it is finite."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.builders.ensembles import action, ensemble, prove, random_actions, stack, stage_of, step_with, waits

from simic.contracts.actions import Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.errors import ConfigError
from simic.contracts.field_report import GovernorKind
from simic.contracts.lifecycle import ALIVE_STAGES, SeedStage
from simic.contracts.settings.lifecycle import GovernorConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HardwareContext
from simic.hosts.batched.training import EpochBatches
from simic.hosts.ensemble import Ensemble, StepOutcome
from simic.hosts.governor import MITIGATION, Evidence, judge
from simic.hosts.host_sets import identify
from simic.hosts.rollout import rollout

LN10 = float(np.log(10))
BOUNDS = GovernorConfig()


def _judge(
    train: float, validation: float = 1.0, bounds: GovernorConfig = BOUNDS, **given: float
) -> GovernorKind | None:
    usual = {"is_finite": True, "birth_loss": 2.0, "accuracy": 0.5, "best_accuracy": 0.6, "largest_share": 0.3}
    is_judged = bool(given.pop("is_loss_judged", True))
    arrays = {name: np.array([value]) for name, value in {**usual, **given}.items()}
    evidence = Evidence(np.array([train]), np.array([validation]), **arrays, classes=10, is_loss_judged=is_judged)
    (event,) = judge(evidence, bounds)
    return None if event is None else event.kind


def test_judgement() -> None:
    assert _judge(1.0) is None
    assert _judge(BOUNDS.divergence_factor * LN10 - 0.01) is None
    assert _judge(BOUNDS.divergence_factor * LN10 + 0.01) is GovernorKind.DIVERGENCE
    assert _judge(20.0, birth_loss=8.0) is None, "a host that was born with a large loss is not diverging"
    assert _judge(25.0, birth_loss=8.0) is GovernorKind.DIVERGENCE
    for evidence in ((np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (1.0, np.inf)):
        assert _judge(*evidence) is GovernorKind.NON_FINITE
    assert _judge(1.0, is_finite=False) is GovernorKind.NON_FINITE


def test_a_host_that_forgets_everything_has_collapsed() -> None:
    assert _judge(1.0, largest_share=1.0, accuracy=0.1, best_accuracy=0.5) is GovernorKind.COLLAPSE
    assert _judge(1.0, largest_share=1.0, accuracy=0.1, best_accuracy=0.15) is None, "a slow start is no collapse"
    assert _judge(1.0, largest_share=0.99, accuracy=0.1, best_accuracy=0.5) is None, "it still tells samples apart"
    assert _judge(np.nan, largest_share=1.0, accuracy=0.1, best_accuracy=0.5) is GovernorKind.NON_FINITE


def test_where_the_measured_loss_is_not_minimised_only_values_that_are_not_finite_are_failures() -> None:
    unjudged = {"is_loss_judged": False}
    assert _judge(1e9, **unjudged) is None
    assert _judge(1.0, largest_share=1.0, accuracy=0.1, best_accuracy=0.5, **unjudged) is None
    assert _judge(np.inf, **unjudged) is GovernorKind.NON_FINITE
    assert _judge(1.0, is_finite=False, **unjudged) is GovernorKind.NON_FINITE


def test_a_collapse_is_seen_in_the_step_it_happens() -> None:
    grown = ensemble([1, 3], horizon=12)
    for _ in range(8):
        grown.step(waits(2))
    stack(grown).weights.parts[-1][0] = 0.0
    stack(grown).momentum.parts[-1][0] = 0.0
    # A stem that answers with zeros is dead: nothing behind it can learn again.
    stack(grown).weights.parts[0][0] = 0.0
    stack(grown).momentum.parts[0][0] = 0.0
    outcome = grown.step(waits(2))
    assert outcome.governor[0] is not None
    assert outcome.governor[0].kind is GovernorKind.COLLAPSE
    assert (outcome.governor[1], outcome.terminated.tolist()) == (None, [True, False])


def test_c7_the_governor_keeps_one_snapshot_within_its_budget() -> None:
    alive: list[int] = []
    gc.freeze()  # the collector neither visits nor lists what was there before: other tests' modules, by the gigabyte
    grown = ensemble([1, 3], horizon=1000)
    for _ in range(30):
        grown.step(waits(2))
        gc.collect()
        alive.append(sum(found.nbytes for found in gc.get_objects() if type(found) is torch.Tensor))
    assert len(set(alive[5:])) == 1, "memory grows with the episode"
    with pytest.raises(ConfigError, match=r"snapshot of 400 hosts needs \d+ MiB, world.snapshot_mb is 1"):
        Ensemble(identify("benchmark", range(400)), WorldConfig(snapshot_mb=1))


def _assert_stopped(grown: Ensemble, outcome: StepOutcome, kept: torch.Tensor) -> None:
    assert outcome.governor[0] is not None
    assert outcome.mitigation[0] == list(MITIGATION)
    assert not any(part[0].any() for part in (*stack(grown).momentum.parts, stack(grown).seeds.momentum))
    assert outcome.terminated.tolist() == [True, grown.observe().system["epoch"][1] == grown.world.horizon]
    assert outcome.mitigation[1] == []
    assert outcome.governor[1] is None
    for name in (
        "validation_accuracy_after",
        "validation_loss_after",
        "test_accuracy",
        "committed_validation_accuracy",
    ):
        assert np.isfinite(getattr(outcome, name)[0]), name
    assert torch.equal(stack(grown).weights.parts[0][0], kept), "the weights are those of the last good epoch"
    observed = grown.observe()
    assert all(np.isfinite(observed.system[name][0]) for name in ("validation_loss", "validation_accuracy"))
    assert not np.isinf(observed.slots["risk"]).any()
    assert not grown._slots.is_alive[0].any()
    assert grown.masks().op[0].sum() == 1
    states = observed.to_states(HardwareContext(device="cpu", threads=1))
    assert states[0].epoch == int(observed.system["epoch"][0])


@pytest.mark.parametrize("epoch", range(9))
@pytest.mark.parametrize(
    ("poison", "kind"),
    [
        (float("nan"), GovernorKind.NON_FINITE),
        (float("inf"), GovernorKind.NON_FINITE),
        (1e5, GovernorKind.DIVERGENCE),
    ],
)
def test_l4_a_panic_ends_the_episode_in_the_same_step(epoch: int, poison: float, kind: GovernorKind) -> None:
    grown = ensemble([1, 3], horizon=9)
    for _ in range(epoch):
        grown.step(waits(2))
    kept = stack(grown).weights.parts[0][0].clone()
    _poison_training(grown, poison)
    outcome = grown.step(waits(2))
    _assert_stopped(grown, outcome, kept)
    assert outcome.governor[0] is not None
    assert outcome.governor[0].kind is kind
    rest = [grown.step(waits(2)) for _ in range(9 - epoch - 1)]
    assert all(not later.live[0] and later.governor[0] is None for later in rest)
    assert [outcome, *rest][-1].terminated.tolist() == [epoch == 8, True]
    assert grown.observe().system["epoch"].tolist() == [epoch + 1, 9]


def _poison_training(grown: Ensemble, poison: float) -> None:
    """Host 0's next epoch sees broken samples in one of its steps."""
    original = stack(grown).dataset.batches

    def broken(epoch: int) -> EpochBatches:
        batches = original(epoch)
        batches.inputs[3, 0] *= poison
        stack(grown).dataset.batches = original  # type: ignore[method-assign]
        return batches

    stack(grown).dataset.batches = broken  # type: ignore[method-assign]


@pytest.mark.parametrize("stage", sorted(ALIVE_STAGES))
def test_a_seed_that_blows_up_stops_its_host_and_is_pruned(stage: SeedStage, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = ensemble([1, 3])
    if stage is SeedStage.GERMINATED:
        monkeypatch.setattr("simic.hosts.batched.host_batch.probe_seeds", lambda *_: np.zeros((2, 3)))
    step_with(grown, action(Op.GERMINATE, slot=1))
    if stage in (SeedStage.BLENDING, SeedStage.HOLDING):
        step_with(grown, action(Op.ADVANCE, slot=1, alpha_speed=0 if stage is SeedStage.HOLDING else 3))
    assert stage_of(grown, slot=1) is stage
    kept = stack(grown).weights.parts[0][0].clone()
    stack(grown).seeds.parameters[0, 1, 0] = np.nan
    outcome = grown.step(waits(2))
    _assert_stopped(grown, outcome, kept)
    assert stage_of(grown, slot=1) is SeedStage.PRUNED
    assert stack(grown).is_clear()[0].all(), "nothing of the dropped seed stays"
    assert outcome.committed_parameters.tolist() == [0, 0]
    assert outcome.rent_parameters.tolist() == [220, 0], "it was alive during the epoch"


def test_the_seed_kept_for_good_survives_a_panic() -> None:
    grown = ensemble([1, 3])
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE))
    step_with(grown)
    prove(grown)
    step_with(grown, action(Op.FOSSILIZE))
    seed = stack(grown).seeds.parameters[0, 0].clone()
    accuracy = grown.observe().system["validation_accuracy"][0]
    _poison_training(grown, float("nan"))
    outcome = grown.step(waits(2))
    assert outcome.governor[0] is not None
    assert torch.equal(stack(grown).seeds.parameters[0, 0], seed)
    assert stage_of(grown) is SeedStage.FOSSILIZED
    assert outcome.validation_accuracy_after[0] == accuracy, "what is kept is the network before the panic"


@pytest.mark.parametrize("world_set", ["benchmark", "compound"])
def test_waiting_hosts_never_panic(world_set: str) -> None:
    keys = list(range(60))
    grown = ensemble(keys, horizon=20, world_set=world_set)
    outcomes = [grown.step(waits(len(keys))) for _ in range(20)]
    assert not any(event for outcome in outcomes for event in outcome.governor)


def test_a_rollout_goes_on_until_the_last_host_is_done() -> None:
    grown = ensemble([1, 3], horizon=5)
    _poison_training(grown, float("nan"))

    def decide(_observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        actions = random_actions(masks, uniforms)
        return Decisions(actions, np.where(actions < 0, np.nan, 0.0).astype(np.float32))

    live = [step.live.tolist() for step in rollout(grown, decide, seed=0)]
    assert live == [[True, True]] + [[False, True]] * 4
