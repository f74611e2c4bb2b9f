"""The samples that a Grower measures on: what it takes, and what it says of anything else."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import simic

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 2
ONE_HOT = torch.nn.functional.one_hot(Y).float()


def grower(validation: Any) -> simic.Grower:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return simic.Grower(model, optimizer, slots=["1"], validation=validation, epochs=4, policy="wait")


@pytest.mark.parametrize(
    "validation", [(X, Y), [X, Y], [(X[:5], Y[:5]), (X[5:], Y[5:])], DataLoader(TensorDataset(X, Y), batch_size=5)]
)
def test_tensors_and_batches_are_the_same(validation: Any) -> None:
    assert grower(validation).state.validation_loss == grower((X, Y)).state.validation_loss


class Endless(Dataset[Any]):
    """Has a length, and items beyond it."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index % 12], int(Y[index % 12])


SINGLE = r"if these are single samples, give DataLoader\(\.\.\., batch_size=256\)"


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (TensorDataset(X, Y), rf"found TensorDataset with a batch of Tensor \[3\], Tensor \[\]; {SINGLE}"),
        (TensorDataset(X, X[:, :2]), rf"a batch of Tensor \[3\], Tensor \[2\]; {SINGLE}"),
        (Endless(), rf"found Endless with a batch of Tensor \[3\], int; {SINGLE}"),
        (X, "found Tensor"),
        ({"x": X, "y": Y}, "found dict"),
        (3, "found int"),
        ([], "found list without a batch"),
        ([(X.numpy(), Y.numpy())], "found list with a batch of ndarray, ndarray"),
        ((np.ones((4, 3)), np.ones(4)), "found tuple of ndarray"),
        ([(X, X, Y)], "a network with several inputs needs a wrapper"),
    ],
)
def test_other_samples_are_refused_by_what_they_are(validation: Any, message: str) -> None:
    with pytest.raises(simic.ConfigError, match=message):
        grower(validation)


@pytest.mark.parametrize("labels", [Y.int(), Y.bool()])
def test_labels_of_fewer_bits_are_refused(labels: Tensor) -> None:
    with pytest.raises(
        simic.DatasetError, match=r"validation: expected labels as int64 .* or float32 .*, found torch\."
    ):
        grower((X, labels))


def test_a_class_of_one_position_per_sample_is_taken() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (X[:, None], Y[:, None])
    one = simic.Grower(model, optimizer, slots=["1"], validation=data, epochs=4, policy="wait")
    assert one.state.slots


def test_random_numbers_of_a_loader_that_fails_are_as_before() -> None:
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader([(X[0], "no label")] * 4, shuffle=True, generator=generator)
    before = generator.get_state()
    with pytest.raises(simic.ConfigError):
        grower(loader)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(
    ("labels", "is_warned"), [(ONE_HOT, True), (ONE_HOT * 0.9 + 0.05, False), (ONE_HOT[:, :1], False)]
)
def test_numbers_that_look_like_classes_are_named(
    caplog: pytest.LogCaptureFixture, labels: Tensor, is_warned: bool
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, labels.shape[1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, logger="simic.api"):
        simic.Grower(model, optimizer, slots=["1"], validation=(X, labels), epochs=4, policy="wait")
    assert ["labels.argmax(1)" in record.message for record in caplog.records] == [True] * is_warned


class Squeezed(nn.Module):
    """Gives numbers [B], and of a single sample a number; notes how many samples a pass has."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 1)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        numbers: Tensor = self.head(self.body(x)).squeeze()
        return numbers


@pytest.mark.parametrize(
    ("samples", "batch", "sizes"),
    [
        (300, None, [256, 44]),
        (257, None, [257]),
        (513, None, [256, 257]),
        (512, None, [256, 256]),
        (12, 5, [5, 5, 2]),
        (13, 4, [4, 4, 5]),
    ],
)
def test_a_measurement_leaves_no_sample_alone_and_makes_no_larger_pass_than_a_loader(
    samples: int, batch: int | None, sizes: list[int]
) -> None:
    inputs = torch.randn(samples, 3)
    data: Any = (inputs, inputs[:, 0])
    model = Squeezed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    validation = data if batch is None else DataLoader(TensorDataset(*data), batch_size=batch)
    simic.Grower(model, optimizer, slots=["body"], validation=validation, epochs=4, policy="wait")
    assert model.sizes[-len(sizes) :] == sizes
    assert max(model.sizes[: -len(sizes)]) <= (batch or 32)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_batches_of_a_loader_may_be_small(batch: int) -> None:
    """The dry run needs two sizes, and none of them is a single sample, of which this model gives a number."""
    inputs = torch.randn(12, 3)
    model = Squeezed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(inputs, inputs[:, 0]), batch_size=batch)
    simic.Grower(model, optimizer, slots=["body"], validation=data, epochs=4, policy="wait")
    assert set(model.sizes) == {2, 3}


def test_a_pass_is_no_larger_than_the_batches_of_the_test_loader() -> None:
    inputs = torch.randn(40, 3)
    model = Squeezed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (inputs, inputs[:, 0])
    test = DataLoader(TensorDataset(*data), batch_size=5)
    grower = simic.Grower(
        model, optimizer, slots=["body"], validation=data, test=test, epochs=4, policy="wait", blueprints=["dense"]
    )
    for _ in range(4):
        model.sizes.clear()
        model.train()
        optimizer.zero_grad()
        grower.loss(model(inputs[:4]), data[1][:4]).backward()
        optimizer.step()
        grower.step()
    assert grower.is_finished
    assert max(model.sizes) == 5


def test_single_samples_of_a_loader_are_measured_together() -> None:
    """A pass of one sample in training mode has no batch statistics."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(X, Y), batch_size=1)
    grower = simic.Grower(model, optimizer, slots=["1"], validation=data, epochs=4, policy="wait")
    assert grower.state.validation_loss
