"""What a controller is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from simic.contracts.controllers import ControllerSpec
from simic.contracts.state import HostIdentity

__all__ = ["Request", "Verify"]

Verify = Callable[[Path], str]
"""Checks a sealed directory and returns its digest, or raises IntegrityError."""


class Request(NamedTuple):
    """A name with its parameters, and the hosts to act on, in the order of the observations."""

    spec: ControllerSpec
    hosts: Sequence[HostIdentity]
    verify: Verify | None = None
