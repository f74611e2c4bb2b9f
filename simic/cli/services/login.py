"""The login of this home's services: one line ``simic:<password>`` in a file for its owner only."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from simic.contracts.errors import ConfigError
from simic.runtime.files import create_once
from simic.runtime.home import Home
from simic.runtime.private_files import private_directory, read_private

__all__ = ["load_login", "login_file", "new_login"]

USER = "simic"
_PASSWORD_BYTES = 32
_LIMIT_BYTES = 200
_LOGIN = re.compile(r"[A-Za-z0-9_.-]{1,32}:[A-Za-z0-9_-]{32,128}")


def login_file(home: Home) -> Path:
    """Return the file of the login, which may not exist yet."""
    return home.prefect / "login"


def new_login() -> str:
    """Return a new ``user:password`` with 256 random bits."""
    return f"{USER}:{secrets.token_urlsafe(_PASSWORD_BYTES)}"


def load_login(home: Home) -> str:
    """Return the login of this home as ``user:password``; create it on first use.

    Raises:
        ConfigError: if others may read or write the file, or if it does not hold a login.
    """
    path = login_file(home)
    private_directory(path.parent)
    if not path.exists():
        create_once(path, f"{new_login()}\n".encode())
    content = read_private(path, "the services' login", _LIMIT_BYTES).decode("ascii", "replace").strip()
    if not _LOGIN.fullmatch(content):
        # The content is not quoted: it may be most of a password.
        raise ConfigError(f"{path} must hold one line user:password; run `simic down`, remove it, run `simic up`")
    return content
