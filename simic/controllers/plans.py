"""Plan books on disk, one per host set; a home's book precedes the shipped one."""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from simic.contracts.controllers import Plan, PlanBook, PlanTree
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.faults import describe_faults
from simic.contracts.state import HostIdentity

__all__ = [
    "PLANS_DIRECTORY",
    "book_path",
    "family_plans",
    "load_plans",
    "one_set",
    "plan_path",
    "plans_from",
    "search_command",
    "symptom_tree",
    "tree_command",
]

PLANS_DIRECTORY = Path(__file__).parent / "plans"
"""Folder of the shipped plan books."""
MOST_BYTES = 16 * 1024 * 1024
"""Largest plan book that is read; the largest shipped one has 0.1 MB."""

_HOME_PLANS: ContextVar[Path | None] = ContextVar("home_plans", default=None)


@contextmanager
def plans_from(folder: Path | None) -> Iterator[None]:
    """Within the context, books of ``folder`` precede the shipped ones in calls that name no folder.

    A context variable is used because a parameter would change the sources that a book's digest covers.
    """
    token = _HOME_PLANS.set(folder)
    try:
        yield
    finally:
        _HOME_PLANS.reset(token)


def plan_path(set_name: str, folder: Path | None = None) -> Path:
    """Return the path of a set's book in ``folder``, or in the package if None."""
    return (folder or PLANS_DIRECTORY) / f"{set_name}.json"


def book_path(set_name: str, folder: Path | None = None) -> Path | None:
    """Return the book that applies to a set: that of ``folder``, else the shipped one, else None."""
    own = None if folder is None else plan_path(set_name, folder)
    if own is not None and (own.exists() or own.is_symlink()):  # a dangling link is a damaged book, not a missing one
        return own
    shipped = plan_path(set_name)
    return shipped if shipped.is_file() else None


def search_command(set_name: str, images: str | None = None) -> str:
    """Return the command that makes or renews the book of a set; ``images`` is the user's ``world.images``."""
    override = "" if images is None else f" -o {shlex.quote(f'world.images={images}')}"
    return f"simic plans search --set {set_name}{override}"


def tree_command(set_name: str, images: str | None = None) -> str:
    """Return the command that adds a tree to the book of a set; ``images`` as in ``search_command``."""
    return f"{search_command(set_name, images)} --only symptom"


def load_plans(set_name: str, folder: Path | None = None, images: str | None = None) -> PlanBook:
    """Return the book of a set, from ``folder`` (default: that of ``plans_from``) or else from the package.

    ``images`` is the user's ``world.images``, for the command that an error names.

    Raises:
        ConfigError: if there is no book; names the command that makes one.
        ContractError: if the book cannot be read or belongs to another set; names the remedy.
    """
    path = book_path(set_name, folder or _HOME_PLANS.get())
    if path is None:
        raise ConfigError(
            f"no plan book for set {set_name!r}; run `{search_command(set_name, images)}`, which makes one"
        )
    try:
        book = PlanBook.model_validate(json.loads(_read(path), parse_constant=_refuse_constant))
    except (ValueError, OSError, RecursionError) as error:
        raise ContractError(
            f"plan book {path} cannot be read: malformed or of another version of Simic ({_first_problem(error)}); "
            f"{_remedy(path, set_name, images)}"
        ) from error
    if book.set != set_name:
        raise ContractError(
            f"plan book {path} belongs to set {book.set!r}, expected {set_name!r}; {_remedy(path, set_name, images)}"
        )
    return book


def _read(path: Path) -> bytes:
    """Return the bytes of a regular file of bounded size; raise ValueError for anything else, such as a pipe."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("expected a plain file")
    if status.st_size > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES} bytes, found {status.st_size}")
    return path.read_bytes()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected finite numbers, found {name}")


def _remedy(path: Path, set_name: str, images: str | None) -> str:
    is_shipped = path.parent == PLANS_DIRECTORY
    return f"run `{search_command(set_name, images)}`{'' if is_shipped else ', or remove the file'}"


def _first_problem(error: Exception) -> str:
    """Return the first problems of an error, on one line."""
    if not isinstance(error, ValidationError):
        return "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return describe_faults(error, "book")


def one_set(hosts: Sequence[HostIdentity]) -> str | None:
    """Return the set of all hosts, or None without hosts; raise ConfigError for hosts of several sets."""
    names = {host.set for host in hosts}
    if len(names) > 1:
        sets = ", ".join(sorted(names))
        raise ConfigError(
            f"a plan book serves one set of hosts at a time, found {sets}: use hosts of one set, or a controller "
            "without plans"
        )
    return next(iter(names), None)


def family_plans(hosts: Sequence[HostIdentity]) -> list[Plan]:
    """Return the best plan of each host's family; raise ConfigError for a family that the book lacks."""
    name = one_set(hosts)
    by_family: Mapping[str, Plan] = {} if name is None else load_plans(name).by_family
    missing = sorted({host.family for host in hosts} - set(by_family))
    if name is not None and missing:
        raise ConfigError(f"no plan for families {missing} of set {name!r}; run `{search_command(name)}`")
    return [by_family[host.family] for host in hosts]


def symptom_tree(book: PlanBook, images: str | None = None) -> PlanTree:
    """Return the tree of a book; raise ConfigError for a book without one. ``images`` as in ``load_plans``."""
    if book.symptom is None:
        raise ConfigError(
            f"the plan book of set {book.set!r} has no tree; run `{tree_command(book.set, images)}`, which adds it"
        )
    return book.symptom.tree
