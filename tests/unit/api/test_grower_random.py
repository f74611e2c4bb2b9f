"""Random numbers of Python and NumPy that a model or a loader draws are its owner's, as those of torch are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.small_loops import INPUTS, LABELS, VALIDATION, Grow, Net, grow, train, train_epoch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Drawing(Net):
    """Draws from every generator in each pass, and notes what."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[float, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        numbers = random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002, S311
        if x.is_cuda:
            numbers = (*numbers, float(torch.rand((), device=x.device)))
        self.drawn.append(numbers)
        return super().forward(x) * (1.0 + 0.1 * sum(numbers))


class Noisy(Dataset[Any]):
    """Draws for each sample."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = np.random.randn() + random.random()  # noqa: NPY002, S311
        return VALIDATION[0][index] + 0.0 * noise, VALIDATION[1][index]


def states() -> list[Any]:
    """What the next draws of all generators are."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    drawn = [random.random(), *np.random.randn(3), *torch.rand(2).tolist()]  # noqa: NPY002, S311
    random.setstate(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    torch.set_rng_state(before[2])
    return drawn


@pytest.fixture(autouse=True)
def generators() -> Any:
    """Leaves the generators of the process as they were, with a normal number of NumPy's that waits."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    np.random.randn()  # noqa: NPY002
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])  # noqa: NPY002


@pytest.mark.parametrize("advances", [False, True])
def test_a_grower_moves_no_generator(steer: Callable[[Any], None], advances: bool) -> None:
    steer(Grow(advances=advances))
    torch.manual_seed(0)
    model = Drawing()
    before = states()
    grower, optimizer = grow(model)
    assert states() == before
    for _ in range(6):
        train_epoch(grower, optimizer)
        before = states()
        grower.step()
        assert states() == before


def test_training_beside_a_seed_that_learns_alone_draws_as_without_it(steer: Callable[[Any], None]) -> None:
    drawn = []
    for first in (1, 99):
        steer(Grow(first=first))
        torch.manual_seed(0)
        random.seed(2)
        np.random.seed(2)  # noqa: NPY002
        model = Drawing()
        grower, optimizer = grow(model)
        own = []
        for _ in range(3):
            model.train()
            optimizer.zero_grad()
            loss = grower.loss(model(INPUTS), LABELS)
            own.append(model.drawn[-1])
            loss.backward()
            optimizer.step()
            grower.step()
        drawn.append(own)
    assert drawn[0] == drawn[1]


def test_a_seed_that_learns_alone_sees_the_numbers_of_its_owners_pass(steer: Callable[[Any], None]) -> None:
    steer(Grow())
    model = Drawing()
    grower, optimizer = grow(model)
    train(grower, optimizer, 2)
    model.train()
    model.drawn.clear()
    for rows in torch.arange(40).split(20):
        grower.loss(model(INPUTS[rows]), LABELS[rows]).backward()
    optimizer.step()
    assert model.drawn[:2] == model.drawn[2:]
    assert model.drawn[0] != model.drawn[1]


def test_measurements_of_a_model_that_draws_are_the_same_again() -> None:
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        losses.append(grow(Drawing())[0].growth.validation_loss)
    assert losses[0] == losses[1]


def test_a_loader_that_draws_moves_no_generator() -> None:
    torch.manual_seed(0)
    model = Net()
    before = states()
    grow(model, validation=DataLoader(Noisy(), batch_size=20, shuffle=True))
    assert states() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_grower_moves_no_generator_of_its_device() -> None:
    torch.manual_seed(0)
    model = Drawing().cuda()
    before = torch.cuda.get_rng_state()
    grow(model)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.rand(3, device="cuda")
    again, _ = grow(Drawing().cuda())
    assert len({model.drawn[-1], again.model.drawn[-1]}) == 1
