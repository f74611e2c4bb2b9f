"""Where no server is named, Prefect starts one for this process: it must not outlive us, however we end."""

from __future__ import annotations

import atexit
import subprocess

from prefect.client.orchestration import get_client
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL

from simic.contracts.errors import TransientError

__all__ = ["end_with_us", "require_api"]

WATCH = "read -r _; kill -TERM $0 2>/dev/null"
"""Waits for the end of a pipe that nobody writes to, which comes when its owner ends, be it by SIGKILL."""


def require_api() -> None:
    """Prefect answers, or it is no verdict on the run; a server of our own ends with this process."""
    try:
        with get_client(sync_client=True) as client:
            problem = client.api_healthcheck()
    except RuntimeError as error:
        problem = error
    if problem is not None:
        raise TransientError(f"Prefect's API does not answer: {problem}; try again, or start one with `simic up`")
    if PREFECT_API_URL.value() is None and (server := SubprocessASGIServer().server_process) is not None:
        end_with_us(server.pid)


def end_with_us(pid: int) -> None:
    """Terminate process ``pid`` when this process ends; Prefect does so itself, but not after a SIGKILL."""
    watcher = subprocess.Popen(  # noqa: S603 - a fixed command and a number
        ["/bin/sh", "-c", WATCH, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )

    def call_off() -> None:
        watcher.kill()
        watcher.communicate()

    atexit.register(call_off)
