"""Data as people see them: nothing that a terminal would obey, digests cut short."""

from __future__ import annotations

from rich.text import Text

__all__ = ["cell", "short", "visible"]

SHORT = 12
"""Characters of a digest that people are shown; every verb takes its argument as short as that."""


def short(digest: str) -> str:
    """The beginning of a digest; ``--json`` has all of it."""
    return digest[:SHORT]


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
