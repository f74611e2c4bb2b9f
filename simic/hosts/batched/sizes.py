"""Sizes of a batched host: stem, slot 0, block 1, slot 1, block 2, slot 2, head.

Block i is x + V relu(W x). Shapes: N hosts, B samples, D features.
Sizes per host are whole multiples of 32 floats wherever a transcendental function is applied, because
vectorised kernels may round the tail of an array differently from its body, and where the tail begins
depends on the number of hosts.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BATCH",
    "BLOCKS",
    "CLASSES",
    "CLIP_NORM",
    "CONNECTS",
    "DIGIT",
    "HIDDEN",
    "IMAGE",
    "INPUTS",
    "LAYERS",
    "LEARNING_RATE",
    "MOMENTUM",
    "MONITORS",
    "SAMPLES",
    "SLOTS",
    "STATISTIC_RATE",
    "STEPS",
    "WIDTH",
]

DIGIT: Final = 16
"""Features of one digit."""
IMAGE: Final = 8
"""Pixels of an image's edge."""
INPUTS: Final = 2 * DIGIT + 2
"""Digit a, digit b, selector, and a constant one for the stem's bias."""
WIDTH: Final = 24
"""Features of the hidden state of the default trunk, D."""
HIDDEN: Final = 16
"""Largest number of hidden units of a block."""
CLASSES: Final = 10
BLOCKS: Final = 2
"""Blocks of the default trunk, and of a recipe."""
SLOTS: Final = 3
"""Slot i sits on layer i's output."""
LAYERS: Final = 4
"""Stem, two blocks, head."""
CONNECTS: Final = ((0, 1), (1, 2), (2, 3))
MONITORS: Final = ((0, 0), (1, 1), (2, 2))

SAMPLES: Final = 512
"""Samples per epoch."""
BATCH: Final = 32
STEPS: Final = SAMPLES // BATCH
LEARNING_RATE: Final = 0.05
MOMENTUM: Final = 0.9
STATISTIC_RATE: Final = 0.1
"""Share of its distance to the value of the batch by which a step moves a running statistic."""
CLIP_NORM: Final = 5.0
"""Clip norm of a host's gradient together with its active seeds, and of an incubating seed's alone."""
