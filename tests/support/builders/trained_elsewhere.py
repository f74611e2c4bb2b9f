"""What tests of trainers of other libraries share: digests of networks, reports in a home, examples of a page."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simic.app import data
from simic.app.container import Container
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

__all__ = ["digest_of", "landed_and_quarantined", "loss_of", "run_examples"]

PAGE = Path(__file__).parents[3] / "docs" / "trainers.md"


def digest_of(model: nn.Module) -> str:
    """Parameters and buffers of a model as one digest."""
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.state_dict().values())).hexdigest()


def loss_of(network: nn.Module, samples: tuple[Tensor, Tensor]) -> float:
    """Cross-entropy in evaluation mode; an output that is no tensor has ``logits``."""
    network.eval()
    with torch.no_grad():
        output = network(samples[0])
        return float(cross_entropy(getattr(output, "logits", output), samples[1]))


def landed_and_quarantined(root: Path) -> tuple[int, int]:
    """Reports on the bus of a home that land, and that do not."""
    receipt = data.ingest(Container(Home(root), load_profile("default"), 0))
    return receipt.landed, receipt.quarantined


def run_examples(heading: str) -> dict[str, object]:
    """Execute the examples of a section of docs/trainers.md in the working directory and return their names."""
    _, _, section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")
    blocks = re.findall(r"^```python\n(.*?)^```", section.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
    assert blocks, heading
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the text of our own page
    return names
