"""Actions as the learner has them, from actions as reports have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, OPS, TEMPOS, Action

__all__ = ["actions_to_rows"]


def actions_to_rows(actions: Sequence[Action], blueprints: tuple[str, ...]) -> NDArray[np.int16]:
    """Return indices [N, A]; -1 where a factor is absent."""
    choices: tuple[Sequence[Any], ...] = (
        OPS, range(1024), blueprints, ALPHA_TARGETS, ALPHA_SPEEDS, ALPHA_CURVES, TEMPOS,
    )  # fmt: skip
    return np.array(
        [
            [
                -1 if (value := getattr(action, head.value)) is None else options.index(value)
                for head, options in zip(HEADS, choices, strict=True)
            ]
            for action in actions
        ],
        dtype=np.int16,
    ).reshape(len(actions), len(HEADS))
