"""Distillation: the returns of tried actions become a policy, and V-trace never sees a branch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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

from simic.contracts.actions import OPS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import TrainingError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import LEARNED
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import FeatureNoise
from simic.hosts.plugins import blueprint_names
from simic.learning import distillation, training_run
from simic.learning.counted_passes import CountedPasses
from simic.learning.distillation import BranchedDecisions, branched_decisions, have_trained, regrets
from simic.learning.phases import Record, round_rows
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive

CONFIG = TrainConfig(
    network=NetworkConfig(hidden=16, layers=1),
    distil_passes=60,
    min_commit_rate=0.0,
    batch_sequences=8,
    vtrace_passes=2,
)
KEYS = range(90)


def store_of(root: Path, *parts: list) -> GraphDataset:
    write_snapshot(root / "s", [report for part in parts for report in part], split="train")
    return GraphDataset.load(root / "s", blueprints=blueprint_names())


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return store_of(tmp_path_factory.mktemp("branched"), bandit_branches(KEYS))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return store_of(tmp_path_factory.mktemp("mixed"), bandit_branches(KEYS), bandit_episodes(range(100, 140)))


def finish(store: GraphDataset, config: TrainConfig = CONFIG, seed: int = 0) -> TrainingRun:
    training = TrainingRun.begin(store, config, None, seed)
    for _ in training.run():
        pass
    return training


def test_each_decision_holds_every_tried_action_with_its_own_return(tmp_path: Path) -> None:
    """The oracle is the table of the world: each half of an entry comes as 100 points per unit, discounted by 0.99."""
    store = store_of(tmp_path, bandit_branches(range(5, 11), noise=0.0))
    split = branched_decisions(store)
    assert split is not None
    decisions = split.learned
    assert decisions.actions.shape[:2] == (6, 3)
    names = {-1: "wait", **dict(enumerate(store.blueprints))}
    for row, actions, returns in zip(decisions.rows, decisions.actions.tolist(), decisions.returns, strict=True):
        sequence = int(np.searchsorted(store.sequences.starts, row, side="right")) - 1
        kind = KINDS[int(store.sequences.host_keys[sequence]) % 3]
        chosen = [names[action[2]] for action in actions]
        assert sorted(chosen) == sorted(CHOICES)
        assert chosen[0] == "wait", "the parent comes first"
        assert returns.tolist() == pytest.approx(
            [50 * (0.99 + 0.99**2) * RETURNS[kind, choice] for choice in chosen], abs=1e-3
        )


def before_the_first_epoch(root: Path, keys: Iterable[int]) -> GraphDataset:
    return store_of(root, untrained_at_first(bandit_branches(keys, noise=0.0)))


def after_the_first_epoch(root: Path, keys: Iterable[int]) -> GraphDataset:
    return store_of(root, bandit_branches(keys, noise=0.0))


@pytest.mark.parametrize(("of", "margin"), [(before_the_first_epoch, 1.0), (after_the_first_epoch, 0.0)])
def test_a_germination_before_the_first_epoch_has_to_be_worth_a_point_more_than_waiting(
    of: Callable[[Path, Iterable[int]], GraphDataset], margin: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss takes a point off its return; the returns stay as they are, and so does every other decision."""
    store = of(tmp_path, range(6))
    split = branched_decisions(store)
    assert split is not None
    germinates = split.learned.actions[..., 0] == OP_INDEX[Op.GERMINATE]
    less = split.learned._replace(returns=split.learned.returns - margin * germinates)
    with_margin = _policy_gradient(store, split.learned)
    monkeypatch.setattr(distillation, "FIRST_EPOCH_MARGIN", 0.0)
    torch.testing.assert_close(with_margin, _policy_gradient(store, less))
    assert torch.allclose(with_margin, _policy_gradient(store, split.learned)) == (margin == 0.0)


def test_lf75_branches_before_the_first_epoch_lift_its_restraint(tmp_path: Path, branched: GraphDataset) -> None:
    """A policy that has not learned when waiting pays does not germinate there; one that has decides itself."""
    early = before_the_first_epoch(tmp_path, KEYS)
    split = branched_decisions(early)
    assert split is not None
    restrained, free = (finish(store).learner.network for store in (branched, early))
    assert (restrained.first_epoch_penalty, free.first_epoch_penalty) == (50.0, 0.0)
    held_back, own = (regrets(one, early, split.held_out)["held_out_greedy_regret"] for one in (restrained, free))
    assert own < 0.1
    assert held_back > 4.0


