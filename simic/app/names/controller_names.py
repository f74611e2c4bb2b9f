"""Checks the names of controllers, also before anything large is loaded; the error suggests the nearest name."""

from __future__ import annotations

from collections.abc import Iterable

from simic.contracts.controllers import SEARCHED
from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION, LEARNED
from simic.contracts.policy_names import DIGEST_NAME, VERSION_NAME
from simic.controllers.plugins import CONTROLLERS
from simic.runtime.nearest_name import suggestion

__all__ = ["check_controller", "check_words"]


def check_controller(name: str) -> None:
    """Check that a controller of this name exists.

    Raises:
        ConfigError: if it does not; the message suggests the nearest name.
    """
    known = sorted({*CONTROLLERS.names(), CHAMPION} - {LEARNED, "schedule"})
    if name not in known:
        raise ConfigError(
            f"{name!r} is not a controller.{suggestion(name, known)} Known controllers: {', '.join(known)}, "
            "a version such as tamiyo/2, the first 8 or more characters of a policy's digest, or the directory of "
            "a sealed policy; with +karn behind a policy's name, it consults Karn"
        )


def check_words(names: Iterable[str]) -> None:
    """Check, of names of controllers and policies, the single words: those that no policy can have.

    Arms that search pass; not every verb takes them.

    Raises:
        ConfigError: as ``check_controller`` does.
    """
    for name in names:
        is_policy = VERSION_NAME.fullmatch(name) or DIGEST_NAME.fullmatch(name)
        if name.isidentifier() and name not in SEARCHED and not is_policy:
            check_controller(name)
