"""A Redis that takes calls and does not answer: one deadline for all that a verb asks of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.servers.redis_buses import TOPIC, drain, stream_bus
from support.servers.redis_server import RedisProcess

from simic.bus.factory import BusSpec, open_bus
from simic.bus.redis.connection import RedisServer
from simic.contracts.errors import TransientError
from simic.contracts.settings.run import BusConfig
from simic.runtime.home import Home

DEADLINE_S = 1.5
PATIENCE_S = 20.0
"""Far above the deadline and far below what a deadline for each call would come to."""
SILENT = "does not answer: gave up after 1.5 s"


class Silent:
    """A port that takes connections and never says a word."""

    def __init__(self, scheme: str = "redis") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._taken: list[socket.socket] = []
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def calls(self) -> int:
        """Connections taken so far."""
        return len(self._taken)

    def _take(self) -> None:
        while True:
            try:
                self._taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in (self._listener, *self._taken):
            one.close()


@pytest.fixture(params=["redis", "rediss"])
def silent(request: pytest.FixtureRequest) -> Iterator[Silent]:
    with closing(Silent(request.param)) as port:
        yield port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path / "redis") as process:
        yield process


@contextmanager
def in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < PATIENCE_S


def test_a_server_that_never_answers_ends_the_conversation(silent: Silent) -> None:
    """TLS too, where it is the handshake that never ends; every further call fails at once and asks nothing."""
    bus = stream_bus(silent.url, connect_attempts=50, deadline_s=DEADLINE_S)
    with in_time():
        with pytest.raises(TransientError, match=SILENT):
            bus.measure(TOPIC)
        calls = silent.calls
        for _ in range(100):
            with pytest.raises(TransientError, match=SILENT):
                bus.put(TOPIC, "a", [b"1"])
        assert bus.status(TOPIC).transport.endswith("does not answer")
    assert silent.calls == calls


def test_a_server_that_hangs_in_the_midst_ends_the_conversation(server: RedisProcess) -> None:
    bus = stream_bus(server, connect_attempts=50, deadline_s=DEADLINE_S, batch=1)
    bus.put(TOPIC, "a", [b"1", b"2", b"3"])
    claimed = bus.claim(TOPIC)
    first = next(claimed)
    server.hang()
    with in_time():
        with pytest.raises(TransientError, match=SILENT):
            bus.ack(first)
        with pytest.raises(TransientError, match=SILENT):
            next(claimed)
    server.go_on()
    with pytest.raises(TransientError, match=SILENT):
        bus.ack(first)
    left = set(drain(stream_bus(server)))
    assert {b"2", b"3"} <= left <= {b"1", b"2", b"3"}, "what it took in while it hung it may do later"


def test_a_name_that_is_never_found_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when no name server answers: the C library may look for a minute, and has no timeout of ours."""
    is_over = threading.Event()

    def look(*_: object, **__: object) -> list[object]:
        is_over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    server = RedisServer("redis://redis.example:6379", 50, DEADLINE_S)
    with in_time(), pytest.raises(TransientError, match=SILENT):
        server.call("look", lambda client: client.ping())
    is_over.set()


