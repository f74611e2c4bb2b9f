"""Data as people see them: nothing that a terminal would obey, digests cut short, sizes in one unit."""

from __future__ import annotations

import re

from rich.text import Text

__all__ = ["cell", "megabytes", "short", "visible"]

SHORT = 12
"""Characters of a digest that people are shown; a verb that takes a digest takes its beginning too."""
_DIGEST = re.compile("[0-9a-f]{64}")


def short(text: str) -> str:
    """The beginning of a digest, of which ``--json`` has all; anything else as it is."""
    return text[:SHORT] if _DIGEST.fullmatch(text) else text


def megabytes(size_bytes: int) -> str:
    """A size in millions of bytes, the one unit in which people are shown sizes."""
    return f"{size_bytes / 1e6:,.2f}"


def visible(text: str) -> str:
    """``text`` with escapes for what a terminal would obey or hide; line ends and tabs stay.

    Data come from strangers: an escape sequence could rename the window, a mark of direction could turn text around.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def cell(value: object) -> Text:
    """A value in a table: never markup, and blank where there is none."""
    return Text("" if value is None else visible(str(value)))


def _visible(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
