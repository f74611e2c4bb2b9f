"""A home by its path, for programs other than the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from simic.runtime.home import Home as HomePaths
from simic.runtime.home import HomeUse, resolve_home
from simic.trust.keys import Keyring

if TYPE_CHECKING:
    from simic.app.container import Container

__all__ = ["Home", "container_of", "folder_of", "paths_of"]


class Home:
    """A directory with the policies, reports, snapshots and keys of Simic; opening it writes nothing."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        """Open a home that exists.

        Args:
            root: Directory of the home. By default ``SIMIC_HOME``, or the current directory if it is a home, or the
                checkout around it, or the current directory, as for the command line.

        Raises:
            ConfigError: if there is no home at that place; `simic init` creates one.
        """
        home = resolve_home() if root is None else HomePaths(folder_of(root, "root"))
        home.require()
        self._root = home.root

    @property
    def root(self) -> Path:
        """Return the directory, absolute and without symbolic links."""
        return self._root

    def public_keys(self) -> list[str]:
        """Return the public keys that this home trusts, revoked ones left out, as 64 hexadecimal characters each.

        A consumer on another machine passes them to ``load_policy`` as ``trusted_keys``.

        Raises:
            IntegrityError: if the list of revoked keys is damaged.
        """
        keyring = Keyring(paths_of(self).keys)
        return [keyring.public_bytes(key_id).hex() for key_id in keyring.key_ids()]

    def __repr__(self) -> str:
        return f"Home({str(self.root)!r})"


def folder_of(given: str | os.PathLike[str], name: str) -> Path:
    """Return the path of a folder; raise TypeError, with the argument's name, for anything but a text or a path."""
    try:
        return Path(given).expanduser()
    except TypeError:
        raise TypeError(f"{name}: expected a folder as text or a path, found {type(given).__name__}") from None


def paths_of(home: Home) -> HomePaths:
    """Return the directories of a home; the environment may name another store of landed parts."""
    if not isinstance(home, Home):
        raise TypeError(f"home: expected a simic.Home, found {type(home).__name__}; simic.Home(path) opens one")
    return HomePaths(home.root, resolve_home().lake_url)


def container_of(home: Home | None, use: HomeUse = HomeUse.LOOK) -> Container:
    """Return the parts of a home, by default of the one that the command line would use."""
    # Whoever loads a policy from a directory needs no stage of Simic and should not wait for their imports.
    from simic.app.container import Container
    from simic.runtime.settings import load_profile

    return Container(paths_of(Home() if home is None else home), load_profile("default"), 0, use=use)
