"""Long work in parts: each ends with one receipt, so that a killed command continues after the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.faults import describe_faults
from simic.contracts.results.receipts import Receipt
from simic.runtime.files import atomic_write

__all__ = ["load_or_make"]

R = TypeVar("R", bound=Receipt)


def load_or_make(path: Path, kind: type[R], identity: Mapping[str, Any], make: Callable[[], R], *, is_fresh: bool) -> R:
    """Return the part in ``path`` if its fields have the values of ``identity``; else make it and write it atomically.

    Raises:
        ConfigError: if there is another part and ``is_fresh`` does not ask to make it again.
        ContractError: likewise if what is there is no receipt, such as one of a version with other fields.
    """
    part = _read(path, kind, is_fresh=is_fresh)
    wrong = [] if part is None else [name for name, value in identity.items() if getattr(part, name) != value]
    if wrong and not is_fresh:
        name = wrong[0]
        raise ConfigError(
            f"{path} was made with other code or settings: expected {name} {_short(identity[name])}, found "
            f"{_short(getattr(part, name))}; --fresh makes such parts again, another --home starts anew"
        )
    if part is None or wrong:
        path.unlink(missing_ok=True)
        part = make()
        atomic_write(path, part.model_dump_json(indent=2).encode())
    return part


def _read(path: Path, kind: type[R], *, is_fresh: bool) -> R | None:
    """Return the receipt in ``path``; None if there is none, or one that cannot be read and ``is_fresh``."""
    try:
        return kind.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError as error:
        if is_fresh:
            return None
        faults = describe_faults(error, "part")
        raise ContractError(f"{path} is not a {kind.__name__}: {faults}; --fresh makes this part again") from error


def _short(value: object) -> str:
    """Return a value for a message; digests and lists of keys are cut."""
    if isinstance(value, list):
        return f"{len(value)} ({', '.join(map(str, value[:3]))}{', ...' if len(value) > 3 else ''})"
    return str(value)[:32]
