"""Objectives, one module each: ``NAME``, ``SUMMARY`` and ``begin``, which returns an ``Objective`` for a log."""

from __future__ import annotations

from simic.runtime.plugin_folder import PluginFolder

__all__ = ["OBJECTIVES"]

OBJECTIVES = PluginFolder("objective", "simic.learning.objectives", "simic.objectives", ("NAME", "SUMMARY", "begin"))
