"""A real S3 server of our own: moto on a free port, its state in its process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs as arrow_fs

__all__ = ["BUCKET", "S3Server", "s3_server"]

BUCKET = "experience"
_START_S = 60.0


class S3Server:
    """Starts, is killed, starts again on the same port; what it held is gone then unless it is put back."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "moto.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For ``lake.url``."""
        return f"s3://{BUCKET}/lake?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def client(self) -> arrow_fs.S3FileSystem:
        """Sees all buckets."""
        return arrow_fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def start(self) -> None:
        """Returns when it answers, with an empty bucket."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                break
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, "moto did not come up"
                time.sleep(0.05)
        self.client().create_dir(BUCKET)

    def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def names(self) -> list[str]:
        """Every object below the prefix but the claims of its owner."""
        found = self.client().get_file_info(arrow_fs.FileSelector(BUCKET, recursive=True))
        return sorted(
            info.path.removeprefix(f"{BUCKET}/lake/")
            for info in found
            if info.is_file and not info.base_name.startswith("simic-home.")
        )

    def save(self) -> dict[str, bytes]:
        """Everything it holds."""
        client = self.client()
        found = client.get_file_info(arrow_fs.FileSelector(BUCKET, recursive=True))
        held = {}
        for info in found:
            if info.is_file:
                with client.open_input_file(info.path) as file:
                    held[info.path] = file.read()
        return held

    def restore(self, held: dict[str, bytes]) -> None:
        """A server with a disk would have kept it."""
        client = self.client()
        for path, content in held.items():
            with client.open_output_stream(path) as sink:
                sink.write(content)


@pytest.fixture
def s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A running server; credentials are in the environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "simic",
        "AWS_SECRET_ACCESS_KEY": "simic",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    server = S3Server(tmp_path)
    server.start()
    yield server
    server.kill()
