"""What rounds the numbers of trials, besides the code."""

from __future__ import annotations

import platform

import torch

__all__ = ["arithmetic", "processor"]


def arithmetic(device: str) -> dict[str, str]:
    """Return the version of PyTorch and the kind of processor: with others, trials of the same hosts end otherwise.

    ``device`` is that of the world.
    """
    return {"torch": str(torch.__version__), "processor": processor(device)}


def processor(device: str) -> str:
    """Return the kind of the processor, with the instructions that PyTorch uses on it, and that of an accelerator."""
    own = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    is_accelerated = device == "cuda" and torch.cuda.is_available()  # without one, no host is grown
    return f"{own}, {torch.cuda.get_device_name()}" if is_accelerated else own
