"""Local copies of the versions of a registered model, one directory for each digest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.names import judged_name
from simic.registry.registry import Registry
from simic.runtime.files import os_error_as_transient
from simic.runtime.home import HOME_VARIABLE, Home
from simic.runtime.locks import exclusive
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["LocalCopies"]

FETCH_WAIT_S = 60.0


class LocalCopies:
    """Fetches copies that are missing or damaged from the registry of one model."""

    def __init__(self, home: Home, keyring: Keyring, registry: Callable[[], Registry], model: str, lock: str) -> None:
        """Name the parts of the home; ``lock`` is the name of the lock that a fetching process holds."""
        self._home, self._keyring, self._registry = home, keyring, registry
        self._model, self._lock = model, lock

    def is_as_sealed(self, path: Path, digest: str) -> bool:
        """Return whether ``path`` holds what a trusted key sealed, under this digest."""
        try:
            verify(path, self._keyring, digest)
        except IntegrityError:
            return False
        return True

    def ensure(self, path: Path, digest: str, reference: str) -> None:
        """Fetch the version behind ``reference`` to ``path`` unless its verified copy is there.

        Raises:
            ConfigError: if the registry has no such version, or the copy is missing and this user cannot write it.
            IntegrityError: if its files are not what was sealed, or registry and ledgers disagree about it.
            TransientError: if another process fetches it for too long, or the copy cannot be replaced.
        """
        if self.is_as_sealed(path, digest):
            return
        if not self._can_write(path):
            self._refuse(path, digest)
            return
        with exclusive(self._home.locks / self._lock, f"fetching {judged_name(self._model, digest)}", FETCH_WAIT_S):
            if not self.is_as_sealed(path, digest):  # the holder of the lock may have fetched it
                self._replace(path, digest, reference)

    def _can_write(self, path: Path) -> bool:
        """Return whether this process may write the copy, the lock and the unfinished copy."""
        places = (path.parent, self._home.locks, self._home.tmp)
        folders = (next(folder for folder in (place, *place.parents) if folder.exists()) for place in places)
        return all(os.access(folder, os.W_OK | os.X_OK) for folder in folders)

    def _refuse(self, path: Path, digest: str) -> None:
        """Raise the error for a copy that nobody can replace here; return if another process has just replaced it."""
        if path.exists():
            verify(path, self._keyring, digest)
            return
        raise ConfigError(
            f"{judged_name(self._model, digest)} is registered, but this home has no copy of it at {path}, and this "
            f"user cannot write one: give the command once as a user who may write to {self._home.root}, or name "
            f"another home (--home, {HOME_VARIABLE})"
        )

    def _replace(self, path: Path, digest: str, reference: str) -> None:
        unfinished = self._home.tmp / f"{self._model}-{uuid4().hex}"
        try:
            self._registry().load(reference, unfinished)
            verify(unfinished, self._keyring, digest)  # the reference may belong to another version
            with os_error_as_transient(f"replace {path}"):
                if path.exists():
                    shutil.rmtree(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished.rename(path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
