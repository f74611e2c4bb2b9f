"""Returns of finished episodes, against a literal sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.field_report import GovernorEvent, GovernorKind
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.controllers.factory import make
from simic.hosts.ensemble import StepOutcome
from simic.hosts.host_sets import identify
from simic.hosts.rollout import Step
from simic.validation.episodes import (
    Episodes,
    KeptSeed,
    TrialJob,
    chunked,
    join,
    returns_at,
    run_episodes,
    run_with,
    score,
    steps_of,
)

WORLD = WorldConfig(horizon=8, workers=1)
REWARD = RewardConfig()
PLAN = Plan(seeds=[PlannedSeed(epoch=0, slot=1, blueprint="gate")])
PANIC = GovernorEvent(kind=GovernorKind.DIVERGENCE, message="by hand")


def job(keys: Sequence[int], spec: ControllerSpec, world: WorldConfig = WORLD) -> TrialJob:
    return TrialJob(spec.name, spec, identify("benchmark", keys), world, REWARD, seed=3)


def outcome(after: Sequence[float], *, end: Sequence[bool], live: Sequence[bool], panic: Sequence[bool]) -> StepOutcome:
    """Two hosts; accuracy before is always one half, 820 parameters pay rent."""
    n = len(after)
    return StepOutcome(
        validation_accuracy_before=np.full(n, 0.5, np.float32),
        validation_accuracy_after=np.full(n, 0.99, np.float32),
        validation_loss_before=np.ones(n, np.float32),
        validation_loss_after=np.ones(n, np.float32),
        rent_parameters=np.full(n, 820),
        committed_parameters=np.arange(n) * 100,
        terminated=np.array(end),
        live=np.array(live),
        governor=[PANIC if bad else None for bad in panic],
        mitigation=[[] for _ in range(n)],
        seed_ids=[None] * n,
        blueprint_ids=[None] * n,
        committed_validation_accuracy=np.where(end, after, np.nan).astype(np.float32),
        test_accuracy=np.where(end, 0.25, np.nan).astype(np.float32),
    )


def step(epoch: int, result: StepOutcome) -> Step:
    nothing: Any = None
    return Step(epoch, result.live, nothing, nothing, nothing, result, nothing)


def test_a_panic_pays_its_penalty_and_ends_the_account() -> None:
    """The first host panics in the first of two steps; its frozen row in the second one counts for nothing."""
    steps = [
        step(0, outcome([0.4, 0.0], end=[True, False], live=[True, True], panic=[True, False])),
        step(1, outcome([0.9, 0.75], end=[True, True], live=[False, True], panic=[False, False])),
    ]
    episodes = score(steps, 2, WorldConfig(horizon=10), REWARD)
    rent = 3.0 * 820 / 1640 / 10
    first, second = 100 * (0.4 - 0.5) - rent - 10.0, 100 * (0.99 - 0.5) + 100 * (0.75 - 0.5) - 2 * rent
    assert episodes.returns == pytest.approx([first, second], abs=1e-4)
    assert episodes.panicked.tolist() == [True, False]
    assert episodes.validation_accuracy == pytest.approx([0.4, 0.75])
    assert episodes.test_accuracy == pytest.approx([0.25, 0.25])
    assert episodes.committed_parameters.tolist() == [0, 100]
    assert episodes.seed_epochs.tolist() == [820, 2 * 820], "the frozen row counts for nothing"
    assert episodes.rents == pytest.approx([rent, 2 * rent])


def test_return_is_what_was_kept_minus_where_it_began_minus_rents() -> None:
    work = job(range(5), ControllerSpec(name="schedule", plan=PLAN))
    steps = list(steps_of(make(work.spec, work.hosts), work))
    literal = []
    for host in range(5):
        begun = float(steps[0].outcome.validation_accuracy_before[host])
        kept = float(steps[-1].outcome.committed_validation_accuracy[host])
        rents = sum(3.0 * float(s.outcome.rent_parameters[host]) / 1640 / WORLD.horizon for s in steps)
        literal.append(100.0 * (kept - begun) - rents)
    assert run_episodes(work).returns == pytest.approx(literal, abs=1e-9)
    assert max(float(s.outcome.rent_parameters[0]) for s in steps) > 0


@pytest.mark.parametrize("factor", [0.0, 0.25, 1.0, 4.0, 16.0])
def test_returns_at_another_rent_are_those_of_the_reward_with_that_rent(factor: float) -> None:
    work = job(range(5), ControllerSpec(name="schedule", plan=PLAN))
    found = run_episodes(work)
    priced = REWARD.model_copy(update={"rent": factor * REWARD.rent})
    assert returns_at(found.returns, found.rents, factor) == pytest.approx(
        run_episodes(replace(work, reward=priced)).returns, abs=1e-9
    )
    assert (found.rents > 0).all()


def test_returns_at_the_rent_itself_are_the_same_bit_for_bit() -> None:
    found = run_episodes(job(range(5), ControllerSpec(name="schedule", plan=PLAN)))
    assert returns_at(found.returns, found.rents, 1.0).tolist() == found.returns.tolist()


def test_a_host_does_not_notice_its_company() -> None:
    spec = ControllerSpec(name="random")
    together = run_episodes(job([3, 14, 25, 36], spec))
    alone = join([run_episodes(job([key], spec)) for key in (3, 14, 25, 36)])
    backwards = run_episodes(job([36, 25, 14, 3], spec))
    for field in fields(together):
        one, other, reverse = (getattr(episodes, field.name).tolist() for episodes in (together, alone, backwards))
        assert one == other == reverse[::-1], field.name


def test_an_action_outside_its_masks_is_counted_and_waited_out() -> None:
    class Rogue:
        name, policy_version = "rogue", None

        def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:
            actions = np.full((len(observations), len(HEADS)), -1, dtype=np.int16)
            actions[:, :2] = OP_INDEX[Op.FOSSILIZE], 0
            return Decisions(actions, np.zeros(actions.shape, dtype=np.float32))

    asked = job([0, 1], ControllerSpec(name="wait"))
    rogue, waiting = run_with(Rogue(), asked), run_episodes(asked)
    assert rogue.illegal_actions.tolist() == [asked.world.horizon] * 2
    assert waiting.illegal_actions.tolist() == [0, 0]
    assert rogue.returns.tolist() == waiting.returns.tolist()


def test_kept_seeds_are_those_whose_parameters_are_committed() -> None:
    plan = Plan(seeds=[PlannedSeed(epoch=0, slot=1, blueprint="gate", alpha_target=0.5)])
    found = run_episodes(job(range(8), ControllerSpec(name="schedule", plan=plan)))
    assert [220 * len(own) for own in found.kept] == found.committed_parameters.tolist()
    assert {seed for own in found.kept for seed in own} == {KeptSeed(1, 1, "gate", 0.5)}
    sizes = {"norm": 48, "gate": 220, "bottleneck": 220, "dense": 612, "heavy": 1640, "dropout": 0}
    often = run_episodes(job(range(80), ControllerSpec(name="random"), WORLD.model_copy(update={"horizon": 30})))
    held = [sum(sizes[seed.blueprint] for seed in own) for own in often.kept]
    assert held == often.committed_parameters.tolist()
    assert max(seed.number for own in often.kept for seed in own) > 1, "earlier seeds of the slot were pruned"
    assert run_episodes(job(range(2), ControllerSpec(name="wait"))).kept.tolist() == [(), ()]


def test_chunks_keep_order_where_layers_are_equal_and_lose_nobody() -> None:
    hosts = identify("benchmark", range(7))
    chunks = list(chunked(hosts, 3))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    assert np.concatenate(chunks).tolist() == list(range(7))
    # Families of this set differ in their layers, and keys take turns.
    families = [host.family for host in identify("shapes", [*range(13), *range(13)])]
    rows = np.concatenate(list(chunked(identify("shapes", [*range(13), *range(13)]), 5)))
    assert [families[row] for row in rows] == sorted(families)
    assert sorted(rows.tolist()) == list(range(26))


def test_joined_episodes_stand_in_order() -> None:
    part = Episodes(
        returns=np.array([1.0]),
        validation_accuracy=np.array([0.5]),
        test_accuracy=np.array([0.4]),
        committed_parameters=np.array([7]),
        seed_epochs=np.array([9]),
        rents=np.array([0.5]),
        panicked=np.array([False]),
        illegal_actions=np.array([2]),
        kept=np.array([None]),
        validation_loss=np.array([0.3]),
        flags=np.array([[2, 1, 0]]),
        test_returns=np.array([0.9]),
        effort=np.array([[1, 9, 4, 0, 2, 1]]),
    )
    both = join([part, replace(part, returns=np.array([2.0]))])
    assert both.returns.tolist() == [1.0, 2.0]
    assert both.committed_parameters.tolist() == [7, 7]
    assert both.flags.tolist() == [[2, 1, 0], [2, 1, 0]]
