"""How Prefect and MLflow are told where they live: environment variables, always absolute paths."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simic.trust.keys import SIGNING_KEY_VARIABLE

if TYPE_CHECKING:
    from simic.runtime.settings import Home

__all__ = [
    "answers",
    "ask",
    "mlflow_environment",
    "prefect_environment",
    "prefect_profiles",
    "with_signing_key",
    "write_prefect_profile",
]

PROFILE = "simic"
HTTP_TIMEOUT_S = 2.0
EPHEMERAL_STARTUP_S = 90
"""An ephemeral server on a loaded machine takes longer than the default of 20 s."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Loopback is never reached through a proxy, whatever the environment says."""


def prefect_profiles(home: Home) -> Path:
    """The profile file by which a plain ``prefect`` command in the same home finds a running server."""
    return home.prefect / "profiles.toml"


def write_prefect_profile(home: Home, api_url: str | None) -> None:
    """Name the server for other commands, or none: then they serve themselves."""
    lines = [f'active = "{PROFILE}"', "", f"[profiles.{PROFILE}]"]
    lines += (
        [f"PREFECT_API_URL = {json.dumps(api_url)}"] if api_url else ['PREFECT_SERVER_ALLOW_EPHEMERAL_MODE = "true"']
    )
    path = prefect_profiles(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.replace(path)


def _common(base: Mapping[str, str]) -> dict[str, str]:
    return {
        **{name: value for name, value in base.items() if name != SIGNING_KEY_VARIABLE},
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def prefect_environment(home: Home, api_url: str | None, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings for every process of ours that loads Prefect; without a URL it serves itself.

    Results are JSON, since Prefect's default serialiser is a pickle. Leases live in files, since those in
    memory keep a deployment's slot after a crash of the server. A profile is always named, or one left by a
    server that died would be believed. The signing key is left out: servers and their tools sign nothing.
    """
    settings = {
        **_common(os.environ if base is None else base),
        "SIMIC_HOME": str(home.root),
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_PROFILES_PATH": str(prefect_profiles(home)),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(EPHEMERAL_STARTUP_S),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "simic",
    }
    settings.pop("PREFECT_API_URL", None)
    if api_url is None:
        return settings | {"PREFECT_PROFILE": "ephemeral", "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true"}
    settings.pop("PREFECT_PROFILE", None)
    return settings | {"PREFECT_API_URL": api_url}


def with_signing_key(settings: dict[str, str], base: Mapping[str, str] | None = None) -> dict[str, str]:
    """For processes in which stages run, which are the only ones that sign."""
    source = os.environ if base is None else base
    return settings | {name: source[name] for name in (SIGNING_KEY_VARIABLE,) if name in source}


def mlflow_environment(home: Home, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """One process and no job runner: the UI reads, it does not work."""
    settings = _common(os.environ if base is None else base)
    return settings | {"SIMIC_HOME": str(home.root), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def answers(url: str) -> bool:
    """Whether a loopback address answers with success."""
    return _fetch(urllib.request.Request(url)) is not None  # noqa: S310 - http to loopback


def ask(url: str, question: object) -> Any:
    """The JSON answer to a JSON question, or None while nobody answers."""
    body = json.dumps(question).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - likewise
    found = _fetch(request)
    return None if found is None else json.loads(found)


def _fetch(request: urllib.request.Request) -> bytes | None:
    try:
        with _DIRECT.open(request, timeout=HTTP_TIMEOUT_S) as response:
            return bytes(response.read())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None
