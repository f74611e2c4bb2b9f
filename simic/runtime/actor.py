"""The account and the machine of this process."""

from __future__ import annotations

import os
import pwd
import re
import socket

from simic.contracts.actor import Actor

__all__ = ["present_actor"]

_OTHER = re.compile(r"[^A-Za-z0-9_.@-]")


def present_actor(run: str | None = None) -> Actor:
    """Return who acts now; the account is the effective one, whatever the environment says."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run under an id without a name
        name = f"uid_{os.geteuid()}"
    return Actor(operator=_plain(name, 64), host=_plain(socket.gethostname(), 253).replace("@", "_"), run=run)


def _plain(text: str, most: int) -> str:
    """Return the name without characters that a path or a secret may have, and never empty."""
    name = _OTHER.sub("_", text)[:most]
    return name if name[:1].isalnum() else f"_{name}"[:most]
