"""What an epoch adds up to is the mean over its samples, however its batches were cut and scored."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from simic.hosts.custom import epoch_sums
from simic.hosts.custom.epoch_sums import EpochSums
from simic.hosts.custom.tasks import Kind, Task


@pytest.mark.parametrize("most", [2**20, 40, 8])
def test_means_are_those_of_all_samples(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """All batches wait, some do, none does; an owner may write into a batch after it was counted."""
    monkeypatch.setattr(epoch_sums, "_HELD_MOST", most)
    chance = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(22, 3, generator=chance), torch.arange(22) % 3
    sums = EpochSums(Task(Kind.CLASS), slots=1, layers=1)
    for few, theirs in zip(logits.clone().split(4), labels.clone().split(4), strict=True):
        sums.add(few, theirs)
        few.zero_()
        theirs.zero_()
    assert sums.samples == 22
    loss, accuracy = sums.means()
    assert loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-6)
    assert accuracy == pytest.approx(float((logits.argmax(dim=1) == labels).double().mean()))
