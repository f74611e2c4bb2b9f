"""The page about the difference of two policies in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.episodes import episode, epoch
from support.builders.policy_differences import difference, grown_pair
from support.servers.chromium import CHROMIUM, open_page

from simic.validation.difference_page import draw, write_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def test_the_page_shows_its_tables_and_pictures_and_loads_nothing_else(tmp_path: Path) -> None:
    grown = episode([epoch(0, 0.2), epoch(1, 0.3)])
    found, pairs = difference().model_copy(update={"grown": [grown_pair()]}), [(grown, grown)]
    path = write_page(found, pairs, draw(found, pairs), tmp_path / "page.html")
    with open_page(tmp_path / "browser") as page:
        page.open(path.as_uri())
        page.wait_for_text("Where tamiyo/2 and tamiyo/1 act differently", "25.0% [20.0%, 30.0%]", "By epoch")
        page.wait_for_text("Test hosts grown under both", "0 and 1", "-3.1", "No seed is active at the end.")
        widths = page.evaluate("[...document.images].map(one => one.naturalWidth)")
        assert len(widths) == 3 + 2
        assert min(widths) > 300
        assert page.evaluate("[...document.images].every(one => one.alt.length > 10)")
        loaded = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
        assert [name for name in loaded if not name.startswith("data:")] == []
