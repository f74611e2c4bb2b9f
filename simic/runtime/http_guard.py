"""Checks in front of an ASGI application on loopback: Host, Origin and, where required, a login.

Every page in a browser on this machine and every local user can reach a socket on 127.0.0.1. Pages of other sites are
recognised by ``Origin``, or by ``Sec-Fetch-Site`` for images and scripts, which have no Origin; DNS rebinding is
recognised by ``Host``, another local user by the missing login.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias

__all__ = ["LOGIN_VARIABLE", "RequestGuard", "own_hosts"]

LOGIN_VARIABLE = "SIMIC_SERVICES_LOGIN"
"""Environment variable with the login ``user:password`` of a server whose application has none of its own."""

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_DEFAULT_PORT = 80
_POLICY_VIOLATION = 1008
_FRAME = b"x-frame-options"
_OTHER_SITES = frozenset({b"cross-site", b"same-site"})


def own_hosts(port: int) -> frozenset[str]:
    """``Host`` headers that address a server on this port of 127.0.0.1."""
    names = ("127.0.0.1", "localhost")
    bare = names if port == _DEFAULT_PORT else ()
    return frozenset([f"{name}:{port}" for name in names] + list(bare))


class RequestGuard:
    """An ASGI application that passes on only requests of this machine's owner.

    ``login`` is ``user:password`` for HTTP Basic authentication, or None if the application has a login of its own.
    Refused are: 403 for a missing, repeated or foreign ``Host``, 403 for an ``Origin`` other than ``http://<Host>``,
    403 for requests from a page of another site (following its link is allowed), 401 without the login. A refused
    WebSocket is closed before it is accepted. Pages may not be framed by others.
    """

    def __init__(self, application: Application, hosts: Collection[str], login: str | None = None) -> None:
        self._application = application
        self._hosts = frozenset(name.encode() for name in hosts)
        self._authorization = b"Basic " + base64.b64encode(login.encode()) if login is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a permitted request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
        elif (refused := self._refusal(scope["headers"])) is not None:
            await _refuse(scope, receive, send, *refused)
        else:
            await self._application(scope, receive, _unframed(send))

    def _refusal(self, headers: Collection[tuple[bytes, bytes]]) -> tuple[HTTPStatus, str] | None:
        def values(name: bytes) -> list[bytes]:
            return [value for header, value in headers if header.lower() == name]

        hosts, origins, logins = values(b"host"), values(b"origin"), values(b"authorization")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return HTTPStatus.FORBIDDEN, f"the Host header must be one of {_listed(self._hosts)}"
        if any(origin.lower() != b"http://" + hosts[0].lower() for origin in origins):
            return HTTPStatus.FORBIDDEN, "requests from pages of another origin are refused"
        if not _OTHER_SITES.isdisjoint(values(b"sec-fetch-site")) and not (
            values(b"sec-fetch-mode") == [b"navigate"] and values(b"sec-fetch-dest") in ([], [b"document"])
        ):
            return HTTPStatus.FORBIDDEN, "requests from pages of another site are refused"
        if self._authorization is not None and not (
            len(logins) == 1 and hmac.compare_digest(logins[0], self._authorization)
        ):
            return HTTPStatus.UNAUTHORIZED, "log in with the name and password that `simic up` names"
        return None


def _listed(hosts: Collection[bytes]) -> str:
    return ", ".join(sorted(host.decode() for host in hosts))


async def _refuse(scope: Scope, receive: Receive, send: Send, status: HTTPStatus, reason: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Basic realm="simic", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})


def _unframed(send: Send) -> Send:
    """Forbid frames: a page of another site could show this one in a frame and capture clicks."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if bytes(pair[0]).lower() != _FRAME]
            message["headers"] = [*headers, (_FRAME, b"SAMEORIGIN")]
        await send(message)

    return send_with_header
