"""Follow policy updates in production: accept only newer signed ones, and keep the last good policy.

Layout: ``<root>/policies/<digest>`` with the current and the previous policy, ``<root>/state.json`` with the signed
update that was accepted last, and the symbolic link ``<root>/current``. An accepted policy is complete and verified
under ``policies`` first, the state names it second, the link follows third; a start after a kill repeats the third.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from simic.bus.codec import unwrap
from simic.bus.history import Entry, History
from simic.contracts.base import Contract, Digest
from simic.contracts.errors import ConfigError, ContractError, IntegrityError, SimicError, TransientError
from simic.contracts.faults import describe_faults
from simic.contracts.names import REFERENCE_PREFIX
from simic.contracts.policy_update import PolicyUpdate
from simic.publication.policy_sources import PolicySource
from simic.publication.publish import MOST_AHEAD, check_event, verify_update
from simic.publication.rollout import digest_for, is_within
from simic.runtime.clock import Clock
from simic.runtime.files import atomic_dir, atomic_write, fsync_dir, os_error_as_transient
from simic.runtime.locks import exclusive
from simic.trust.keys import SignatureCheck
from simic.trust.seal import Seal, verify

__all__ = ["CURRENT_NAME", "MOST_CONSUMER_CHARACTERS", "MOST_REFUSALS", "Follower", "Refusal"]

_LOG = logging.getLogger(__name__)
P = TypeVar("P")

CURRENT_NAME = "current"
_STATE_NAME, _POLICIES_NAME, _LOCK_NAME = "state.json", "policies", ".lock"
_MOST_STATE_BYTES = 8 * 1024 * 1024
_MOST_POLICY_BYTES = 264 * 1024 * 1024
"""More than the largest weights and card that the loader takes."""
_MOST_CANDIDATES = 8
MOST_CONSUMER_CHARACTERS = 128
MOST_REFUSALS = 100


class Refusal(NamedTuple):
    """An update that was not taken; the policy before it stays."""

    at: datetime
    source: str
    """File of the spool or entry of the stream; ``state`` for what was stored here."""
    update: PolicyUpdate | None
    """None if it could not be read or verified."""
    error: SimicError
    """A TransientError if the next look tries it again."""


class _State(Contract):
    """What survives a kill."""

    schema_version: Literal[1] = 1
    accepted: PolicyUpdate | None = None
    """The update that was accepted last: every further one is issued later."""
    previous: Digest | None = None
    waiting: tuple[PolicyUpdate, ...] = ()
    """Verified newer updates that could not be taken yet."""
    place: str = ""
    position: tuple[str, ...] = ()
    """What was read of the transport ``place``."""
    consumer: Annotated[str, Field(max_length=MOST_CONSUMER_CHARACTERS)] = ""
    """Name by which this consumer is within the share of a rollout or not; drawn at random."""


class _Candidate(NamedTuple):
    source: str
    update: PolicyUpdate


class _Held(NamedTuple, Generic[P]):
    """A policy and the update that named it, replaced together in one assignment."""

    policy: P
    update: PolicyUpdate
    digest: Digest
    """That of the policy: the update's or its baseline."""


