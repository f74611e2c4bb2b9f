"""Short names of policies: a version number, or the first characters of a digest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION, MODEL_NAME, REFERENCE_PREFIX
from simic.contracts.policy_names import DIGEST_NAME, SHORTEST, VERSION_NAME
from simic.ledgers.policies import candidate_versions
from simic.runtime.home import Home
from simic.runtime.nearest_name import suggestion

__all__ = ["NamedPolicy", "display_name", "locate", "require_path"]

MOST_SHOWN = 8

_FOLDER = re.compile(r"[0-9a-f]{64}")


_LISTING = "`simic sql 'SELECT * FROM policies'` lists the policies"


class NamedPolicy(NamedTuple):
    """The location of a named policy: a folder of the home, or only the registry."""

    digest: str
    path: Path | None
    reference: str | None


def locate(home: Home, name: str) -> NamedPolicy | None:
    """Return the policy of a version number or of the first characters of a digest; None for a name of another form.

    Raises:
        ConfigError: if no policy of this home or several fit.
    """
    versions = _versions(home)
    if match := VERSION_NAME.fullmatch(name):
        return _by_number(home, versions, int(match[1]), name)
    if not DIGEST_NAME.fullmatch(name):
        return None
    digests = {*versions, *_folders(home)}
    fitting = sorted(digest for digest in digests if digest.startswith(name))
    if len(fitting) != 1:
        known = _listed(display_name(home, digest, versions) for digest in (fitting or sorted(digests)))
        raise ConfigError(
            f"several policies have a digest that begins with {name!r}: {known}; give more characters"
            if fitting
            else f"no policy has a digest that begins with {name!r}; {_known(known)}"
        )
    digest = fitting[0]
    path = home.policies / digest
    return NamedPolicy(digest, path if path.is_dir() else None, _reference(versions.get(digest)))


def require_path(name: str) -> Path:
    """Return the path that ``name`` is, after no policy had that name. Raises ConfigError if nothing is there."""
    path = Path(name)
    if not path.exists():
        raise ConfigError(
            f"{name!r} is not a policy: expected {CHAMPION}, {MODEL_NAME}/2, 2, {SHORTEST} or more characters of a "
            f"digest, or an existing path; nothing exists at that path.{suggestion(name, [CHAMPION])} {_LISTING}"
        )
    return path


def display_name(home: Home, digest: str, versions: Mapping[str, int] | None = None) -> str:
    """Return the display name of a policy: ``tamiyo/2 (f9c82d40)`` if it is recorded, else ``policy f9c82d40``."""
    number = (_versions(home) if versions is None else versions).get(digest)
    short = digest[:SHORTEST]
    return f"policy {short}" if number is None else f"{MODEL_NAME}/{number} ({short})"


def _by_number(home: Home, versions: Mapping[str, int], number: int, name: str) -> NamedPolicy:
    for digest, version in versions.items():
        if version == number:
            return NamedPolicy(digest, None, _reference(number))
    known = _listed(f"{MODEL_NAME}/{version}" for version in sorted(versions.values()))
    is_unnamed = not known and bool(_folders(home))
    found = "this home has registered none yet; name a policy by its digest" if is_unnamed else _known(known)
    raise ConfigError(f"{name}: there is no version {number} of {MODEL_NAME}; {found}")


def _reference(number: int | None) -> str | None:
    return None if number is None else f"{REFERENCE_PREFIX}{MODEL_NAME}/{number}"


def _versions(home: Home) -> dict[str, int]:
    """Return version numbers by digest, read from the ledger because opening the registry takes seconds."""
    return {version.digest: version.number for version in candidate_versions(home)}


def _folders(home: Home) -> list[str]:
    return [path.name for path in home.policies.glob("*/") if _FOLDER.fullmatch(path.name)]


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
    return ", ".join(listed[:MOST_SHOWN]) + more


def _known(names: str) -> str:
    return f"policies: {names}" if names else "this home has no policies, `simic run` makes one"
