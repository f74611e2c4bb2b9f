"""The interface of all controllers, scripted and learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.controllers import ControllerSpec
from simic.contracts.state import HostIdentity

__all__ = ["Controller", "ControllerContext", "Verified", "Verify"]


class Controller(Protocol):
    """Decides for N hosts at once, without random state: equal episodes give equal decisions.

    ``decide`` is called once per epoch of an episode, in order; a controller may remember what it observed.
    """

    @property
    def name(self) -> str:
        """Return the name that is reported with every decision."""

    @property
    def policy_version(self) -> str | None:
        """Return the digest of the policy, or None for a controller without weights."""

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:
        """Return one legal action per host; ``uniforms`` float64 [N, heads] in [0, 1) are the only random numbers."""


class Verified(NamedTuple):
    """The content of a verified seal."""

    digest: str
    files: Mapping[str, str]
    """SHA-256 in hexadecimal of each sealed file, by name."""


Verify = Callable[[Path], Verified]
"""Verifies a sealed directory and returns its seal; raises IntegrityError, or ConfigError without a keyring."""


class ControllerContext(NamedTuple):
    """Arguments of a controller's ``make``: spec, hosts in the order of the observations, and seal verifier."""

    spec: ControllerSpec
    hosts: Sequence[HostIdentity]
    verify: Verify
