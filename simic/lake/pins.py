"""Pins: snapshots that somebody wants to keep, as lines of a ledger; the last line about a snapshot counts."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.snapshots import REASON_CHARACTERS, Pin
from simic.lake.ledger import Ledger
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home

__all__ = ["PINS_LEDGER", "SNAPSHOTS_LOCK", "pinned", "set_pin"]

PINS_LEDGER = "pins.jsonl"
"""Name of the ledger of ``Pin`` lines."""
SNAPSHOTS_LOCK = "snapshots"
"""Held while snapshots are pinned or removed, so that none is removed while it is being pinned."""
_WAIT_S = 10.0


def pinned(home: Home) -> dict[str, Pin]:
    """The pins in force, by the snapshot's digest; raises IntegrityError for a damaged line."""
    ledger = Ledger(home.ledger / PINS_LEDGER)
    last: dict[str, Pin] = {}
    for number, record in enumerate(ledger.read(), 1):
        try:
            pin = Pin.model_validate(record)
        except ValidationError as error:
            raise IntegrityError(f"{ledger.path}, line {number}: not a pin: {error.errors()[0]['msg']}") from error
        last[pin.snapshot] = pin
    return {digest: pin for digest, pin in last.items() if pin.is_pinned}


def set_pin(home: Home, digest: str, *, is_pinned: bool, reason: str | None, at: datetime) -> Pin:
    """Pins or unpins; doing so again adds no line and keeps the first reason. ConfigError for a reason too long."""
    if reason is not None and len(reason) > REASON_CHARACTERS:
        raise ConfigError(f"--reason: expected {REASON_CHARACTERS} characters at most, found {len(reason)}; shorten it")
    with exclusive(home.locks / SNAPSHOTS_LOCK, "pinning snapshots", _WAIT_S):
        standing = pinned(home).get(digest)
        if is_pinned and standing is not None:
            return standing
        pin = Pin(snapshot=digest, is_pinned=is_pinned, reason=reason, at=at)
        if is_pinned or standing is not None:
            Ledger(home.ledger / PINS_LEDGER).append(pin.model_dump(mode="json"))
        return pin
