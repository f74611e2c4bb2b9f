"""Scores of outputs without one class per sample, and families that are trained for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.builders.ensembles import action, waits
from support.fakes.custom_hosts import install
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, l1_loss
from torch.optim import Optimizer

from simic.contracts.actions import OPS, Op
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import LayerKind
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost, Samples
from simic.hosts.custom.tasks import IGNORED, Kind, task_of
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify


@given(st.integers(0, 2**31), st.integers(1, 5))
def test_scores_of_positions_are_means_over_those_that_count(seed: int, length: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(6, length, 3, generator=noise), torch.randint(3, (6, length), generator=noise)
    labels = labels.where(torch.rand(6, length, generator=noise) < 0.7, IGNORED)
    labels[0, 0] = 1
    likelihood, hits = task_of(labels, "here").score(logits, labels)
    pairs = [
        (one, int(label)) for row, own in zip(logits, labels, strict=True) for one, label in zip(row, own, strict=True)
    ]
    counted = [(one, label) for one, label in pairs if label != IGNORED]
    wanted = [math.log(math.exp(float(one[label])) / sum(math.exp(float(x)) for x in one)) for one, label in counted]
    assert float(likelihood.mean()) == pytest.approx(sum(wanted) / len(counted), rel=1e-5)
    right = [int(one.argmax()) == label for one, label in counted]
    assert float(hits.mean()) == pytest.approx(sum(right) / len(counted))


def test_scores_of_numbers_are_shares_of_the_variance() -> None:
    targets = torch.tensor([[1.0, 2.0], [3.0, 2.5], [5.0, 0.0]])
    task = task_of(targets, "here")
    mean = targets.mean(dim=0).expand(3, 2)
    likelihood, _ = task.score(mean, targets)
    assert float(likelihood.mean()) == pytest.approx(-1.0)
    perfect = task.score(targets, targets)
    assert perfect[0].tolist() == [0.0, 0.0, 0.0]
    assert perfect[1].tolist() == [1.0, 1.0, 1.0]
    turned = torch.stack([targets, mean]).transpose(0, 1)  # [3, 2, 2], not contiguous
    assert task_of(turned, "here").score(turned, turned)[0].tolist() == [0.0, 0.0, 0.0]
    assert task.largest_share(mean) == 1.0
    assert task.largest_share(targets) == 0.0


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 2, 2)])
def test_scores_of_two_classes_are_means_over_outputs(shape: tuple[int, ...]) -> None:
    noise = torch.Generator().manual_seed(0)
    logits, labels = 3.0 * torch.randn(shape, generator=noise), torch.randint(2, shape, generator=noise).float()
    logits.view(-1)[0] = 0.0  # a tie, which is a miss
    task = task_of(labels, "here", nn.BCEWithLogitsLoss())
    assert (task.kind, task.classes(logits), task.is_loss_judged) == (Kind.BINARY, 2, True)
    likelihood, hits = task.score(logits, labels)
    assert likelihood.shape == hits.shape == (6,)
    assert float(-likelihood.mean()) == pytest.approx(float(binary_cross_entropy_with_logits(logits, labels)), rel=1e-6)
    right = [
        (float(x) > 0) == (y == 1) and float(x) != 0 for x, y in zip(logits.view(-1), labels.view(-1), strict=True)
    ]
    assert float(hits.mean()) == pytest.approx(sum(right) / len(right))
    assert task.totals(logits, labels).tolist() == pytest.approx([float(likelihood.sum()), float(hits.sum()), 6.0])
    assert task.totals(logits[:0], labels[:0]).tolist() == [0.0, 0.0, 0.0]
    assert task.fault(logits, labels) is None
    assert task.fault(logits[:5], labels) == "logits and float32 labels of one shape [B, ...]"


def test_outputs_with_one_sign_for_all_samples_are_constant() -> None:
    task = task_of(torch.tensor([[0.0, 1.0], [1.0, 1.0]]), "here", binary_cross_entropy_with_logits)
    assert task.largest_share(torch.tensor([[-1.0, 2.0], [-3.0, 1.0], [-0.1, 9.0]])) == 1.0
    assert task.largest_share(torch.tensor([[-1.0, 2.0], [3.0, 1.0], [-0.1, 9.0], [4.0, 5.0]])) == 0.75


class Numbers(nn.Module):
    """A number of a vector, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.head(self.body(x))}


class NumbersFamily(ModuleFamily):
    """Hosts that predict numbers under the absolute error."""

    optimizer: Callable[[nn.Module], Optimizer] | None = None

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        self.loss = loss

    def host(self, key: int) -> ModuleHost:
        inputs = torch.randn(96, 4)
        parts = [Samples(one, one[:, :1] * one[:, 1:2]) for one in inputs.split(32)]
        return ModuleHost(
            Numbers(),
            (Layer("body", LayerKind.STEM, has_slot=True), Layer("head", LayerKind.HEAD)),
            *parts,
            batch=8,
            loss=self.loss,
            optimizer=self.optimizer,
            logits=lambda output: output["out"],
        )


def test_a_family_may_name_its_loss_and_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        called.append(output.shape)
        return l1_loss(output, targets)

    install(monkeypatch, {"numbers": NumbersFamily(loss), "squares": NumbersFamily(None)})
    ends = []
    for name in ("numbers", "squares"):
        grown = Ensemble(identify(name, [3]), WorldConfig(set=name, horizon=8))
        for _ in range(8):
            legal = grown.masks().slot[0]
            op = next(op for op in (Op.ADVANCE, Op.GERMINATE, Op.WAIT) if op is Op.WAIT or legal[OPS.index(op)])
            outcome = grown.step(action(op)[None])
        ends.append(float(outcome.validation_loss_after[0]))
        assert np.isfinite(ends[-1])
    assert called[0] == (8, 1)
    assert ends[0] != ends[1]


class SignFamily(NumbersFamily):
    """Hosts that predict whether the first number of a vector is positive."""

    def host(self, key: int) -> ModuleHost:
        spec = super().host(key)
        return replace(spec, **{part: _signs(getattr(spec, part)) for part in ("train", "validation", "test")})


def _signs(samples: Samples) -> Samples:
    return Samples(samples.inputs, (samples.inputs[:, :1] > 0).float())


@pytest.mark.parametrize("optimizer", [None, lambda module: torch.optim.Adam(module.parameters(), lr=0.02)])
def test_a_family_may_have_two_classes_in_one_output(monkeypatch: pytest.MonkeyPatch, optimizer: Any) -> None:
    """Its outputs grow large, which is no divergence, in hosts that train with SGD and in others."""
    family = SignFamily(nn.BCEWithLogitsLoss())
    family.optimizer = optimizer
    install(monkeypatch, {"signs": family})
    grown = Ensemble(identify("signs", [3]), WorldConfig(set="signs", horizon=12))
    losses = [float(grown.step(waits(1)).validation_loss_after[0]) for _ in range(12)]
    seen = grown.observe().system
    assert losses[-1] < losses[0] < 0.8
    assert seen["train_accuracy"][0] > 0.75
    assert seen["train_accuracy"][0] * 32 == round(float(seen["train_accuracy"][0] * 32))
