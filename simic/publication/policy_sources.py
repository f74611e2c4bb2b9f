"""Where a consumer gets the policies that updates name, by digest; ``stored_policies`` is another place."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from simic.contracts.errors import ConfigError
from simic.trust.keys import SignatureCheck
from simic.trust.seal import Seal
from simic.trust.sealed_copy import copy_sealed

__all__ = ["FolderPolicies", "PolicySource"]


class PolicySource(Protocol):
    """Has sealed policies; nobody vouches for it."""

    def copy(self, digest: str, target: Path, keyring: SignatureCheck, most_bytes: int) -> Seal:
        """Copy the policy of this digest into the empty directory ``target``, and verify the copy.

        Raises:
            TransientError: if the policy is not there yet, or the source is away.
            IntegrityError: if it is not sealed as ``digest``, or its files are together larger than ``most_bytes``.
        """
        ...


class FolderPolicies:
    """Policies or Karns in a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        """Open the folder; raise ConfigError if there is none. ``name`` says what it holds."""
        if not folder.is_dir():
            raise ConfigError(f"{name}: expected the folder with the {name} by digest, found no folder at {folder}")
        self._folder = folder

    def copy(self, digest: str, target: Path, keyring: SignatureCheck, most_bytes: int) -> Seal:
        return copy_sealed(self._folder / digest, target, keyring, digest, most_bytes)
