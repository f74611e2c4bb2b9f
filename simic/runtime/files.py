"""Files on disk: atomic and durable writes, SHA-256 digests, quarantine of damaged files, resource errors.

A file or directory written here appears under its name complete or not at all. Unless ``durable=False`` is given it
also survives a power cut: the content is synced before the rename, the directory after it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from simic.contracts.errors import ConfigError, ResourceLimitError, TransientError

if TYPE_CHECKING:
    from simic.runtime.home import Home

__all__ = [
    "DAMAGED",
    "atomic_dir",
    "atomic_file",
    "atomic_write",
    "check_folder_of",
    "check_writable",
    "create_once",
    "disk_full_as_transient",
    "durable_file",
    "exhausted_limits_as_terminal",
    "fsync_dir",
    "fsync_file",
    "ignore_in_git",
    "move_to_damaged",
    "os_error_as_transient",
    "publish_dir",
    "rename_durably",
    "scratch_dir",
    "sha256_file",
    "unfinished_files",
    "unwritable_as_config",
]

DAMAGED = "damaged"
"""Name of the directory, beside the parent of a damaged file or directory, to which it is moved."""
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}\.tmp", re.DOTALL)
"""The names that ``_temporary`` returns."""
_NEW_FILE_MODE = 0o666
"""Permissions of a new file before the umask, as ``open`` has them."""
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a full disk, an exceeded quota, or the file size limit of this process."""
_OUT_OF_MEMORY = (
    "this process reached its memory limit; raise the limit (`ulimit -v`, the container, the machine), or use fewer "
    "workers and smaller batches"
)


def fsync_dir(path: Path) -> None:
    """Make renames, creations and deletions within the directory ``path`` durable."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def fsync_file(path: Path) -> None:
    """Make the content of the file ``path`` durable."""
    _fsync(path, os.O_RDONLY)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing from its beginning and sync it when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_file(
    path: Path, *, durable: bool = True, mode: int | None = None, tmp: Path | None = None
) -> Iterator[IO[bytes]]:
    """Open a temporary file that takes the name ``path`` when the block ends; an exception removes it.

    Args:
        path: target; an existing file is replaced. Missing parent directories are created.
        durable: whether content and name survive a power cut.
        mode: permissions of the new file; the umask decides if None.
        tmp: directory of the temporary file, on the same file system; beside ``path`` if None.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _temporary(path, tmp)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _create(unfinished, mode) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        fsync_dir(path.parent)


def atomic_write(
    path: Path, data: bytes, *, durable: bool = True, mode: int | None = None, tmp: Path | None = None
) -> None:
    """Replace ``path`` by a file that holds ``data``; the arguments are those of ``atomic_file``."""
    with atomic_file(path, durable=durable, mode=mode, tmp=tmp) as file:
        file.write(data)


def check_folder_of(target: Path) -> None:
    """Check before the work that the folder of a file to be written exists: a mistyped one shall not be made.

    Raises:
        ConfigError: if it does not.
    """
    if not target.parent.is_dir():
        raise ConfigError(f"cannot write {target}: expected a folder {target.parent}, found none; create it first")


def check_writable(target: Path, option: str) -> None:
    """Check before the work that ``target``, which ``option`` names, can be made or replaced; it is not touched.

    Raises:
        ConfigError: if it is a folder, its folder does not exist, or nobody can make a file there.
    """
    check_folder_of(target)
    with unwritable_as_config(target, option):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # Permissions do not tell: in some folders of the system nobody can make a file.
        tempfile.TemporaryFile(dir=target.parent).close()


@contextmanager
def unwritable_as_config(target: Path, option: str) -> Iterator[None]:
    """Turn any OSError of a try to write to ``target``, which ``option`` names, into a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{option} {str(target)!r}: expected a place where a file can be written, found: {error.strerror}; name "
            "another"
        ) from error


def create_once(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create ``path`` with its full content, or keep the file that another process created first."""
    unfinished = _temporary(path, None)
    try:
        with _create(unfinished, mode) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(unfinished)
    except FileExistsError:
        pass
    finally:
        unfinished.unlink(missing_ok=True)
    fsync_dir(path.parent)


def ignore_in_git(folder: Path) -> None:
    """Make Git ignore a folder that this user may write, also for ``git add .``; rules that exist are kept."""
    rules = folder / ".gitignore"
    if not os.path.lexists(rules) and os.access(folder, os.W_OK):
        create_once(rules, b"*\n", mode=folder.stat().st_mode & 0o666)  # for those who may enter the folder


