"""Learning rates: their schedule, who writes them, and that nobody else does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch.optim import SGD, Optimizer

import simic
from simic.contracts.errors import ContractError
from simic.learning.rates import LrController, LrPolicy, LrSchedule

SOURCES = Path(simic.__file__).parent
PEAKS = {LrPolicy.POLICY_NETWORK: 1e-2, LrPolicy.VALUE_NETWORK: 1e-3}


def optimizer(**names: float) -> Optimizer:
    """One group per name, at the rate given."""
    return SGD([{"name": name, "params": [torch.zeros(1)], "lr": rate} for name, rate in names.items()])


def test_warm_up_and_cosine_by_hand() -> None:
    schedule = LrSchedule(warmup=3, length=13, first=1.0, last=0.2)
    assert [schedule.share(update) for update in range(3)] == pytest.approx([0.25, 0.5, 0.75])
    assert schedule.share(3) == pytest.approx(1.0)
    assert schedule.share(8) == pytest.approx(0.6)
    assert schedule.share(13) == schedule.share(500) == pytest.approx(0.2)
    shares = [schedule.share(update) for update in range(3, 14)]
    assert shares == sorted(shares, reverse=True)


def test_rates_are_shares_of_each_groups_own_peak_and_never_below_the_least() -> None:
    rates = LrController(optimizer(policy=1e-2, value=1e-3), PEAKS, minimum=5e-4)
    assert rates.apply(0.8) == {"lr_policy": pytest.approx(8e-3), "lr_value": pytest.approx(8e-4)}
    assert rates.apply(0.01) == {"lr_policy": 5e-4, "lr_value": 5e-4}
    assert rates.apply(1.0)["lr_policy"] == 1e-2


def test_d15_only_the_controller_writes_a_rate_into_an_optimiser() -> None:
    """No assignment to ``[...]["lr"]``, no update of a group and no scheduler of torch anywhere else."""
    found = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py") if writes_rates(path.read_text())}
    assert found == {"learning/rates.py"}


def writes_rates(source: str) -> bool:
    return any(_writes_rate(node) for node in ast.walk(ast.parse(source)))


def _writes_rate(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(slice=ast.Constant(value="lr"), ctx=ast.Store() | ast.Del()):
            return True
        case ast.Call(func=ast.Attribute(attr="update" | "setdefault"), args=args, keywords=keywords):
            return any(keyword.arg == "lr" for keyword in keywords) or any('"lr"' in _text(one) for one in args)
        case ast.Attribute(attr="lr_scheduler") | ast.ImportFrom(module="torch.optim.lr_scheduler"):
            return True
    return False


def _text(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')


@pytest.mark.parametrize(
    "source",
    [
        "group['lr'] = 1",
        "optimizer.param_groups[0]['lr'] *= 2",
        "torch.optim.lr_scheduler.StepLR(o, 1)",
        "from torch.optim.lr_scheduler import StepLR",
        "group.update(lr=1)",
        "group.update({'lr': 1})",
    ],
)
def test_d15_the_search_finds_what_it_is_to_find(source: str) -> None:
    assert writes_rates(source)


def test_pd3_a_rate_that_somebody_else_changed_is_noticed() -> None:
    own = optimizer(policy=1e-2, value=1e-3)
    rates = LrController(own, PEAKS, minimum=0.0)
    rates.apply(0.5)
    own.param_groups[1]["lr"] *= 1 + 1e-12
    rates.apply(0.5)
    own.param_groups[1]["lr"] *= 1 + 1e-6
    with pytest.raises(ContractError, match=r"learning rate of group value is 0\.0005.*expected 0\.0005"):
        rates.apply(0.5)


def test_pd3_a_group_needs_a_declared_policy() -> None:
    with pytest.raises(ContractError, match=r"need a declared learning-rate policy.*found \['bias'\]"):
        LrController(optimizer(policy=1e-2, bias=1e-3), PEAKS, minimum=0.0)
    with pytest.raises(ContractError, match=r"group policy is 0\.5, expected 0\.01"):
        LrController(optimizer(policy=0.5, value=1e-3), PEAKS, minimum=0.0)
