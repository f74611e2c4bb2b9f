"""Memory: what a process may use, and how a refusal is recognised."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from simic.contracts.errors import OutOfMemoryError, ResourceLimitError
from simic.learning.limits import TrainingLimits
from simic.learning.safety.memory import memory_limit_bytes, out_of_memory_typed

MACHINE = float(psutil.virtual_memory().total)


@pytest.mark.parametrize(
    ("content", "expected"),
    [("1000000\n", 1e6), ("max\n", 2e6), ("9223372036854771712\n", 2e6), ("", 2e6), (None, 2e6)],
)
def test_d11_the_limit_is_the_least_of_setting_group_and_machine(
    content: str | None, expected: float, tmp_path: Path
) -> None:
    file = tmp_path / "memory.max"
    if content is not None:
        file.write_text(content)
    assert memory_limit_bytes(2e6, (file,)) == expected
    assert memory_limit_bytes(1e30, (tmp_path / "none",)) == MACHINE


def test_d11_pressure_is_resident_memory_over_the_limit_on_a_cpu_too() -> None:
    """Not over the process's own peak, which would always be near 1."""
    rss = psutil.Process().memory_info().rss
    assert TrainingLimits(1.0, 2 * rss / 1e9, 0.0).memory_share == pytest.approx(0.5, rel=0.1)
    assert TrainingLimits(1.0, rss / 0.95e9, 0.0).memory_share == pytest.approx(0.95, rel=0.1)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_a_refusal_of_memory_has_a_type_and_a_cause(error: Exception) -> None:
    with (
        pytest.raises(OutOfMemoryError, match="training did not get the memory") as caught,
        out_of_memory_typed("training"),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, ResourceLimitError)


def test_what_torch_really_says_is_recognised() -> None:
    with pytest.raises(OutOfMemoryError, match="DefaultCPUAllocator"), out_of_memory_typed("training"):
        torch.empty(1 << 60, dtype=torch.uint8)


def test_another_error_passes() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), out_of_memory_typed("training"):
        raise RuntimeError("shapes differ")
