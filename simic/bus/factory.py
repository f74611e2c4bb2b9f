"""Open the bus that serves the scheme of ``REDIS_URL`` (address of the bus, Redis or another), by default the spool.

The buses are the modules of ``plugins``. A ``BusSpec`` is plain data, so another process can open the same bus.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simic.bus.plugins import BUSES
from simic.bus.protocol import Bus
from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import BusConfig, IngestConfig

__all__ = ["URL_VARIABLE", "BusSpec", "bus_plugin", "open_bus"]

URL_VARIABLE = "REDIS_URL"
"""Address of the bus, Redis or another. Environment variable only: it may hold a password. Worker processes inherit it;
no file holds it."""
_SPOOL_URL = "file:"


class BusSpec(NamedTuple):
    """How to open a bus, anywhere on this machine."""

    spool: Path
    """Directory of the spool; with Redis, lines wait here while it does not answer."""
    config: BusConfig = BusConfig()
    has_url: bool = False
    """Whether ``REDIS_URL`` names the bus; without a URL it is the spool."""
    ingest: IngestConfig = IngestConfig()
    """Limits of one file of the spool."""
    has_fallback: bool = True
    """Whether lines wait in the spool while Redis does not answer; otherwise a put raises TransientError then."""
    conversation: str | None = None
    """Jobs with one name share one connection within a process: a Redis that does not answer is then waited for only
    once. None opens a connection each time."""


_newest: dict[tuple[BusSpec, str], Bus] = {}
"""The bus of the most recent named conversation in this process."""


def open_bus(spec: BusSpec, environment: Mapping[str, str] = os.environ) -> Bus:
    """Open the bus of ``spec``; no request is sent yet.

    Raises:
        ConfigError: ``REDIS_URL`` is not set, has an unknown scheme, or names a bus that cannot be opened.
    """
    url = _url(spec, environment)
    if spec.conversation is None:
        return _open(spec, url)
    if (spec, url) not in _newest:
        _newest.clear()
        _newest[spec, url] = _open(spec, url)
    return _newest[spec, url]


def _open(spec: BusSpec, url: str) -> Bus:
    bus: Bus = _serving(url).open_bus(url, spec)
    return bus


def bus_plugin(spec: BusSpec, environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the plug-in that opens the bus of ``spec``; raises ConfigError as ``open_bus`` does."""
    name: str = _serving(_url(spec, environment)).NAME
    return name


def _url(spec: BusSpec, environment: Mapping[str, str]) -> str:
    if not spec.has_url:
        return _SPOOL_URL
    url = environment.get(URL_VARIABLE)
    if not url:
        raise ConfigError(f"{URL_VARIABLE} is not set: expected the address of the bus")
    return url


def _serving(url: str) -> Any:
    """Return the first plug-in that serves the scheme of ``url``, shipped ones first."""
    scheme, colon, _ = url.partition(":")
    known: list[str] = []
    for name in BUSES.names():
        plugin = BUSES.load(name)
        if colon and scheme.lower() in plugin.SCHEMES:
            return plugin
        known += plugin.SCHEMES
    # Without the slashes, what stands before the colon may be a user or a password, so it is not repeated.
    found = f"the scheme {scheme!r}" if "://" in url else "no scheme"
    raise ConfigError(
        f"{URL_VARIABLE} must look like "
        f"redis://[user:password@]host[:port][/database]: expected a URL with one of the "
        f"schemes {', '.join(sorted(known))}, found {found}"
    )
