"""The device of a training: chosen once; what is below follows the tensors in hand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simic.contracts.errors import ConfigError
from simic.contracts.settings.training import DeviceName, TrainConfig
from simic.replay.dataset import GraphDataset

__all__ = ["choose_device", "pinned_numerics", "place_on"]

_LOG = logging.getLogger(__name__)
RESIDENT_SHARE = 0.5
"""Largest share of a device's free memory that a data set may take; weights, activations and moments need the rest."""


def choose_device(name: DeviceName) -> torch.device:
    """Return the device of ``train.device``.

    Raises:
        ConfigError: for cuda on a machine without a CUDA device.
    """
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError(
            f"train.device = cuda: this machine has no CUDA device that PyTorch {torch.__version__} can use; use "
            "train.device = cpu or auto, or install a PyTorch built for CUDA where there is one"
        )
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")


def place_on(store: GraphDataset, device: torch.device) -> GraphDataset:
    """Return the data set with batches on ``device``; its columns lie there too if they fit."""
    if device.type == "cpu":
        return store
    free, _ = torch.cuda.mem_get_info(device)
    is_resident = not store.is_mapped and store.size_bytes <= RESIDENT_SHARE * free
    if not is_resident:
        _LOG.info("the snapshot's %.1f GB stay in host memory; batches are sent", store.size_bytes / 1e9)
    return store.to(device, is_resident=is_resident)


@contextmanager
def pinned_numerics(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Set the number of threads, on which results depend, and TF32 on CUDA; both are restored afterwards."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(config.threads)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
