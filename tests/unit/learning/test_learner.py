"""One update, in its one order."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from simic.contracts.errors import ContractError, TrainingError
from simic.contracts.settings.training import TrainConfig
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.rates import LrSchedule

FLAT = LrSchedule.constant(0, 1.0)


class TwoNumbers(nn.Module):
    """A policy of one number and a value of one number."""

    def __init__(self, policy: float = 1.0, value: float = 2.0) -> None:
        super().__init__()
        self.policy, self.value = nn.Parameter(torch.tensor(policy)), nn.Parameter(torch.tensor(value))

    def policy_parameters(self) -> list[nn.Parameter]:
        return [self.policy]

    def value_parameters(self) -> list[nn.Parameter]:
        return [self.value]


def learner(**changes: Any) -> Learner:
    config = TrainConfig(**{"policy_lr": 1e-2, "value_lr": 1e-3, **changes})
    return Learner(TwoNumbers(), config)  # type: ignore[arg-type]


def loss(total: Tensor) -> Callable[[slice], Loss]:
    return lambda _: Loss(total, {"seen": total.detach()})


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> Tensor:
        raise RuntimeError("injected")


def test_d1_an_update_is_the_exact_adamw_step() -> None:
    """First step of AdamW: p (1 - lr wd) - lr g / (|g| + eps), g after the clip."""
    one = learner(weight_decay=0.1, clip_norm=0.5)
    network = one.network
    metrics = one.update(1, loss(3.0 * network.policy - 0.2 * network.value), FLAT, 0)
    assert network.policy.item() == pytest.approx(1.0 * (1 - 1e-2 * 0.1) - 1e-2 * 0.5 / (0.5 + 1e-8), rel=1e-6)
    assert network.value.item() == pytest.approx(2.0 * (1 - 1e-3 * 0.1) + 1e-3 * 0.2 / (0.2 + 1e-8), rel=1e-6)
    assert metrics["grad_norm_policy"] == pytest.approx(3.0)
    assert metrics["grad_norm_value"] == pytest.approx(0.2)
    assert one.updates == 1


def test_d12_the_clip_is_what_the_moments_remember() -> None:
    """Second step by hand: the first gradient counts as 0.5, not as the 3 it was before the clip."""
    one = learner(weight_decay=0.0, clip_norm=0.5)
    network = one.network
    for factor in (3.0, 0.2):
        one.update(1, loss(factor * network.policy), FLAT, 0)
    first = 1.0 - 1e-2 * 0.5 / (0.5 + 1e-8)
    mean = (0.1 * 0.9 * 0.5 + 0.1 * 0.2) / (1 - 0.9**2)
    square = (0.001 * 0.999 * 0.25 + 0.001 * 0.04) / (1 - 0.999**2)
    assert network.policy.item() == pytest.approx(first - 1e-2 * mean / (square**0.5 + 1e-8), rel=1e-6)


@pytest.mark.parametrize("group", ["policy", "value"])
@pytest.mark.parametrize("clip_norm", [0.1, 0.5, 3.0])
def test_d12_one_threshold_clips_every_update_and_every_norm_is_reported(clip_norm: float, group: str) -> None:
    one = learner(weight_decay=0.0, clip_norm=clip_norm)
    parameter, mean = getattr(one.network, group), 0.0
    for position, norm in enumerate((5.0, 0.05, 0.7), start=1):
        metrics = one.update(1, loss(norm * parameter), FLAT, 0)
        mean = 0.9 * mean + 0.1 * min(norm, clip_norm)
        assert metrics[f"grad_norm_{group}"] == pytest.approx(norm), "before the clip"
        assert one.optimizer.state[parameter]["exp_avg"].item() == pytest.approx(mean, rel=1e-5)
        assert one.updates == position


def test_m19_a_huge_gradient_in_one_group_does_not_shrink_the_other() -> None:
    calm, wild = learner(), learner()
    calm.update(1, loss(1.0 * calm.network.policy + 0.1 * calm.network.value), FLAT, 0)
    wild.update(1, loss(1e6 * wild.network.policy + 0.1 * wild.network.value), FLAT, 0)
    assert torch.equal(calm.network.value, wild.network.value)


def test_a_group_without_gradient_is_left_alone() -> None:
    """The value fit moves no policy, not even by weight decay."""
    one = learner(weight_decay=1.0)
    metrics = one.update(1, loss(one.network.value.square()), FLAT, 0)
    assert one.network.policy.item() == 1.0
    assert one.network.value.item() != 2.0
    assert "grad_norm_policy" not in metrics


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_d10_a_loss_that_is_not_finite_stops_and_changes_nothing(bad: float) -> None:
    one = learner()
    before = copy.deepcopy(one.network.state_dict())
    with pytest.raises(TrainingError, match="loss is"):
        one.update(1, loss(one.network.policy * bad), FLAT, 0)
    assert all(torch.equal(before[name], value) for name, value in one.network.state_dict().items())
    assert one.updates == 0


def test_d10_a_gradient_that_is_not_finite_stops_and_changes_nothing() -> None:
    """sqrt at 0: a finite loss with an infinite gradient."""
    one = learner()
    before = copy.deepcopy(one.network.state_dict())
    with pytest.raises(TrainingError, match="grad_norm_policy is"):
        one.update(1, loss((one.network.policy - 1.0).sqrt() + one.network.value), FLAT, 0)
    assert all(torch.equal(before[name], value) for name, value in one.network.state_dict().items())
    assert all(parameter.grad is None for parameter in one.network.parameters())


def test_d2_no_gradient_survives_a_failed_update() -> None:
    """A failure half way through backward; the next step equals a step that never saw it."""
    clean, failed = learner(), learner()
    reached: list[Tensor] = []
    failed.network.value.register_hook(reached.append)
    # Backward goes from the newest operation to the oldest: the value has its gradient when the policy's fails.
    failing = _FailsBackward.apply(failed.network.policy * 7.0)
    broken = failing + failed.network.value * 5.0
    with pytest.raises(RuntimeError, match="injected"):
        failed.update(1, loss(broken), FLAT, 0)
    assert [float(gradient) for gradient in reached] == [5.0]
    assert all(parameter.grad is None for parameter in failed.network.parameters())
    for one in (clean, failed):
        one.update(1, loss(one.network.policy.square() + 0.01 * one.network.value.square()), FLAT, 0)
    for name, value in clean.network.state_dict().items():
        assert torch.equal(value, failed.network.state_dict()[name])
    moments = [one.optimizer.state[one.network.value]["exp_avg"] for one in (clean, failed)]
    assert torch.equal(*moments), "no clip hides a gradient that was left over"


def test_an_update_notices_a_rate_that_its_schedule_did_not_set() -> None:
    one = learner()
    one.update(1, loss(one.network.policy.square()), FLAT, 0)
    one.optimizer.param_groups[0]["lr"] = 1.0
    with pytest.raises(ContractError, match="the learning rate of group policy is"):
        one.update(1, loss(one.network.policy.square()), FLAT, 1)


def test_a_network_is_in_training_mode_within_the_loss_alone() -> None:
    one, seen = learner(), []
    seen.append(one.network.training)

    def compute(part: slice) -> Loss:
        seen.append(one.network.training)
        return loss(one.network.policy.square())(part)

    one.update(1, compute, FLAT, 0)
    assert [*seen, one.network.training] == [False, True, False]


def test_frozen_parameters_are_in_no_group() -> None:
    network = TwoNumbers()
    network.policy.requires_grad_(False)
    one = Learner(network, TrainConfig())  # type: ignore[arg-type]
    assert [group["params"] for group in one.optimizer.param_groups] == [[], [network.value]]
