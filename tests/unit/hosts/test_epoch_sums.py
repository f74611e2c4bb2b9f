"""What an epoch adds up to is the mean over its samples, however its batches were cut and scored."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from simic.hosts.custom import epoch_sums
from simic.hosts.custom.epoch_sums import EpochSums
from simic.hosts.custom.tasks import IGNORED, Kind, Task


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


@pytest.mark.parametrize("most", [2**20, 8])
@pytest.mark.parametrize("kind", [Kind.CLASS, Kind.POSITIONS])
def test_labels_that_do_not_count_change_no_mean(monkeypatch: pytest.MonkeyPatch, kind: Kind, most: int) -> None:
    """Batches differ in how many labels count: in one all, in another none, and one has no sample."""
    monkeypatch.setattr(epoch_sums, "_HELD_MOST", most)
    chance = torch.Generator().manual_seed(0)
    shape = (16,) if kind is Kind.CLASS else (16, 5)
    logits, labels = torch.randn(*shape, 3, generator=chance), torch.randint(3, shape, generator=chance)
    labels[torch.rand(shape, generator=chance) < 0.5] = IGNORED
    labels[4:8] = IGNORED
    logits[4] = torch.nan
    sums = EpochSums(Task(kind), slots=1, layers=1)
    for rows in (*torch.arange(16).split(4), torch.arange(0)):
        sums.add(logits[rows], labels[rows])
    loss, accuracy = sums.means()
    counts = labels != IGNORED
    assert loss == pytest.approx(float(cross_entropy(logits[counts], labels[counts])), rel=1e-6)
    assert accuracy == pytest.approx(float((logits.argmax(dim=-1) == labels)[counts].double().mean()))
    assert sums.counted == int(counts.sum())


def test_a_batch_of_no_numbers_changes_no_mean() -> None:
    targets = torch.tensor([[1.0, 2.0], [3.0, 2.5]])
    sums = EpochSums(Task(Kind.NUMBERS, 0.5), slots=1, layers=1)
    for rows in targets.split([0, 1, 1]):
        sums.add(rows + 1.0, rows)
    assert sums.means() == pytest.approx((2.0, 1 / 3))


def test_an_error_while_batches_are_scored_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    sums = EpochSums(Task(Kind.CLASS), slots=1, layers=1)
    sums.add(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(Task, "totals", fail)
        sums.means()
    assert sums.means() == pytest.approx((0.31326, 1.0), rel=1e-4)
