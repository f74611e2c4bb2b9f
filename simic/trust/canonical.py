"""One byte string per value: the form that digests and signatures are taken over."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from simic.contracts.errors import ContractViolation

__all__ = ["canonical_bytes", "digest_of", "file_sha256"]

_BLOCK_BYTES = 1 << 20


def canonical_bytes(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> bytes:
    """JSON in UTF-8 with sorted keys and no spaces.

    Raises ContractViolation for what JSON cannot hold exactly: NaN, infinities, keys that are not strings,
    lone surrogates, and types without a JSON form. Floats take their shortest round-trip form.
    """
    try:
        plain = _plain(value)
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, PydanticSerializationError) as error:
        raise ContractViolation(f"no canonical form for a {type(value).__name__}: {error}") from error


def digest_of(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> str:
    """SHA-256 in hex of the canonical bytes."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 in hex of a file's bytes, read in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


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
