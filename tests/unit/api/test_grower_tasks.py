"""What a Grower measures where labels are numbers, and what its governor makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.builders.small_loops import Grow, grow
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, l1_loss, mse_loss
from torch.optim import Optimizer

import simic
from simic.contracts.field_report import GovernorKind

POINTS = torch.randn(160, 8, generator=torch.Generator().manual_seed(0))
POINTS[80:] = POINTS[80:][POINTS[80:, 0].argsort()]
"""Samples, of which the second half are those of the validation; the labels of the first ones of these are alike."""


class Head(nn.Module):
    """Gives numbers [B], or [B, outputs], with a large scale at birth if told so."""

    def __init__(self, outputs: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, outputs or 1)
        self.is_flat = outputs is None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out[:, 0] if self.is_flat else out


def signs(outputs: int | None) -> Tensor:
    """Labels of 0 and 1."""
    labels = (POINTS[:, : outputs or 1] > 0).float()
    return labels[:, 0] if outputs is None else labels


def grower_of(labels: Tensor, loss: Any, **settings: Any) -> tuple[simic.Grower, Optimizer]:
    model = Head(None if labels.dim() == 1 else labels.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return grow(model, optimizer, validation=(POINTS[80:], labels[80:]), loss=loss, epochs=20, **settings)


def epoch(grower: simic.Grower, optimizer: Optimizer, labels: Tensor) -> tuple[Tensor, simic.Growth]:
    """Train on all samples; return the outputs for those of the validation, and the end of the epoch."""
    grower.model.train()
    for rows in torch.arange(160).split(40):
        optimizer.zero_grad()
        grower.loss(grower.model(POINTS[rows]), labels[rows]).backward()
        optimizer.step()
    grower.model.eval()
    with torch.no_grad():
        return grower.model(POINTS[80:]), grower.step()


@pytest.mark.parametrize("outputs", [None, 1, 3])
@pytest.mark.parametrize(
    "loss",
    [nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.5)), binary_cross_entropy_with_logits],
    ids=["instance", "function"],
)
def test_labels_of_0_and_1_under_the_binary_cross_entropy_are_two_classes(
    steer: Callable[[Any], None], outputs: int | None, loss: Any
) -> None:
    """A training that fits them well has large outputs, of which the squared error is large too."""
    steer(Grow(advances=True))
    labels = signs(outputs)
    grower, optimizer = grower_of(labels, loss)
    assert grower._host.topology.classes == 2
    for _ in range(20):
        out, growth = epoch(grower, optimizer, labels)
        assert growth.governor is None
        right = ((out > 0) == (labels[80:] > 0)).double().mean()
        wanted = binary_cross_entropy_with_logits(out.double(), labels[80:].double())
        if growth.epoch < 20:
            assert growth.validation_accuracy == pytest.approx(float(right), rel=1e-6)
            assert growth.validation_loss == pytest.approx(float(wanted), rel=1e-5)
    state = grower.state
    assert (out - labels[80:]).square().mean() > 9 * labels.var(), "the case must have large squared errors"
    assert growth.validation_accuracy > 0.85
    assert state.train_accuracy is not None
    assert state.train_loss is not None
    assert state.train_accuracy > 0.85
    assert state.train_loss < 0.3
    assert state.slots[0].contribution is not None


def test_a_training_of_two_classes_that_diverges_or_collapses_is_undone() -> None:
    labels = signs(None)
    for broken, kind in ((1e6, GovernorKind.DIVERGENCE), (0.0, GovernorKind.COLLAPSE)):
        grower, optimizer = grower_of(labels, nn.BCEWithLogitsLoss())
        for _ in range(6):
            epoch(grower, optimizer, labels)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        with torch.no_grad():
            grower.model.head.weight.mul_(-broken)
            grower.model.head.bias.sub_(1.0)
        growth = epoch(grower, optimizer, labels)[1]
        assert growth.governor is not None
        assert growth.governor.kind is kind


def scaled_error(output: Tensor, labels: Tensor) -> Tensor:
    """The owner's model gives hundredths."""
    return l1_loss(output / 100, labels)


def test_only_values_that_are_not_finite_end_growing_under_a_loss_of_ones_own() -> None:
    """Its owner does not minimise what is measured, so neither a rise of that nor its fall is a failure."""
    labels = POINTS[:, 0]
    grower, optimizer = grower_of(labels, scaled_error)
    for _ in range(8):
        out, growth = epoch(grower, optimizer, labels)
        assert growth.governor is None
        with torch.no_grad():
            grower.model.head.weight.mul_(3.0)
    assert growth.validation_loss == pytest.approx(
        float((out - labels[80:]).square().mean() / labels[80:].var(correction=0))
    )
    assert growth.validation_loss > 100
    with torch.no_grad():
        grower.model.head.weight.zero_()
        grower.model.head.bias.fill_(1e4)
    assert epoch(grower, optimizer, labels)[1].governor is None
    for group in optimizer.param_groups:
        group["lr"] = torch.nan
    growth = epoch(grower, optimizer, labels)[1]
    assert growth.governor is not None
    assert growth.governor.kind is GovernorKind.NON_FINITE


@pytest.mark.parametrize("loss", [None, nn.MSELoss(), mse_loss])
def test_a_squared_error_that_diverges_ends_growing(loss: Any) -> None:
    labels = POINTS[:, 0]
    grower, optimizer = grower_of(labels, loss)
    epoch(grower, optimizer, labels)
    with torch.no_grad():
        grower.model.head.weight.mul_(1e3)
    growth = epoch(grower, optimizer, labels)[1]
    assert growth.governor is not None
    assert growth.governor.kind is GovernorKind.DIVERGENCE


def test_labels_between_0_and_1_are_numbers_under_any_loss() -> None:
    grower, _ = grower_of(signs(None) * 0.9 + 0.05, nn.BCEWithLogitsLoss())
    assert grower._host.topology.classes == 3


def test_several_labels_under_the_binary_cross_entropy_are_no_mistaken_classes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    labels = nn.functional.one_hot(torch.arange(160) % 3).float()
    with caplog.at_level(logging.WARNING, logger="simic.api"):
        grower_of(labels, nn.BCEWithLogitsLoss())
    assert not caplog.records
