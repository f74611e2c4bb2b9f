"""The journal of promotions, the only record that decides who is champion, and by which decision of the gate.

Each registered model, policies and Karn, has a champion, a staging and an open entry of its own; they share the numbers
of entries and the chain of lines.

A policy is staged before it is promoted: a staging names the version and the accepting decision, and the next promotion
takes both from it. A journal that begins with promotions by a release without staging stays valid; from its first
staging on, only what is staged is promoted. Every change of champion ends the staging, because the decision behind it
was made against the champion before.

An entry is opened before a promotion changes anything and closed after everything was verified. A process that is
killed in between leaves an open entry, which names the intended change.

Every line is signed for the purpose ``promotion`` and carries ``previous_sha256``: the SHA-256 of the canonical form
of the line before it, null in the first. This detects a line that was edited, inserted, removed or moved. It does not
detect that the last lines were cut off; the list of champions and the registry do, because they have later changes.

A line by a key that was revoked later is valid only if a later line is signed by a key that is trusted now. Until
a person countersigns such lines with the present key, nothing is read from the journal and nothing appended to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from simic.contracts.actor import Actor
from simic.contracts.base import Contract, Count, Text, UtcDatetime
from simic.contracts.errors import IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.names import MODEL_NAME
from simic.contracts.policy_update import ValidationSummary
from simic.contracts.results.keys import KeyId, PublicKey
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import PROMOTIONS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.trust.canonical import digest_of
from simic.trust.keys import Keyring, Signer, check_signer
from simic.trust.records import KEY_FIELD, sign_record, verify_record

__all__ = [
    "Countersignature",
    "History",
    "Line",
    "Operation",
    "Phase",
    "PromotionEntry",
    "PromotionJournal",
    "Signed",
    "UnvouchedError",
]

PURPOSE = "promotion"
"""Purpose of the signatures."""
_CHAIN_FIELD = "previous_sha256"
_SCHEMA_VERSION = 2


class Operation(str, Enum):
    """Kind of an entry."""

    STAGE = "stage"
    """An accepted policy waits to be promoted; the champion stays."""
    PROMOTE = "promote"
    ROLLBACK = "rollback"


class Phase(str, Enum):
    """Progress of an entry."""

    OPEN = "open"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    """Nothing changed, or the change was undone."""


class PromotionEntry(Contract):
    """A line about a staging or a change of champion; the opening and the closing line have the same ``entry``."""

    schema_version: Literal[2] = 2
    entry: Count
    """Number of the staging, promotion or rollback, from 1."""
    phase: Phase
    operation: Literal[Operation.STAGE, Operation.PROMOTE, Operation.ROLLBACK]
    source: Count | None
    """Version number of the champion before, if any."""
    restores: Count | None
    """For a rollback, the ``entry`` of the promotion that it restores; else null."""
    version: PolicyVersion
    """The staged version or new champion, without aliases, which belong to the registry."""
    validation: ValidationSummary
    """Figures of the accepted judgement; a rollback repeats those of the promotion it restores."""
    tags: dict[str, Text]
    """Tags of the version in the registry."""
    reason: Text
    at: UtcDatetime
    """Time at which the entry was opened."""
    actor: Actor | None = None
    """Who opened it; null in entries of earlier releases."""

    @property
    def target(self) -> int:
        """Version number of the staged version or new champion."""
        return self.version.number

    @property
    def digest(self) -> str:
        """Digest of the staged policy or new champion."""
        return self.version.digest


class Countersignature(Contract):
    """A line that changes nothing; its signature vouches for every line before it."""

    schema_version: Literal[2] = 2
    operation: Literal["countersign"] = "countersign"
    reason: Text
    revoked: dict[KeyId, PublicKey | None] = Field(default_factory=dict)
    """Every key on the revocation list at that time, with its public half. A later list that lacks one of them was
    truncated; with the public half, signatures of the key are still recognised when it is revoked again."""
    at: UtcDatetime


Line = PromotionEntry | Countersignature
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="operation")])


class History(NamedTuple):
    """All verified lines of the journal, seen from one registered model."""

    lines: tuple[Line, ...]
    head: str | None
    """SHA-256 of the last line."""
    model: str = MODEL_NAME
    """The model whose champion, stagings and changes the properties return."""

    def of(self, model: str) -> History:
        """Return the same lines, seen from another model."""
        return self._replace(model=model)

    @property
    def entries(self) -> list[PromotionEntry]:
        """Lines about stagings and changes of champion, oldest first."""
        return [entry for entry in self._all if entry.version.name == self.model]

    @property
    def changes(self) -> list[PromotionEntry]:
        """Completed changes of champion of all models, oldest first."""
        return [entry for entry in self._all if entry.phase is Phase.DONE and entry.operation is not Operation.STAGE]

    @property
    def _all(self) -> list[PromotionEntry]:
        return [line for line in self.lines if isinstance(line, PromotionEntry)]

    @property
    def open_entry(self) -> PromotionEntry | None:
        """Entry in progress, or of a killed process; None if the last entry is closed."""
        entries = self.entries
        return entries[-1] if entries and entries[-1].phase is Phase.OPEN else None

    @property
    def done(self) -> list[PromotionEntry]:
        """Completed changes of champion, oldest first."""
        return [entry for entry in self._completed if entry.operation is not Operation.STAGE]

    @property
    def staged(self) -> PromotionEntry | None:
        """The staging that the next promotion takes; None if the champion changed since, or nothing was staged."""
        completed = self._completed
        return completed[-1] if completed and completed[-1].operation is Operation.STAGE else None

    @property
    def _completed(self) -> list[PromotionEntry]:
        return [entry for entry in self.entries if entry.phase is Phase.DONE]

    @property
    def champion(self) -> PromotionEntry | None:
        """The change that made the present champion; None before the first."""
        done = self.done
        return done[-1] if done else None

    def end_of(self, promotion: PromotionEntry) -> PromotionEntry | None:
        """Return the latest change that replaced what a promotion had made champion; None if it is champion."""
        ends = [after for before, after in pairwise(self.done) if self.promotion(before) == promotion]
        return ends[-1] if ends and self.promotion(self.done[-1]) != promotion else None

    def times_replaced(self, digest: str) -> int:
        """Return how often a promotion or a rollback replaced the model with this digest."""
        return sum(before.digest == digest != after.digest for before, after in pairwise(self.done))

    @property
    def next_number(self) -> int:
        """Number of the next entry, whatever its model.

        The last line need not have the largest number: it may end an entry that entries of another model followed.
        """
        return max((entry.entry for entry in self._all), default=0) + 1

    def promotion(self, entry: PromotionEntry) -> PromotionEntry:
        """Return the promotion behind a change: the change itself, or the promotion that a rollback restores."""
        if entry.restores is None:
            return entry
        return next(done for done in self.done if done.entry == entry.restores)

    def before_champion(self) -> PromotionEntry | None:
        """Return the promotion that the present champion replaced when it was promoted, if there was one."""
        if self.champion is None:
            return None
        done = self.done
        index = done.index(self.promotion(self.champion))
        return self.promotion(done[index - 1]) if index else None

    def promotion_of(self, number: int) -> PromotionEntry | None:
        """Return the newest promotion of a version, or None if it never was champion."""
        promotions = [done for done in self.done if done.operation is Operation.PROMOTE and done.target == number]
        return promotions[-1] if promotions else None


class UnvouchedError(IntegrityError):
    """The journal is intact, but only revoked keys signed its last lines, so the operator has to inspect them."""


class Signed(NamedTuple):
    """A line with its number and the id of the key that signed it."""

    number: int
    line: Line
    key_id: str


class PromotionJournal:
    """Reader and writer of the journal; callers that append hold the registry's lock."""

    def __init__(self, ledgers: Path, keyring: Keyring, signer: Callable[[], Signer] | None = None) -> None:
        """Open the journal in the folder ``ledgers``; ``signer`` is called for each append and readers need none."""
        self._ledger = Ledger(ledgers / PROMOTIONS_LEDGER)
        self._keyring, self._signer = keyring, signer

    def read(self) -> History:
        """Read and verify every line.

        Raises:
            UnvouchedError: if only revoked keys signed the last lines.
            IntegrityError: with the number of the first line that no trusted key signed, that does not follow from
                the line before it, or whose change the lines before do not allow; or if the revocation list lacks a
                key that a line names as revoked.
        """
        signed, head, revoked = self._walk()
        if lines := _unvouched(signed, revoked):
            numbers = ", ".join(str(line.number) for line in lines)
            raise UnvouchedError(
                f"{self._ledger.path}: lines {numbers} are signed by a key that was revoked "
                f"({', '.join(sorted({line.key_id for line in lines}))}), and no line after them by a key that is "
                f"trusted now; `simic keys reseal` shows them and lets the present key vouch for them"
            )
        return History(tuple(line.line for line in signed), head)

    def unvouched(self) -> tuple[History, list[Signed]]:
        """Return every line, and the last ones if only revoked keys signed them, both from one read of the file.

        Raises:
            IntegrityError: for damage, as ``read``.
        """
        signed, head, revoked = self._walk()
        return History(tuple(line.line for line in signed), head), _unvouched(signed, revoked)

    def check_revocations(self) -> None:
        """Raise IntegrityError if a line names a key as revoked that the revocation list lacks."""
        if missing := self.unlisted():
            raise IntegrityError(
                f"{self._ledger.path} says that key {missing[0]} was revoked, but the revocation list does not: lines "
                f"were removed from it. Restore the list from a backup, or give `simic keys revoke {missing[0]} "
                f"--reason ...` again"
            )

    def unlisted(self) -> list[str]:
        """Return keys that lines name as revoked and the revocation list lacks, without verifying signatures."""
        revoked = self._keyring.revocations().by_key
        return [key_id for key_id in self.recorded_revocations() if key_id not in revoked]

    def recorded_revocations(self) -> dict[str, str | None]:
        """Return the keys that lines name as revoked, with the public half in hex, without verifying signatures.

        The id of a key is a digest of its public half, so users of the public half can verify it.
        """
        named = [record.get("revoked") for record in self._ledger.read()]
        return {str(key_id): public for keys in named if isinstance(keys, dict) for key_id, public in keys.items()}

    def read_unvouched(self) -> History:
        """Return every line, including lines by revoked keys; only for display."""
        signed, head, _ = self._walk()
        return History(tuple(line.line for line in signed), head)

    def append(self, entry: PromotionEntry) -> History:
        """Append an entry durably and return the journal with it.

        A countersignature comes before it if keys were revoked that the journal does not name yet.

        Raises:
            IntegrityError: as ``read``.
            ConfigError: if the signer's key was revoked meanwhile.
        """
        signer = self._checked_signer()
        history = self.read()
        if self.unnamed():
            reason = "keys were revoked that the journal did not name"
            history = self._append(history, self._naming_revoked(reason, entry.at), signer)
        return self._append(history, entry, signer)

    def countersign(self, reason: str, at: datetime, examined: History) -> History:
        """Append a line that vouches for every line of ``examined`` and names every key on the revocation list.

        It alone may follow lines by a revoked key.

        Raises:
            IntegrityError: if the journal has other lines than ``examined``, or is damaged.
            ConfigError: if the signer's key was revoked meanwhile.
        """
        signer = self._checked_signer()
        if (head := self.read_unvouched().head) != examined.head:
            raise IntegrityError(
                f"{self._ledger.path}: expected the examined lines, of which the last has SHA-256 "
                f"{_short(examined.head)}, found {_short(head)}: lines were added or removed meanwhile, and nothing "
                f"was signed; `simic keys reseal` shows the present lines"
            )
        return self._append(examined, self._naming_revoked(reason, at), signer)

    def _checked_signer(self) -> Signer:
        """Return the signer of the next line; its key is not revoked while the caller holds the registry's lock."""
        if self._signer is None:
            raise AssertionError("this journal was opened for reading")
        signer = self._signer()
        check_signer(signer, self._keyring)
        return signer

    def unnamed(self) -> set[str]:
        """Return keys on the revocation list that no line names, so that a cut of the list would not be noticed."""
        return self._keyring.revocations().by_key.keys() - self.recorded_revocations().keys()

    def _naming_revoked(self, reason: str, at: datetime) -> Countersignature:
        """Return a line that names every key on the revocation list."""
        revoked = {key_id: revocation.public_key for key_id, revocation in self._keyring.revocations().by_key.items()}
        return Countersignature(reason=reason, revoked=revoked, at=at)

    def _append(self, history: History, line: Line, signer: Signer) -> History:
        record = {**line.model_dump(mode="json"), _CHAIN_FIELD: history.head}
        signed = sign_record(record, PURPOSE, signer)
        self._ledger.append(signed)
        return History((*history.lines, line), digest_of(signed))

    def _walk(self) -> tuple[list[Signed], str | None, Collection[str]]:
        """Return every line, signed by a key that is or was trusted, the last line's SHA-256, and revoked key ids."""
        # Before any signature: without the list, a revoked key looks like a key that was never trusted.
        self.check_revocations()
        lines: list[Signed] = []
        head: str | None = None
        order = _Order()
        keyring = self._keyring.including_revoked()
        revoked = keyring.revocations().by_key
        for number, record in enumerate(self._ledger.read(), 1):
            place = f"{self._ledger.path}, line {number}"
            line = self._verified(record, head, keyring, place)
            order.follow(line, place)
            lines.append(Signed(number, line, str(record[KEY_FIELD])))
            head = digest_of(record)
        return lines, head, revoked.keys()

    def _verified(self, record: Mapping[str, Any], head: str | None, keyring: Keyring, place: str) -> Line:
        if record.get("schema_version") != _SCHEMA_VERSION:
            raise IntegrityError(
                f"{place}: expected schema_version {_SCHEMA_VERSION}, found {record.get('schema_version')}. "
                f"An earlier version of Simic did not sign its promotions, so nothing proves them: begin in a new "
                f"SIMIC_HOME, or install the version that wrote this home"
            )
        try:
            fields = verify_record(record, PURPOSE, keyring, place)
        except IntegrityError as error:
            raise IntegrityError(f"{error}; if the line was edited, restore the journal from a backup") from error
        previous = fields.pop(_CHAIN_FIELD, None)
        if previous != head:
            raise IntegrityError(
                f"{place}: it follows a line with SHA-256 {previous or 'none'}, but the line before it has "
                f"{head or 'none'}: a line was removed, inserted or moved; restore the journal from a backup"
            )
        try:
            return _LINE.validate_python(fields)
        except ValidationError as error:
            raise IntegrityError(f"{place}: not a line of this journal: {describe_faults(error, 'line')}") from error


