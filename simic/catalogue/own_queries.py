"""Simic's own questions to the views: one SELECT per file of ``queries``, whose header names its parameters."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["own_query"]


def own_query(name: str) -> str:
    """Return the SQL of ``queries/NAME.sql``."""
    return files("simic.catalogue").joinpath("queries", f"{name}.sql").read_text("utf-8")
