"""The check in front of a server on loopback: Host, Origin, login; for requests and for WebSockets."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from simic.runtime.http_guard import Message, Receive, RequestGuard, Scope, Send, own_hosts

OWN = (b"host", b"127.0.0.1:4200")
LOGIN = "simic:secret"
AUTHORIZATION = (b"authorization", b"Basic " + base64.b64encode(LOGIN.encode()))


def _ask(headers: list[tuple[bytes, bytes]], login: str | None = None, kind: str = "http") -> list[Message]:
    """Messages sent in answer to one request; the application behind the guard says 200 or accepts."""
    sent: list[Message] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Frame-Options", b"ALLOW")]})
            await send({"type": "http.response.body", "body": b"secret"})

    async def receive() -> Message:
        return {"type": f"{kind}.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": kind, "method": "POST", "path": "/api", "headers": headers}
    asyncio.run(RequestGuard(application, own_hosts(4200), login)(scope, receive, send))
    return sent


FOREIGN = {
    "no Host": [],
    "a foreign Host": [(b"host", b"evil.example")],
    "a rebound name with our port": [(b"host", b"evil.example:4200")],
    "a name that begins like ours": [(b"host", b"127.0.0.1:4200.evil.example")],
    "another port": [(b"host", b"127.0.0.1:4201")],
    "no port": [(b"host", b"127.0.0.1")],
    "two Hosts": [OWN, (b"host", b"evil.example")],
    "a foreign Origin": [OWN, (b"origin", b"http://evil.example")],
    "no origin to speak of": [OWN, (b"origin", b"null")],
    "a page of another port": [OWN, (b"origin", b"http://127.0.0.1:5000")],
    "the other name of loopback": [OWN, (b"origin", b"http://localhost:4200")],
    "another scheme": [OWN, (b"origin", b"https://127.0.0.1:4200")],
    "an image in a page of another site": [OWN, (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"no-cors")],
    "a script in a page of another port": [OWN, (b"Sec-Fetch-Site", b"same-site"), (b"Sec-Fetch-Mode", b"no-cors")],
    "another site that names no mode": [OWN, (b"sec-fetch-site", b"cross-site")],
    "another site that names two modes": [
        OWN,
        (b"sec-fetch-site", b"cross-site"),
        (b"sec-fetch-mode", b"navigate"),
        (b"sec-fetch-mode", b"no-cors"),
    ],
    "an object in a page of another site": [
        OWN,
        (b"sec-fetch-site", b"cross-site"),
        (b"sec-fetch-mode", b"navigate"),
        (b"sec-fetch-dest", b"object"),
    ],
    "two Origins": [OWN, (b"origin", b"http://127.0.0.1:4200"), (b"origin", b"http://evil.example")],
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("login", [None, LOGIN])
def test_what_comes_from_elsewhere_is_refused_even_with_the_login(
    headers: list[tuple[bytes, bytes]], login: str | None
) -> None:
    start, body = _ask([*headers, AUTHORIZATION], login)
    assert start["status"] == 403
    assert b"secret" not in body["body"]
    (closed,) = _ask([*headers, AUTHORIZATION], login, kind="websocket")
    assert closed["type"] == "websocket.close"


@pytest.mark.parametrize(
    "headers",
    [[OWN], [(b"Host", b"LOCALHOST:4200")], [OWN, (b"origin", b"http://127.0.0.1:4200")]],
    ids=["no page at all", "the other name", "our own page"],
)
def test_what_is_our_own_passes_and_cannot_be_framed(headers: list[tuple[bytes, bytes]]) -> None:
    start, body = _ask(headers)
    assert (start["status"], body["body"]) == (200, b"secret")
    assert start["headers"] == [(b"x-frame-options", b"SAMEORIGIN")]
    assert _ask(headers, kind="websocket") == [{"type": "websocket.accept"}]


@pytest.mark.parametrize(
    "given",
    [[], [(b"authorization", b"Basic c2ltaWM6")], [(b"authorization", b"Bearer x")], [AUTHORIZATION, AUTHORIZATION]],
    ids=["none", "another", "another scheme", "two"],
)
def test_without_the_login_nothing_passes_where_one_is_asked_for(given: list[tuple[bytes, bytes]]) -> None:
    start, body = _ask([OWN, *given], LOGIN)
    assert start["status"] == 401
    assert dict(start["headers"])[b"www-authenticate"].startswith(b"Basic")
    assert b"secret" not in body["body"]
    assert _ask([OWN, *given], LOGIN, kind="websocket")[0]["type"] == "websocket.close"
    assert _ask([OWN, AUTHORIZATION], LOGIN)[0]["status"] == 200


@pytest.mark.parametrize(
    "headers",
    [
        [(b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")],
        [(b"sec-fetch-site", b"same-site"), (b"sec-fetch-mode", b"navigate")],
        [(b"sec-fetch-site", b"none"), (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")],
        [(b"sec-fetch-site", b"same-origin"), (b"sec-fetch-mode", b"cors"), (b"sec-fetch-dest", b"empty")],
    ],
    ids=["a link of another site", "a link of another port", "a typed address", "a script of our own page"],
)
def test_a_link_an_address_and_our_own_pages_pass(headers: list[tuple[bytes, bytes]]) -> None:
    start, body = _ask([OWN, AUTHORIZATION, *headers], LOGIN)
    assert (start["status"], body["body"]) == (200, b"secret")


def test_a_server_on_port_80_is_addressed_without_a_port_too() -> None:
    assert own_hosts(80) == {"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80"}
