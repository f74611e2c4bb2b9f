"""The page about the difference of two policies in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.policy_differences import difference
from support.servers.chromium import CHROMIUM, open_page

from simic.validation.difference_page import write_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def test_the_page_shows_its_tables_and_pictures_and_loads_nothing_else(tmp_path: Path) -> None:
    path = write_page(difference(), [], tmp_path / "page.html")
    with open_page(tmp_path / "browser") as page:
        page.open(path.as_uri())
        page.wait_for_text("Where tamiyo/2 and tamiyo/1 act differently", "25.0% [20.0%, 30.0%]", "By epoch")
        widths = page.evaluate("[...document.images].map(one => one.naturalWidth)")
        assert len(widths) == 3
        assert min(widths) > 300
        assert page.evaluate("[...document.images].every(one => one.alt.length > 10)")
        loaded = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
        assert [name for name in loaded if not name.startswith("data:")] == []
