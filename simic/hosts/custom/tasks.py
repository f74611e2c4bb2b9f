"""What a module is trained for: classes, a class per position, two classes per output, or numbers; and its scores.

A score is a log-likelihood and a hit per sample. Of several outputs with two classes each it is their mean. For
numbers, the log-likelihood is minus the squared error e as a share of the variance of the validation targets, so the
loss is 1 - R^2, and the hit is 1 / (1 + e), between 0 and 1.
Shapes: n samples, B batch, T positions, C classes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from simic.contracts.errors import DatasetError

__all__ = ["IGNORED", "Kind", "Task", "kind_of", "score_logits", "task_of"]

IGNORED = -100
"""The label of a sample or position that does not count, as in ``torch.nn.functional.cross_entropy``."""
_NUMBERS_CLASSES = 3
"""Classes whose uniform guess has about the loss of the mean as a prediction, which is 1; the governor compares."""


class Kind(StrEnum):
    """What a label is."""

    CLASS = "class"
    POSITIONS = "positions"
    BINARY = "binary"
    """0 or 1 for each output, which is the logit of 1."""
    NUMBERS = "numbers"


class Task(NamedTuple):
    """A kind of labels, and the scale of numbers."""

    kind: Kind
    variance: float = 1.0
    """Mean variance of the validation targets over samples; 1 for classes."""
    is_loss_judged: bool = True
    """Whether a large loss or constant outputs are a failure; not if numbers are trained under a loss of one's own."""

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Return the default loss: the mean cross-entropy, or the mean squared error of numbers; BINARY has none."""
        if self.kind is Kind.NUMBERS:
            return mse_loss(output, labels)
        if self.kind is Kind.POSITIONS:
            return cross_entropy(output.flatten(0, -2), labels.flatten())
        return cross_entropy(output, labels)

    def fault(self, output: Tensor, labels: Tensor) -> str | None:
        """Return what output and labels of a batch should be, if they do not fit each other."""
        if self.kind in (Kind.NUMBERS, Kind.BINARY):
            good = output.shape == labels.shape and labels.is_floating_point()
            what = "numbers and targets" if self.kind is Kind.NUMBERS else "logits and float32 labels"
            return None if good else f"{what} of one shape [B, ...]"
        good = output.shape[:-1] == labels.shape and labels.dtype == torch.int64
        good &= output.dim() == 2 if self.kind is Kind.CLASS else output.dim() > 2
        wanted = "logits [B, C] and int64 labels [B]"
        return None if good else wanted if self.kind is Kind.CLASS else "logits [B, T, C] and int64 labels [B, T]"

    def classes(self, output: Tensor) -> int:
        """Return the number of classes of an output."""
        return {Kind.NUMBERS: _NUMBERS_CLASSES, Kind.BINARY: 2}.get(self.kind) or int(output.shape[-1])

    def score(self, output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-likelihood and hit of each sample, float64 [n] each; their means are those of all positions."""
        if self.kind is Kind.CLASS:
            return score_logits(output, labels)
        if self.kind is Kind.NUMBERS:
            error = (output.double() - labels.double()).square().reshape(len(labels), -1).mean(dim=1) / self.variance
            return -error, 1.0 / (1.0 + error)
        if self.kind is Kind.BINARY:
            logits, wanted = (values.double().reshape(len(labels), -1) for values in (output, labels))
            loss = binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            hits = torch.where(wanted > 0.5, logits > 0.0, logits < 0.0)
            return -loss.mean(dim=1), hits.double().mean(dim=1)
        flat = labels.flatten()
        counts = flat != IGNORED
        likelihood, hits = score_logits(output.flatten(0, -2), flat.where(counts, flat.new_zeros(())))
        share = (counts / counts.double().mean()).view(len(labels), -1)
        return (likelihood.view_as(share) * share).mean(dim=1), (hits.view_as(share) * share).mean(dim=1)

    def totals(self, output: Tensor, labels: Tensor) -> Tensor:
        """Return sums of log-likelihoods and of hits over all samples or positions that count, and their number, [3].

        They are float64, on the device of ``output`` [B, ...]; B may be 0.
        """
        if self.kind in (Kind.NUMBERS, Kind.BINARY):
            likelihood, hits = self.score(output, labels) if len(labels) else output.new_zeros((2, 0)).double()
            return torch.stack([likelihood.sum(), hits.sum(), likelihood.new_tensor(len(labels))])
        flat = labels.flatten()
        counts = flat != IGNORED
        likelihood, hits = score_logits(output.flatten(0, -2), flat.where(counts, flat.new_zeros(())))
        nothing = likelihood.new_zeros(())
        return torch.stack(
            [values.where(counts, nothing).sum() for values in (likelihood, hits, torch.ones_like(hits))]
        )

    def largest_share(self, output: Tensor) -> float:
        """Return the share of samples or positions with the most frequent class, or whether all numbers are equal.

        Of several outputs with two classes each, it is the mean of their shares.
        """
        if self.kind is Kind.NUMBERS:
            return float((output == output[:1]).all())
        if self.kind is Kind.BINARY:
            positive = (output > 0.0).double().mean(dim=0)
            return float(torch.maximum(positive, 1.0 - positive).mean())
        best = output.flatten(0, -2).argmax(dim=1)
        return float(best.bincount().max()) / len(best)


def kind_of(labels: Tensor) -> Kind:
    """Return what labels [n, ...] are, by their type and shape alone."""
    if labels.is_floating_point():
        return Kind.NUMBERS
    return Kind.CLASS if labels.dim() == 1 else Kind.POSITIONS


def task_of(labels: Tensor, where: str, loss: Any = None) -> Task:
    """Return the task of validation labels: int64 [n] or [n, T, ...], or float32 [n, ...].

    Labels float32 of 0 and 1 are two classes if ``loss``, which training minimises, is the binary cross-entropy of
    logits as torch has it.

    Raises:
        DatasetError: for labels of another type, numbers that are not finite, or labels that are all alike.
    """
    if labels.dtype == torch.int64 and labels.dim() > 0:
        return Task(kind_of(labels))
    if labels.dtype != torch.float32 or labels.dim() == 0:
        raise DatasetError(
            f"{where}: labels must be int64 [n] or [n, T] for classes, or float32 [n, ...] for numbers, found "
            f"{labels.dtype} {list(labels.shape)}"
        )
    variance = float(labels.double().flatten(1 if labels.dim() > 1 else 0).var(dim=0, correction=0).mean())
    if not 0 < variance < float("inf"):
        raise DatasetError(f"{where}: expected finite targets that differ, found a variance of {variance:g}")
    is_binary = loss is binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)
    if is_binary and bool(((labels == 0) | (labels == 1)).all()):
        return Task(Kind.BINARY)
    is_squared = loss is None or loss is mse_loss or isinstance(loss, nn.MSELoss)
    return Task(Kind.NUMBERS, variance, is_loss_judged=is_squared)


def score_logits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-likelihood and hit of each sample, float64 [n] each; a tie for the largest logit is a miss."""
    index = labels.unsqueeze(1)
    wanted = logits.gather(1, index)[:, 0]
    others = logits.scatter(1, index, -torch.inf).amax(dim=1)
    likelihood = logits.log_softmax(dim=1).gather(1, index)[:, 0].double()
    return likelihood, (wanted > others).double()
