"""A verified policy as files that run without Simic."""

from __future__ import annotations

import io
from typing import Any

import torch

from simic.api.policy import Policy, loaded_of
from simic.controllers.portable import export_program
from simic.controllers.portable_inputs import describe_inputs

__all__ = ["portable_files"]


def portable_files(policy: Policy) -> tuple[bytes, dict[str, Any]]:
    """Return the archive of a ``torch.export`` program, and the document that says how to make its inputs."""
    archive = io.BytesIO()
    torch.export.save(export_program(loaded_of(policy)), archive)
    return archive.getvalue(), describe_inputs(policy.digest, policy.blueprints)
