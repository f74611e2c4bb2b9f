"""What every controller is: scripted ones and learned ones act through this one door."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations

__all__ = ["Controller"]


class Controller(Protocol):
    """Decides for N hosts at once; holds no generator, so equal arguments give equal decisions."""

    @property
    def name(self) -> str:
        """As reported with every decision."""

    @property
    def policy_version(self) -> str | None:
        """Digest of the acting policy; None for a controller without weights."""

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:
        """One action per host; ``uniforms`` float64 [N, heads] in [0, 1) are the only source of chance."""
