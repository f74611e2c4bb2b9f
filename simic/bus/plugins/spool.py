"""``spool``: a directory of files in the home, the bus without a URL."""

from __future__ import annotations

from simic.bus.factory import URL_VARIABLE, BusSpec
from simic.bus.spool.bus import SpoolBus
from simic.bus.spool.lines import FileLimits
from simic.contracts.errors import ConfigError

__all__ = ["NAME", "SCHEMES", "open_bus", "open_spool"]

NAME = "spool"
SCHEMES = ("file",)


def open_bus(url: str, spec: BusSpec) -> SpoolBus:
    """Open the spool of ``spec``; raises ConfigError if the URL names another directory."""
    if url.partition(":")[2]:
        raise ConfigError(
            f"{URL_VARIABLE}: expected `file:` without a path, found a path; the spool is a directory of the home, "
            "so set SIMIC_HOME instead"
        )
    return open_spool(spec)


def open_spool(spec: BusSpec) -> SpoolBus:
    """Open the spool of ``spec``, whichever bus its URL names."""
    limits = FileLimits(spec.ingest.max_file_mb * 2**20, spec.ingest.max_file_s)
    return SpoolBus(spec.spool, limits, spec.config.ttl_s)
