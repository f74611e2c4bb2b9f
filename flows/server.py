"""Prefect's server for one home: Prefect's application behind a check of Host and Origin.

Prefect asks for the login itself, but does not check the Host header. `simic up` and `simic run` (with ``--ephemeral``)
run this as ``python -m flows.server``. The starting process binds the socket and passes it on, so that nobody else can
take the port and receive the login while this process loads its libraries.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings

from simic.contracts.errors import ConfigError
from simic.runtime.http_guard import RequestGuard, own_hosts

__all__ = ["guarded_app", "main"]

KEEP_ALIVE_S = 30
"""Longer than the 25 s for which Prefect's client keeps a connection; otherwise it would reuse a closed one."""


def guarded_app(port: int, is_ephemeral: bool) -> RequestGuard:
    """Return Prefect's API, with its UI unless ephemeral, for a server on this port.

    Raises:
        ConfigError: if no login is set or protection against forged requests is off.
    """
    api = get_current_settings().server.api
    if api.auth_string is None or not api.csrf_protection_enabled:
        raise ConfigError("Prefect's server starts only with a login and CSRF protection; start it with `simic up`")
    return RequestGuard(create_app(ephemeral=is_ephemeral, final=True), own_hosts(port))


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(prog="python -m flows.server", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--descriptor", type=int, required=True, help="number of an inherited socket that listens on 127.0.0.1"
    )
    parser.add_argument(
        "--ephemeral", action="store_true", help="serve no UI, and end when standard input, held by the starter, ends"
    )
    arguments = parser.parse_args()
    listener = socket.socket(fileno=arguments.descriptor)
    listener.set_inheritable(False)
    if arguments.ephemeral:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    config = uvicorn.Config(
        guarded_app(int(listener.getsockname()[1]), arguments.ephemeral),
        timeout_keep_alive=KEEP_ALIVE_S,
        access_log=False,
        log_level="error" if arguments.ephemeral else "info",
        lifespan="on",
    )
    uvicorn.Server(config).run(sockets=[listener])


def _end_with_stdin() -> None:
    """Terminate this process when the process that holds the other end of the pipe ends, even if it is killed."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
