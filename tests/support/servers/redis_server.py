"""A real Redis server of a test's own: a free port, a directory, started, killed and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

__all__ = ["RedisProcess"]

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
START_LIMIT_S = 60.0


class RedisProcess:
    """``with RedisProcess(folder) as server``; every acknowledged write survives ``kill``."""

    def __init__(self, folder: Path, *options: str, tls: Sequence[str] = (), login: str = "") -> None:
        if (binary := shutil.which("redis-server")) is None:
            pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
        folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        ports = ("--port", "0", "--tls-port", str(self.port), *tls) if tls else ("--port", str(self.port))
        self._command = [
            binary, *ports, "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *DURABLE, *options,
        ]  # fmt: skip
        self._log = folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"{'rediss' if tls else 'redis'}://{login}127.0.0.1:{self.port}/0"
        self._is_tls = bool(tls)

    def __enter__(self) -> RedisProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def client(self) -> redis.Redis:
        """Another connection to it, for looking and meddling."""
        return redis.Redis(port=self.port, protocol=2)

    def start(self, *, wait: bool = True) -> None:
        """Returns when it answers, or at once."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while wait and not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9; killing a dead one changes nothing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """SIGSTOP: the kernel takes connections and bytes for it, and it answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        if self._is_tls:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        try:
            return bool(self.client.ping())
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.ResponseError):
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
