"""Runs of the flow in processes of their own, forked from one that loaded Prefect and the flow once."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.fakes import stages as fake_stages
from support.servers.fork_server import ForkServer

__all__ = ["FlowRuns"]

PRELOADED = ("pandas", "pytest", "support.fakes.stages", "flows.retrain", "flows.collect", "flows.rollout")
RUN = """
import pytest
from support.fakes import stages as fake_stages
fake_stages.install(pytest.MonkeyPatch(), has_registry=False)
from flows.retrain import run
run(profile="quick", seed={seed}, overrides={overrides!r})
"""


class FlowRuns:
    """Runs on one Prefect server; the long stages are stood in for."""

    def __init__(self, api_url: str, prefect_home: Path) -> None:
        # Prefect reads its settings when it is loaded, and the libraries are loaded once.
        self._settings = {
            "PREFECT_API_URL": api_url,
            "PREFECT_HOME": str(prefect_home),
            "PREFECT_LOGGING_LEVEL": "WARNING",
        }
        self._server = ForkServer(PRELOADED, {**os.environ, **self._settings})

    def kill_at(self, place: str, *, seed: int = 0, **overrides: Any) -> None:
        """Begin a run in the home of the test; it is killed at a call such as ``train 2``."""
        self.kill(RUN.format(seed=seed, overrides=overrides), {fake_stages.KILL: place})

    def kill(self, code: str, environment: Mapping[str, str] | None = None) -> None:
        """Run code that gets its process killed."""
        merged = {**os.environ, **self._settings, **(environment or {})}
        done = self._server.run(code, name="-c", env=merged)
        assert done.returncode == -signal.SIGKILL, done.stderr
