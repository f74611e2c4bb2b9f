"""The blueprints that reports may name and policies may learn: those with code, then the declared ones."""

from __future__ import annotations

from simic.contracts.settings.run import IngestConfig
from simic.hosts import plugins

__all__ = ["vocabulary"]


def vocabulary(config: IngestConfig) -> tuple[str, ...]:
    """Return the installed blueprints, then the declared ones without code in alphabetical order."""
    installed = plugins.blueprint_names()
    return (*installed, *sorted(set(config.declared_blueprints) - set(installed)))
