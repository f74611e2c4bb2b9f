"""Read the files of a spool where they lie: waiting, claimed or done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from simic.bus.codec import decode
from simic.bus.history import Entry
from simic.bus.spool.bus import ABANDONED_S, SpoolBus
from simic.bus.spool.files import Entrant, listing
from simic.bus.spool.lines import FileLimits, read_lines
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ConfigError, ContractError, ResourceLimitError
from simic.runtime.files import os_error_as_transient

__all__ = ["SpoolHistory"]

_FOLDERS = ("incoming", "claimed", "done")
"""In the order in which files move, so that one that moves meanwhile is met again."""
_MOST_FILES = 20_000
_MOST_LINE_BYTES = 64 * 1024
_LIMITS = FileLimits(size_bytes=4 * 1024 * 1024, time_s=10.0)


class SpoolHistory:
    """The events of a topic of a spool; the position is the names of the files that were read."""

    def __init__(self, root: Path, topic: str) -> None:
        """Raise ConfigError unless ``root`` is a directory; the topic's folder may appear later."""
        if not root.is_dir():
            raise ConfigError(f"expected the folder of a spool, found no folder at {root}")
        self._folders = [SpoolBus(root).folder(topic, name) for name in _FOLDERS]
        self.position: list[str] = []
        self.place = f"spool {root}"

    def unread(self) -> Iterator[Entry]:
        """Yield an event per line of the files that are not in the position, which loses names that are gone.

        Raises:
            TransientError: if the folder cannot be read.
            ResourceLimitError: if it holds more files than a reader takes.
        """
        present = self._present()
        seen = set(self.position) & present.keys()
        self.position = sorted(seen)
        for source in sorted(present.keys() - seen):
            folder, entrant = present[source]
            try:
                entries = list(_entries(folder / entrant.name, entrant))
            except FileNotFoundError:
                continue  # its consumer moved it meanwhile; the next look meets it
            except OSError as error:  # one bad file does not stop the others
                entries = [Entry(source, None, f"it cannot be read: {error.strerror or error}")]
            self.position.append(source)
            yield from entries

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _present(self) -> dict[str, tuple[Path, Entrant]]:
        entrants: dict[str, tuple[Path, Entrant]] = {}
        for folder in self._folders:
            with os_error_as_transient(f"list {folder}"):
                if folder.is_dir():
                    entrants |= {
                        entrant.source: (folder, entrant) for entrant in listing(folder, time.time() - ABANDONED_S)
                    }
        if len(entrants) > _MOST_FILES:
            raise ResourceLimitError(
                f"{self.place}: expected at most {_MOST_FILES} files of policy updates, found {len(entrants)}; remove "
                f"old ones from {self._folders[-1]}"
            )
        return entrants


def _entries(path: Path, entrant: Entrant) -> Iterator[Entry]:
    if entrant.fault is not None:
        yield Entry(entrant.source, None, entrant.fault)
        return
    for line in read_lines(path, _MOST_LINE_BYTES, _LIMITS):
        place = f"{entrant.source}, line {line.number}"
        if line.defect is not None:
            yield Entry(place, None, line.note or f"the line is {line.defect.value}, at most {_MOST_LINE_BYTES} bytes")
            continue
        try:
            yield Entry(place, decode(EventEnvelope, line.data), "")
        except ContractError as error:
            yield Entry(place, None, str(error))
