"""Processes we started and may stop: recorded with an identity that survives neither exit nor reboot."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from simic.contracts.base import Contract

__all__ = ["ServiceRecord", "identity_of", "is_alive", "read_record", "start", "stop"]

STOP_TIMEOUT_S = 15.0
POLL_S = 0.1


class ServiceRecord(Contract):
    """One running service."""

    name: str
    pid: int
    identity: str
    """Boot and start time of the process; a process that merely inherited the number has another."""
    url: str | None
    log: str
    command: list[str]


def identity_of(pid: int) -> str | None:
    """Boot id and start time of a live process, or None where there is none (a zombie counts as none)."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self").exists() else _identity_by_ps(pid)
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def _identity_by_ps(pid: int) -> str | None:
    """Where there is no /proc."""
    result = subprocess.run(  # noqa: S603 - a fixed command and a number
        ["ps", "-o", "lstart=", "-p", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip() or None


def is_alive(record: ServiceRecord) -> bool:
    """Whether this very process still runs."""
    return identity_of(record.pid) == record.identity


def _path(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def read_record(directory: Path, name: str) -> ServiceRecord | None:
    """The record of a live service; a stale or unreadable one is removed."""
    path = _path(directory, name)
    try:
        record = ServiceRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        path.unlink()
        return None
    if is_alive(record):
        return record
    path.unlink(missing_ok=True)
    return None


@contextlib.contextmanager
def _default_interrupt() -> Iterator[None]:
    """Children inherit an ignored SIGINT, and a Prefect worker stops by SIGINT: give it back its meaning."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(
    directory: Path, name: str, command: Sequence[str], environment: Mapping[str, str], cwd: Path, url: str | None
) -> ServiceRecord:
    """Start a service in a process group of its own and record it."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{name}.log"
    with _default_interrupt(), log.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603 - our own commands
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
    process.returncode = 0  # it outlives us and nobody waits for it: spare its handle's warning about that
    identity = identity_of(process.pid) or ""
    record = ServiceRecord(name=name, pid=process.pid, identity=identity, url=url, log=str(log), command=list(command))
    temporary = _path(directory, name).with_suffix(".tmp")
    temporary.write_text(record.model_dump_json(indent=2))
    temporary.replace(_path(directory, name))
    return record


def stop(directory: Path, record: ServiceRecord, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask the service's group to end, insist after the timeout, and forget it.

    A group is only ever signalled while its leader lives: afterwards its number may be somebody else's.
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
