"""Candidates whose decisions depend on the machine, by name of the fault; a process of its own imports them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from simic.contracts.errors import ContractError

__all__ = [
    "answers_otherwise_without_files", "asks_the_network", "fails_without_files", "is_lost_after_a_fault",
    "load_anything", "load_it", "races", "sound", "takes_memory_for_ever",
]  # fmt: skip

_KEPT: list[bytearray] = []
_BUSY: list[None] = []
_LOST: list[None] = []


def sound() -> bytes:
    """Decides the same, whatever happens."""
    return b"same"


def fails_without_files() -> bytes:
    """Raises OSError where no file can be opened."""
    with Path(os.devnull).open("rb"):
        return b"same"


def takes_memory_for_ever() -> bytes:
    """Needs more memory each time."""
    _KEPT.append(bytearray(32 * 1024 * 1024))
    return b"same"


def answers_otherwise_without_files() -> bytes:
    """Hides the error behind another decision."""
    try:
        return fails_without_files()
    except OSError:
        return b"other"


def races() -> bytes:
    """Decides otherwise while another thread decides."""
    _BUSY.append(None)
    time.sleep(0.02)
    found = len(_BUSY)
    _BUSY.pop()
    return b"same" if found == 1 else b"other"


def asks_the_network() -> bytes:
    """Calls a server before it decides."""
    with suppress(ConnectionError), socket.socket() as one:
        one.connect(("127.0.0.1", 9))
    return b"same"


def is_lost_after_a_fault() -> bytes:
    """Decides otherwise ever after."""
    try:
        fails_without_files()
    except OSError:
        _LOST.append(None)
    return b"other" if _LOST else b"same"


def load_it(decide: Callable[[], bytes], folder: Path) -> Callable[[], bytes]:
    """Reads its one file, and decides once."""
    if not decide():
        raise AssertionError
    if (folder / "card.json").read_bytes() != b'{"a": 1}':
        raise ContractError("damaged")
    return decide


def load_anything(_folder: Path) -> Callable[[], bytes]:
    """Checks nothing."""
    return sound
