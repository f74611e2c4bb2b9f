"""Whatever is delivered, in whatever pieces, however often: the counts add up and the first report of an id stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.reports import episode, line
from support.homes.pipeline import drop, ingest_all

from simic.catalogue.query import query
from simic.runtime.home import Home

REPORTS = episode(1)[:6]
GOOD = [line(report) for report in REPORTS]
OTHER = [data.replace(b'"NEUTRAL"', b'"SUCCESS"', 1) for data in GOOD]
LATER = [data.replace(b'"2026-', b'"2025-') for data in GOOD]
BAD = [b"!", b"{}", GOOD[0][:-9], b"[" * 40, GOOD[1].replace(b'"step":1', b'"step":1e999')]

MEANINGS = {
    data: (step, outcome)
    for spellings, outcome in ((GOOD, "NEUTRAL"), (LATER, "NEUTRAL"), (OTHER, "SUCCESS"))
    for step, data in enumerate(spellings)
}
"""Step and outcome; told at another time, a report is the same report."""

deliveries = st.lists(st.lists(st.sampled_from([*MEANINGS, *BAD]), max_size=8), min_size=1, max_size=4)


class Twin:
    """The law, literally."""

    def __init__(self) -> None:
        self.landed: dict[int, str] = {}
        self.duplicate = self.quarantined = 0

    def tell(self, data: bytes) -> None:
        if data in BAD:
            self.quarantined += 1
            return
        step, outcome = MEANINGS[data]
        if step not in self.landed:
            self.landed[step] = outcome
        elif self.landed[step] == outcome:
            self.duplicate += 1
        else:
            self.quarantined += 1


@settings(max_examples=25, deadline=None)
@given(deliveries, st.integers(1, 9), st.booleans())
def test_every_line_read_is_landed_repeated_or_refused(
    told: list[list[bytes]], batch_reports: int, is_one_by_one: bool
) -> None:
    """PD-5: read == landed + duplicate + quarantined."""
    twin, sums = Twin(), [0, 0, 0, 0]
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        for number, lines in enumerate(told):
            drop(home, f"{number:03d}", lines)
            for data in lines:
                twin.tell(data)
            if is_one_by_one or number == len(told) - 1:
                receipt = ingest_all(home, batch_reports=batch_reports)
                assert receipt.read == receipt.landed + receipt.duplicate + receipt.quarantined
                counts = (receipt.read, receipt.landed, receipt.duplicate, receipt.quarantined)
                sums = [total + count for total, count in zip(sums, counts, strict=True)]
        assert sums == [sum(map(len, told)), len(twin.landed), twin.duplicate, twin.quarantined]
        rows = query(home, "SELECT step, outcome FROM reports ORDER BY step")
    assert [(row["step"], row["outcome"]) for row in rows] == sorted(twin.landed.items())
