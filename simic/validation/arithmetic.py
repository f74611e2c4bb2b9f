"""What rounds the numbers of trials, besides the code."""

from __future__ import annotations

import platform

import torch

__all__ = ["arithmetic", "processor"]


def arithmetic() -> dict[str, str]:
    """Return the version of PyTorch and the kind of processor: with others, trials of the same hosts end otherwise."""
    return {"torch": str(torch.__version__), "processor": processor()}


def processor() -> str:
    """Return the kind of the processor, with the instructions that PyTorch uses on it."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
