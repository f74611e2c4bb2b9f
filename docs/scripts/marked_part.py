"""The part of a page between two marks, which a script writes."""

from __future__ import annotations

from pathlib import Path

__all__ = ["replace_part"]


def replace_part(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the marks ``begin`` and ``end`` of a page.

    Raises:
        ValueError: if a mark is missing or repeated; the page is unchanged.
    """
    before, rest = page.read_text("utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", "utf-8")
