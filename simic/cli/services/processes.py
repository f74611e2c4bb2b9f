"""Service processes: started, recorded with an identity that no other process can have, and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from simic.contracts.base import Contract
from simic.runtime.private_files import private_directory, write_private

__all__ = [
    "ServiceRecord",
    "identity_of",
    "is_alive",
    "open_log",
    "read_record",
    "start",
    "stop",
    "was_started_elsewhere",
]

STOP_TIMEOUT_S = 15.0
POLL_S = 0.1
LOG_MODE = 0o600


class ServiceRecord(Contract):
    """The record of one running service."""

    name: str
    pid: int
    identity: str
    """Boot id and start time; a later process with the same number has other ones."""
    url: str | None
    log: str
    command: list[str]


def identity_of(pid: int) -> str | None:
    """Return boot id and start time of a live process, or None if there is none; a zombie counts as none.

    The start is counted in clock ticks since boot, so a changed system clock does not change it.
    """
    import psutil  # takes 20 ms, which no other command needs

    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        since_boot_s = process.create_time() - psutil.boot_time()
    except psutil.NoSuchProcess:
        return None
    return f"{_boot_id()}:{round(since_boot_s * os.sysconf('SC_CLK_TCK'))}"


def _boot_id() -> str:
    """Return the kernel's id of this boot; empty on systems without one."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def is_alive(record: ServiceRecord) -> bool:
    """Return whether the recorded process still runs."""
    return identity_of(record.pid) == record.identity


def _path(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def read_record(directory: Path, name: str) -> ServiceRecord | None:
    """Return the record of a live service; remove one that is stale, unreadable or copied from another home."""
    path = _path(directory, name)
    try:
        record = ServiceRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        record = None
    if record is not None and is_alive(record) and _is_of(directory, record):
        return record
    with contextlib.suppress(OSError):  # in a read-only home the file stays and is ignored
        path.unlink(missing_ok=True)
    return None


def _is_of(directory: Path, record: ServiceRecord) -> bool:
    """Return whether the service was started in this home, even if the home moved; a copy of a home owns no service."""
    return not was_started_elsewhere(directory, record) or not _path(Path(record.log).parent, record.name).exists()


def was_started_elsewhere(directory: Path, record: ServiceRecord) -> bool:
    """Return whether the home moved since the service started, which still writes to the old path."""
    return Path(record.log).parent != directory


@contextlib.contextmanager
def _default_interrupt() -> Iterator[None]:
    """Restore the default action of SIGINT for children: they inherit an ignored one, and a worker stops by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(
    directory: Path,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    url: str | None,
    pass_fds: Collection[int] = (),
) -> ServiceRecord:
    """Start a service in its own process group and record it; only the owner may read its log.

    ``pass_fds`` are the file descriptors that the service inherits.
    """
    private_directory(directory)
    log = directory / f"{name}.log"
    with _default_interrupt(), open_log(log) as sink:
        process = subprocess.Popen(  # noqa: S603 - our own commands
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    process.returncode = 0  # it outlives this process, which must not warn about a child that is still running
    identity = identity_of(process.pid) or ""
    record = ServiceRecord(name=name, pid=process.pid, identity=identity, url=url, log=str(log), command=list(command))
    write_private(_path(directory, name), record.model_dump_json(indent=2).encode())
    return record


def open_log(path: Path) -> BinaryIO:
    """Open a log file for appending that only the owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, LOG_MODE)
    os.fchmod(descriptor, LOG_MODE)
    return os.fdopen(descriptor, "ab")


def stop(directory: Path, record: ServiceRecord, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Terminate the service's process group, kill it after the timeout, and remove the record.

    The group is signalled only while its leader lives: afterwards its number may belong to another process.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_alive(record):
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(record.pid, number)
        deadline = time.monotonic() + timeout_s
        while is_alive(record) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    _path(directory, record.name).unlink(missing_ok=True)
