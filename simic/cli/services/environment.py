"""Environment variables that tell Prefect and MLflow where to work; all paths are absolute."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from simic.runtime.home import Home
from simic.runtime.http_guard import LOGIN_VARIABLE
from simic.runtime.private_files import private_directory, write_private
from simic.runtime.sqlite_files import sqlite_url
from simic.trust.keys import SIGNING_KEY_VARIABLE

__all__ = [
    "guarded",
    "mlflow_environment",
    "prefect_environment",
    "prefect_profiles",
    "with_signing_key",
    "write_prefect_profile",
]

PROFILE = "simic"
_CLIENT_LOGIN, _SERVER_LOGIN = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
_NEVER_INHERITED = (SIGNING_KEY_VARIABLE, LOGIN_VARIABLE, _CLIENT_LOGIN, _SERVER_LOGIN, "PREFECT_API_KEY")
_DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"


def prefect_profiles(home: Home) -> Path:
    """Return the profile file by which a plain ``prefect`` command in this home finds a running server."""
    return home.prefect / "profiles.toml"


def write_prefect_profile(home: Home, api_url: str | None, login: str | None = None) -> None:
    """Write server and login for other ``prefect`` commands, or neither.

    Without a server such a command then fails at once; otherwise it would start a server without guard and worker.
    """
    settings = {"PREFECT_API_URL": api_url, _CLIENT_LOGIN: login} if api_url and login else dict[str, str | None]()
    settings["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
    lines = [f'active = "{PROFILE}"', "", f"[profiles.{PROFILE}]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    private_directory(home.prefect)
    write_private(prefect_profiles(home), ("\n".join(lines) + "\n").encode())


def _common(base: Mapping[str, str]) -> dict[str, str]:
    return {
        **{name: value for name, value in base.items() if name not in _NEVER_INHERITED},
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def prefect_environment(
    home: Home, api_url: str | None, login: str | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the settings of every process that loads Prefect; without a URL it has no server and starts none.

    ``login`` is the server's login as ``user:password``. Results are stored as JSON, because Prefect's default is a
    pickle. Leases are stored in files, because leases in memory keep the slot of a deployment after a crash of the
    server. A profile is always named, because otherwise the profile of a dead server would apply. The signing key is
    omitted: servers and their tools sign nothing.
    """
    settings = {
        **_common(os.environ if base is None else base),
        "SIMIC_HOME": str(home.root),
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_PROFILES_PATH": str(prefect_profiles(home)),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "simic",
    }
    if "?" in str(home.prefect):  # at which the database address that Prefect builds itself would end
        settings.setdefault(_DATABASE, sqlite_url(home.prefect_database, "sqlite+aiosqlite"))
    settings.pop("PREFECT_API_URL", None)
    if api_url is None:
        return settings | {"PREFECT_PROFILE": "ephemeral"}
    settings.pop("PREFECT_PROFILE", None)
    return settings | {"PREFECT_API_URL": api_url} | ({_CLIENT_LOGIN: login} if login is not None else {})


def guarded(settings: dict[str, str], origin: str, login: str) -> dict[str, str]:
    """Return the settings of the server itself: it requires the login, and only its own pages may call it.

    The UI calls the API under the address it was opened with, so one origin is enough for each name of loopback.
    """
    return settings | {
        _SERVER_LOGIN: login,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origin,
        "PREFECT_SERVER_UI_API_URL": "/api",
    }


def with_signing_key(settings: dict[str, str], base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Add the signing key, for processes in which stages run; no other process signs."""
    source = os.environ if base is None else base
    return settings | {name: source[name] for name in (SIGNING_KEY_VARIABLE,) if name in source}


def mlflow_environment(home: Home, login: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of the MLflow UI, which requires ``login`` and runs no jobs."""
    settings = _common(os.environ if base is None else base)
    return settings | {
        "SIMIC_HOME": str(home.root),
        LOGIN_VARIABLE: login,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
