"""Homes with an empty registry: MLflow's database takes seconds to make."""

from __future__ import annotations

from pathlib import Path

import pytest

from simic.registry.mlflow_store import initialise
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from support.builders.judged_candidates import SIGNER
from support.homes.templates import copy_of

__all__ = ["furnished_home"]


def furnished_home(root: Path, factory: pytest.TempPathFactory) -> Home:
    """A home with an empty registry that trusts the signer of the tests."""
    return copy_of("furnished", furnish, root, factory)


def furnish(home: Home) -> None:
    """Make the directories, the database and the trusted key."""
    home.create()
    initialise(home)
    Keyring(home.keys).trust(SIGNER.public_bytes)
