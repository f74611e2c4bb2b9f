"""Scores of outputs without one class per sample, and families that are trained for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.builders.ensembles import action
from support.fakes.custom_hosts import install
from torch import Tensor, nn
from torch.nn.functional import l1_loss

from simic.contracts.actions import OPS, Op
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import LayerKind
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost, Samples
from simic.hosts.custom.tasks import IGNORED, task_of
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


class Numbers(nn.Module):
    """A number of a vector, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.head(self.body(x))}


class NumbersFamily(ModuleFamily):
    """Hosts that predict numbers under the absolute error."""

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