def test_branches_without_training_losses_keep_the_restraint_and_have_no_margin(
    tmp_path: Path, branched: GraphDataset
) -> None:
    """Whether a host has trained follows from its epoch, so such a log teaches what one with losses does."""
    unmeasured = store_of(tmp_path, without_training_losses(bandit_branches(KEYS)))
    trained = {}
    for name, store in (("measured", branched), ("unmeasured", unmeasured)):
        split = branched_decisions(store)
        assert split is not None
        assert have_trained(store, split.learned.rows).all(), name
        trained[name] = finish(store)
    assert trained["unmeasured"].learner.network.first_epoch_penalty == 50.0
    assert trained["unmeasured"].final_metrics["greedy_regret"] < 1.0


def test_hosts_of_held_out_decisions_are_not_learned_from(branched: GraphDataset) -> None:
    split = branched_decisions(branched)
    assert split is not None
    parts = (split.learned, split.held_out)
    keys = [_hosts(branched, part.rows) for part in parts]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == len(KEYS)
    assert len(keys[1]) >= 8


def test_few_held_out_hosts_neither_teach_nor_measure(tmp_path: Path, branched: GraphDataset) -> None:
    """A later round has more of them, and measures on no host that an earlier one learned from."""
    small = store_of(tmp_path, bandit_branches(range(40)))
    few, all_of_it = branched_decisions(small), branched_decisions(branched)
    assert few is not None and all_of_it is not None
    assert len(_hosts(small, few.held_out.rows)) == 6
    assert few.held_out_if_enough is None
    assert len(_hosts(small, few.learned.rows)) == 34
    assert all_of_it.held_out_if_enough is all_of_it.held_out
    assert not _hosts(small, few.learned.rows) & _hosts(branched, all_of_it.held_out.rows)
    final = finish(small, CONFIG.model_copy(update={"distil_passes": 2})).final_metrics
    assert "expected_regret" in final
    assert not {"held_out_regret", "held_out_greedy_regret"} & final.keys()


def test_held_out_hosts_teach_if_there_are_no_others(tmp_path: Path) -> None:
    store = store_of(tmp_path, bandit_branches([4, 13, 14]))
    split = branched_decisions(store)
    assert split is not None
    assert _hosts(store, split.learned.rows) == {4, 13, 14}
    assert not len(split.held_out.rows)
    assert split.held_out_if_enough is None


def test_v_trace_on_top_leaves_out_episodes_of_held_out_hosts(tmp_path: Path) -> None:
    store = store_of(tmp_path, bandit_branches(KEYS), bandit_episodes(KEYS))
    split = branched_decisions(store)
    assert split is not None
    held_out = _hosts(store, split.held_out.rows)
    assert len(held_out) >= 8
    quick = CONFIG.model_copy(update={"distil_passes": 1})
    training = finish(store, quick)
    counts = training._passes.sampler.passes_of(store.sequences.run_ids)
    keys = store.sequences.host_keys[store.ordinary]
    assert set(keys.tolist()) == set(KEYS)
    assert set(keys[counts[store.ordinary] == 0].tolist()) == held_out
    rounds = round_rows(store, training._ordinary, training._passes.sampler, 1, CONFIG.replay_ratio, 0)
    planned = {int(store.sequences.host_keys[row]) for rows in rounds for row in rows}
    assert planned.isdisjoint(held_out), "of a round too"


def test_without_enough_held_out_hosts_v_trace_must_not_raise_the_regret_of_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(objective: CountedPasses, *_: object) -> object:
        for parameter in objective.task.learner.network.policy_parameters():
            parameter.data.zero_()
        yield Record(0, "vtrace", {"mean_ratio": 1.0, "commit_rate": 9.0, "effective_sample_share": 1.0})

    monkeypatch.setattr(CountedPasses, "_pass", spoil)
    store = store_of(tmp_path, bandit_branches(range(12)), bandit_episodes(range(100, 140)))
    final = finish(store).final_metrics
    assert final["regret_after_vtrace"] > final["regret_before_vtrace"]
    assert "mean_ratio" not in final and "held_out_regret" not in final
    assert "it raised the regret on learned decisions" in caplog.text


