"""Attacks on a server on loopback: what a page of another site, a rebound name and another local user can send."""

from __future__ import annotations

import base64
import http
import http.client
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["ATTACKERS", "basic", "create_deployment", "request", "secrets_in_sight", "upgrade"]

BUSY_S, BUSY_PAUSE_S = 20.0, 0.2
"""Prefect answers 503 while its database is locked, and every client of it asks again."""

CSRF = {"Prefect-Csrf-Token": "guessed", "Prefect-Csrf-Client": "00000000-0000-0000-0000-000000000000"}

ATTACKERS: dict[str, tuple[dict[str, str], bool]] = {
    "another local user": ({}, False),
    "another local user with a guessed login": ({"Authorization": "Basic c2ltaWM6Z3Vlc3NlZA=="} | CSRF, False),
    "a page of another site": ({"Origin": "http://evil.example"}, False),
    "a page of another site in a browser that is logged in": ({"Origin": "http://evil.example"} | CSRF, True),
    "a sandboxed page": ({"Origin": "null"} | CSRF, True),
    "a page of another port": ({"Origin": "http://127.0.0.1:9"} | CSRF, True),
    "a rebound name": ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"} | CSRF, False),
    "a rebound name in a browser that is logged in": ({"Host": "evil.example:{port}"} | CSRF, True),
    "a form without a token, logged in": ({}, True),
}
"""Headers of a request, and whether the login comes with it."""


def basic(login: str) -> dict[str, str]:
    """The header of HTTP Basic authentication."""
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def request(
    url: str, headers: dict[str, str], body: object | None = None, method: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of an answer; a ``Host`` among the headers replaces the right one."""
    deadline = time.monotonic() + BUSY_S
    while True:
        found = _answer(url, headers, body, method)
        if found[0] != http.HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
            return found
        time.sleep(BUSY_PAUSE_S)


def _answer(
    url: str, headers: dict[str, str], body: object | None, method: str | None
) -> tuple[int, bytes, dict[str, str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    sent = {name: value.format(port=parts.port) for name, value in headers.items()}
    content = None if body is None else json.dumps(body).encode()
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    verb = method or ("GET" if body is None else "POST")
    try:
        connection.request(verb, path, content, sent | {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def create_deployment(api: str, headers: dict[str, str], script: str, pool: str) -> list[int]:
    """Create a flow, a deployment whose pull step runs ``script``, and a run of it; statuses of the answers."""
    statuses: list[int] = []

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, content, _ = request(f"{api}/{path}", headers, body)
        statuses.append(status)
        return dict(json.loads(content)) if status < 300 else {"id": "00000000-0000-0000-0000-000000000000"}

    flow = post("flows/", {"name": "evil"})
    step = {"prefect.deployments.steps.run_shell_script": {"script": script}}
    deployment = {
        "name": "evil",
        "flow_id": flow["id"],
        "work_pool_name": pool,
        "entrypoint": "evil.py:evil",
        "pull_steps": [step],
    }
    created = post("deployments/", deployment)
    post(f"deployments/{created['id']}/create_flow_run", {})
    return statuses


def upgrade(url: str, headers: dict[str, str]) -> int:
    """Status of the answer to the opening of a WebSocket: 101 is accepted."""
    opening = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "Sec-WebSocket-Protocol": "prefect",
    }
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    sent = {name: value.format(port=parts.port) for name, value in headers.items()}
    try:
        connection.request("GET", parts.path, headers=opening | sent)
        return connection.getresponse().status
    finally:
        connection.close()


def secrets_in_sight(secret: str, root: Path) -> list[str]:
    """Where a secret can be read by other users: command lines of processes, and files or folders open to them."""
    found = [
        f"command line of process {path.parent.name}"
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if secret.encode() in _bytes(path)
    ]
    return found + [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o077 and secret.encode() in _bytes(path)
    ]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
