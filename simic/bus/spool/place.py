"""Which folders can be a spool."""

from __future__ import annotations

import os
from pathlib import Path

from simic.contracts.errors import ConfigError
from simic.contracts.names import TOPICS

__all__ = ["refuse_topic_folder"]

_WAITING = ("incoming", "claimed")
"""Folders in which deliveries of a topic wait."""


def refuse_topic_folder(folder: Path, name: str) -> None:
    """Refuse the folder of a topic, or one inside it: a spool made there is one that nobody reads.

    Args:
        folder: the folder of a spool, which need not exist.
        name: option or argument that names it, for the message.

    Raises:
        ConfigError: the message names the folder to give instead.
    """
    path = Path(os.path.realpath(folder))  # not `resolve`, which fails for links that go in a circle
    topic = next((place for place in (path, *path.parents) if place.name in TOPICS), None)
    # `is_dir` fails where one may not look; whoever makes the spool there says so
    if topic is None and any(os.path.isdir(path / waiting) for waiting in _WAITING):  # noqa: PTH112
        topic = path
    if topic is not None:
        found = "the folder of a topic" if topic == path else "a folder inside that of a topic"
        raise ConfigError(
            f"{name}: expected a folder with a folder for each topic, found {found} at {folder}; give {topic.parent}"
        )
