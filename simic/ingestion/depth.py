"""How deeply a JSON text nests, found without parsing it."""

from __future__ import annotations

import re

__all__ = ["is_deeper_than"]

_DELETE = bytes(byte for byte in range(256) if byte not in b'[]{}"\\')
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)
_OPEN = ord("[")


def is_deeper_than(limit: int, text: bytes) -> bool:
    """Whether objects and arrays nest more than ``limit`` deep at any point of the text.

    Of a text that is not JSON, the brackets outside strings count. Takes memory like the text and no recursion.
    """
    brackets = text.translate(_ONE_KIND, _DELETE).replace(b'""', b"")
    if b'"' in brackets or b"\\" in brackets:  # some string holds a bracket, a quote or a backslash
        brackets = _STRING.sub(b"", text).translate(_ONE_KIND, _DELETE + b'"\\')
    rest = brackets
    for _ in range(limit):  # each round removes the innermost level of the whole text
        if not rest:
            return False
        rest = rest.replace(b"[]", b"")
    return bool(rest) and _is_deeper(limit, brackets)


def _is_deeper(limit: int, brackets: bytes) -> bool:
    """The same by counting: right for unbalanced texts too, but slow."""
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket == _OPEN else -1
        if depth > limit:
            return True
    return False
