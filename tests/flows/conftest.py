"""One Prefect server for all tests of this folder, and one process from which killed runs on it are forked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.testing.utilities import prefect_test_harness
from support.servers.flow_runs import FlowRuns


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


@pytest.fixture(scope="session")
def flow_runs(prefect_server: Server) -> FlowRuns:
    """Runs of the flow as processes, which a test kills."""
    return FlowRuns(prefect_server.api_url, prefect_server.home)
