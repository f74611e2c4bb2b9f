"""Pins: snapshots that are kept at the operator's request. The last line about a snapshot counts."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.results.snapshots import REASON_CHARACTERS, Pin
from simic.ledgers import PINS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home
from simic.runtime.locks import exclusive

__all__ = ["SNAPSHOTS_LOCK", "pinned", "set_pin"]

SNAPSHOTS_LOCK = "snapshots"
"""Held while snapshots are pinned or removed, so that none is removed while it is being pinned."""
_WAIT_S = 10.0


def pinned(home: Home) -> dict[str, Pin]:
    """Return the pins in force, by digest of the snapshot. Raises IntegrityError for a damaged line."""
    ledger = Ledger(home.ledger / PINS_LEDGER)
    last: dict[str, Pin] = {}
    for number, record in enumerate(ledger.read(), 1):
        try:
            pin = Pin.model_validate(record)
        except ValidationError as error:
            faults = describe_faults(error, "line")
            raise IntegrityError(f"{ledger.path}, line {number}: not a pin: {faults}") from error
        last[pin.snapshot] = pin
    return {digest: pin for digest, pin in last.items() if pin.is_pinned}


def set_pin(home: Home, digest: str, *, is_pinned: bool, reason: str | None, at: datetime) -> Pin:
    """Pin or unpin a snapshot and return the pin; pinning it again adds no line and keeps the first reason.

    Raises:
        ConfigError: if the reason is too long.
    """
    if reason is not None and len(reason) > REASON_CHARACTERS:
        raise ConfigError(f"--reason: expected {REASON_CHARACTERS} characters at most, found {len(reason)}; shorten it")
    with exclusive(home.locks / SNAPSHOTS_LOCK, "pinning snapshots", _WAIT_S):
        existing = pinned(home).get(digest)
        if is_pinned and existing is not None:
            return existing
        pin = Pin(snapshot=digest, is_pinned=is_pinned, reason=reason, at=at)
        if is_pinned or existing is not None:
            Ledger(home.ledger / PINS_LEDGER).append(pin.model_dump(mode="json"))
        return pin
