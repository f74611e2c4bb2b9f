"""What `simic keys list` counts."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from simic.app.container import Container
from simic.app.keys import Keys
from simic.app.receipts import SEALED_STAGES
from simic.ledgers import CANDIDATES_LEDGER, GATES_LEDGER, PROMOTIONS_LEDGER
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

RECORDS = 32
RECORD_BYTES = 1 << 20
PEAK_BYTES = 8 << 20
"""A few records at a time: the bytes, their text and what is read from it."""


@pytest.mark.parametrize("place", ["receipts", GATES_LEDGER, CANDIDATES_LEDGER, PROMOTIONS_LEDGER])
def test_a_long_history_is_counted_in_constant_memory(home: Path, place: str) -> None:
    app = Container(Home(home), load_profile("quick"), 0)
    app.home.create()
    record = json.dumps({"key_id": app.signer.key_id, "padding": "x" * RECORD_BYTES})
    for number in range(RECORDS):
        if place == "receipts":
            folder = app.home.receipts / SEALED_STAGES[number % len(SEALED_STAGES)]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.json").write_text(record)
        else:
            with (app.home.ledger / place).open("a") as ledger:
                ledger.write(f"{record}\n")
    tracemalloc.start()
    (found,) = Keys(app).listed().keys
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    counted = found.journal_lines if place == PROMOTIONS_LEDGER else found.receipts
    assert (counted, found.receipts + found.journal_lines) == (RECORDS, RECORDS)
    assert peak < PEAK_BYTES


def test_revoking_an_id_that_was_never_here_names_the_keys_still_trusted(home: Path) -> None:
    """A mistyped id leaves the key that leaked trusted, so success alone would deceive; its repetition says it too."""
    app = Container(Home(home), load_profile("quick"), 0)
    app.home.create()
    leaked = app.signer.key_id
    mistyped = f"{leaked[:-1]}{'1' if leaked[-1] == '0' else '0'}"
    for _ in range(2):
        done = Keys(app).revoke(mistyped, "leaked")
        (step,) = [step for step in done.next_steps if mistyped in step]
        assert "is no key of this home: its public half was never here" in step
        assert f"still trusted: {leaked}" in step
    for _ in range(2):
        done = Keys(app).revoke(leaked, "leaked")
        assert done.revoked == leaked
        assert [step for step in done.next_steps if "never" in step] == []
