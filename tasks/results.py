"""Stored results, checked before Prefect reads them, because a record names the code that decodes it.

Prefect decodes a result with the serializer named in the record, whatever serializer the task uses for writing: a
pickle runs code, and options and class names of the JSON serializer import modules. So only records in the form in
which a stage writes its own receipt stay in the storage.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from prefect.serializers import JSONSerializer
from prefect.settings import get_current_settings
from pydantic import ValidationError

from simic.contracts.results.receipts import Receipt
from simic.runtime.files import move_to_damaged

__all__ = ["drop_foreign", "storage_folder"]

_LOG = logging.getLogger(f"simic.{__name__}")  # Prefect shows loggers below simic
_SERIALIZER = JSONSerializer[Any]().model_dump(mode="json")
_METADATA = frozenset({"storage_key", "expiration", "serializer", "prefect_version", "storage_block_id"})
_DECODED = frozenset({"__class__", "__exc_type__"})
"""Keys whose values Prefect's JSON decoder imports."""


def storage_folder() -> Path:
    """Return the folder of stored results, whatever storage block the server names."""
    return get_current_settings().results.local_storage_path


def drop_foreign(key: str, kind: type[Receipt]) -> None:
    """Move the record of ``key`` away unless it is a receipt of ``kind`` in the form that Prefect writes for a stage.

    The stage then finds no result and runs again. The caller holds the run lock.
    """
    path = storage_folder() / key
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except IsADirectoryError:
        content = b""
    fault = _fault(content, kind)
    if fault is not None:
        kept = move_to_damaged(path)
        _LOG.warning("stored result %s is not used: %s; it was moved to %s; doing the stage again", key, fault, kept)


def _fault(content: bytes, kind: type[Receipt]) -> str | None:
    """Return why a record is not a receipt of ``kind``, or None if it is."""
    try:
        record = _parsed(content)
        _expect("fields of the record", sorted(record), ["metadata", "result"])
        _check_metadata(record["metadata"])
        if not isinstance(record["result"], str):
            raise ValueError(f"expected the result as text, found {type(record['result']).__name__}")
        result = _parsed(record["result"].encode())
        _expect("fields of the result", sorted(result), ["__class__", "data"])
        _expect("class", result["__class__"], f"{kind.__module__}.{kind.__qualname__}")
        _check_plain(result["data"])
        kind.model_validate(result["data"])
    except ValidationError as error:
        return f"expected a {kind.__name__}, found {error.error_count()} faults, first {error.errors()[0]['msg']}"
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not set(metadata) <= _METADATA:
        raise ValueError(f"expected metadata with fields among {sorted(_METADATA)}")
    _expect("serializer", metadata.get("serializer"), _SERIALIZER)
    _expect("storage block", metadata.get("storage_block_id"), None)


def _check_plain(value: object) -> None:
    """Check that no object within has a key that Prefect's decoder acts on."""
    if isinstance(value, dict):
        if keys := _DECODED & set(value):
            raise ValueError(f"expected plain data, found the key {min(keys)}")
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _check_plain(each)


def _parsed(content: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8; refuse repeated fields, because parsers differ in the one they take."""
    record = json.loads(content.decode("utf-8"), object_pairs_hook=_without_repetition)
    if not isinstance(record, dict):
        raise ValueError(f"expected an object of JSON, found {type(record).__name__}")
    return record


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise ValueError(f"{what}: expected {expected}, found {str(found)[:200]}")
