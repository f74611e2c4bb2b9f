"""Losses in 16 bits: what is rounded, what is not, and what an overflow does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot
from torch import Tensor

from simic.contracts.errors import DivergenceError
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.distillation import branched_decisions, distillation
from simic.learning.history import History, Resumed
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.objectives.vtrace import vtrace_loss
from simic.learning.phases import fresh_network
from simic.learning.precision import LEAST_SCALE
from simic.learning.rates import LrSchedule
from simic.learning.training_run import TrainingRun
from simic.replay.dataset import GraphDataset

FLAT = LrSchedule.constant(0, 1.0)
CONFIG = TrainConfig(
    network=NetworkConfig(hidden=16, layers=1),
    start="scratch",
    batch_sequences=16,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=1,
    q_updates=2,
    distil_passes=1,
    min_commit_rate=0.0,
)
FIRST_SCALE = 65536.0
"""Of torch's GradScaler."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    root = tmp_path_factory.mktemp("precision")
    write_snapshot(root / "s", bandit_branches(range(20)) + bandit_episodes(range(90, 122)), split="train")
    return GraphDataset.load(root / "s", blueprints=blueprint_names())


def changed(**changes: Any) -> TrainConfig:
    return CONFIG.model_copy(update=changes)


def learner(store: GraphDataset, precision: str, history: History | None = None, name: str = "policy") -> Learner:
    config = changed(precision=precision)
    return Learner(fresh_network(store, config, 0), config, history, name)


def regression(one: Learner, store: GraphDataset, factor: float = 1.0) -> Callable[[slice], Loss]:
    """Return a loss of the values of eight states, whose gradients grow with ``factor`` while the loss does not."""
    rows = store.sequences.starts[:8]

    def loss_of(part: slice) -> Loss:
        values = one.network.value(store.states(rows[part])[0])
        stretched = factor * values - (factor * values).detach() + values.detach()
        loss = 1e-3 * (stretched - 1.0).square().mean()
        return Loss(loss, {"seen": loss.detach()})

    return loss_of


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["vtrace", "ppo", "awr", "fitted_q", "distil"])
def test_pd3_every_objective_learns_in_16_bits(store: GraphDataset, kind: str, precision: str) -> None:
    changes = {"start": "distil"} if kind == "distil" else {"objective": kind}
    records = [
        record.metrics for record in TrainingRun.begin(store, changed(precision=precision, **changes), None, 0).run()
    ]
    assert all(np.isfinite(list(metrics.values())).all() for metrics in records)
    assert all(("loss_scale" in metrics) is (precision == "float16") for metrics in records)
    assert {metrics.get("overflow_count", 0.0) for metrics in records} <= {0.0, 1.0}
    scales = [metrics["loss_scale"] for metrics in records if precision == "float16"]
    assert all(0.0 < scale <= FIRST_SCALE for scale in scales), "the first updates find the scale"


