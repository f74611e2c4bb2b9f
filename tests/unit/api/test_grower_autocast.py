"""A Grower of an owner who uses autocast: seeds and Simic's own passes compute in float32, wherever it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from support.builders.ensembles import action
from torch import Tensor, nn

import simic
from simic.contracts.actions import OPS, Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.lifecycle import SeedStage
from simic.controllers.sampling import deterministic
from simic.hosts.plugins import blueprint_names

CHANCE = torch.Generator().manual_seed(0)
IMAGES = torch.randn(60, 1, 5, 5, generator=CHANCE)
LABELS = (IMAGES.mean((1, 2, 3)) > 0).long()
SMALL = [torch.bfloat16, torch.float16]
FREE = {"min_contribution": -1.0}


class Keep:
    """Grows a blueprint and keeps it."""

    name = "keep"
    policy_version: str | None = None

    def __init__(self, blueprint: str) -> None:
        self.blueprint = blueprint_names().index(blueprint)

    def decide(self, _observations: Observations, masks: Masks, _uniforms: Any) -> Decisions:
        legal = masks.slot[0]
        wanted = (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE, Op.WAIT)
        op = next(op for op in wanted if legal[OPS.index(op)] or op is Op.WAIT)
        return deterministic(action(op, 0, self.blueprint)[None])


class Net(nn.Module):
    """Classes of images through a layer of maps or of sequences, whose outputs are ``large`` times as large."""

    def __init__(self, *, is_map: bool, large: float = 1.0) -> None:
        super().__init__()
        self.is_map, self.large = is_map, large
        self.layer: nn.Module = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1) if is_map else nn.Linear(5, 4), nn.Tanh(), Times(large)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        h = self.layer(images if self.is_map else images[:, 0]) / self.large
        logits: Tensor = self.head(h.mean((2, 3) if self.is_map else 1))
        return logits


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.fixture
def grow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[simic.Grower, torch.optim.Optimizer]]:
    def make(model: nn.Module, blueprint: str, **settings: Any) -> tuple[simic.Grower, torch.optim.Optimizer]:
        monkeypatch.setattr("simic.api.grower_policy.make", lambda *_: Keep(blueprint))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        defaults: dict[str, Any] = {"slots": ["layer"], "validation": (IMAGES[40:], LABELS[40:]), "epochs": 10}
        defaults |= {"lifecycle": FREE, "blueprints": [blueprint], "policy": "wait"}
        return simic.Grower(model, optimizer, **{**defaults, **settings}), optimizer

    return make


def train(
    grower: simic.Grower, optimizer: torch.optim.Optimizer, epochs: int, dtype: torch.dtype, *, is_whole: bool = False
) -> None:
    """Train under autocast: the loss alone, or ``is_whole`` with the backward pass and both steps."""
    for _ in range(epochs):
        grower.model.train()
        with torch.autocast("cpu", dtype, enabled=is_whole):
            for rows in torch.arange(40).split(20):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype):
                    loss = grower.loss(grower.model(IMAGES[rows]), LABELS[rows])
                loss.backward()
                optimizer.step()
            grower.step()


KEPT = [name for name in blueprint_names() if name not in ("dropout", "widen")]


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", KEPT)
def test_a_seed_grows_and_is_kept_under_autocast(
    grow: Callable[..., tuple[simic.Grower, torch.optim.Optimizer]], name: str, dtype: torch.dtype
) -> None:
    """Squares of states above 255 overflow in float16, and a kept seed computes as it grew, whoever calls finalize."""
    torch.manual_seed(0)
    model = Net(is_map=name != "attention", large=600.0)
    grower, optimizer = grow(model, name)
    train(grower, optimizer, 10, dtype)
    assert grower.state.slots[0].stage is SeedStage.FOSSILIZED
    assert grower.state.train_loss is not None
    model.eval()
    with torch.autocast("cpu", dtype):
        grown = model(IMAGES).detach()
        network = grower.finalize()
        kept = network(IMAGES)
    assert bool(kept.isfinite().all())
    assert torch.equal(kept, grown)
    assert "float16" not in network.layer[1].code
    seed = network.layer[1].weight
    with torch.autocast("cpu", dtype):
        nn.functional.cross_entropy(network.train()(IMAGES), LABELS).backward()
    assert seed.grad is not None
    assert bool(seed.grad.isfinite().all())
    assert seed.grad.any()


def test_a_grower_lives_within_autocast_as_outside_of_it(
    grow: Callable[..., tuple[simic.Grower, torch.optim.Optimizer]],
) -> None:
    """Its construction, steps and finalize, with the same measurements; the passes of its own are float32."""
    found = []
    for is_within in (False, True):
        torch.manual_seed(0)
        model = Net(is_map=True)
        kinds = set()
        model.head.register_forward_hook(lambda part, _, out, kinds=kinds: kinds.add((part.training, out.dtype)))
        with torch.autocast("cpu", torch.bfloat16, enabled=is_within):
            grower, optimizer = grow(model, "gate")
            assert (False, torch.bfloat16) not in kinds
        train(grower, optimizer, 10, torch.bfloat16, is_whole=is_within)
        assert kinds == {(False, torch.float32), (True, torch.float32), (True, torch.bfloat16)}
        with torch.autocast("cpu", torch.bfloat16, enabled=is_within):
            network = grower.finalize().eval()
        found.append((grower.growth, grower.state.model_dump(), network(IMAGES)))
    (growth, state, logits), (other_growth, other_state, other_logits) = found
    assert growth.validation_accuracy == other_growth.validation_accuracy
    assert growth.validation_loss == pytest.approx(other_growth.validation_loss, rel=0.01)
    assert [slot["stage"] for slot in state["slots"]] == [slot["stage"] for slot in other_state["slots"]]
    torch.testing.assert_close(logits, other_logits, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["conv3x3", "depthwise"])
def test_a_seed_learns_alone_alike_where_the_step_is_within_autocast(
    grow: Callable[..., tuple[simic.Grower, torch.optim.Optimizer]], name: str
) -> None:
    """In float32, on a model that does not move."""
    norms = []
    for is_whole in (False, True):
        torch.manual_seed(0)
        model = Net(is_map=True)
        grower, optimizer = grow(model, name)
        optimizer.param_groups[0]["lr"] = 0.0
        train(grower, optimizer, 1, torch.bfloat16, is_whole=is_whole)
        norms.append(grower.state.slots[0].gradient_norm)
    assert norms[0] is not None
    assert norms[0] == norms[1]


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True, mixed_precision="bf16")
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("is_prepared_first", [True, False])
def test_passes_of_its_own_leave_the_autocast_that_accelerate_puts_into_a_model(
    grow: Callable[..., tuple[simic.Grower, torch.optim.Optimizer]], accelerator: Accelerator, is_prepared_first: bool
) -> None:
    """Those of a seed that learns alone too; the owner's passes stay in bfloat16."""
    torch.manual_seed(0)
    model, kinds = Net(is_map=True), set()
    model.head.register_forward_hook(lambda part, _, out: kinds.add((part.training, out.dtype)))
    if is_prepared_first:
        accelerator.prepare(model)
    grower, optimizer = grow(model, "gate")
    prepared = accelerator.prepare(model)
    forward = model.forward
    for _ in range(10):
        kinds.clear()
        model.train()
        for rows in torch.arange(40).split(20):
            optimizer.zero_grad()
            loss = grower.loss(prepared(IMAGES[rows]), LABELS[rows])
            accelerator.backward(loss)
            optimizer.step()
        stage = grower.state.slots[0].stage
        grower.step()
        alone = {(True, torch.float32)} if stage in (SeedStage.GERMINATED, SeedStage.TRAINING) else set()
        assert kinds == {(True, torch.bfloat16), (False, torch.float32)} | alone
        assert model.forward == forward
    assert grower.state.slots[0].stage is SeedStage.FOSSILIZED


def test_a_forward_that_the_owner_replaced_is_part_of_the_model(
    grow: Callable[..., tuple[simic.Grower, torch.optim.Optimizer]],
) -> None:
    """Also if the owner keeps the one before under the name that Accelerate uses."""
    model, inputs = Net(is_map=True), set()
    model._original_forward, model.forward = model.forward, lambda x: model._original_forward(x.clamp(-0.5, 0.5))
    model.layer.register_forward_hook(lambda _part, given, _out: inputs.add(given[0].abs().max().item()))
    grow(model, "gate")
    assert inputs == {0.5}
