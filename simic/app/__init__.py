"""Composition root: settings become live parts, and every verb of the factory becomes one call."""

from simic.app.root import App

__all__ = ["App"]
