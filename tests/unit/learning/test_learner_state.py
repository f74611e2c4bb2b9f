"""What a round resumes from: weights, moments and counters, read back to the bit, and refused if they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from simic.contracts.errors import ContractError
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.learner import Learner
from simic.learning.learner_state import (
    MOMENTS_NAME,
    STATE_NAME,
    LearnerState,
    SamplerState,
    read_pass_counts,
    read_state,
    write_state,
)

CONFIG = TrainConfig(network=NetworkConfig(hidden=8, layers=1))
WEIGHT = "op_head.2.bias"
STATE = LearnerState(
    updates=7,
    rounds=2,
    advantage_scale=3.5,
    snapshots=["a" * 64, "b" * 64],
    sampler=SamplerState(seed=5, passes=4, counts={"c" * 32: 3}),
)
Tensors = dict[str, Tensor]


def learner(seed: int) -> Learner:
    return Learner(PolicyNetwork(NetworkShape.of(CONFIG.network, blueprint_names()), seed=seed), CONFIG)


@pytest.fixture
def written(tmp_path: Path) -> Learner:
    """The learner of a policy head that has made a step; the value has none, and no moments."""
    own = learner(1)
    for parameter in own.network.policy_parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    own.optimizer.step()
    write_state(tmp_path, STATE, own.network, own.optimizer)
    return own


def test_what_was_written_is_read_to_the_bit(tmp_path: Path, written: Learner) -> None:
    other = learner(2)
    assert read_state(tmp_path, other.network, other.optimizer) == STATE
    assert read_pass_counts(tmp_path) == {"c" * 32: 3}
    pairs = zip(written.network.named_parameters(), other.network.named_parameters(), strict=True)
    for (name, one), (_, same) in pairs:
        assert torch.equal(one, same)
        moments, found = written.optimizer.state.get(one, {}), other.optimizer.state.get(same, {})
        assert set(moments) == set(found) == (set() if name.startswith("value") else {"exp_avg", "exp_avg_sq", "step"})
        assert all(torch.equal(moments[kind], found[kind]) for kind in moments)


FAULTS: list[tuple[str, Callable[[Tensors], Tensors]]] = [
    ("not finite numbers", lambda own: {**own, f"{WEIGHT}.weight": own[f"{WEIGHT}.weight"] * torch.nan}),
    ("not finite numbers", lambda own: {**own, f"{WEIGHT}.exp_avg_sq": own[f"{WEIGHT}.exp_avg_sq"] * torch.inf}),
    ("of type float32", lambda own: {**own, f"{WEIGHT}.exp_avg": own[f"{WEIGHT}.exp_avg"].double()}),
    ("missing or of another shape", lambda own: {**own, f"{WEIGHT}.weight": own[f"{WEIGHT}.weight"][:1]}),
    ("missing or of another shape", lambda own: without(own, f"{WEIGHT}.weight")),
    ("moments of op_head.2.bias are incomplete", lambda own: without(own, f"{WEIGHT}.step")),
    ("have another shape", lambda own: {**own, f"{WEIGHT}.exp_avg": own[f"{WEIGHT}.exp_avg"][:1]}),
    ("have another shape", lambda own: {**own, f"{WEIGHT}.step": torch.ones(1)}),
    ("unknown moments", lambda own: {**own, "other.weight": torch.ones(1)}),
]


def without(own: Tensors, name: str) -> Tensors:
    return {key: value for key, value in own.items() if key != name}


@pytest.mark.parametrize(("message", "change"), FAULTS)
@pytest.mark.usefixtures("written")
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, message: str, change: Callable[[Tensors], Tensors]
) -> None:
    changed = change(load_file(tmp_path / MOMENTS_NAME))
    save_file({name: value.contiguous() for name, value in changed.items()}, tmp_path / MOMENTS_NAME)
    other = learner(2)
    with pytest.raises(ContractError, match=message):
        read_state(tmp_path, other.network, other.optimizer)


@pytest.mark.usefixtures("written")
def test_files_that_are_missing_or_malformed_are_refused(tmp_path: Path) -> None:
    other = learner(2)
    for name, message in ((MOMENTS_NAME, "the file is malformed"), (STATE_NAME, "is malformed")):
        (tmp_path / name).write_bytes(b"no such file")
        with pytest.raises(ContractError, match=message):
            read_state(tmp_path, other.network, other.optimizer)
        (tmp_path / name).unlink()
        with pytest.raises(ContractError, match="is missing: a continuation needs"):
            read_state(tmp_path, other.network, other.optimizer)
        write_state(tmp_path, STATE, other.network, other.optimizer)
    (tmp_path / STATE_NAME).unlink()
    assert read_pass_counts(tmp_path) == {}
