"""Accuracy with which the first observation of a host tells the data that it is trained on.

Usage: python benchmarks/data_sources.py [--hosts 300] [--patches FILE] [--json] [--out FILE]
Hosts of the set ``images`` read the digits, or patches of two photographs that scikit-learn ships; their causes are
drawn from the same ranges. Before any training, a logistic regression is asked which of the two a host reads, by the
features that a policy gets. ``accuracy`` is the share of right answers on hosts that it was not fitted to, in five
parts; half of them are right by guessing. With ``--patches`` the patches are also kept, for
``simic trials --set images -o world.images=FILE``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from common.command_line import make_parser, show
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.controllers.features import encode, feature_names
from simic.hosts.host_sets import draw_keys, identify
from simic.hosts.mixed_ensemble import ensemble_of

SET, CLASSES, PER_CLASS = "images", 10, 180
EVERYTHING, REST = "all features", "all but spreads, dimensions"
GROUPS: dict[str, tuple[str, ...]] = {
    "spreads": ("spread",),
    "dimensions": ("dimension",),
    "losses, accuracies": ("loss", "accuracy"),
    "weights, gradients": ("weight_norm", "gradient"),
    "widths, sizes": ("width", "parameters"),
}
"""Parts of the names of the features in a group."""
Floats = NDArray[np.float64]


def photo_patches() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Patches [N, 8, 8] of photographs and their classes [N]: the direction in which a patch grows brighter."""
    draw = np.random.default_rng(0)
    patches: list[list[NDArray[np.uint8]]] = [[] for _ in range(CLASSES)]
    photos = [photo.mean(axis=2) for photo in load_sample_images().images]
    while min(map(len, patches)) < PER_CLASS:
        photo = photos[draw.integers(len(photos))]
        top, left = draw.integers(photo.shape[0] - 32), draw.integers(photo.shape[1] - 32)
        patch = photo[top : top + 32, left : left + 32].reshape(8, 4, 8, 4).mean(axis=(1, 3))
        down, right = (slope.sum() for slope in np.gradient(patch))
        if np.hypot(down, right) > 100:  # a flat patch has no direction
            turn = (np.arctan2(down, right) + np.pi) / (2 * np.pi)
            patches[int(turn * CLASSES) % CLASSES].append(patch.astype(np.uint8))
    order = draw.permutation(CLASSES * PER_CLASS)
    images = np.concatenate([np.stack(one[:PER_CLASS]) for one in patches])
    return images[order], np.repeat(np.arange(CLASSES), PER_CLASS)[order]


def pooled(values: NDArray[np.float32], ptr: NDArray[np.int64]) -> Floats:
    """Mean, least and greatest of each column over the nodes of each host: [nodes, F] -> [N, 3 F]"""
    nodes = [values[begin:end] for begin, end in pairwise(ptr)]
    return np.stack([np.concatenate([own.mean(0), own.min(0), own.max(0)]) for own in nodes]).astype(np.float64)


def first_features(keys: list[int], images: Path | None) -> tuple[Floats, list[str]]:
    """Return the features that a policy reads of N hosts before any training, [N, F], and their names, [F].

    Columns of slots and layers are pooled. ``images`` replaces the digits.
    """
    ensemble = ensemble_of(identify(SET, keys), WorldConfig(set=SET, images=None if images is None else str(images)))
    observations = ensemble.observe()
    graphs, names = encode(observations), feature_names(observations.blueprints)
    parts = [
        graphs.context_x.numpy(),
        pooled(graphs.slot_x.numpy(), observations.slot_ptr),
        pooled(graphs.layer_x.numpy(), observations.layer_ptr),
    ]
    return np.concatenate(parts, axis=1), [*names["context"], *3 * names["slot"], *3 * names["layer"]]


def told_apart(first: Floats, second: Floats) -> float:
    """Return the share of hosts that a regression, fitted to the others, assigns to the right source."""
    features, source = np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2_000))
    return float(cross_val_score(model, features, source, cv=5).mean())


def measure(hosts: int, patches: Path) -> dict[str, float]:
    """Return the accuracy with all features, with each group alone, and without spreads and dimensions."""
    keys = draw_keys(SET, Split.TRAIN, 2 * hosts)
    digits, names = first_features(keys[::2], None)
    photos, _ = first_features(keys[1::2], patches)

    def accuracy(parts: tuple[str, ...], *, is_left_out: bool = False) -> float:
        columns = [any(part in name for part in parts) is not is_left_out for name in names]
        return told_apart(digits[:, columns], photos[:, columns])

    found = {EVERYTHING: accuracy((), is_left_out=True)}
    found |= {group: accuracy(parts) for group, parts in GROUPS.items()}
    return found | {REST: accuracy(GROUPS["spreads"] + GROUPS["dimensions"], is_left_out=True)}


def write_patches(path: Path) -> None:
    """Write the patches as a user's images."""
    images, labels = photo_patches()
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, images=images, labels=labels)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--hosts", type=int, default=300, help="hosts that read each of the two")
    parser.add_argument("--patches", type=Path, help="also keep the patches in this .npz file")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        patches = arguments.patches or Path(folder) / "patches.npz"
        write_patches(patches)
        found = measure(arguments.hosts, patches)
    result = {"name": "data_sources", "hosts": arguments.hosts, "accuracy": found}
    table = "\n".join(f"{group:28}{accuracy:6.2f}" for group, accuracy in found.items())
    show(arguments, result, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