def test_low_bfloat16_rounds_the_network_and_nothing_of_the_loss(
    store: GraphDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOW-1..7, precision: linear layers run in bfloat16; logits, values, log-probabilities and targets are float32."""
    one, batch = learner(store, "bfloat16"), store.batch(store.ordinary[:8])
    layers, results = list[torch.dtype](), list[torch.dtype]()
    for module in one.network.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _module, _inputs, output: layers.append(output.dtype))
    real = one.network.act_and_value

    def act_and_value(*arguments: Any) -> Any:
        output, values = real(*arguments)
        results.extend(column.dtype for column in (*output, values))
        return output, values

    monkeypatch.setattr(one.network, "act_and_value", act_and_value)

    def loss_of(_: slice) -> Loss:
        loss = vtrace_loss(one.network, batch, CONFIG, 1.0)
        assert loss.total.dtype == torch.float32
        assert loss.errors is not None
        results.extend([loss.errors.dtype, *(value.dtype for value in loss.metrics.values())])
        return loss

    one.update(8, loss_of, FLAT, 0)
    assert set(layers) == {torch.bfloat16}
    assert set(results) == {torch.float32}
    assert {parameter.dtype for parameter in one.network.parameters()} == {torch.float32}
    assert {state["exp_avg"].dtype for state in one.optimizer.state.values()} == {torch.float32}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_gradients_in_16_bits_are_those_of_float32_up_to_rounding(store: GraphDataset, precision: str) -> None:
    """Of a distillation, in which the value encoder is read without gradient before it is trained."""
    split = branched_decisions(store)
    assert split is not None
    moments: dict[str, list[Tensor]] = {}
    for name in ("float32", precision):
        one = learner(store, name)
        next(distillation(one, store, split.learned, passes=1, exploration=0.01, seed=0))
        moments[name] = [one.optimizer.state[parameter]["exp_avg"] for parameter in one.network.parameters()]
    for exact, rounded in zip(moments["float32"], moments[precision], strict=True):
        assert float((exact - rounded).norm()) <= 0.1 * float(exact.norm()) + 1e-5
    assert all(float(moment.abs().max()) > 0 for moment in moments[precision][-2:])


def test_norms_are_measured_and_clipped_without_the_scale(store: GraphDataset) -> None:
    found = {}
    for precision in ("float32", "float16"):
        one = learner(store, precision)
        found[precision] = one.update(8, regression(one, store), FLAT, 0)
    assert found["float16"]["grad_norm_value"] == pytest.approx(found["float32"]["grad_norm_value"], rel=0.02)
    assert found["float16"]["loss_scale"] == FIRST_SCALE


def test_h12_an_overflow_leaves_out_the_step_counts_it_and_changes_no_other_scale(store: GraphDataset) -> None:
    """DRL-05 too: each optimiser has one scaler, whatever the hosts of its batch; the next update steps again."""
    one, other = learner(store, "float16"), learner(store, "float16")
    before = copy.deepcopy(one.network.state_dict())
    left_out = one.update(8, regression(one, store, factor=1e6), FLAT, 0)
    assert left_out["overflow_count"] == 1.0
    assert all(torch.equal(before[name], value) for name, value in one.network.state_dict().items())
    assert not one.optimizer.state
    assert one.updates == 1
    assert np.isfinite(list(left_out.values())).all()
    after = one.update(8, regression(one, store), FLAT, 0)
    assert (after["overflow_count"], after["loss_scale"]) == (0.0, FIRST_SCALE / 2)
    assert other.update(8, regression(other, store), FLAT, 0)["loss_scale"] == FIRST_SCALE
    assert not torch.equal(before["value_head.2.bias"], one.network.state_dict()["value_head.2.bias"])


def test_an_overflow_without_a_scale_to_lower_is_a_divergence(store: GraphDataset) -> None:
    one = learner(store, "float16")
    one.scaler.load_state_dict({**one.scaler.state_dict(), "scale": LEAST_SCALE})
    with pytest.raises(DivergenceError, match="grad_norm_value is"):
        one.update(8, regression(one, store, factor=1e12), FLAT, 0)


def test_a_resumed_training_goes_on_with_the_scale_of_the_checkpoint(store: GraphDataset) -> None:
    """Bit for bit: two updates, of which one overflows, a checkpoint, and one update more."""
    history = History()
    first = learner(store, "float16", history)
    done = [first.update(8, regression(first, store, factor), FLAT, 0) for factor in (1e6, 1.0)]
    state = history.state()
    kept = {name: tensor.clone() for name, tensor in state.tensors.items()}
    expected = first.update(8, regression(first, store), FLAT, 0)
    again = learner(store, "float16", History(Resumed(done, kept, {"policy": 2}, {}, {})))
    assert [again.update(8, regression(again, store), FLAT, 0) for _ in done] == done
    assert again.scaler.state_dict()["_growth_tracker"] == 1
    assert again.update(8, regression(again, store), FLAT, 0) == expected
    assert expected["loss_scale"] == FIRST_SCALE / 2
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])
