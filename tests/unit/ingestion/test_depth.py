"""Nesting is measured without parsing, and rightly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simic.ingestion import validate
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
        (b'"[[[\\', 2, False),
        (b'[["a" ["\\', 2, True),
    ],
)
def test_texts_that_are_not_json_are_measured_too(text: bytes, limit: int, expected: bool) -> None:
    assert exceeds_depth(limit, text) is expected


def depth_by_reading(text: bytes) -> int:
    """The greatest depth, byte by byte: brackets of any kind count, a string ends at its quote or with the text."""
    deepest = open_now = position = 0
    while position < len(text):
        byte = text[position : position + 1]
        position += 1
        if byte == b'"':
            while position < len(text) and text[position : position + 1] != b'"':
                position += 2 if text[position : position + 1] == b"\\" else 1
            position += 1
        elif byte in b"[{":
            open_now += 1
            deepest = max(deepest, open_now)
        elif byte in b"]}":
            open_now -= 1
    return deepest


@given(st.text(st.sampled_from('[]{}"\\a\n'), max_size=30), st.integers(0, 6))
@example('"[\\', 0)
def test_agrees_with_reading_byte_by_byte_whatever_the_text(text: str, limit: int) -> None:
    assert exceeds_depth(limit, text.encode()) is (depth_by_reading(text.encode()) > limit)


def test_a_string_that_ends_in_a_lone_backslash_is_searched_once() -> None:
    """The first quote begins a string up to the end. If it began none, the search would begin again at each quote."""
    line = b'"\\' * (256 * 512)
    found = validate._STRING.match(line)
    assert found is not None and found.end() == len(line)
    assert not exceeds_depth(16, line)
