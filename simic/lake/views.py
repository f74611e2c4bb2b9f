"""The SQL files of the views and what they say of themselves."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

__all__ = ["View", "load_views"]

_FILE = re.compile(r"\d{2}_([a-z]+)\.sql")
_HEADER = re.compile(r"-- (grain|key|inputs): (.+)")
_COLUMN = re.compile(r"-- column (\w+): (.+)")


class View(NamedTuple):
    """One SQL file."""

    name: str
    meaning: str
    grain: str
    key: str
    columns: dict[str, str]
    """Meaning by column; empty where the columns are those of the contract."""
    sql: str


def load_views() -> list[View]:
    """All views, in an order in which each uses only earlier ones."""
    entries = sorted(files("simic.lake").joinpath("views").iterdir(), key=lambda entry: entry.name)
    return [_parse(match[1], entry.read_text("utf-8")) for entry in entries if (match := _FILE.fullmatch(entry.name))]


def _parse(name: str, sql: str) -> View:
    comments = [line for line in sql.splitlines() if line.startswith("--")]
    facts = {match[1]: match[2] for line in comments if (match := _HEADER.fullmatch(line))}
    columns = {match[1]: match[2] for line in comments if (match := _COLUMN.fullmatch(line))}
    meaning = " ".join(line[3:] for line in comments if not _HEADER.fullmatch(line) and not _COLUMN.fullmatch(line))
    return View(name, meaning, facts["grain"], facts["key"], columns, sql)
