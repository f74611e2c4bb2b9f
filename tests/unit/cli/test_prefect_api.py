"""How our own questions to Prefect deal with a busy server, a wrong login and silence."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from support.faults.http_attacks import basic

from simic.cli.services import http as services_http
from simic.cli.services.http import PrefectApi
from simic.contracts.errors import ConfigError, SimicError, TransientError

LOGIN = "simic:secret"


class _Handler(http.server.BaseHTTPRequestHandler):
    statuses: list[int]
    """Of the next answers; 200 afterwards."""
    asked: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self._answer({"token": "t"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"ok": True})

    def _answer(self, body: object) -> None:
        self.asked.append(
            (f"{self.command} {self.path.partition('?')[0]}", {k.lower(): v for k, v in self.headers.items()})
        )
        self.send_response(self.statuses.pop(0) if self.statuses and self.command == "POST" else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrefectApi]:
    monkeypatch.setattr(services_http, "BUSY_PAUSES_S", (0.0, 0.0))
    _Handler.statuses, _Handler.asked = [], []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield PrefectApi(f"http://127.0.0.1:{server.server_port}/api", LOGIN)
        server.shutdown()
        thread.join()


def test_a_question_carries_the_login_and_the_token_in_headers_alone(api: PrefectApi) -> None:
    assert api.post("flows/filter", {}) == {"ok": True}
    (_, first), (path, headers) = _Handler.asked
    assert path == "POST /api/flows/filter"
    assert headers["prefect-csrf-token"] == "t"
    assert {one["authorization"] for one in (first, headers)} == set(basic(LOGIN).values())


def test_a_busy_server_is_asked_again(api: PrefectApi) -> None:
    _Handler.statuses = [503, 503]
    assert api.post("flows/filter", {}) == {"ok": True}
    _Handler.statuses = [503, 503, 503]
    with pytest.raises(TransientError, match="status 503"):
        api.post("flows/filter", {})


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [(401, ConfigError, "another login"), (404, ConfigError, "has no object"), (403, TransientError, "status 403")],
)
def test_a_refusal_says_what_to_do(api: PrefectApi, status: int, error: type[SimicError], says: str) -> None:
    _Handler.statuses = [status]
    with pytest.raises(error, match=says) as caught:
        api.post("flows/filter", {})
    assert "secret" not in str(caught.value)


def test_silence_is_transient() -> None:
    with pytest.raises(TransientError, match="did not answer"):
        PrefectApi("http://127.0.0.1:9/api", LOGIN).get("version")
