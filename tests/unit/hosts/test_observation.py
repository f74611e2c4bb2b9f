"""A controller sees every column the contract names, as it was measured."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.builders.ensembles import action, ensemble, random_actions, stack, step_with, waits

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations, masks_of
from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import HardwareContext, LayerKind, SystemState
from simic.hosts.batched.evaluation import MOST_ROWS, dimension_of, ratio_of, rows_of
from simic.hosts.batched.trunk import live_parameters
from simic.hosts.ensemble import Ensemble
from simic.hosts.plugins import blueprint_names
from simic.hosts.rollout import Step, controller_uniforms, rollout

HARDWARE = HardwareContext(device="cpu", threads=1)


def _decide(_observations: Observations, masks: Masks, uniforms: np.ndarray) -> Decisions:
    actions = random_actions(masks, uniforms)
    return Decisions(actions, np.where(actions < 0, np.nan, 0.0).astype(np.float32))


@pytest.fixture(scope="module")
def episode() -> list[Step]:
    """Ten hosts, twelve epochs, random legal actions."""
    return list(rollout(ensemble(range(10), horizon=12), _decide, seed=1))


def _states(observations: Observations) -> list[SystemState]:
    return observations.to_states(HARDWARE)


def test_every_state_is_a_valid_wire_state_and_survives_the_way_back(episode: list[Step]) -> None:
    for step in episode:
        states = _states(step.after)
        back = Observations.from_states(states, step.after.blueprints)
        for table, again in ((step.after.slots, back.slots), (step.after.layers, back.layers)):
            for name, column in table.items():
                np.testing.assert_array_equal(column, again[name], err_msg=name)
        for host in range(10):
            masks_of(step.masks, host, step.observations.slot_ptr, step.observations.blueprints)


def test_before_the_first_epoch_only_validation_is_known(episode: list[Step]) -> None:
    first = episode[0].observations
    state = _states(first)[0]
    assert state.epoch == 0
    assert state.train_loss is None
    assert state.train_loss_history == []
    assert state.validation_loss_history == [pytest.approx(state.validation_loss)]
    assert all(layer.gradient_norm is None and layer.activation_spread is not None for layer in state.graph.layers)
    assert all(slot.stage is SeedStage.DORMANT for slot in state.slots)


def test_histories_end_with_the_present_and_hold_five_epochs(episode: list[Step]) -> None:
    for epoch, step in enumerate(episode, start=1):
        state = _states(step.after)[3]
        assert state.epoch == epoch
        assert len(state.train_loss_history) == min(epoch, 5)
        assert len(state.validation_loss_history) == min(epoch + 1, 5)
        assert state.train_loss_history[-1] == state.train_loss
        assert state.validation_accuracy_history[-1] == state.validation_accuracy
    past = [_states(step.after)[3].validation_accuracy for step in episode[-5:]]
    assert _states(episode[-1].after)[3].validation_accuracy_history == past


def test_the_graph_is_the_hosts(episode: list[Step]) -> None:
    states = _states(episode[2].observations)
    for state in states:
        assert [layer.kind for layer in state.graph.layers] == [
            LayerKind.STEM, LayerKind.BLOCK, LayerKind.BLOCK, LayerKind.HEAD,
        ]  # fmt: skip
        assert state.graph.connects == [(0, 1), (1, 2), (2, 3)]
        assert state.graph.monitors == [(0, 0), (1, 1), (2, 2)]
        assert [layer.hidden_width is None for layer in state.graph.layers] == [True, False, False, True]
        assert all(layer.weight_norm and layer.gradient_norm for layer in state.graph.layers)
    stems = [state.graph.layers[0].is_linear for state in states]
    assert stems == [True, True, False, False, False] * 2, "cap and select have a linear stem"


def test_what_an_observation_shows_does_not_change_later() -> None:
    grown = ensemble([1, 2], horizon=4)
    observed = grown.observe()
    shown = [column for table in (observed.system, observed.slots, observed.layers) for column in table.values()]
    before = [column.copy() for column in shown]
    step_with(grown, action(Op.GERMINATE))
    assert all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(before, shown, strict=True))


def test_activation_spread_is_what_it_says() -> None:
    grown = ensemble([2, 4], horizon=4)
    grown.step(waits(2))
    spreads = torch.stack([layer.norm(dim=2).log().std(dim=1, correction=0) for layer in outputs_of(grown)], dim=1)
    measured = grown.observe().layers["activation_spread"].reshape(2, 4)
    np.testing.assert_allclose(measured, spreads.numpy(), rtol=1e-3)
    assert measured[0].max() > 2 * measured[1].max(), "a host of the gain family stands out"


def outputs_of(grown: Ensemble) -> list[torch.Tensor]:
    """The outputs of all layers for the validation samples, [N, 450, D] each."""
    own = stack(grown)
    samples = own.dataset.validation
    x = torch.maximum(samples.inputs @ own.weights.parts[0], own.trunk._floor)
    outputs = [x]
    for block in range(2):
        x = x + (x @ own.weights.parts[1 + 2 * block]).relu() @ own.weights.parts[2 + 2 * block]
        gain = samples.gains[block]
        x = x if gain is None else x * gain
        outputs.append(x)
    outputs.append(x @ own.weights.parts[-1].transpose(1, 2))
    return [one[:, :450] for one in outputs]


def ratio(rows: np.ndarray) -> float:
    """The participation ratio of rows [m, D], by the eigenvalues of their covariance."""
    values = np.linalg.eigvalsh(np.cov(rows, rowvar=False, dtype=np.float64))
    return float(values.sum() ** 2 / np.square(values).sum())


def test_effective_dimension_is_what_it_says() -> None:
    grown = ensemble([2, 4], horizon=4)
    grown.step(waits(2))
    expected = [[ratio(layer[host].numpy()) for layer in outputs_of(grown)] for host in range(2)]
    measured = grown.observe().layers["effective_dimension"].reshape(2, 4)
    np.testing.assert_allclose(measured, expected, rtol=1e-3)


def test_parameters_and_training_samples_are_those_of_the_host() -> None:
    grown = ensemble(range(10), horizon=4)
    assert np.isnan(grown.observe().system["train_samples"]).all(), "before the first epoch nothing is known of it"
    grown.step(waits(10))
    recipes = stack(grown).dataset.recipes
    live = [sum(int((part[host] != 0).sum()) for part in stack(grown).weights.parts) for host in range(10)]
    assert grown.observe().system["host_parameters"].tolist() == live
    assert grown.observe().system["train_samples"].tolist() == [recipe.samples for recipe in recipes]


def test_parameters_are_whole_numbers_where_a_trunk_holds_its_widths_as_floats() -> None:
    trunk = stack(ensemble(range(10), horizon=4)).trunk
    counted = live_parameters(trunk, 10)
    trunk.hidden = trunk.hidden.astype(np.float64)
    assert live_parameters(trunk, 10).dtype == np.int64
    assert live_parameters(trunk, 10).tolist() == counted.tolist()


@given(st.integers(0, 2**31 - 1), st.integers(2, 40), st.integers(1, 40))
def test_a_dimension_lies_between_one_and_the_number_of_directions(seed: int, rows: int, width: int) -> None:
    x = torch.randn(3, rows, width, generator=torch.Generator().manual_seed(seed)) * 10 - 3
    found = dimension_of(x)
    assert ((found > 1 - 1e-4) & (found < min(rows - 1, width) + 1e-3)).all()
    turn = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(seed)))[0]
    assert dimension_of(x + 4096.0).tolist() == pytest.approx(found.tolist(), rel=1e-2), "an offset hides nothing"
    torch.testing.assert_close(dimension_of(0.25 * x @ turn + 7.0), found, rtol=1e-3, atol=1e-3)
    if rows > 2 and width > 1:
        assert found.tolist() == pytest.approx([ratio(one.numpy()) for one in x], rel=1e-3)


@pytest.mark.parametrize("width", [4, 10, 24, 30])
def test_a_dimension_depends_on_no_other_host_to_the_last_bit(width: int) -> None:
    x = torch.randn(40, 450, width, generator=torch.Generator().manual_seed(0)) + 1.0
    whole = dimension_of(x)
    for few in (1, 2, 3):
        own = [dimension_of(x[first : first + few]) for first in range(len(x) - few)]
        assert all(torch.equal(one, whole[first : first + few]) for first, one in enumerate(own))


def test_a_dimension_of_equal_rows_is_zero_and_of_what_is_not_finite_unknown() -> None:
    for value in (1.0, 0.1, 123.4, -2.2):
        assert dimension_of(torch.full((2, 450, 10), value)).tolist() == [0.0, 0.0]
    assert dimension_of(torch.full((1, 8, 4), torch.inf)).isnan().all()


@given(st.integers(1, 1500), st.integers(1, 700), st.integers(1, 9))
def test_a_dimension_does_not_depend_on_how_samples_are_cut_into_passes(total: int, piece: int, places: int) -> None:
    x = torch.arange(total * places * 2, dtype=torch.float32).view(1, total, places, 2)
    pieces = [rows_of(one, first * piece, total) for first, one in enumerate(x.split(piece, dim=1))]
    whole = rows_of(x)
    assert torch.equal(torch.cat(pieces, dim=1), whole)
    assert min(total, MOST_ROWS) / 2 <= whole.shape[1] <= MOST_ROWS


def test_positions_of_a_map_are_all_looked_at() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4, 1).expand(1, 400, 4, 4, 1)
    counts = rows_of(x).flatten().long().bincount(minlength=16)
    assert counts.min() >= 24, "400 samples over 16 positions are 25 each"
    many = torch.arange(49.0).view(1, 1, 49, 1).expand(1, 312_320, 49, 1)
    assert len(rows_of(many).unique()) == 49, "a stride that is a Fibonacci number spreads too"


def test_risk_is_the_share_of_the_state_that_a_seed_adds() -> None:
    grown = ensemble([4], horizon=6)
    step_with(grown, action(Op.GERMINATE, blueprint=blueprint_names().index("dense")))
    step_with(grown, action(Op.ADVANCE, alpha_target=0))
    samples = stack(grown).dataset.validation
    h = torch.maximum(samples.inputs @ stack(grown).weights.parts[0], stack(grown).trunk._floor)[:, :450]
    blueprint = stack(grown).blueprints[blueprint_names().index("dense")]
    change = 0.5 * blueprint.delta(stack(grown).seeds.parameters[:, 0, :612], h, None)
    assert grown.observe().slots["risk"][0] == pytest.approx(float(change.norm() / h.norm()), rel=1e-4)


def test_h4_what_follows_a_step_is_observed_and_masked_behind_it(episode: list[Step]) -> None:
    grown = ensemble([1], horizon=6)
    assert grown.masks().op[0, OP_INDEX[Op.GERMINATE]]
    step_with(grown, action(Op.GERMINATE))
    assert not grown.masks().op[0, OP_INDEX[Op.GERMINATE]]
    for step, following in pairwise(episode):
        assert step.after is following.observations


def test_l17_a_rollout_draws_its_uniforms_from_key_seed_and_epoch(episode: list[Step]) -> None:
    seen: list[np.ndarray] = []

    def decide(observations: Observations, masks: Masks, uniforms: np.ndarray) -> Decisions:
        seen.append(uniforms)
        return _decide(observations, masks, uniforms)

    other = list(rollout(ensemble([7, 3], horizon=12), decide, seed=1))
    for epoch, (uniforms, step) in enumerate(zip(seen, other, strict=True)):
        assert uniforms.shape == (2, len(HEADS))
        assert np.array_equal(uniforms, controller_uniforms(np.array([7, 3]), 1, epoch))
        assert step.epoch == epoch
        assert np.array_equal(step.decisions.actions, episode[epoch].decisions.actions[[7, 3]])
        assert np.array_equal(step.outcome.validation_loss_after, episode[epoch].outcome.validation_loss_after[[7, 3]])
    assert not np.array_equal(seen[0], controller_uniforms(np.array([7, 3]), 2, 0))


def test_before_and_after_of_consecutive_steps_join(episode: list[Step]) -> None:
    for step, following in pairwise(episode):
        outcome, later = step.outcome, following.outcome
        np.testing.assert_array_equal(outcome.validation_accuracy_after, later.validation_accuracy_before)
        np.testing.assert_array_equal(outcome.validation_loss_after, later.validation_loss_before)
    assert episode[-1].outcome.terminated.all()


@given(st.lists(st.sampled_from([0.0, -0.0, 5e-324, 1e-40, 1e-20, 1.0, 1e15]), min_size=4, max_size=4))
def test_c2_a_ratio_to_a_silent_state_is_finite(values: list[float]) -> None:
    h = torch.tensor(values).view(1, 2, 2)
    for change in (h, torch.zeros_like(h), torch.ones_like(h)):
        ratio = ratio_of(change, h, valid=2)
        assert np.isfinite(ratio).all()
        assert ((ratio >= 0) & (ratio <= 1)).all()
    assert ratio_of(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), valid=2).tolist() == [0.0]
