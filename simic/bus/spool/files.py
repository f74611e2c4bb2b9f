"""Entries of a spool folder: the source name of each, and the reason if it cannot be delivered."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from simic.bus.spool.lines import COMPRESSED_SUFFIX, PLAIN_SUFFIX

__all__ = ["Entrant", "free_name", "is_own_fault", "listing", "named_after"]

_UNFINISHED = (".tmp", ".part", ".partial", ".filepart", ".crdownload")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_NAME_BYTES = 255
"""Longest file name in bytes that every common file system accepts."""
_CUT_BYTES = 128
"""Bytes of the beginning of a name that are kept when the whole name is too long."""
_LARGEST = 999
_NUMBERS = "(~[1-9][0-9]{0,2})"
"""What ``free_name`` adds to a stem; a longer number, such as a year or a date, is part of the name."""
_OWN_FAULTS = frozenset(
    {
        errno.EACCES, errno.EBADMSG, errno.EBUSY, errno.EFBIG, errno.EINVAL, errno.EIO, errno.EISDIR, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENODEV, errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.EOPNOTSUPP, errno.EOVERFLOW,
        errno.EPERM, errno.ETXTBSY, errno.EUCLEAN, errno.EXDEV,
    }
)  # fmt: skip
"""Errors caused by the file itself. A full disk or too many open files, for example, concern every file."""


class Entrant(NamedTuple):
    """One entry of a folder."""

    name: str
    """Name on the file system; may contain bytes that are not UTF-8."""
    source: str
    """The same name as printable UTF-8."""
    fault: str | None
    """Why the entry cannot be read as lines; None if it can be tried."""


def listing(folder: Path, abandoned_at: float) -> list[Entrant]:
    """Return all entries in the order of names, except files that a producer is still writing.

    Names that begin with a dot or end in a suffix of unfinished copies are unfinished. If such a file has not changed
    since ``abandoned_at`` (seconds since the epoch), it is abandoned and is returned with a fault.
    """
    entrants = []
    for entry in os.scandir(folder):
        try:
            details = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # its consumer moved it meanwhile
        except OSError as error:
            fault: str | None = f"it cannot be looked at: {error.strerror}"
        else:
            if _is_unfinished(entry.name):
                if max(details.st_mtime, details.st_ctime) >= abandoned_at:
                    continue
                fault = "its name is that of a copy in progress, and it has not changed for a day"
            else:
                fault = _fault(entry, details.st_mode)
        entrants.append(Entrant(entry.name, _readable(entry.name), fault))
    return sorted(entrants)


def free_name(name: str, *folders: Path) -> str:
    """Return a name unused in all folders: overwriting loses a file, and a source names only one delivery."""
    free, plain, number = name, _unnumbered(name), 1
    while any(os.path.lexists(folder / free) for folder in folders):
        number += 1
        free = _numbered(plain, number)
    return free


def named_after(name: str, folder: Path) -> list[Path]:
    """Return the files in ``folder`` that have ``name`` or a number besides it, as ``free_name`` gives, sorted."""
    plain = _unnumbered(name)
    stem, suffix = _parted(plain)
    stems = "|".join(re.escape(each) for each in (stem, _shortened(plain)))
    numbered = re.compile(f"({stems}){_NUMBERS}*{re.escape(suffix)}")
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if numbered.fullmatch(path.name))


def is_own_fault(error: OSError, *folders: Path) -> bool:
    """Return whether ``error`` is caused by the file itself and not by the folders between which it moves."""
    if error.errno not in _OWN_FAULTS:
        return False
    return all(os.access(folder, os.R_OK | os.W_OK | os.X_OK) for folder in folders)


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") or name.endswith(_UNFINISHED)


def _fault(entry: os.DirEntry[str], mode: int) -> str | None:
    if not stat.S_ISREG(mode):
        return f"expected a regular file, found {_KINDS.get(stat.S_IFMT(mode), 'something else')}"
    if not entry.name.endswith((PLAIN_SUFFIX, COMPRESSED_SUFFIX)):
        return f"expected a name that ends in {PLAIN_SUFFIX} or {COMPRESSED_SUFFIX}, found {_readable(entry.name)}"
    if not os.access(entry.path, os.R_OK):
        return f"expected permission to read it, found mode {stat.S_IMODE(mode):04o} for user {os.geteuid()}"
    return None


def _readable(name: str) -> str:
    """Return the name itself if it is printable UTF-8, else a printable name that no other file yields."""
    if name.isprintable():  # a lone surrogate stands for a byte that is not UTF-8
        return name
    stem, suffix = _parted("".join(letter if letter.isprintable() else "_" for letter in name))
    return f"{_cut(stem, _CUT_BYTES)}-{_digest(name)}{suffix}"


def _numbered(name: str, number: int) -> str:
    stem, suffix = _parted(name)
    full, rest = divmod(number - 1, _LARGEST)
    mark = f"~{_LARGEST}" * full + f"~{rest + 1}"  # beyond the largest number, several follow one another
    numbered = f"{stem}{mark}{suffix}"
    if len(os.fsencode(numbered)) <= _NAME_BYTES:
        return numbered
    return f"{_shortened(name)}{mark}{suffix}"


def _unnumbered(name: str) -> str:
    stem, suffix = _parted(name)
    return re.sub(_NUMBERS + r"+\Z", "", stem) + suffix


def _shortened(name: str) -> str:
    """Return a stem for a name that would be too long with a number."""
    return f"{_cut(_parted(name)[0], _CUT_BYTES)}-{_digest(name)}"


def _parted(name: str) -> tuple[str, str]:
    suffix = next((suffix for suffix in (COMPRESSED_SUFFIX, PLAIN_SUFFIX) if name.endswith(suffix)), "")
    return name.removesuffix(suffix), suffix


def _cut(text: str, size_bytes: int) -> str:
    return text.encode()[:size_bytes].decode(errors="ignore")


def _digest(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