def test_the_addresses_of_one_name_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port whose queue of callers is full takes none and refuses none."""
    with socket.create_server(("0.0.0.0", 0), backlog=0) as listener, ExitStack() as stack:  # noqa: S104 - of all 127.*
        port = listener.getsockname()[1]
        for _ in range(8):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (f"127.0.0.{last}", port))
            for last in range(1, 31)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        server = RedisServer(f"redis://redis.example:{port}", 50, DEADLINE_S)
        with in_time(), pytest.raises(TransientError, match=SILENT):
            server.call("look", lambda client: client.ping())


def test_a_name_that_is_none_is_told_as_such() -> None:
    server = RedisServer("redis://redis.invalid:6379", 2, DEADLINE_S)
    with in_time(), pytest.raises(TransientError, match=r"redis\.invalid:6379/0 (is away|does not answer)"):
        server.call("look", lambda client: client.ping())


def test_refusals_and_pauses_count_as_silence() -> None:
    """With so many attempts as may be set, the pauses alone would be three minutes."""
    server = RedisServer("redis://127.0.0.1:1", 100, DEADLINE_S)
    with in_time(), pytest.raises(TransientError, match=SILENT):
        server.call("look", lambda client: client.ping())


def test_a_server_that_answers_slowly_is_not_cut_off(server: RedisProcess) -> None:
    """A conversation three times as long as its deadline, of calls that each take half of it."""
    slow = RedisServer(server.url, 1, DEADLINE_S)
    began = time.monotonic()
    while time.monotonic() - began < 3 * DEADLINE_S:
        # The server itself keeps the answer back.
        slow.call("wait", lambda client: client.blpop("nothing", timeout=DEADLINE_S / 2))
    assert slow.interruptions == 0


def test_silence_is_forgiven_with_the_next_answer(server: RedisProcess) -> None:
    """A server that is away for two thirds of the deadline again and again is ridden out."""
    clock: list[Callable[[], None]] = []
    patient = RedisServer(
        server.url, 100, DEADLINE_S, pause=lambda _: clock.pop()(), draw=lambda _, __: DEADLINE_S * 2 / 3
    )
    for _ in range(4):
        server.kill()
        clock.append(server.start)
        assert patient.call("look", lambda client: client.ping()) is True
    assert patient.interruptions == 4


def test_many_puts_of_one_verb_wait_once_and_lose_nothing(server: RedisProcess, tmp_path: Path) -> None:
    """Jobs open the bus anew, as chunks of a collection do; all of it waits in the spool."""
    server.hang()
    spec = BusSpec(tmp_path / "spool", BusConfig(deadline_s=DEADLINE_S), True, conversation="one verb")
    with in_time():
        for number in range(30):
            bus: Any = open_bus(spec, {"REDIS_URL": server.url})
            bus._monotonic = lambda: time.monotonic() + 1000 * number  # noqa: B023 - it would ask again each time
            bus.put(TOPIC, f"{number}", [b"%d" % number])
    server.go_on()
    bus = open_bus(spec._replace(conversation="another"), {"REDIS_URL": server.url})
    assert (bus.spilled(), bus.catch_up(), bus.spilled()) == (30, 30, 0)
    assert sorted(drain(bus)) == sorted(b"%d" % number for number in range(30))


def test_waiting_for_more_entries_may_not_be_longer_than_the_deadline() -> None:
    with pytest.raises(ValidationError, match=r"bus\.deadline_s = 2 must be more than bus\.block_ms = 2000"):
        BusConfig(deadline_s=2, block_ms=2000)


# -- the verbs ------------------------------------------------------------------------------------------

VERBS = {
    ("bus", "status"): (0, "does not answer"),
    ("bus", "forward"): (4, "does not answer"),
    ("bus", "dead-letters"): (4, "does not answer"),
    ("ingest",): (4, "does not answer"),
    ("doctor", "--json"): (5, "does not answer"),
}


def simic(home: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("simic"), *words]
    environment = os.environ | {"REDIS_URL": url, "SIMIC_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def test_every_verb_says_that_it_does_not_answer(server: RedisProcess, tmp_path: Path) -> None:
    server.hang()
    profile = tmp_path / "impatient.toml"
    profile.write_text(f"[bus]\ndeadline_s = {DEADLINE_S}\n")
    Home(tmp_path / "home").create()
    for verb, (code, text) in VERBS.items():
        named = () if "doctor" in verb else ("--profile", str(profile))
        done = simic(tmp_path / "home", server.url, *verb, *named)
        assert done.returncode == code, (verb, done.stderr)
        assert text in " ".join((done.stdout + done.stderr).split()), (verb, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


def test_a_collection_goes_on_and_waits_once(tmp_path: Path) -> None:
    """Eight chunks: every call that Redis takes is one wait, and there is one per process of the collection."""
    profile = tmp_path / "impatient.toml"
    profile.write_text(f"[bus]\ndeadline_s = {DEADLINE_S}\n[world]\nhorizon = 4\nchunk = 1\nworkers = 1\n")
    keys = ("--host-keys", "2,5,14,21", "--controller", "wait", "--profile", str(profile), "--json")
    with closing(Silent()) as port:
        done = simic(tmp_path / "home", port.url, "collect", *keys)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["reports"] == 16
        assert port.calls == 1
    waiting = list((tmp_path / "home/data/spool").rglob("*.jsonl*"))
    assert len(waiting) == 4
