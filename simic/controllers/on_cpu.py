"""Controllers make their tensors on the CPU, whatever ``torch.set_default_device`` says in the program around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

__all__ = ["on_cpu"]

P = ParamSpec("P")
R = TypeVar("R")


def on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with the CPU as the device of the tensors that it makes."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        if torch.get_default_device().type == "cpu":  # the context would slow every operation down
            return function(*arguments, **named)
        with torch.device("cpu"):
            return function(*arguments, **named)

    return call
