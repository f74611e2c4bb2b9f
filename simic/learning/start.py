"""Where a training begins: nowhere, at its own last round, or at another policy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["StartPoint"]


class StartPoint(NamedTuple):
    """A sealed policy to go on from."""

    path: Path
    is_continuation: bool
    """True: the next round of the run that made it; optimiser, learning rates and pass counts go on. False: weights,
    feature statistics and value scale only; optimiser and counts begin anew, the supervised phases are skipped, and
    the steps are as small as a round's."""
