"""A saved state that cannot be resumed, and one whose tensors lie elsewhere."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.builders.small_loops import INPUTS, LABELS, Grow, Net, grow, seed_of, train
from torch.optim import Optimizer

import simic
from simic.api.grower_state import to_arrays


def grown(steer: Callable[[Any], None], device: str = "cpu") -> tuple[simic.Grower, Optimizer]:
    """A Grower with a seed, after three epochs."""
    steer(Grow())
    torch.manual_seed(0)
    grower, optimizer = grow(Net().to(device))
    train(grower, optimizer, 3, given=[(INPUTS.to(device), LABELS.to(device))])
    return grower, optimizer


def lost_column(state: dict[str, Any]) -> None:
    del state["ensemble"]["slots.alpha"]


def wrong_column(state: dict[str, Any]) -> None:
    state["ensemble"]["readings.weight_norm"] = torch.zeros(1, 9)


def lost_epoch(state: dict[str, Any]) -> None:
    state["ensemble"]["pending.rent"] = torch.zeros(0, dtype=torch.int64)


def numbers_for_columns(state: dict[str, Any]) -> None:
    state["ensemble"]["pending.rent"] = torch.tensor(3)


def wrong_seed(state: dict[str, Any]) -> None:
    state["seeds"][0]["parameters"] = torch.zeros(1, 9)


def wrong_slot(state: dict[str, Any]) -> None:
    state["seeds"][7] = state["seeds"].pop(0)


def lost_decision(state: dict[str, Any]) -> None:
    del state["decision"]["masks"]["op"]


def lost_table(state: dict[str, Any]) -> None:
    state["decision"]["tables"]["layers"].pop("kind")


def wrong_action(state: dict[str, Any]) -> None:
    state["decision"]["decisions"]["actions"] = torch.zeros(1, 2, dtype=torch.int16)


def no_run(state: dict[str, Any]) -> None:
    del state["run_id"]


@pytest.mark.parametrize(
    "spoil",
    [
        lost_column,
        wrong_column,
        lost_epoch,
        numbers_for_columns,
        wrong_seed,
        wrong_slot,
        lost_decision,
        lost_table,
        wrong_action,
        no_run,
    ],
)
def test_a_damaged_state_leaves_the_grower_as_it_was(
    steer: Callable[[Any], None], spoil: Callable[[dict[str, Any]], None]
) -> None:
    grower, optimizer = grown(steer)
    damaged, good = (copy.deepcopy(grower.state_dict()) for _ in range(2))
    spoil(damaged)
    check_refused(grower, optimizer, damaged, good)


def check_refused(grower: simic.Grower, optimizer: Optimizer, state: Any, good: dict[str, Any]) -> None:
    growth, seed, observed = grower.growth, seed_of(grower.model), grower.state
    members = [id(member) for group in optimizer.param_groups for member in group["params"]]
    with pytest.raises(simic.ContractError, match="state"):
        grower.load_state_dict(state)
    assert grower.growth == growth
    assert grower.state == observed
    assert torch.equal(seed_of(grower.model), seed)
    assert [id(member) for group in optimizer.param_groups for member in group["params"]] == members
    assert str(grower.state_dict()) == str(good)
    grower.load_state_dict(good)
    train(grower, optimizer, 1)


def test_a_state_without_values_leaves_the_grower_as_it_was(steer: Callable[[Any], None]) -> None:
    """Tensors of the device meta have shapes alone."""
    grower, optimizer = grown(steer)
    good, file = grower.state_dict(), io.BytesIO()
    torch.save(good, file)
    file.seek(0)
    check_refused(grower, optimizer, torch.load(file, weights_only=True, map_location="meta"), good)


def test_tensors_that_cannot_be_arrays_as_they_are_are_copied() -> None:
    values = torch.arange(3.0, requires_grad=True)
    arrays = to_arrays({"one": values, "two": ["text"]})
    assert arrays["one"].tolist() == [0.0, 1.0, 2.0]
    assert arrays["two"] == ["text"]
    arrays["one"][0] = 5.0
    assert values.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_state_that_was_loaded_to_an_accelerator_resumes(steer: Callable[[Any], None]) -> None:
    grower, _ = grown(steer, "cuda")
    file = io.BytesIO()
    torch.save(grower.state_dict(), file)
    file.seek(0)
    again, optimizer = grown(steer, "cuda")
    again.load_state_dict(torch.load(file, weights_only=True, map_location="cuda"))
    assert again.state == grower.state
    train(again, optimizer, 1, given=[(INPUTS.cuda(), LABELS.cuda())])
