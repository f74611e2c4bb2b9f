"""MLflow's UI on loopback, behind a check of Host, Origin and login. Run as ``python -m simic.registry.ui``.

MLflow by itself refuses foreign Hosts, but every local user and every page on another port of this machine can read and
change the registry. The starting process binds the socket and passes it on, so that nobody else can take the port and
receive the login while MLflow loads.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import warnings

import uvicorn

from simic.contracts.errors import ConfigError
from simic.runtime.home import Home, resolve_home
from simic.runtime.http_guard import LOGIN_VARIABLE, RequestGuard, own_hosts

__all__ = ["guarded_app", "main"]


def guarded_app(home: Home, port: int, login: str) -> RequestGuard:
    """Return MLflow's application for the database of ``home``, which it reads from the environment at import."""
    os.environ.update(
        {
            "_MLFLOW_SERVER_FILE_STORE": home.tracking_uri,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": str(home.artifacts),
            "_MLFLOW_SGI_NAME": "uvicorn",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
    )
    with warnings.catch_warnings():
        # Third-party deprecations at import time are not ours to act upon.
        warnings.simplefilter("ignore")
        from mlflow.server.fastapi_app import app
    return RequestGuard(app, own_hosts(port), login)


def main() -> None:
    """Serve until a signal ends the process; raise ConfigError without a login."""
    parser = argparse.ArgumentParser(prog="python -m simic.registry.ui", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--descriptor", type=int, required=True, help="number of an inherited socket that listens on 127.0.0.1"
    )
    listener = socket.socket(fileno=parser.parse_args().descriptor)
    listener.set_inheritable(False)
    login = os.environ.pop(LOGIN_VARIABLE, None)
    if not login:
        raise ConfigError("MLflow's UI starts only with a login; start it with `simic up` or `simic ui`")
    app = guarded_app(resolve_home(), int(listener.getsockname()[1]), login)
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="info", lifespan="on"))
    with contextlib.suppress(KeyboardInterrupt):  # the server shut down in order and passes the signal on
        server.run(sockets=[listener])
    if not server.started:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
