"""Nesting is measured without parsing, and rightly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simic.ingestion.validate import exceeds_depth

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('[]{}"\\a ,:\n'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.sampled_from('[]{}"\\a'), max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


def depth(document: Any) -> int:
    if isinstance(document, dict):
        return 1 + max((depth(value) for value in document.values()), default=0)
    if isinstance(document, list):
        return 1 + max((depth(value) for value in document), default=0)
    return 0


@given(documents, st.sampled_from([None, 2]), st.booleans())
def test_agrees_with_the_parsed_document(document: Any, indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode()
    expected = depth(document)
    assert not exceeds_depth(expected, text)
    if expected:
        assert exceeds_depth(expected - 1, text)


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        (b"[" * 17, 16, True),
        (b"[" * 16, 16, False),
        (b"{" * 200_000, 16, True),
        (b"[]" * 100_000, 1, False),
        (b"[{]}" * 1000, 2, False),
        (b'{"a": "' + b"[" * 100, 16, False),
        (b'{"a": "\\"' + b"[" * 100 + b'"}', 16, False),
        (b'{"a": "x\\', 16, False),
        (b"", 4, False),
    ],
)
def test_texts_that_are_not_json_are_measured_too(text: bytes, limit: int, expected: bool) -> None:
    assert exceeds_depth(limit, text) is expected
