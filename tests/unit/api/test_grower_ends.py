"""What a Grower leaves behind: in the optimiser, in the module and in itself."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.builders.ensembles import action
from support.builders.small_loops import INPUTS, LABELS, Grow, Net, grow, train, train_epoch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import simic
from simic.contracts.actions import OPS, Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.lifecycle import SeedStage
from simic.controllers.sampling import deterministic
from simic.hosts.plugins import blueprint_names

FREE = {"min_contribution": -1.0}


class Wants:
    """Takes the first legal one of some operations, in the first slot that has it."""

    name = "wants"
    policy_version: str | None = None

    def __init__(self, *ops: Op) -> None:
        self.ops, self.epoch, self.blueprint = ops, -1, blueprint_names().index("dense")

    def decide(self, _observations: Observations, masks: Masks, _uniforms: Any) -> Decisions:
        self.epoch += 1
        for op in self.ops if self.epoch else ():
            if (legal := masks.slot[:, OPS.index(op)]).any():
                return deterministic(action(op, int(legal.argmax()), self.blueprint)[None])
        return deterministic(action(Op.WAIT)[None])


KEEP = (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE)


class Deep(nn.Sequential):
    """A classifier with two slots, of which one has no parameters."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def flat(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def grouped(model: nn.Module) -> Optimizer:
    """Weights decay and biases do not, as is usual."""
    weights, biases = ([part for part in model.parameters() if part.dim() == axes] for axes in (2, 1))
    return torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=0.01)


def turned(model: nn.Module) -> Optimizer:
    """The last layers come first."""
    layers = list(model.children())[::-1]
    return torch.optim.AdamW([parameter for layer in layers for parameter in layer.parameters()], lr=0.01)


def with_another(model: nn.Module) -> Optimizer:
    """Parameters of another module stand around those of the network."""
    torch.manual_seed(1)
    others = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    return torch.optim.AdamW([others[0], *model.parameters(), others[1]], lr=0.01)


@pytest.mark.parametrize("make", [flat, grouped, turned, with_another])
def test_a_new_optimiser_of_the_saved_network_loads_the_state(
    steer: Callable[[Any], None], make: Callable[[nn.Module], Optimizer]
) -> None:
    steer(Wants(*KEEP))
    model = Deep()
    optimizer = make(model)
    names = ["2"] if make is turned else ["2", "1"]
    grower, _ = grow(model, optimizer, slots=names, epochs=24, seeds_max=2, lifecycle=FREE)
    train(grower, optimizer, 24)
    assert {slot.stage for slot in grower.state.slots} == {SeedStage.FOSSILIZED}
    network = grower.finalize()
    file = io.BytesIO()
    torch.save({"network": network, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    again = make(saved["network"])
    again.load_state_dict(saved["optimizer"])
    for mine, theirs in zip(members(optimizer), members(again), strict=True):
        assert mine.shape == theirs.shape
        if mine in optimizer.state:
            assert torch.equal(optimizer.state[mine]["exp_avg"], again.state[theirs]["exp_avg"])
    for module, optimiser in ((network, optimizer), (saved["network"], again)):
        optimiser.zero_grad()
        cross_entropy(module(INPUTS), LABELS).backward()
        optimiser.step()
    assert all(torch.equal(*pair) for pair in zip(network.parameters(), saved["network"].parameters(), strict=True))


def members(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


@pytest.mark.parametrize("ends", ["early", "late"])
def test_a_finished_grower_holds_no_copy_of_model_optimiser_and_batches(
    steer: Callable[[Any], None], ends: str
) -> None:
    """The model and the optimiser, and with them the memory, are its owner's again."""
    steer(Grow())
    model = Net()
    grower, optimizer = grow(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    train(grower, optimizer, 12 if ends == "late" else 3)
    if ends == "early":
        train_epoch(grower, optimizer)
        grower.loss(model(INPUTS), LABELS).backward()
    host = grower._host
    states = [value for state in host._snapshot.optimiser.values() for value in state.values()]
    copies = weakref.WeakSet([*(host._snapshot.tensors or {}).values(), *states])
    del states
    assert len(copies) > 10
    grower.finalize()
    gc.collect()
    assert len(copies) == 0
    assert host._passes._waiting == []
    assert host._probe_batch is None
    assert host._step.batches == []


def test_seeds_that_come_and_go_leave_no_hook(steer: Callable[[Any], None]) -> None:
    steer(Wants(Op.PRUNE, Op.GERMINATE))
    model = Net()
    grower, optimizer = grow(model, epochs=40, lifecycle={"embargo_epochs": 1})
    seeds, handles = set(), []
    for _ in range(12):
        train(grower, optimizer, 1)
        seeds |= {seed.parameters for seed in grower._host.seeds.values()}
        handles.append(len(grower._host._handles))
    assert len(seeds) > 2
    assert len(set(handles)) == 1
    present = {seed.parameters for seed in grower._host.seeds.values()}
    assert not any(seed._post_accumulate_grad_hooks for seed in seeds - present)


def test_a_grower_that_is_lost_says_how_to_go_on() -> None:
    model = Net()
    grow(model)
    with pytest.raises(simic.ConfigError, match="finalize that one first, or make the model again if it is lost"):
        grow(model)
