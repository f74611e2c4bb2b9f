"""Text of others in pages: it stays in its cell, and it is text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simic.validation.table import Table, escape_markdown, fenced, markdown


@given(st.lists(st.text(st.sampled_from("a|\\\n\r\u2028<&`"), max_size=8), min_size=2, max_size=2))
def test_any_cell_stays_in_its_table_and_can_be_read_back(cells: list[str]) -> None:
    lines = markdown(Table(("one", "two"), [tuple(cells)])).splitlines()
    assert len(lines) == 3
    # A bar ends a cell unless a backslash escapes it, and two backslashes are one of text.
    found = re.fullmatch(r"\| ((?:\\.|[^\\|])*) \| ((?:\\.|[^\\|])*) \|", lines[2])
    assert found is not None
    assert "<" not in lines[2]
    assert [_read(cell) for cell in found.groups()] == [" ".join(cell.splitlines()) for cell in cells]


def _read(cell: str) -> str:
    """Return the text that Markdown shows, by its rules for escapes and entities."""
    return re.sub(r"\\(.)", r"\1", cell).replace("&lt;", "<").replace("&amp;", "&")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\\|b", r"a\\\|b"),
        ("one\n\n# two", "one  # two"),
        ("<img src=x>", "&lt;img src=x>"),
        ("![x](http://host/x.png)", r"![x]\(http://host/x.png)"),
        ("&lt;", "&amp;lt;"),
        ("+1.0 [-0.5, +2.5] (n=7) `wait` 3 % > 2", "+1.0 [-0.5, +2.5] (n=7) `wait` 3 % > 2"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert escape_markdown(text) == shown


@pytest.mark.parametrize(("code", "ticks"), [("simic ab", 3), ("echo `x`", 3), ("a\n```\nb", 4), ("`````", 6)])
def test_a_fence_is_longer_than_any_run_of_backticks_in_it(code: str, ticks: int) -> None:
    assert fenced(code) == f"{'`' * ticks}\n{code}\n{'`' * ticks}"
