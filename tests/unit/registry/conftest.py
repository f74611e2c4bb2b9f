"""A registry for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.homes.mlflow_databases import furnished_home

from simic.runtime.home import Home
from simic.trust.keys import Keyring


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return furnished_home(tmp_path / "place", tmp_path_factory)


@pytest.fixture
def keyring(place: Home) -> Keyring:
    return Keyring(place.keys)
