"""Names and colours of stages and operations, for figures and terminal.

The colours are the colour-blind safe palette of Okabe and Ito.
"""

from __future__ import annotations

from typing import Final

from simic.contracts.actions import Op
from simic.contracts.lifecycle import SeedStage

__all__ = [
    "BLACK", "BLUE", "GREEN", "GREY", "ORANGE", "PINK", "RED", "SKY", "STAGE_COLOURS", "YELLOW", "op_words",
    "stage_word",
]  # fmt: skip

BLACK: Final = "#000000"
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
RED: Final = "#D55E00"
PINK: Final = "#CC79A7"
GREY: Final = "#9A9A9A"

STAGE_COLOURS: Final = {
    SeedStage.GERMINATED: YELLOW,
    SeedStage.TRAINING: SKY,
    SeedStage.BLENDING: ORANGE,
    SeedStage.HOLDING: GREEN,
    SeedStage.FOSSILIZED: BLUE,
    SeedStage.PRUNED: RED,
    SeedStage.EMBARGOED: GREY,
    SeedStage.RESETTING: "#D9D9D9",
}
"""Colours of all stages except DORMANT, in lifecycle order."""


def stage_word(stage: SeedStage) -> str:
    """Return the name of a stage in a sentence."""
    return "fossilised" if stage is SeedStage.FOSSILIZED else stage.value.lower()


def op_words(op: Op) -> str:
    """Return the name of an operation in a sentence."""
    return "fossilise" if op is Op.FOSSILIZE else op.value.lower().replace("_", " ")
