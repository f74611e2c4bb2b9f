"""The reference text that every CPython ships (``pydoc_data.topics``), as windows of symbols.

Paragraphs that are equal count once, and each belongs to one split by its hash, so no paragraph is in two splits. The
text differs between versions of Python; ``text_digest`` tells them apart.
Shapes: n windows, T symbols.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import DatasetError
from simic.hosts import rng
from simic.hosts.interfaces import DataSplit
from simic.hosts.rng import Purpose

__all__ = ["CLASSES", "LENGTH", "SYMBOLS", "text_digest", "windows"]

LENGTH = 12
"""T"""
CLASSES = 4
"""Kinds of a symbol: vowel, consonant, space, any other."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz .,:()[]\"'=_-0?"
"""0 stands for every digit, ? for every character that is not named."""
SYMBOLS = len(_ALPHABET)
_VOWELS = "aeiouy"
_MODULE = "pydoc_data.topics"
_SHARES = (2, 3, 4)
"""Of four paragraphs two are for training, one for validation and one for test."""


def windows(key: int, part: DataSplit, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return int64 [n, T] symbols and int64 [n] kinds of the symbol that follows; the key draws the places.

    Raises:
        DatasetError: if this Python has no such text.
    """
    symbols, starts = _corpus()[part]
    chosen = starts[rng.integers(rng.streams(key, Purpose.TEXT, part), count, len(starts))[0]]
    return symbols[chosen[:, None] + np.arange(LENGTH)], _kinds()[symbols[chosen + LENGTH]]


def text_digest() -> str:
    """Return the SHA-256 over the text of all splits; raise DatasetError if this Python has none."""
    content = hashlib.sha256()
    for part in DataSplit:
        content.update(_corpus()[part][0].tobytes())
    return content.hexdigest()


@cache
def _corpus() -> dict[DataSplit, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the symbols of each split, and the places at which a window and its label lie within one paragraph."""
    own: dict[DataSplit, list[str]] = {part: [] for part in DataSplit}
    for digest, paragraph in sorted((hashlib.sha256(text.encode()).digest(), text) for text in _paragraphs()):
        share = next(number for number, end in enumerate(_SHARES) if digest[0] % _SHARES[-1] < end)
        own[DataSplit(share)].append(paragraph)
    corpus = {part: _encoded(paragraphs) for part, paragraphs in own.items()}
    if any(not len(starts) for _, starts in corpus.values()):
        raise DatasetError(f"{_MODULE}: expected paragraphs for every split, found {sum(map(len, own.values()))}")
    return corpus


def _paragraphs() -> set[str]:
    """Return the distinct paragraphs in the characters of the alphabet, with single spaces."""
    try:
        topics = import_module(_MODULE).topics
    except (ImportError, AttributeError) as error:
        raise DatasetError(f"{_MODULE}: this Python lacks its reference text; install a complete one") from error
    blocks = "\n\n".join(topics.values()).lower().split("\n\n")
    return {"".join(map(_spelled, " ".join(block.split()))) for block in blocks} - {""}


def _spelled(character: str) -> str:
    return character if character in _ALPHABET else "0" if character.isdigit() else "?"


def _encoded(paragraphs: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    symbols = np.array([_ALPHABET.index(symbol) for paragraph in paragraphs for symbol in paragraph], dtype=np.int64)
    ends = np.cumsum([len(paragraph) for paragraph in paragraphs])
    starts = [np.arange(end - len(paragraph), end - LENGTH) for end, paragraph in zip(ends, paragraphs, strict=True)]
    return symbols, np.concatenate([np.empty(0, dtype=np.int64), *starts])


@cache
def _kinds() -> NDArray[np.int64]:
    """Return the kind of every symbol."""
    kinds = [0 if symbol in _VOWELS else 1 if symbol.isalpha() else 2 if symbol == " " else 3 for symbol in _ALPHABET]
    return np.array(kinds, dtype=np.int64)
