"""A plain PyTorch training loop with a growth controller, against the same loop without one.

Usage: python grow_loop.py [--policy heuristic] [--out-of-range warn] [--runs 16] [--noise 0.4] [--small]
                           [--fresh-statistics] [--plot growth.png] [--json]
The network is a small CNN on 300 of scikit-learn's digits, of which some have a wrong label.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import update_bn

import simic

EPOCHS, TRAIN, VALIDATION = 20, 300, 500


class DigitNet(nn.Module):
    """Two convolutions and a linear classifier; with ``is_small`` half the channels, and a mean over positions."""

    def __init__(self, *, is_small: bool) -> None:
        super().__init__()
        first, second = (6, 8) if is_small else (8, 16)
        self.stem = nn.Sequential(nn.Conv2d(1, first, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(first, second, 3, stride=2, padding=1), nn.BatchNorm2d(second), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1) if is_small else nn.Identity()
        self.head = nn.Linear(second if is_small else 16 * second, 10)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 1, 8, 8] -> [B, 10]"""
        logits: Tensor = self.head(self.pool(self.down(self.stem(images))).flatten(1))
        return logits


def digits(noise: float) -> list[tuple[Tensor, Tensor]]:
    """Training, validation and test samples; a share ``noise`` of the training labels is drawn at random."""
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 8 - 1
    labels = torch.from_numpy(bunch.target)
    order = torch.randperm(len(labels))
    parts = [
        (images[rows], labels[rows]) for rows in order.split([TRAIN, VALIDATION, len(labels) - TRAIN - VALIDATION])
    ]
    wrong = torch.rand(TRAIN) < noise
    parts[0] = parts[0][0], torch.where(wrong, torch.randint(10, (TRAIN,)), parts[0][1])
    return parts


def train(
    seed: int,
    policy: simic.Policy | str | None,
    out_of_range: str = "warn",
    *,
    noise: float,
    is_small: bool,
    has_fresh_statistics: bool = False,
) -> tuple[nn.Module, float, list[str]]:
    """Return the trained network, its test accuracy and the kept seeds; ``policy`` None is the plain loop.

    With ``has_fresh_statistics`` batch normalisation gets the means and variances of the finished network.
    """
    torch.manual_seed(seed)
    (images, labels), validation, (test_images, test_labels) = digits(noise)
    model = DigitNet(is_small=is_small)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    grower = None
    if policy is not None:
        grower = simic.Grower(
            model,
            optimizer,
            slots=["stem", "down"],
            validation=validation,
            epochs=EPOCHS,
            policy=policy,
            out_of_range=out_of_range,
        )
    loss = cross_entropy if grower is None else grower.loss
    for _ in range(EPOCHS):
        model.train()
        for rows in torch.randperm(TRAIN).split(25):
            optimizer.zero_grad()
            loss(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        if grower is not None:
            grower.step()
    kept = []
    if grower is not None:
        kept = [str(slot.blueprint) for slot in grower.state.slots if slot.stage.value == "FOSSILIZED"]
        model = grower.finalize()
    if has_fresh_statistics:
        update_bn(images.split(25), model)
    model.eval()
    with torch.no_grad():
        return model, float((model(test_images).argmax(1) == test_labels).float().mean()), kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="heuristic", help="heuristic (default), champion, or a policy's directory")
    parser.add_argument("--out-of-range", default="warn", help="warn (default), or wait, to grow no unusual network")
    parser.add_argument("--keys", help="folder of public keys, for a policy's directory")
    parser.add_argument("--runs", type=int, default=16, help="trainings of each kind, seeds from 0 on (default 16)")
    parser.add_argument("--noise", type=float, default=0.4, help="share of labels drawn at random (default 0.4)")
    parser.add_argument("--small", action="store_true", help="half the channels, and a mean over positions")
    parser.add_argument(
        "--fresh-statistics", action="store_true", help="estimate batch normalisation's statistics again at the end"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="also draw the difference of every seed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policy: simic.Policy | str = arguments.policy
    if arguments.policy != "heuristic":
        try:
            policy = simic.load_policy(arguments.policy, trusted_keys=arguments.keys)
        except simic.SimicError as error:
            parser.error(str(error))
    task = {
        "noise": arguments.noise,
        "is_small": arguments.small,
        "has_fresh_statistics": arguments.fresh_statistics,
    }
    kept: Counter[str] = Counter()

    def score(arm: str, seed: int) -> tuple[float, int]:
        """Return the test accuracy in per cent and the parameters."""
        model, accuracy, seeds = train(seed, None if arm == "plain" else policy, arguments.out_of_range, **task)
        kept.update(set(seeds))
        return 100 * accuracy, sum(one.numel() for one in model.parameters())

    found = simic.compare_trainings(score, ["plain", "grown"], seeds=range(arguments.runs))
    if arguments.plot is not None:
        found.plot(arguments.plot)
    if arguments.json:
        print(json.dumps({**found.model_dump(mode="json"), "kept": dict(sorted(kept.items()))}))
    else:
        print(found)
        print(f"trainings that kept a seed of each kind: {dict(sorted(kept.items())) or 'none'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