def unfinished_files(folder: Path, skipped: Collection[Path] = ()) -> list[Path]:
    """Return the temporary files of ``atomic_file`` and ``create_once`` below a folder, sorted.

    A temporary file belongs to a writer at work or was left by a killed one; only its age tells them apart.

    Args:
        folder: root of the search; symbolic links are not followed.
        skipped: folders that are not searched.
    """
    paths = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) not in skipped]
        paths += [path for name in names if _UNFINISHED.fullmatch(name) and _is_plain(path := Path(place, name))]
    return sorted(paths)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield a new directory beside ``path`` that durably takes its name when the block ends; an exception removes it.

    The name of the temporary directory is fixed, so the next call removes what a killed process left. Callers make
    sure that no other process writes the same ``path``.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        publish_dir(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def publish_dir(built: Path, target: Path) -> None:
    """Sync every file and directory below ``built`` and rename it to ``target``, durably.

    A file with a second name is not synced: it is a hard link to one that was published before.

    Raises OSError if there is no space, or if ``target`` exists and is not an empty directory.
    """
    for path in sorted(built.rglob("*"), reverse=True):
        if path.is_dir() or path.stat().st_nlink == 1:
            fsync_file(path)
    fsync_dir(built)
    target.parent.mkdir(parents=True, exist_ok=True)
    built.rename(target)
    fsync_dir(target.parent)


def rename_durably(source: Path, target: Path) -> None:
    """Rename a synced file to ``target`` on the same file system; missing parent directories are created durably."""
    is_new_parent = not target.parent.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
    fsync_dir(target.parent)
    if is_new_parent:
        fsync_dir(target.parent.parent)


def move_to_damaged(path: Path) -> Path:
    """Move a file or directory to ``damaged`` beside its parent directory and return its new path."""
    damaged = path.parent.with_name(DAMAGED)
    damaged.mkdir(parents=True, exist_ok=True)
    moved = damaged / f"{path.name}-{uuid4().hex[:8]}"
    shutil.move(path, moved)  # a rename, unless the directory is on another file system
    return moved


@contextmanager
def os_error_as_transient(action: str) -> Iterator[None]:
    """Raise TransientError in place of OSError; ``action`` completes "cannot ..."."""
    try:
        yield
    except OSError as error:
        raise TransientError(f"cannot {action}: {error.strerror or error}; check space and permissions") from error


@contextmanager
def disk_full_as_transient() -> Iterator[None]:
    """Raise TransientError in place of an OSError for a full disk, quota or file size limit; others pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        place = "" if error.filename is None else f": {error.filename}"
        raise TransientError(f"{error.strerror}{place}; make space and give the same command again") from error


@contextmanager
def exhausted_limits_as_terminal() -> Iterator[None]:
    """Raise ResourceLimitError in place of errors for exhausted memory or file descriptors; others pass."""
    try:
        yield
    except MemoryError as error:
        raise ResourceLimitError(_OUT_OF_MEMORY) from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise ResourceLimitError(_OUT_OF_MEMORY) from error
        if error.errno == errno.EMFILE:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise ResourceLimitError(
                f"this process needs more than the {most} files that it may have open; raise that with `ulimit -n`"
            ) from error
        raise


@contextmanager
def scratch_dir(home: Home, prefix: str, *, is_plain: bool = False) -> Iterator[Path]:
    """Yield a directory that is removed at the end: below ``home``, or in the system's own if the home is read-only.

    ``is_plain`` asks for a path without a question mark: DuckDB misnames the log of a database file that has one.
    Raises OSError if there is no space.
    """
    is_writable = os.access(home.tmp if home.tmp.exists() else home.data, os.W_OK | os.X_OK)
    if is_writable:
        home.tmp.mkdir(parents=True, exist_ok=True)
    below = home.tmp if is_writable and not (is_plain and "?" in str(home.tmp)) else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=below) as folder:
        yield Path(folder)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _temporary(path: Path, tmp: Path | None) -> Path:
    """Return a name that no other writer uses."""
    name = f".{path.name}.{os.urandom(6).hex()}.tmp"
    return path.with_name(name) if tmp is None else tmp / name


def _create(path: Path, mode: int | None) -> IO[bytes]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _NEW_FILE_MODE if mode is None else mode)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "wb")
