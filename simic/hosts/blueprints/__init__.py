"""One file per blueprint; the file name is its name and ``BLUEPRINT`` its instance."""

__all__ = ["STANDARD"]

STANDARD = ("norm", "gate", "bottleneck", "dense", "heavy", "dropout")
"""Blueprints that the shipped host sets allow."""
