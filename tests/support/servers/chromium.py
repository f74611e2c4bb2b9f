"""Headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

__all__ = ["CHROMIUM", "Page", "open_page"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_TIMEOUT_S = 60.0
TIMEOUT_S = 60.0
POLL_S = 0.1
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--window-size=1400,1000",
    "--remote-debugging-port=0",
)


class Page:
    """The one page of a fresh browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._session: str | None = None
        self._answer: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        """Everything the browser told of itself, oldest first."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Network.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of one command."""
        number = self._send(method, parameters)
        while (message := self._receive(TIMEOUT_S)).get("id") != number:
            self._note(message)
        assert "error" not in message, (method, message["error"])
        return dict(message["result"])

    def answer_logins(self, login: str | None) -> None:
        """Answer the browser's own question with ``name:password``, or cancel it, as a person would."""
        name, _, password = (login or "").partition(":")
        known = {"response": "ProvideCredentials", "username": name, "password": password}
        self._answer = known if login is not None else {"response": "CancelAuth"}
        self.call("Fetch.enable", handleAuthRequests=True)

    def open(self, url: str) -> None:
        """Go to an address; returns when the page before is gone and before the new one is whole."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def text(self) -> str:
        """What a person can read."""
        return str(self.evaluate("document.body ? document.body.innerText : ''") or "")

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Go on as soon as something is there."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_there():
            assert time.monotonic() < deadline, f"no {what}; the page shows:\n{self.text()}"
            time.sleep(POLL_S)

    def wait_for_text(self, *texts: str) -> None:
        """Go on as soon as the page shows all of these."""
        self.wait(lambda: all(text in self.text() for text in texts), f"{texts}")

    def type(self, selector: str, text: str) -> None:
        """Type into a field, then press Enter."""
        self.wait(lambda: bool(self.evaluate(f"!!document.querySelector({json.dumps(selector)})")), selector)
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
            )

    def screenshot(self, path: Path) -> None:
        """A PNG of what is in view."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _send(self, method: str, parameters: dict[str, object]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        return self._number

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        return dict(json.loads(self._socket.recv(timeout_s)))

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Fetch.authRequired":
            answer = {"requestId": message["params"]["requestId"], "authChallengeResponse": self._answer}
            self._send("Fetch.continueWithAuth", answer)
        elif message.get("method") == "Fetch.requestPaused":
            self._send("Fetch.continueRequest", {"requestId": message["params"]["requestId"]})
        elif "method" in message:
            self.events.append(message)


@contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """A browser that knows nothing yet, with one page."""
    profile.mkdir(parents=True)
    process = subprocess.Popen(
        [str(CHROMIUM), *ARGUMENTS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(profile)},
        start_new_session=True,
    )
    try:
        with connect(_address(process, profile / "DevToolsActivePort"), max_size=None, proxy=None) as socket:
            page = Page(socket)
            yield page
            page._session = None
            page._send("Browser.close", {})
        process.wait(START_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], port_file: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Chromium ended with exit status {process.returncode}"
        lines = port_file.read_text().splitlines() if port_file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(POLL_S)
    raise AssertionError("Chromium did not open its DevTools port")
