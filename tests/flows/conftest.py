"""One Prefect server for all tests of this folder; child processes use it too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.testing.utilities import prefect_test_harness


class Server(NamedTuple):
    """A server on a database of its own."""

    api_url: str
    home: Path


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Settings were read when this file was imported, so a home of our own has to be set as a context."""
    home = tmp_path_factory.mktemp("prefect")
    own = {PREFECT_HOME: home, PREFECT_LOCAL_STORAGE_PATH: home / "storage"}
    with temporary_settings(own), prefect_test_harness(server_startup_timeout=120):
        yield Server(str(PREFECT_API_URL.value()), home)


@pytest.fixture
def child_environment(prefect_server: Server, home: Path) -> dict[str, str]:
    """For processes that run the same flow."""
    return {
        **os.environ,
        "PREFECT_API_URL": prefect_server.api_url,
        "PREFECT_HOME": str(prefect_server.home),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "SIMIC_HOME": str(home),
    }
