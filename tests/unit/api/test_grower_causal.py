"""A Grower in a causal model with a class per position: nothing that grows shows it the labels."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support.builders.ensembles import action
from torch import Tensor, nn

import simic
from simic.contracts.actions import OPS, Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.lifecycle import SeedStage
from simic.controllers.sampling import deterministic
from simic.hosts.plugins import blueprint_names

FLIPS = torch.randint(2, (120, 3), generator=torch.Generator().manual_seed(0))
INPUTS, LABELS = FLIPS[:, :-1], FLIPS[:, 1:]


class Flips(nn.Module):
    """Tells the next flips of a coin [B, T], from the one before each."""

    def __init__(self) -> None:
        super().__init__()
        self.sides, self.block = nn.Embedding(2, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 2)

    def forward(self, sides: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.sides(sides)))
        return logits


class Keep:
    """Grows the first of these blueprints that may grow, and keeps it."""

    name = "keep"
    policy_version: str | None = None

    def __init__(self, *blueprints: str) -> None:
        self.wanted = [blueprint_names().index(name) for name in blueprints]

    def decide(self, _observations: Observations, masks: Masks, _uniforms: Any) -> Decisions:
        legal = masks.slot[0]
        wanted = (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE, Op.WAIT)
        op = next(op for op in wanted if legal[OPS.index(op)] or op is Op.WAIT)
        blueprint = next(index for index in self.wanted if masks.blueprint[0, index])
        return deterministic(action(op, 0, blueprint)[None])


def grow(model: nn.Module, **settings: Any) -> tuple[simic.Grower, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    defaults: dict[str, Any] = {"slots": ["block"], "validation": (INPUTS[60:], LABELS[60:]), "epochs": 12}
    return simic.Grower(model, optimizer, policy="wait", **{**defaults, **settings}), optimizer


def test_what_would_see_later_positions_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="simic"):
        grower, _ = grow(Flips(), blueprints=["gate", "dense", "norm", "attention", "conv3x3"])
    assert [record.getMessage() for record in caplog.records] == [
        "blueprints left out: gate, norm, attention; this model is causal, and through them earlier positions would "
        "see later ones"
    ]
    legal = grower._ensemble.masks().blueprint[0]
    assert [name for name, may_grow in zip(blueprint_names(), legal, strict=True) if may_grow] == ["dense"]


def test_the_causal_model_is_tried_out_in_passes_as_small_as_those_of_the_loader() -> None:
    model, sizes = Flips(), set[int]()
    model.register_forward_pre_hook(lambda _model, arguments: sizes.add(len(arguments[0])))
    batches = list(zip(INPUTS[60:].split(4), LABELS[60:].split(4), strict=True))
    grower, _ = grow(model, validation=batches)
    assert not grower._ensemble.masks().blueprint[0, blueprint_names().index("gate")]
    assert max(sizes) == 4


def test_a_causal_model_in_which_nothing_may_grow_is_refused_and_left_as_it_was() -> None:
    model = Flips()
    with pytest.raises(simic.ConfigError, match="this model is causal, and gate would let earlier positions see later"):
        grow(model, blueprints=["gate", "conv3x3"])
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    grow(model)


def test_a_coin_stays_a_coin_however_much_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept gates and norms once told the first flip from the second one, and every other one from the next."""
    monkeypatch.setattr("simic.api.grower_policy.make", lambda *_: Keep("gate", "norm", "heavy"))
    torch.manual_seed(0)
    model = Flips()
    grower, optimizer = grow(model, lifecycle={"min_contribution": -1.0})
    for _ in range(12):
        model.train()
        for rows in torch.randperm(60).split(20):
            optimizer.zero_grad()
            grower.loss(model(INPUTS[rows]), LABELS[rows]).backward()
            optimizer.step()
        grower.step()
    assert grower.state.slots[0].stage is SeedStage.FOSSILIZED
    network = grower.finalize().eval()
    with torch.no_grad():
        first, other = (network(sides)[:, 0] for sides in (INPUTS, torch.stack([INPUTS[:, 0], 1 - INPUTS[:, 1]], 1)))
    assert torch.equal(first, other)
    assert float((first.argmax(1) == LABELS[:, 0]).float().mean()) < 0.7
