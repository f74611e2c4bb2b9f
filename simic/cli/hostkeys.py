"""Host keys as people write them."""

from __future__ import annotations

from simic.contracts.errors import ConfigError

__all__ = ["parse_host_keys"]

KEY_LIMIT = 2**31
MOST_KEYS = 1_000_000


def parse_host_keys(text: str) -> list[int]:
    """``A:B`` (from A up to, not including, B), ``A,B,C``, or both mixed; no key twice."""
    keys: list[int] = []
    for part in text.split(","):
        first, colon, last = (piece.strip() for piece in part.partition(":"))
        bounds = [_key(first, text), _key(last, text) if colon else _key(first, text) + 1]
        if bounds[1] <= bounds[0]:
            raise ConfigError(f"--host-keys {text!r}: {part!r} holds no keys; A:B runs from A up to B - 1")
        if bounds[1] - bounds[0] > MOST_KEYS:
            raise ConfigError(f"--host-keys {text!r}: {part!r} holds more than {MOST_KEYS} keys")
        keys.extend(range(*bounds))
    if len(set(keys)) != len(keys):
        raise ConfigError(f"--host-keys {text!r} names a key twice")
    return keys


def _key(piece: str, text: str) -> int:
    if not piece.isascii() or not piece.isdecimal() or not 0 <= int(piece) <= KEY_LIMIT:
        raise ConfigError(f"--host-keys expects A:B or A,B,C with numbers in [0, 2**31), found {text!r}")
    return int(piece)