class Follower(Generic[P]):
    """Follows the updates for one target; one process at a time per folder."""

    def __init__(
        self,
        root: Path,
        history: History,
        *,
        policies: PolicySource,
        keyring: SignatureCheck,
        target: str,
        load: Callable[[Path, Seal], P],
        clock: Clock,
        consumer: str | None = None,
        is_beside: bool = False,
    ) -> None:
        """Open the state in ``root``, which is created, and verify and load the policy that was current.

        Args:
            root: folder of the state.
            history: updates of production.
            policies: where policies are copied from.
            keyring: trusted keys.
            target: updates for other targets are ignored.
            load: makes a policy of a verified directory; raises a SimicError for one that it does not take.
            clock: present time.
            consumer: name of this consumer; one is drawn and kept in the state if it is None.
            is_beside: whether another follower reads the same updates, and refuses those that no target can verify.

        Raises:
            TransientError: if another process holds ``root``, or it cannot be written.
            IntegrityError: if the state was edited.
        """
        self._root, self._history, self._policies = root, history, policies
        self._keyring, self._target, self._load, self._clock = keyring, target, load, clock
        self._is_beside = is_beside
        self._own = root / _POLICIES_NAME
        self._held: _Held[P] | None = None
        self._news: PolicyUpdate | None = None
        """The accepted update until ``poll`` has returned it."""
        self._refused: deque[Refusal] = deque(maxlen=MOST_REFUSALS)
        self._turn = threading.Lock()
        self._stack = ExitStack()
        self.refusals = 0
        with ExitStack() as stack:
            with os_error_as_transient(f"make {self._own}"):
                self._own.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(root / _LOCK_NAME, f"following into {root}"))
            stack.callback(history.close)
            self._state = self._stored = _read_state(root / _STATE_NAME)
            if consumer is None and not self._state.consumer:
                self._state = self._state.model_copy(update={"consumer": secrets.token_hex(16)})
            self._consumer = consumer or self._state.consumer
            if self._state.place == history.place:
                history.position = list(self._state.position)
            self._restore()
            self._stack = stack.pop_all()

    @property
    def held(self) -> tuple[P, PolicyUpdate, Digest] | None:
        """Return the current policy, the update that named it, and the policy's digest; or None."""
        return self._held

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Return the last 100 refusals, oldest first."""
        return tuple(self._refused)

    @property
    def is_within(self) -> bool:
        """Return whether the newest update is for this consumer, and not only for a share without it."""
        last = self._state.accepted
        return last is None or is_within(last, self._consumer)

    def close(self) -> None:
        """Release the folder; the policy stays usable."""
        self._stack.close()

    def poll(self) -> PolicyUpdate | None:
        """Read what is new and accept the newest good update; return it, or None if the policy stays.

        Raises:
            TransientError: if the transport is away or the folder cannot be written. The next call goes on from there,
                and returns what this one may have accepted.
        """
        with self._turn:
            before = list(self._history.position)
            try:
                self._accept(self._read())
                self._store(self._state)
            except BaseException:
                self._history.position = before
                raise
            self._point()
            if self._news is not None:
                self._tidy()
            accepted, self._news = self._news, None
            return accepted

    # -- reading ------------------------------------------------------------------------------------

    def _read(self) -> list[_Candidate]:
        """Return the newest verified updates that may be accepted, newest first."""
        is_whole = not self._history.position  # then older updates are history, and no replay
        candidates = {waiting.signature: _Candidate(_STATE_NAME, waiting) for waiting in self._state.waiting}
        for entry in self._history.unread():
            try:
                update = self._verified(entry)
            except SimicError as error:
                if not self._is_beside:
                    self._refuse(entry.source, None, error)
                continue
            try:
                if update is None or self._is_known(update, is_whole):
                    continue
            except SimicError as error:
                self._refuse(entry.source, None, error)
                continue
            candidates.setdefault(update.signature, _Candidate(entry.source, update))
            if len(candidates) > _MOST_CANDIDATES:
                del candidates[min(candidates.values(), key=_moment).update.signature]
        return sorted(candidates.values(), key=_moment, reverse=True)

    def _verified(self, entry: Entry) -> PolicyUpdate | None:
        """Return the update of an entry; None if it is for other targets."""
        if entry.envelope is None:
            raise ContractError(entry.fault)
        check_event(entry.envelope, self._keyring)
        update = unwrap(entry.envelope, PolicyUpdate)
        return update if self._target in update.targets else None

    def _is_known(self, update: PolicyUpdate, is_whole: bool) -> bool:
        """Return whether an update says nothing new; raises IntegrityError if it goes back."""
        last = self._state.accepted
        if last is None or update.issued_at > last.issued_at:
            return False
        if update == last:
            return self._held is not None
        if is_whole:
            return True
        raise IntegrityError(
            f"update {update.version} was issued at {update.issued_at.isoformat()}, not after update {last.version} "
            f"of {last.issued_at.isoformat()}, which was accepted: an older update was put again"
        )

    # -- accepting ----------------------------------------------------------------------------------

    def _accept(self, candidates: list[_Candidate]) -> None:
        """Accept the newest update that can be taken; keep newer ones that may be taken later."""
        waiting: list[PolicyUpdate] = []
        accepted = None
        for source, update in candidates:
            try:
                policy = self._take(update)
            except TransientError as error:
                waiting.append(update)
                self._refuse(source, update, error)
            except SimicError as error:
                self._refuse(source, update, error)
            else:
                accepted = update
                break
        progress = {
            "waiting": tuple(waiting),
            "place": self._history.place,
            "position": tuple(self._history.position),
        }
        self._state = self._state.model_copy(update=progress)
        if accepted is not None:
            self._swap(accepted, policy)

    def _take(self, update: PolicyUpdate) -> P:
        """Return the verified policy of an update, which then lies in the own folder."""
        verify_update(update, self._keyring)  # a waiting one was stored, and its key may have been revoked
        if (ahead := update.issued_at - self._clock()) > MOST_AHEAD:
            raise TransientError(f"update {update.version} is issued {ahead} from now; compare the clocks")
        if not update.reference.startswith(f"{REFERENCE_PREFIX}{update.policy_name}/"):
            raise ContractError(f"update {update.version}: {update.reference} is no version of {update.policy_name}")
        digest = self._digest_for(update)
        path = self._own / digest
        with os_error_as_transient(f"copy policy {digest[:12]} into {self._own}"):
            with suppress(IntegrityError):  # a copy that was damaged here is made again
                if path.exists():
                    return self._load(path, verify(path, self._keyring, digest))
            shutil.rmtree(path, ignore_errors=True)
            with atomic_dir(path) as folder:
                sealed = self._policies.copy(digest, folder, self._keyring, _MOST_POLICY_BYTES)
                return self._load(folder, sealed)

    def _swap(self, update: PolicyUpdate, policy: P) -> None:
        last = self._state.accepted
        digest = self._digest_for(update)
        before = digest if last is None else self._digest_for(last)
        before = before if self._held is None else self._held.digest
        previous = before if before != digest else self._state.previous
        self._store(self._state.model_copy(update={"accepted": update, "previous": previous}))
        self._held, self._news = _Held(policy, update, digest), update
        _LOG.info("by update %s of %s, policy %s is current", update.version, update.policy_name, digest[:12])

    def _digest_for(self, update: PolicyUpdate) -> str:
        return digest_for(update, self._consumer)

    def _refuse(self, source: str, update: PolicyUpdate | None, error: SimicError) -> None:
        """Report a refusal; that of an update that waits is reported once."""
        if isinstance(error, TransientError) and any(
            refusal.update == update and isinstance(refusal.error, TransientError) for refusal in self._refused
        ):
            return
        self.refusals += 1
        self._refused.append(Refusal(self._clock(), source, update, error))
        _LOG.warning("policy update of %s refused, the policy stays: %s", source, error)

    # -- state --------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Verify and load the policy that was current; without it the accepted update waits to be taken again.

        A consumer with another name may be to use the other policy of a rollout. It goes on with the current one until
        ``poll`` has taken that.
        """
        last = self._state.accepted
        if last is not None:
            try:
                verify_update(last, self._keyring)
                self._held = self._kept(last, self._digest_for(last))
            except SimicError as error:
                self._refuse(_STATE_NAME, last, error)
                waiting = (*self._state.waiting, last)
                self._state = self._state.model_copy(update={"waiting": waiting[-_MOST_CANDIDATES:]})
                self._held = self._linked(last)
        self._point()
        self._tidy()

    def _kept(self, update: PolicyUpdate, digest: Digest) -> _Held[P]:
        path = self._own / digest
        return _Held(self._load(path, verify(path, self._keyring, digest)), update, digest)

    def _linked(self, update: PolicyUpdate) -> _Held[P] | None:
        """Return the policy behind ``current`` if it is sound and a trusted update names it for any consumer."""
        named = {update.digest} if update.rollout is None else {update.digest, update.rollout.baseline}
        with suppress(SimicError, OSError):
            verify_update(update, self._keyring)
            target = (self._root / CURRENT_NAME).readlink()
            if target.name in named and target.parent == Path(_POLICIES_NAME):
                return self._kept(update, target.name)
        return None

    def _store(self, state: _State) -> None:
        if state != self._stored:
            with os_error_as_transient(f"write {self._root / _STATE_NAME}"):
                atomic_write(self._root / _STATE_NAME, state.model_dump_json().encode())
        self._state = self._stored = state

    def _point(self) -> None:
        """Make ``current`` the link to the current policy; without one there is no link."""
        link = self._root / CURRENT_NAME
        with os_error_as_transient(f"change the link {link}"):
            if self._held is None:
                link.unlink(missing_ok=True)
                return
            target = Path(_POLICIES_NAME, self._held.digest)
            if link.is_symlink() and link.readlink() == target:
                return
            unfinished = self._root / f".{CURRENT_NAME}.tmp"
            unfinished.unlink(missing_ok=True)
            unfinished.symlink_to(target)
            unfinished.replace(link)
            fsync_dir(self._root)

    def _tidy(self) -> None:
        """Remove all policies but the current and the previous one, and what a kill left unfinished."""
        last = self._state.accepted
        kept = {self._state.previous, None if last is None else self._digest_for(last)}
        kept.add(None if self._held is None else self._held.digest)
        for entry in os.scandir(self._own):
            if entry.name not in kept:
                shutil.rmtree(entry.path, ignore_errors=True)
        for path in self._root.glob(f".{_STATE_NAME}.*.tmp"):
            path.unlink(missing_ok=True)


def _moment(candidate: _Candidate) -> datetime:
    return candidate.update.issued_at


def _read_state(path: Path) -> _State:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_STATE_BYTES + 1)
    except FileNotFoundError:
        return _State()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    try:
        if len(content) > _MOST_STATE_BYTES:
            raise ValueError(f"longer than {_MOST_STATE_BYTES} bytes")
        return _State.model_validate_json(content)
    except ValueError as error:  # a ValidationError is one
        reason = describe_faults(error, "record") if isinstance(error, ValidationError) else error
        raise IntegrityError(
            f"{path} was edited or damaged: {reason}; it holds the newest update that was accepted. Restore it, or "
            f"remove the folder {path.parent} to begin again from what the bus holds"
        ) from error
