"""Plug-ins of one kind: the modules of a folder, then the entry points of installed packages.

A plug-in is a module with agreed attributes (``load``) or one object, which its module holds (``load_object``).

Names come from file names and package metadata, so listing them imports nothing.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from simic.contracts.errors import ConfigError
from simic.runtime.nearest_name import suggestion

__all__ = ["PluginFolder"]

_SUMMARY = re.compile(r'^SUMMARY = (".*")$', re.MULTILINE)


class PluginFolder(NamedTuple):
    """A kind of plug-in."""

    kind: str
    """The noun in messages, such as ``controller``."""
    package: str
    """The package whose modules are the shipped plug-ins; names that begin with an underscore are helpers."""
    group: str
    """The entry-point group of installed plug-ins; an entry point names what ``load`` or ``load_object`` returns."""
    attributes: tuple[str, ...]
    """Attributes that every module defines; the first one holds the name of the plug-in, or its object."""

    def names(self) -> tuple[str, ...]:
        """Return the shipped names in alphabetical order, then the installed ones; a shipped name wins."""
        own = _shipped(self.package)
        return own + tuple(sorted(set(_installed(self.group)) - set(own)))

    def summaries(self) -> dict[str, str]:
        """Return one line of help per name, the constant ``SUMMARY``, read from the source without importing it."""
        shipped = {name: find_spec(f"{self.package}.{name}") for name in _shipped(self.package)}
        origins = {name: None if spec is None else spec.origin for name, spec in shipped.items()}
        summaries = {name: "" if origin is None else _summary(Path(origin)) for name, origin in origins.items()}
        others = (name for name in self.names() if name not in summaries)
        return summaries | {name: f"installed: {_installed(self.group)[name].value}" for name in others}

    def installed(self) -> dict[str, EntryPoint]:
        """Return the entry points of installed packages, those that a shipped name hides included."""
        return _installed(self.group)

    def load_object(self, name: str) -> Any:
        """Return the object of a plug-in: the first attribute of a shipped module, or what the entry point names.

        Raises:
            ConfigError: if the name is unknown, or if the entry point cannot be loaded.
        """
        if name in _shipped(self.package):
            return getattr(import_module(f"{self.package}.{name}"), self.attributes[0])
        return self._load_installed(name)

    def load(self, name: str) -> Any:
        """Return the module of a plug-in.

        Raises:
            ConfigError: if the name is unknown, or if the module cannot be imported or lacks an attribute.
        """
        if name in _shipped(self.package):
            return import_module(f"{self.package}.{name}")
        module, origin = self._load_installed(name), self._origin(name)
        missing = [attribute for attribute in self.attributes if not hasattr(module, attribute)]
        if missing:
            raise ConfigError(f"{origin}: expected a module with {', '.join(self.attributes)}, {missing} is missing")
        declared = getattr(module, self.attributes[0])
        if declared != name:
            raise ConfigError(f"{origin}: expected {self.attributes[0]} = {name!r}, found {declared!r}")
        return module

    def _load_installed(self, name: str) -> Any:
        if name not in _installed(self.group):
            known = sorted(self.names())
            raise ConfigError(f"unknown {self.kind} {name!r}; known: {', '.join(known)}.{suggestion(name, known)}")
        try:
            return _installed(self.group)[name].load()
        except Exception as error:
            # Code of another package runs here; the message of any error must name that package.
            raise ConfigError(f"{self._origin(name)} cannot be loaded: {type(error).__name__}: {error}") from error

    def _origin(self, name: str) -> str:
        return f"entry point {self.group}:{name} = {_installed(self.group)[name].value}"


def _summary(source: Path) -> str:
    """Return the string that a module assigns to ``SUMMARY`` in one line, or an empty one.

    Every start of the command comes here for its help texts; to parse the modules would take ten times as long.
    """
    match = _SUMMARY.search(source.read_text("utf-8"))
    return "" if match is None else str(ast.literal_eval(match[1]))


@cache
def _shipped(package: str) -> tuple[str, ...]:
    spec = find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    files = [file for folder in folders for file in folder.glob("*.py")]
    return tuple(sorted(file.stem for file in files if not file.stem.startswith("_")))


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in _entry_points().select(group=group)}


@cache
def _entry_points() -> Any:
    # Each call of entry_points reads the metadata of every package again.
    return entry_points()
