"""Sealed policies at hand, and controllers made of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError, IntegrityError
from simic.runtime.locks import exclusive

if TYPE_CHECKING:
    from simic.contracts.receipts import PolicyVersion
    from simic.registry.catalogue import Registry
    from simic.runtime.settings import Home
    from simic.trust.keys import Keyring
    from simic.trust.seal import Seal

__all__ = ["CHAMPION", "CHAMPION_REFERENCE", "REFERENCE_PREFIX", "Policies"]

CHAMPION = "champion"
CHAMPION_REFERENCE = "models:/tamiyo@champion"
REFERENCE_PREFIX = "models:/"
FETCH_WAIT_S = 60.0


class Policies:
    """Finds a policy by name, digest, directory or reference; none is handed out before its seal was checked."""

    def __init__(self, home: Home, keyring: Keyring, registry: Callable[[], Registry]) -> None:
        self._home = home
        self._keyring = keyring
        self._registry = registry

    def seal(self, path: Path, digest: str | None = None) -> Seal:
        """The seal of a directory in which every byte is as it was sealed by a trusted key, or IntegrityError."""
        from simic.trust.seal import verify

        return verify(path, self._keyring, digest)

    def check(self, path: Path, digest: str | None = None) -> str:
        """Likewise, its digest."""
        return self.seal(path, digest).digest

    def champion(self) -> PolicyVersion | None:
        """The present champion."""
        if not (self._home.mlruns / "mlflow.db").exists():
            return None  # nothing was ever recorded here; opening the registry would cost seconds to say so
        return self._registry().champion()

    def fetch(self, reference: str) -> Path:
        """A verified local copy of a registered policy."""
        version = self._registry().find(reference)
        path = self._home.policies / version.digest
        if not self._is_whole(path, version.digest):
            what = f"fetching policy {version.digest[:12]}"
            with exclusive(self._home.locks / "policies", what, FETCH_WAIT_S):
                if not self._is_whole(path, version.digest):  # whoever held the lock may have fetched it
                    self._replace(path, version.reference)
        return path

    def _replace(self, path: Path, reference: str) -> None:
        unfinished = self._home.tmp / f"policy-{uuid4().hex}"
        self._registry().load(reference, unfinished)
        shutil.rmtree(path, ignore_errors=True)
        unfinished.rename(path)

    def fetch_champion(self, digest: str) -> Path:
        """The champion, if it still is the one of this digest."""
        path = self.fetch(CHAMPION_REFERENCE)
        if not self._is_whole(path, digest):
            raise ConfigError(f"the champion is no longer {digest[:12]}, with which this run began; start it again")
        return path

    def _is_whole(self, path: Path, digest: str) -> bool:
        try:
            return self.check(path, digest) == digest
        except IntegrityError:
            return False

    def learned(self, path: Path, *, is_decisive: bool) -> ControllerSpec:
        """The controller that acts with a sealed policy."""
        return ControllerSpec(
            name="learned", policy_path=str(path), keyring_path=str(self._home.keys), is_decisive=is_decisive
        )

    def spec(self, name: str, *, is_decisive: bool) -> ControllerSpec:
        """A controller by name, or ``champion``, a reference of the registry, or a sealed policy's directory."""
        if name == CHAMPION or name.startswith(REFERENCE_PREFIX):
            reference = CHAMPION_REFERENCE if name == CHAMPION else name
            return self.learned(self.fetch(reference), is_decisive=is_decisive)
        if "/" in name:  # a bare word is never a directory, or one in the wrong place would hide a controller
            self.check(Path(name))
            return self.learned(Path(name).absolute(), is_decisive=is_decisive)
        from simic.controllers.catalogue import controller_names

        if name not in controller_names() or name in ("learned", "schedule"):
            known = ", ".join(sorted({*controller_names(), CHAMPION} - {"learned", "schedule"}))
            raise ConfigError(f"{name!r} is not a controller; known are {known}, or the directory of a sealed policy")
        return ControllerSpec(name=name)
