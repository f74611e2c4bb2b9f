"""Canonical bytes of a value, for digests and signatures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from simic.contracts.errors import ContractError

__all__ = ["canonical_bytes", "digest_of"]


def canonical_bytes(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Return JSON in UTF-8 with sorted keys and no spaces.

    Raises ContractError for values that JSON cannot represent exactly: NaN, infinities, keys that are not strings, lone
    surrogates, nesting beyond the interpreter's limit, and types without a JSON form. Floats have their shortest
    round-trip form.
    """
    try:
        plain = _plain(value)
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError, PydanticSerializationError) as error:
        raise ContractError(f"no canonical form for a {type(value).__name__}: {error}") from error


def digest_of(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> str:
    """Return the SHA-256 of the canonical bytes, in hex."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("every key must be a string")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