def _short(head: str | None) -> str:
    return "none" if head is None else head[:12]


def _unvouched(lines: Sequence[Signed], revoked: Collection[str]) -> list[Signed]:
    last = max((line.number for line in lines if line.key_id not in revoked), default=0)
    return [line for line in lines if line.number > last]


class _Order:
    """State machine of the journal: which line may follow those before it, whoever signed it."""

    def __init__(self) -> None:
        self._last = 0
        self._models: defaultdict[str, _ModelOrder] = defaultdict(_ModelOrder)

    def follow(self, line: Line, place: str) -> None:
        """Accept the next line. Raises IntegrityError that begins with ``place`` if it may not follow."""
        if not isinstance(line, PromotionEntry):
            return
        own = self._models[line.version.name]
        if line.phase is Phase.OPEN:
            own.begin(line, self._last + 1, place)
            self._last = line.entry
        else:
            own.end(line, place)


class _ModelOrder:
    """The same for the lines of one registered model."""

    def __init__(self) -> None:
        self._open: PromotionEntry | None = None
        self._champion: int | None = None
        self._staged: PromotionEntry | None = None
        self._is_staging_required = False
        self._promotions: set[int] = set()

    def begin(self, line: PromotionEntry, number: int, place: str) -> None:
        """Accept an opening line, which must have this number."""
        expected = (number, self._champion)
        if self._open is not None or (line.entry, line.source) != expected:
            raise IntegrityError(
                f"{place}: expected entry {expected[0]} after champion {expected[1]}, found entry {line.entry} after "
                f"champion {line.source}"
            )
        is_rollback = line.operation is Operation.ROLLBACK
        if is_rollback != (line.restores in self._promotions) or is_rollback == (line.restores is None):
            raise IntegrityError(f"{place}: a {line.operation.value} cannot restore entry {line.restores}")
        if line.operation is Operation.PROMOTE and self._is_staging_required and not _is_same(line, self._staged):
            raise IntegrityError(f"{place}: it promotes {_named(line)}, but {_named(self._staged)} is staged")
        self._open = line

    def end(self, line: PromotionEntry, place: str) -> None:
        """Accept the line that closes the open entry."""
        if self._open is None or line != self._open.model_copy(update={"phase": line.phase}):
            raise IntegrityError(f"{place}: it ends entry {line.entry}, which the line before it did not open")
        if line.phase is Phase.DONE and line.operation is Operation.STAGE:
            self._staged, self._is_staging_required = line, True
        elif line.phase is Phase.DONE:
            self._champion, self._staged = line.target, None
            if line.operation is Operation.PROMOTE:
                self._promotions.add(line.entry)
        self._open = None


def _named(entry: PromotionEntry | None) -> str:
    if entry is None:
        return "nothing"
    return f"version {entry.target} by gate decision {entry.version.gate_digest[:12]}"


def _is_same(line: PromotionEntry, staged: PromotionEntry | None) -> bool:
    """Return whether a promotion is of the staged policy, by the decision that staged it."""
    if staged is None:
        return False
    mine, theirs = line.version, staged.version
    return (mine.number, mine.digest, mine.gate_digest) == (theirs.number, theirs.digest, theirs.gate_digest)