def with_choices_after_decisions(root: Path, *legal: Op, **fields: str) -> GraphDataset:
    """Return branches in which further operations are legal at the step after each decision, with ``fields``."""
    reports = [json.loads(report.model_dump_json()) for report in bandit_branches(KEYS)]
    for row in reports:
        if row["step"] == 1:
            row["available"] |= {"op": [op in (Op.WAIT, *legal) for op in OPS], "slot": [[op in legal] for op in OPS]}
            row["available"]["blueprint"] = ["gate"]
        row |= fields
    return store_of(root, [FieldReport.model_validate_json(json.dumps(row)) for row in reports])


def test_steps_that_follow_belong_to_the_hosts_of_their_decisions(tmp_path: Path) -> None:
    store = with_choices_after_decisions(tmp_path, Op.PRUNE)
    split = branched_decisions(store)
    assert split is not None
    for part in (split.learned, split.held_out):
        assert len(part.following) == len(part.rows)
        assert _hosts(store, part.following) == _hosts(store, part.rows)


@pytest.mark.parametrize(
    ("fields", "cloned"),
    [({}, 0), ({"controller": LEARNED, "policy_version": "a" * 64}, 1)],
    ids=["complete", "policy"],
)
def test_waiting_where_a_seed_could_begin_is_cloned_from_policies_alone(
    tmp_path: Path, fields: dict[str, str], cloned: int
) -> None:
    """The controller of the first branches never germinates, so its waiting there is no choice to imitate."""
    store = with_choices_after_decisions(tmp_path, Op.GERMINATE, Op.PRUNE, **fields)
    split = branched_decisions(store)
    assert split is not None
    assert len(split.learned.following) == cloned * len(split.learned.rows)
    assert len(split.held_out.following) == cloned * len(split.held_out.rows)


def _hosts(store: GraphDataset, rows: np.ndarray) -> set[int]:
    return set(store.sequences.host_keys[np.searchsorted(store.sequences.starts, rows, side="right") - 1].tolist())


def test_the_policy_takes_the_best_action_of_hosts_it_never_saw(branched: GraphDataset, tmp_path: Path) -> None:
    training = finish(branched)
    fresh = store_of(tmp_path, bandit_branches(range(200, 230), noise=0.0))
    split = branched_decisions(fresh)
    assert split is not None
    assert regrets(training.policy(), fresh, split.learned)["held_out_greedy_regret"] < 0.5
    untrained = TrainingRun.begin(branched, CONFIG, None, 0).policy()
    assert regrets(untrained, fresh, split.learned)["held_out_regret"] > 5.0
    assert training.final_metrics["greedy_regret"] < 1.0


