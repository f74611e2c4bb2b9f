"""Requests to the services of a home: JSON over loopback, with the login in a header and never in a URL."""

from __future__ import annotations

import base64
import http
import http.client
import json
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

from simic.contracts.errors import ConfigError, SimicError, TransientError

__all__ = ["PrefectApi", "answers", "get_json"]

HTTP_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 30.0
REASON_BYTES = 500
BUSY_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each repetition of a request that Prefect answers with 503 because its database is locked; it has done
nothing then."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener without a proxy, because loopback is never reached through one, whatever the environment says."""


def answers(url: str, login: str | None = None) -> bool:
    """Return whether a loopback address answers with success."""
    return get_json(url, login, is_json=False) is not None


def get_json(url: str, login: str | None = None, is_json: bool = True) -> Any:
    """Return the JSON answer to a GET, or None unless the server answers with success."""
    request = urllib.request.Request(url, headers=_authorization(login))  # noqa: S310 - http to loopback
    try:
        with _DIRECT.open(request, timeout=HTTP_TIMEOUT_S) as response:
            content = response.read()
            return json.loads(content) if is_json else content
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ValueError):
        return None


def _authorization(login: str | None) -> dict[str, str]:
    if login is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


class PrefectApi:
    """Client of Prefect's REST API at ``url`` (``http://127.0.0.1:4200/api``) with the login of the home."""

    def __init__(self, url: str, login: str) -> None:
        self.url = url
        self._headers = _authorization(login) | {"Content-Type": "application/json"}
        self._client = str(uuid.uuid4())
        """Id of this client for Prefect's protection against forged requests, which issues a token per client."""

    def get(self, path: str) -> Any:
        """Return the JSON answer to a GET; raise errors like ``post``."""
        return self._send(urllib.request.Request(f"{self.url}/{path}", headers=self._headers))  # noqa: S310

    def post(self, path: str, question: object) -> Any:
        """Return the JSON answer to a POST of JSON.

        Raises:
            ConfigError: if the server has another login, or does not know ``path``.
            TransientError: if it does not answer, or refuses for another reason.
        """
        token = self.get(f"csrf-token?client={self._client}")["token"]
        headers = self._headers | {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": self._client}
        return self._send(
            urllib.request.Request(f"{self.url}/{path}", json.dumps(question).encode(), headers)  # noqa: S310
        )

    def _send(self, request: urllib.request.Request) -> Any:
        what = f"{request.get_method()} {request.full_url}"
        for pause_s in (*BUSY_PAUSES_S, None):
            try:
                with _DIRECT.open(request, timeout=ANSWER_TIMEOUT_S) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    reason = error.read(REASON_BYTES).decode(errors="replace")
                if pause_s is None or error.code != http.HTTPStatus.SERVICE_UNAVAILABLE:
                    raise _refusal(what, error.code, reason) from error
                time.sleep(pause_s)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise TransientError(f"Prefect did not answer {what}: {error}; see `simic up`") from error
        raise AssertionError("the last attempt returns or raises")


def _refusal(what: str, status: int, reason: str) -> SimicError:
    if status == http.HTTPStatus.UNAUTHORIZED:
        return ConfigError(f"Prefect refused {what}: it was started with another login; run `simic down`, `simic up`")
    if status == http.HTTPStatus.NOT_FOUND:
        return ConfigError(f"Prefect has no object for {what}: {reason}")
    return TransientError(f"Prefect refused {what} with status {status}: {reason}")
