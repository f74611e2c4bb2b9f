"""Where receipts are kept: one JSON file each, found again by stage and by when they came in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from simic.contracts.errors import ConfigError, ContractViolation
from simic.contracts.receipts import Receipt
from simic.runtime.clock import Clock

__all__ = ["Shelf"]

R = TypeVar("R", bound=Receipt)


class Shelf:
    """Receipts under one directory, a folder per stage.

    File names sort by the moment of shelving: a stage that finds its work already done returns the receipt of
    long ago, and is still the last thing that was asked for.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def put(self, receipt: Receipt, *, content: str) -> Path:
        """Write atomically; ``content`` is a digest that tells receipts of one moment apart."""
        folder = self._directory / self._stage(type(receipt))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._clock():%Y%m%dT%H%M%S%fZ}-{content[:12]}.json"
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as sink:
            sink.write(receipt.model_dump_json(indent=2))
            sink.flush()
            os.fsync(sink.fileno())
        temporary.replace(path)
        return path

    def newest(self, kind: type[R], hint: str) -> R:
        """The last receipt of a kind; ``hint`` says what to do where there is none."""
        return self.find(kind, lambda _receipt: True, hint)

    def find(self, kind: type[R], is_wanted: Callable[[R], bool], hint: str) -> R:
        """The last receipt of a kind that is wanted; ``hint`` says what to do where there is none."""
        for path in self._paths(kind)[::-1]:
            receipt = self.read(kind, path)
            if is_wanted(receipt):
                return receipt
        raise ConfigError(f"no {self._stage(kind)} receipt under {self._directory} fits: {hint}")

    def count(self, kind: type[Receipt]) -> int:
        """How many receipts of a kind there are."""
        return len(self._paths(kind))

    def read(self, kind: type[R], path: Path) -> R:
        """One receipt by its path."""
        try:
            return kind.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(f"there is no receipt at {path}") from error
        except ValidationError as error:
            raise ContractViolation(f"{path} is not a {kind.__name__}: {error}") from error

    def _paths(self, kind: type[Receipt]) -> list[Path]:
        return sorted((self._directory / self._stage(kind)).glob("*.json"))

    @staticmethod
    def _stage(kind: type[Receipt]) -> str:
        return str(kind.model_fields["stage"].default)
