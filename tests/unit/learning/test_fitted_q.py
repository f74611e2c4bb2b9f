"""Fitted Q: regression of returns of a log, and the policy distilled from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.learning import (
    CHOICES,
    KINDS,
    RETURNS,
    bandit_branches,
    bandit_episodes,
    untrained_at_first,
    without_training_losses,
)
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import ConfigError, TrainingError
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import NetworkOutput
from simic.hosts.plugins import blueprint_names
from simic.learning import q_functions
from simic.learning.distillation import have_trained
from simic.learning.karn_examples import examples_of
from simic.learning.objectives import fitted_q
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive

CONFIG = TrainConfig(
    objective="fitted_q",
    network=NetworkConfig(hidden=16, layers=1),
    cloning_passes=4,
    q_updates=120,
    min_commit_rate=0.0,
    batch_sequences=8,
)


def store_of(root: Path, reports: list) -> GraphDataset:
    write_snapshot(root / "s", reports, split="train")
    return GraphDataset.load(root / "s", blueprints=blueprint_names())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return store_of(tmp_path_factory.mktemp("log"), bandit_episodes(range(120), noise=0.01))


def test_low_what_was_cut_off_has_no_return_to_learn(tmp_path: Path) -> None:
    """Its decisions stay in the log for other objectives."""
    reports = bandit_episodes(range(12))
    cut = {report.run_id for report in reports if report.host.key % 3 == 0}
    reports = [
        one.model_copy(update={"terminated": False, "truncated": True})
        if one.run_id in cut and one.final_state is not None
        else one
        for one in reports
    ]
    store = store_of(tmp_path, reports)
    sequences = store.sequences
    assert {sequences.run_ids[at] for at in np.flatnonzero(~store.has_end)} == cut
    of_row = np.repeat(np.array(sequences.run_ids), sequences.lengths)
    assert cut <= set(of_row)
    learned = set(of_row[fitted_q._rows_of(store).decisions])
    assert learned.isdisjoint(cut)
    germinations = examples_of(store).germinated.rows
    assert len(germinations)
    assert set(of_row[germinations]).isdisjoint(cut)


def finish(store: GraphDataset, config: TrainConfig = CONFIG, seed: int = 0) -> TrainingRun:
    training = TrainingRun.begin(store, config, None, seed)
    for _ in training.run():
        pass
    return training


@pytest.fixture(scope="module")
def trained(store: GraphDataset) -> TrainingRun:
    return finish(store)


def test_the_policy_takes_the_best_action_of_hosts_it_never_saw(trained: TrainingRun, tmp_path: Path) -> None:
    """The oracle is the table of the world; the log shows one action per host."""
    fresh = store_of(tmp_path, bandit_episodes(range(300, 330), noise=0.0))
    rows = fresh.sequences.starts
    states, masks = fresh.states(rows)
    output = trained.policy().act(states)
    ops = output.op.masked_fill(~masks.op, -torch.inf).argmax(1)
    names = output.blueprint.masked_fill(~masks.blueprint, -torch.inf).argmax(1)
    chosen = ["wait" if op == 0 else fresh.blueprints[name] for op, name in zip(ops, names, strict=True)]
    kinds = [KINDS[key % 3] for key in fresh.sequences.host_keys.tolist()]
    best = [max(CHOICES, key=lambda choice, kind=kind: RETURNS[kind, choice]) for kind in kinds]
    assert chosen == best


def test_a_log_without_training_losses_has_the_same_decisions(store: GraphDataset, tmp_path: Path) -> None:
    """A framework may leave the training loss out in every epoch."""
    unmeasured = store_of(tmp_path, without_training_losses(bandit_episodes(range(120), noise=0.01)))
    expected = fitted_q._rows_of(store)
    assert len(expected.decisions) == 120
    np.testing.assert_array_equal(fitted_q._rows_of(unmeasured).decisions, expected.decisions)


def test_the_final_metrics_are_those_that_the_gate_reads(trained: TrainingRun, store: GraphDataset) -> None:
    final = trained.final_metrics
    assert final["q_explained_variance"] > 0.8
    assert final["fitted_greedy_regret"] < 0.5
    assert not {"mean_ratio", "expected_regret"} & final.keys(), "there are no ratios and no tried actions"
    assert trained.episodes_seen == len(store)
    assert trained.learner.updates == trained.planned_updates


def test_equal_seeds_give_equal_weights(store: GraphDataset) -> None:
    quick = CONFIG.model_copy(update={"q_updates": 4, "cloning_passes": 1})
    weights = []
    for seed in (0, 0, 1):
        network = finish(store, quick, seed).policy()
        weights.append(torch.cat([parameter.flatten() for parameter in network.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_q_of_an_action_is_the_value_and_its_own_logits() -> None:
    """Germination in slot 1 of the second graph: operation, pointer, blueprint and tempo of that slot, nothing else."""
    draw = torch.Generator().manual_seed(0)
    output = NetworkOutput(*(torch.randn(shape, generator=draw) for shape in SHAPES))
    ptr = torch.tensor([0, 1, 3])
    actions = torch.tensor([[0, -1, -1, -1, -1, -1, -1], [1, 1, 2, -1, -1, -1, 0]])
    q = q_functions.q_values(output, ptr, actions)
    assert q[0] == output.value[0] + 5.0 * output.op[0, 0]
    own = output.op[1, 1] + output.slot[2, 1] + output.blueprint[2, 2] + output.tempo[2, 0]
    assert q[1].item() == pytest.approx((output.value[1] + 5.0 * own).item(), abs=1e-4)


SHAPES = [(2, 6), (3, 6), (3, 4), (3, 3), (3, 3), (3, 4), (3, 3), (2,)]
"""Two graphs with one and two slots, four blueprints."""


def test_every_legal_action_of_a_new_q_function_has_about_the_mean_return(tmp_path: Path) -> None:
    """The restraint of a policy before the first epoch is no estimate of a return."""
    store = store_of(tmp_path, untrained_at_first(bandit_episodes(range(24))))
    rows = store.sequences.starts
    states, _ = store.states(rows)
    assert not have_trained(store, rows).any()
    training = TrainingRun.begin(store, CONFIG, None, 0)
    objective = fitted_q.begin(fitted_q.LearningTask(store, training.learner, CONFIG, 0, True, training._passes))
    network = objective._scratch_learner("q 0", q_functions.q_config(CONFIG)).network
    for action in torch.unique(store.steps.actions[torch.from_numpy(rows)], dim=0):
        with torch.no_grad():
            q = q_functions.q_values(network(states), states.slot_ptr, action.expand(len(rows), -1))
        assert (q - store.steps.returns.mean()).abs().max() < 1.0, action.tolist()


def test_the_loss_is_huber_in_points(store: GraphDataset) -> None:
    network = TrainingRun.begin(store, CONFIG, None, 0).learner.network
    rows = store.sequences.starts[:4]
    states, _ = store.states(rows)
    actions = store.steps.actions[torch.from_numpy(rows)]
    with torch.no_grad():
        q = q_functions.q_values(network(states), states.slot_ptr, actions)
    errors = torch.tensor([1.0, -2.0, 30.0, -4.0])
    expected = np.mean([0.5 * 1 / 5, 0.5 * 4 / 5, 30 - 2.5, 0.5 * 16 / 5])
    loss = q_functions.q_loss(network, states, actions, q + errors)
    assert loss.total.item() / expected * 5 == pytest.approx(5.0, rel=1e-4)
    assert loss.metrics["q_error"].item() == pytest.approx(9.25, rel=1e-4)


class _Fixed:
    """A network with given outputs."""

    def __init__(self, output: NetworkOutput) -> None:
        self.act = lambda _: output


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), networks=st.integers(1, 3))
def test_candidates_are_legal_supported_and_never_above_the_ensembles_mean(
    store: GraphDataset, seed: int, networks: int
) -> None:
    """Illegal and unsupported actions never enter; the bound is the mean for one network."""
    draw = torch.Generator().manual_seed(seed)
    rows = store.sequences.starts[:5]
    states, masks = store.states(rows)
    slots = len(states.slot_x)
    shapes = [(5, 6), (slots, 6), (slots, len(store.blueprints)), *((slots, k) for k in (3, 3, 4, 3)), (5,)]
    outputs = [
        NetworkOutput(*(2 * torch.randn(shape, generator=draw) for shape in shapes)) for _ in range(networks + 1)
    ]
    behaviour, *others = map(_Fixed, outputs)
    found = q_functions.candidates(others, behaviour, states, masks)  # type: ignore[arg-type]
    assert (found.actions[:, 0, 0] == OP_INDEX[Op.WAIT]).all()
    assert (found.advantages[:, 0] == 0).all()
    for column in range(found.actions.shape[1]):
        here = ~found.advantages[:, column].isnan()
        actions = found.actions[:, column]
        own = heads.ActionDistribution(outputs[0], states.slot_ptr, masks, 0.0).log_prob(actions)
        assert (own.joint[here] > -200.0).all(), "an illegal choice has the logarithm of nearly 0"
        mean = torch.stack(
            [q_functions.q_values(o._replace(value=o.value * 0), states.slot_ptr, actions) for o in outputs[1:]]
        )
        wait = torch.stack([5.0 * o.op[:, 0] for o in outputs[1:]])
        prior = 0.7 * (
            behaviour_op(outputs[0], masks)[torch.arange(5), actions[:, 0].long()]
            - behaviour_op(outputs[0], masks)[:, 0]
        )
        bound = (mean - wait).mean(0) + prior
        assert (found.advantages[here, column] <= bound[here] + 1e-3).all()
        if networks == 1:
            assert torch.allclose(found.advantages[here, column], bound[here], atol=1e-3)


def behaviour_op(output: NetworkOutput, masks: heads.MaskTensors) -> torch.Tensor:
    return output.op.masked_fill(~masks.op, -1e9).log_softmax(1)


def test_what_the_behaviour_hardly_takes_is_no_candidate(store: GraphDataset) -> None:
    """The Q-functions love ``gate``; the behaviour takes it once in a thousand times."""
    rows = store.sequences.starts[:1]
    states, masks = store.states(rows)
    slots, gate = len(states.slot_x), store.blueprints.index("gate")
    shapes = [(1, 6), (slots, 6), (slots, len(store.blueprints)), *((slots, k) for k in (3, 3, 4, 3)), (1,)]
    zeros = NetworkOutput(*(torch.zeros(shape) for shape in shapes))
    loved, rare = torch.zeros_like(zeros.blueprint), torch.zeros_like(zeros.blueprint)
    loved[:, gate], rare[:, gate] = 9.0, -7.0
    for behaviour, is_in in ((zeros, True), (zeros._replace(blueprint=rare), False)):
        found = q_functions.candidates([_Fixed(zeros._replace(blueprint=loved))], _Fixed(behaviour), states, masks)  # type: ignore[arg-type,list-item]
        offered = found.actions[0][~found.advantages[0].isnan()]
        assert (gate in offered[:, HEADS.index(HEADS[2])].tolist()) is is_in
        assert offered.shape[1] == len(HEADS)


def test_each_q_function_leaves_out_the_hosts_of_its_fold(store: GraphDataset) -> None:
    training = TrainingRun.begin(store, CONFIG, None, 0)
    objective = fitted_q.begin(fitted_q.LearningTask(store, training.learner, CONFIG, 0, True, training._passes))
    keys = store.sequences.host_keys[
        np.searchsorted(store.sequences.starts, objective._rows.decisions, side="right") - 1
    ]
    seen = {}
    for key, fold in zip(keys.tolist(), objective._rows.folds.tolist(), strict=True):
        assert seen.setdefault(key, fold) == fold
    behaviour = training.learner.network
    for fold in range(fitted_q.FOLDS):
        fitted = objective._fold_rows(behaviour, fold)
        hosts = store.sequences.host_keys[np.searchsorted(store.sequences.starts, fitted, side="right") - 1]
        assert len(hosts)
        assert all(seen[key] != fold for key in hosts.tolist())


def test_a_round_goes_on_from_a_sealed_policy_and_keeps_the_state_of_v_trace(tmp_path: Path) -> None:
    """Round 0 by V-trace, round 1 by fitted Q: pass counts stay, and the policy is no average over rounds."""
    snapshot = write_snapshot(tmp_path / "snapshot", bandit_episodes(range(24)), split="train")
    quick = CONFIG.model_copy(update={"q_updates": 2, "cloning_passes": 1, "vtrace_passes": 1, "min_experiences": 10})
    first = sealed(tmp_path, snapshot, quick.model_copy(update={"objective": "vtrace"}), None)
    second = sealed(tmp_path, snapshot, quick, WarmStart(Path(first.path), is_continuation=True))
    states = [json.loads((Path(made.path) / "learner.json").read_text()) for made in (first, second)]
    assert states[0]["sampler"] == states[1]["sampler"]
    assert states[0]["advantage_scale"] == states[1]["advantage_scale"]
    assert (states[1]["rounds"], second.updates) == (2, states[1]["updates"])
    assert second.updates > first.updates
    assert "fitted_regret" in second.metrics


def test_branches_alone_are_no_log(tmp_path: Path) -> None:
    branches = store_of(tmp_path, bandit_branches(range(6)))
    with pytest.raises(TrainingError, match="no branches"):
        finish(branches, CONFIG.model_copy(update={"start": "scratch"}))


def test_a_log_of_one_fold_leaves_out_no_host(tmp_path: Path) -> None:
    """The gate would read the error on hosts that the Q-functions saw."""
    log = store_of(tmp_path, bandit_episodes([key for key in range(40) if derive(key, "fold") % fitted_q.FOLDS == 1]))
    with pytest.raises(TrainingError, match="collect more hosts"):
        finish(log)


def test_without_cloning_nothing_tells_what_the_behaviour_takes(store: GraphDataset) -> None:
    config = CONFIG.model_copy(update={"cloning_passes": 0})
    with pytest.raises(ConfigError, match="cloning_passes of 1 or more"):
        list(TrainingRun.begin(store, config, None, 0).run())


def test_an_unknown_objective_is_refused_with_the_known_ones(store: GraphDataset) -> None:
    with pytest.raises(ConfigError, match="awr, cloning, fitted_q, ppo, vtrace"):
        finish(store, CONFIG.model_copy(update={"objective": "fited"}))
