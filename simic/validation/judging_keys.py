"""Keys of judging hosts: the number of the judgement chooses them, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from simic.contracts.errors import ConfigError

__all__ = ["KEY_STARTS", "KEY_STRIDE", "first_key", "keys_of_others", "require_own_keys"]

KEY_STARTS = 2**30
"""Upper bound of the first key drawn, half of all keys, so that keys remain above any start."""
KEY_STRIDE = 2**20 + 7
"""Distance between the first keys of consecutive judgements, or collections of a kind; ``require_own_keys`` refuses a
draw that reaches further. It has no factor in common with ``KEY_STARTS``, so that starts repeat only after 2**30
judgements; those 1,024 judgements apart, whose ranges overlap, start 7,168 keys apart, which hold some 700 test
hosts."""


def first_key(ordinal: int) -> int:
    """Return the key from which the hosts of a judgement are drawn; 0, where `simic trials` begins, is never one."""
    return ordinal * KEY_STRIDE % KEY_STARTS


def require_own_keys(keys: list[int], start: int) -> list[int]:
    """Return the ascending keys that were drawn from ``start``.

    Raises:
        ConfigError: if they reach those of the next judgement or collection.
    """
    if keys and keys[-1] >= start + KEY_STRIDE:
        own = sum(key < start + KEY_STRIDE for key in keys)
        raise ConfigError(
            f"{len(keys):,} hosts are too many for one draw: the first {own:,} are its own, the others are those of "
            f"the next one; ask for fewer at a time, or leave out fewer families"
        )
    return keys


def keys_of_others(keys: Sequence[int], ordinal: int) -> int:
    """Return how many keys lie outside the range of a judgement."""
    start = first_key(ordinal)
    return sum(not start <= key < start + KEY_STRIDE for key in keys)
