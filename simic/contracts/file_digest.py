"""A file by its content, as seals and snapshots name it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest

__all__ = ["FileDigest"]


class FileDigest(Contract):
    """One file of a sealed directory."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    sha256: Digest
    size_bytes: Count