def test_equal_seeds_give_equal_weights(branched: GraphDataset) -> None:
    one, same, other = (finish(branched, CONFIG.model_copy(update={"distil_passes": 3}), seed) for seed in (0, 0, 1))
    weights = [torch.cat([p.flatten() for p in run.policy().parameters()]) for run in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_no_branch_and_no_parent_is_behaviour_for_v_trace(mixed: GraphDataset, branched: GraphDataset) -> None:
    assert len(branched.ordinary) == 0
    assert len(mixed.ordinary) == 40
    assert {mixed.sequences.controllers[row] for row in mixed.ordinary} == {"explore"}
    training = finish(mixed)
    assert training.final_metrics["mean_ratio"] > 0.0
    taught = [key for key in range(100, 140) if derive(key, "held out") % 8]
    assert training._passes.sampler.passes_of(mixed.sequences.run_ids).sum() == 2 * len(taught)


def test_a_host_that_may_measure_later_does_not_teach_now(tmp_path: Path) -> None:
    """Of its eighth of the hosts no ordinary episode teaches V-trace, whether or not a decision is branched yet."""
    held = [key for key in range(400) if derive(key, "held out") % 8 == 0][:12]
    others = [key for key in range(400) if derive(key, "held out") % 8][:30]
    branches, episodes = bandit_branches([*others[:20], *held[:8]]), bandit_episodes([*others[20:], *held[8:]])
    store = store_of(tmp_path, branches, episodes)
    split = branched_decisions(store)
    assert split is not None
    taught = set(store.sequences.host_keys[distillation.without_held_out(store, split)].tolist())
    assert taught == set(others[20:])


def test_the_regrets_of_an_update_are_those_of_the_returns(tmp_path: Path) -> None:
    """The margin of an early germination shapes the loss, and not what the curves tell of it."""
    store = before_the_first_epoch(tmp_path, range(16))
    split = branched_decisions(store)
    assert split is not None
    decisions = split.learned._replace(returns=split.learned.returns * 0.05)
    network = TrainingRun.begin(store, CONFIG, None, 0).policy()
    network.first_epoch_penalty.fill_(50.0)
    losses = distillation._Losses(network, store, decisions, 0.0, FeatureNoise(0.0, torch.Generator()))
    found = losses.of_decisions(np.arange(len(decisions.rows)), 1.0).metrics
    true = regrets(network, store, decisions)
    assert true["held_out_regret"] > 0.1
    assert float(found["expected_regret"]) == pytest.approx(true["held_out_regret"], rel=1e-4)


@pytest.mark.parametrize("collapses", [False, True])
def test_v_trace_that_fails_or_raises_the_held_out_regret_is_undone(
    mixed: GraphDataset, monkeypatch: pytest.MonkeyPatch, collapses: bool
) -> None:
    """Weights, optimiser, pass counts and metrics are those of the distilled policy."""

    def spoil(objective: CountedPasses, *_: object) -> object:
        task = objective.task
        list(task.passes.sampler.draw_pass(task.store.sequences.run_ids, task.store.ordinary))
        if collapses:
            raise TrainingError("the policy has collapsed")
        for parameter in task.learner.network.policy_parameters():
            parameter.data.zero_()
        yield Record(0, "vtrace", {"mean_ratio": 1.0, "commit_rate": 9.0, "effective_sample_share": 1.0})

    monkeypatch.setattr(CountedPasses, "_pass", spoil)
    spoiled = finish(mixed)
    final = spoiled.final_metrics
    assert final["held_out_regret"] == pytest.approx(final["regret_before_vtrace"])
    assert collapses or final["regret_after_vtrace"] > final["regret_before_vtrace"]
    assert "mean_ratio" not in final
    assert final["commit_rate"] <= 1.0
    assert not spoiled._passes.sampler.passes_of(mixed.sequences.run_ids).any()
    assert spoiled.state("0" * 64).advantage_scale is None


def _changed(reports: list[FieldReport], change: Callable[[dict[str, Any]], None]) -> list[FieldReport]:
    """Return the reports with every branch changed."""
    rows = [json.loads(report.model_dump_json()) for report in reports]
    for row in rows:
        if row["branch_of"] is not None:
            change(row)
    return [FieldReport.model_validate_json(json.dumps(row)) for row in rows]


def _other_host(row: dict[str, Any]) -> None:
    row["host"]["key"] += 1000


def _other_state(row: dict[str, Any]) -> None:
    row["state"]["train_loss"] = 3.25


def _absent_parent(row: dict[str, Any]) -> None:
    row["branch_of"] = "f" * 32


def _other_layer(row: dict[str, Any]) -> None:
    row["state"]["graph"]["layers"][0]["weight_norm"] = 3.25


def _other_connections(row: dict[str, Any]) -> None:
    row["state"]["graph"]["connects"].append([0, 2])


def _other_monitored_layers(row: dict[str, Any]) -> None:
    row["state"]["graph"]["monitors"].append([0, 1])


def _other_operations(row: dict[str, Any]) -> None:
    row["available"]["op"][OP_INDEX[Op.PRUNE]] = True


def _other_blueprints(row: dict[str, Any]) -> None:
    row["available"]["blueprint"] = ["dense", "gate", "norm"]


CHANGES = [
    _other_host, _other_state, _other_layer, _other_connections, _other_monitored_layers, _other_operations,
    _other_blueprints, _absent_parent,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_repeat_its_parent_is_no_branch_of_it(tmp_path: Path, change: Any) -> None:
    """Reports may come from anywhere; a foreign return must not become that of an action on this host."""
    store = store_of(tmp_path, _changed(bandit_branches(range(6)), change))
    assert branched_decisions(store) is None


def test_a_branch_beyond_the_end_of_its_parent_is_left_out(tmp_path: Path) -> None:
    """The last episode of the store has no further row that could be read instead."""
    store = store_of(tmp_path, bandit_branches(range(6)))
    spoiled = store.sequences._replace(branch_steps=np.full(len(store), 50))
    store.sequences = spoiled
    assert branched_decisions(store) is None


def test_a_decision_with_fewer_tried_actions_is_padded_with_its_parents(tmp_path: Path) -> None:
    """An action of another host could name a slot that this host lacks."""
    reports = bandit_branches(range(3))
    last = reports[-1].run_id
    split = branched_decisions(store_of(tmp_path, [report for report in reports if report.run_id != last]))
    assert split is not None
    (short,) = np.flatnonzero(split.learned.returns.isnan().any(1).numpy())
    assert torch.equal(split.learned.actions[short, 2], split.learned.actions[short, 0])


def test_copies_of_a_branch_count_once(tmp_path: Path) -> None:
    once = bandit_branches(range(4), noise=0.0)
    copies = bandit_branches(range(4), noise=0.0)
    for report in copies:
        if report.branch_of is not None:
            for name in ("run_id", "report_id", "command_id"):
                object.__setattr__(report, name, getattr(report, name)[::-1])
    split = branched_decisions(store_of(tmp_path, once, [report for report in copies if report.branch_of is not None]))
    assert split is not None
    assert (~split.learned.returns.isnan()).sum(1).tolist() == [3] * 4
    assert split.episodes == 12


def test_a_log_without_branches_learns_by_v_trace(tmp_path: Path) -> None:
    store = store_of(tmp_path, bandit_episodes(range(24)))
    training = finish(store)
    assert "expected_regret" not in training.final_metrics
    assert training.final_metrics["mean_ratio"] > 0.0


def test_policy_learns_under_noise_on_its_features(branched: GraphDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of one deviation blurs the kinds of hosts, so that the regret of the updates stays high."""
    sharp = _last_regret(branched)
    monkeypatch.setattr(training_run, "FEATURE_NOISE", 1.0)
    assert _last_regret(branched) > sharp + 1.0


def _last_regret(store: GraphDataset) -> float:
    records = list(TrainingRun.begin(store, CONFIG, None, 0).run())
    return float(np.mean([record.metrics["greedy_regret"] for record in records[-5:]]))


def test_lf11_every_round_learns_from_the_branches_of_all_rounds(tmp_path: Path) -> None:
    """No pass count retires them: the second training sees the decisions of the first as often as its own.

    Episodes of held-out hosts, here 4, 13 and 14, are not learned from.
    """
    old, new = bandit_branches(range(12)), bandit_branches(range(12, 20))
    quick = CONFIG.model_copy(update={"distil_passes": 3, "max_passes": 2, "min_experiences": 10})
    first = sealed(tmp_path, write_snapshot(tmp_path / "first", old, split="train"), quick, None)
    start = WarmStart(Path(first.path), is_continuation=True)
    second = sealed(tmp_path, write_snapshot(tmp_path / "second", [*old, *new], split="train"), quick, start)
    assert (first.episodes, first.passes) == (3 * 11, 3.0)
    assert (second.episodes, second.passes) == (3 * 17, 3.0)


def test_lf21_a_catastrophe_counts_as_fifteen_points_and_moves_no_other_regret(branched: GraphDataset) -> None:
    """One pair that loses 50 points or 5,000 gives the same gradient as one that loses 15."""
    split = branched_decisions(branched)
    assert split is not None
    worst = split.learned.returns.argmin(1, keepdim=True)
    best = split.learned.returns.amax(1, keepdim=True)
    found = []
    for loss in (15.0, 50.0, 5000.0):
        decisions = split.learned._replace(returns=split.learned.returns.scatter(1, worst, best - loss))
        found.append(_policy_gradient(branched, decisions))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])
    mild = split.learned._replace(returns=split.learned.returns.scatter(1, worst, best - 5.0))
    assert not torch.allclose(found[0], _policy_gradient(branched, mild))


def _policy_gradient(store: GraphDataset, decisions: BranchedDecisions) -> torch.Tensor:
    network = TrainingRun.begin(store, CONFIG, None, 0).policy()
    quiet = FeatureNoise(0.0, torch.Generator())
    ids = np.arange(len(decisions.rows))
    distillation._Losses(network, store, decisions, 0.0, quiet).of_decisions(ids, 1.0).total.backward()
    return torch.cat([p.grad.flatten() for p in network.policy_parameters() if p.grad is not None])
