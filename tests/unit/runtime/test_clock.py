"""The wall clock is aware and in UTC."""

from datetime import UTC, datetime, timedelta

from simic.runtime.clock import utc_now


def test_now_is_aware_and_in_utc() -> None:
    now = utc_now()
    assert now.tzinfo is UTC
    assert abs(now - datetime.now(UTC)) < timedelta(seconds=5)
