"""The store of receipts: one JSON file each, found by stage and by the time it was saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from simic.contracts.errors import ConfigError, ContractError, IntegrityError, SimicError
from simic.contracts.faults import describe_faults
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.receipts import (
    SEAL_FIELDS,
    CollectionReceipt,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    SnapshotManifest,
    TrainingReport,
)
from simic.contracts.results.trials import TrialReport
from simic.runtime.clock import Clock
from simic.runtime.files import atomic_write
from simic.runtime.home import Home
from simic.runtime.receipt_paths import placed, portable
from simic.trust.keys import Keyring, Signer
from simic.trust.sealed_receipts import read_receipt, seal_receipt

__all__ = ["SEALED", "SEALED_STAGES", "ReceiptStore", "content_digest"]

R = TypeVar("R", bound=Receipt)

SEALED: Mapping[type[Receipt], str] = {
    TrainingReport: "simic train",
    KarnReport: "simic karn train",
    ValidationReport: "simic validate",
    TrialReport: "simic trials",
    GateDecision: "simic promote",
}
"""Kinds of receipts that decide whether a policy or Karn is promoted, each with the command that recreates it; trials
on further sets become part of a validation. Other receipts need no seal, because the artifacts they name have digests
of their own."""

SEALED_STAGES = tuple(str(kind.model_fields["stage"].default) for kind in SEALED)
"""Names of the folders of sealed receipts."""

_MOMENT, _STEP = "%Y%m%dT%H%M%S%fZ", timedelta(microseconds=1)
_DEPTH = 4
"""Number of path components of a receipt below its home: ``data/receipts/<stage>/<file>``."""


class ReceiptStore:
    """Receipts of one home, a folder per stage; they stay valid when the home is moved or copied.

    File names sort by the time of saving: a stage that finds its work already done returns an old receipt, which is
    still the latest one.
    """

    def __init__(self, home: Home, clock: Clock, signer: Callable[[], Signer], keyring: Keyring) -> None:
        """Open the store.

        Args:
            home: Its ``receipts`` folder holds the files.
            clock: Gives the time in the file names.
            signer: Seals the receipts of ``SEALED``; called only when one is saved.
            keyring: Checks the seals of receipts that are read.
        """
        self._home, self._directory, self._clock = home, home.receipts, clock
        self._signer, self._keyring = signer, keyring

    def save(self, receipt: Receipt) -> Path:
        """Write a receipt atomically, with paths relative to the home, and return its file.

        The digest of its content, in the file name, tells receipts of the same moment apart.
        """
        folder = self._directory / _stage(type(receipt))
        path = folder / f"{self._moment(type(receipt)):{_MOMENT}}-{content_digest(receipt)[:12]}.json"
        atomic_write(path, self._text(portable(receipt, self._home)).encode())
        return path

    def latest(self, kind: type[R], hint: str) -> R:
        """Return the receipt of a kind that was saved last.

        Raises:
            ConfigError: if there is none; ``hint`` says what to do then.
            IntegrityError: if its seal is broken.
        """
        paths = self._paths(kind)
        if not paths:
            raise ConfigError(f"no {_stage(kind)} receipt under {self._directory}: {hint}")
        return self.read(kind, paths[-1])

    def find(self, kind: type[R], is_wanted: Callable[[R], bool], hint: str) -> R:
        """Return the last receipt of a kind for which ``is_wanted`` holds, exactly as it was passed to ``is_wanted``.

        Files that are not such receipts are skipped.

        Raises:
            ConfigError: if no receipt fits; ``hint`` says what to do then.
            IntegrityError: if the seal of the receipt is broken; an older one does not replace it.
        """
        receipt = self.find_any(kind, is_wanted)
        if receipt is None:
            raise ConfigError(f"no {_stage(kind)} receipt under {self._directory} fits: {hint}")
        return receipt

    def find_any(self, kind: type[R], is_wanted: Callable[[R], bool]) -> R | None:
        """Return what ``find`` does, or None if no receipt fits."""
        for path in self._paths(kind)[::-1]:
            try:
                record = _load(path, kind)
                receipt = _receipt(kind, record, path)
            except ContractError:
                continue  # it cannot be the wanted receipt, and the doctor reports it
            if is_wanted(receipt):
                return self._verified(kind, record, path)
        return None

    def find_with(self, kind: type[R], fields: Mapping[str, Any]) -> R | None:
        """Return the last receipt of a kind with these values of its fields; None if no receipt has them.

        Other receipts are not validated, so a search through many is quick; unreadable ones are skipped.

        Raises:
            IntegrityError: if the seal of the receipt is broken; an older one does not replace it.
        """
        for path in self._paths(kind)[::-1]:
            try:
                record = _load(path, kind)
                if all(record.get(name) == value for name, value in fields.items()):
                    return self._verified(kind, record, path)
            except (ContractError, ConfigError, OSError):  # no receipt, a dangling link, or not for this user
                continue
        return None

    def count(self, kind: type[Receipt]) -> int:
        """Return the number of receipts of a kind."""
        return len(self._paths(kind))

    def read(self, kind: type[R], path: Path) -> R:
        """Return the receipt in a file.

        Raises:
            IntegrityError: if the kind must be sealed and no trusted key sealed this receipt.
        """
        return self._verified(kind, _load(path, kind), path)

    def _verified(self, kind: type[R], record: dict[str, Any], path: Path) -> R:
        """Check the seal of a record, and return its receipt with the paths of the artifacts in this home.

        A receipt given by the path of another home keeps that home's paths if this home lacks the artifacts.
        """
        receipt = self._unsealed(kind, record, path)
        here, location = placed(receipt, self._home), path.resolve()
        if location.is_relative_to(self._directory) or not isinstance(here, SnapshotManifest | TrainingReport):
            return here
        if Path(here.path).exists() or len(location.parents) < _DEPTH:
            return here
        return receipt if _is_absolute(receipt) else placed(receipt, Home(location.parents[_DEPTH - 1]))

    def _unsealed(self, kind: type[R], record: dict[str, Any], path: Path) -> R:
        if kind not in SEALED:
            return _receipt(kind, record, path)
        try:
            return read_receipt(kind, record, self._keyring, str(path))
        except IntegrityError as error:
            raise IntegrityError(
                f"{error}. This receipt is not trusted: it was edited, or made elsewhere or by a version that did not "
                f"seal receipts; `{SEALED[kind]}` makes it again"
            ) from error

    def contains(self, receipt: Receipt) -> bool:
        """Return whether exactly this receipt is stored, with a valid seal if its kind is sealed."""
        wanted, kind = receipt.model_dump(mode="json"), type(receipt)
        receipts = (self._valid(kind, path) for path in self._paths(kind, content_digest(receipt)[:12]))
        return any(stored is not None and stored.model_dump(mode="json") == wanted for stored in receipts)

    def check_seals(self) -> Iterator[tuple[Path, SimicError | None]]:
        """Yield every receipt that must be sealed, with the error its check raised."""
        for kind in SEALED:
            for path in self._paths(kind):
                try:
                    self.read(kind, path)
                except SimicError as error:
                    yield path, error
                else:
                    yield path, None

    def unreadable(self) -> Iterator[tuple[Path, SimicError]]:
        """Yield files in the folders of sealed receipts that are not receipts; ``find`` skips them."""
        for kind in SEALED:
            for path in self._paths(kind):
                try:
                    _receipt(kind, _load(path, kind), path)
                except SimicError as error:
                    yield path, error

    def _valid(self, kind: type[R], path: Path) -> R | None:
        try:
            return self.read(kind, path)
        except SimicError:
            return None

    def _text(self, receipt: Receipt) -> str:
        if type(receipt) not in SEALED:
            return receipt.model_dump_json(indent=2)
        return json.dumps(seal_receipt(receipt, self._signer()), indent=2, ensure_ascii=False, allow_nan=False)

    def _moment(self, kind: type[Receipt]) -> datetime:
        """Return the present time, or that of the newest receipt if the clock was set back: the last one counts."""
        now, moments = self._clock(), list[datetime]()
        for path in self._paths(kind)[-1:]:
            with suppress(ValueError, OverflowError):  # a file that somebody put there
                moments.append(datetime.strptime(path.name.partition("-")[0], _MOMENT).replace(tzinfo=UTC) + _STEP)
        return max([now, *moments])

    def _paths(self, kind: type[Receipt], content: str = "") -> list[Path]:
        return sorted((self._directory / _stage(kind)).glob(f"*{content}.json"))


def _is_absolute(receipt: Receipt) -> bool:
    return isinstance(receipt, SnapshotManifest | TrainingReport) and Path(receipt.path).is_absolute()


def _load(path: Path, kind: type[Receipt]) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no receipt at {path}") from error
    except IsADirectoryError as error:
        raise ContractError(f"{path} is not a {kind.__name__}: expected a file, found a directory") from error
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{path} is not a {kind.__name__}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ContractError(f"{path} is not a {kind.__name__}: expected an object, found {type(record).__name__}")
    if record.get("stage") != _stage(kind):
        raise ContractError(
            f"{path} is not a {kind.__name__}: expected stage {_stage(kind)!r}, found {record.get('stage')!r}"
        )
    return record


def _receipt(kind: type[R], record: dict[str, Any], path: Path) -> R:
    """Parse a record without checking its seal."""
    fields = {name: value for name, value in record.items() if kind not in SEALED or name not in SEAL_FIELDS}
    try:
        return kind.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise ContractError(f"{path} is not a {kind.__name__}: {describe_faults(error, 'receipt')}") from error


def _stage(kind: type[Receipt]) -> str:
    return str(kind.model_fields["stage"].default)


_TIMES = {"started_at", "finished_at"}


def content_digest(receipt: Receipt) -> str:
    """Return a digest that depends on the content of a receipt, not on when the stage ran."""
    match receipt:
        case SnapshotManifest() | TrainingReport() | KarnReport() | GateDecision() | PolicyVersion():
            return receipt.digest
        case CollectionReceipt():
            return receipt.reports_digest
        case IngestReceipt():
            return receipt.ledger_digest
        case PublicationReceipt():
            return _sha256(receipt.event_id)
        case TrialReport():
            return _sha256(receipt.model_dump_json(exclude=_TIMES))
        case ValidationReport():
            content = receipt.model_dump_json(exclude=_TIMES | {"trials", "figures"})
            return _sha256(content + content_digest(receipt.trials))
        case _:
            return _sha256(receipt.model_dump_json(exclude=_TIMES))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
