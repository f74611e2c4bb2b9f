"""Pins: the last line counts, doing it twice adds none, damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.homes.pipeline import NOW

from simic.contracts.errors import ConfigError, IntegrityError
from simic.ledgers import PINS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.pins import pinned, set_pin
from simic.runtime.home import Home

A, B = "a" * 64, "b" * 64


def test_pinning_twice_is_one_line_with_the_first_reason(tmp_path: Path) -> None:
    home = Home(tmp_path)
    set_pin(home, A, is_pinned=True, reason="figure 3", at=NOW)
    again = set_pin(home, A, is_pinned=True, reason="another", at=NOW)
    assert again.reason == "figure 3"
    assert len(Ledger(home.ledger / PINS_LEDGER).read()) == 1
    assert list(pinned(home)) == [A]


def test_the_last_line_counts(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for digest, is_pinned in ((A, True), (B, True), (A, False), (A, False), (B, False), (B, True)):
        set_pin(home, digest, is_pinned=is_pinned, reason=None, at=NOW)
    assert list(pinned(home)) == [B]
    assert len(Ledger(home.ledger / PINS_LEDGER).read()) == 5, "unpinning what is not pinned is no event"


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    Ledger(home.ledger / PINS_LEDGER).append({"snapshot": "no digest"})
    with pytest.raises(IntegrityError, match=r"pins\.jsonl, line 1"):
        pinned(home)


def test_a_reason_too_long_is_a_config_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(ConfigError, match="expected 4096 characters at most, found 4097"):
        set_pin(home, A, is_pinned=True, reason="x" * 4097, at=NOW)
    assert not pinned(home)
    assert set_pin(home, A, is_pinned=True, reason="x" * 4096, at=NOW).is_pinned
