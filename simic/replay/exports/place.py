"""A folder that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simic.contracts.errors import ConfigError, TransientError
from simic.runtime.durable import sync_folder

__all__ = ["new_folder"]


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` to write in; becomes ``out``, durably, when the block ends well, else it goes.

    What a killed process left there is removed first. ConfigError if ``out`` holds anything; the caller sees to it
    that nobody else writes the same one.
    """
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already; name a new folder, for an export never mixes with what is there")
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        _open_to_readers(unfinished)
        for path in sorted(unfinished.rglob("*"), reverse=True):
            _sync(path)
        _sync(unfinished)
        unfinished.rename(out)
        sync_folder(out.parent)
    except OSError as error:
        raise TransientError(f"{out} cannot be written: {error}; check space and rights") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _open_to_readers(folder: Path) -> None:
    """Every file gets the mode of a new one, as the umask has it: some writers leave theirs to its owner alone."""
    new = folder / ".new"
    new.touch()
    mode = stat.S_IMODE(new.stat().st_mode)
    new.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
