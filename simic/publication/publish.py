"""Publish a champion: one signed ``PolicyUpdate`` on the bus, once for each change at a target."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from simic.bus.codec import envelop, event_id_of, unwrap
from simic.bus.protocol import Bus
from simic.contracts.actor import Actor
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.names import POLICY_UPDATE_TYPE, POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate, RolloutPlan, ValidationSummary
from simic.contracts.results.receipts import PolicyVersion, Provenance, PublicationReceipt
from simic.publication.outbox import Outbox
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.trust.canonical import canonical_bytes
from simic.trust.keys import Keyring, SignatureCheck, Signer

__all__ = [
    "MOST_AHEAD",
    "SOURCE",
    "check_event",
    "digests_in_updates",
    "known_update",
    "open_outbox",
    "publish",
    "sign_update",
    "verify_update",
]


def sign_update(update: PolicyUpdate, signer: Signer) -> PolicyUpdate:
    """Return the update with the signer's key id and signature."""
    named = update.model_copy(update={"key_id": signer.key_id})
    return named.model_copy(update={"signature": signer.sign(_signed_bytes(named))})


def verify_update(update: PolicyUpdate, keyring: SignatureCheck) -> None:
    """Raise IntegrityError unless a trusted key signed every field of an update."""
    keyring.verify(update.key_id, _signed_bytes(update), update.signature)


def _signed_bytes(update: PolicyUpdate) -> bytes:
    return canonical_bytes(update.model_dump(mode="json", exclude={"signature"}))


_LOG = logging.getLogger(__name__)

SOURCE = "simic"
MOST_AHEAD = timedelta(hours=1)
"""Distance into the future up to which a consumer takes an update; it holds a later one until then."""
LOCK_WAIT_S = 30.0


def publish(
    version: PolicyVersion,
    validation: ValidationSummary,
    targets: Sequence[str],
    *,
    bus: Bus,
    signer: Signer,
    home: Home,
    provenance: Provenance,
    clock: Clock,
    plan: RolloutPlan | None = None,
    is_for_all: bool = False,
    actor: Actor | None = None,
) -> PublicationReceipt:
    """Publish ``version``, which is registered and accepted by the gate, to ``targets``.

    Updates about this version that an earlier call left in the outbox are sent first. Waiting updates about another
    version of the model, or not new to any of their targets, are moved to ``superseded`` and never delivered. A target
    whose newest update already names this version gets no update, whatever its plan; with ``is_for_all`` only if it has
    no plan, so that a rollout goes on to all consumers. A new update has the ``plan``, and ``actor`` for who issued it.
    Where an earlier update lies so far in the future that consumers hold it, because a clock was ahead, two are signed:
    one of now, which they take, and one after the earlier update, which then has no effect either.
    If no target is left, the receipt repeats the last update with ``delivered`` false. After a rollback, a version that
    a target had replaced is new to it again.

    Raises:
        IntegrityError: an update in the outbox differs from what was signed; nothing is put on the bus.
    """
    if not targets:
        raise ConfigError(f"publishing {version.name} {version.semantic_version}: name at least one target")
    started_at = clock()
    outbox = open_outbox(home)
    with exclusive(home.locks / "publish", "publishing policies", LOCK_WAIT_S):
        wanted = _Wanted(version, is_for_all)
        _set_aside_outdated(outbox, wanted, clock())
        sent = {event.event_id for event in outbox.flush(bus, POLICY_UPDATES, wanted.is_of_model)}
        heard = _newest_by_target(outbox.delivered(), version.name)
        doubtful = _newest_by_target(outbox.superseded(), version.name)
        missing = [target for target in dict.fromkeys(targets) if not _knows(target, wanted, heard, doubtful)]
        if missing:
            events = []
            for moment in _moments([*outbox.delivered(), *outbox.superseded()], wanted, clock()):
                update = _update(version, validation, missing, signer, moment, None if is_for_all else plan, actor)
                event = envelop(update, type_=POLICY_UPDATE_TYPE, source=SOURCE, created_at=update.issued_at)
                events.append(event.model_copy(update={"correlation_id": version.snapshot_digest}))
                outbox.add(events[-1])
            event = events[0]
            sent |= {event.event_id for event in outbox.flush(bus, POLICY_UPDATES, wanted.is_of_model)}
        else:
            event = max((heard[target] for target in targets), key=lambda event: event.created_at)
    return PublicationReceipt(
        code_version=provenance.code_version,
        config_digest=provenance.config_digest,
        seed=provenance.seed,
        started_at=started_at,
        finished_at=clock(),
        update=unwrap(event, PolicyUpdate),
        event_id=event.event_id,
        delivered=event.event_id in sent,
    )


def open_outbox(home: Home, *, including_revoked: bool = False) -> Outbox:
    """Return the outbox of a home, which accepts events signed by the home's keys.

    With ``including_revoked`` it also shows what was delivered before a key was revoked; nothing is to be put from it.
    """
    keyring = Keyring(home.keys).including_revoked() if including_revoked else Keyring(home.keys)
    return Outbox(home.outbox, lambda event: check_event(event, keyring))


def digests_in_updates(outbox: Outbox, name: str) -> frozenset[str]:
    """Return the digests in signed updates of the outbox about the model ``name``, delivered or not."""
    updates = (unwrap(event, PolicyUpdate) for event in outbox.known())
    return frozenset(update.digest for update in updates if update.policy_name == name)


def known_update(home: Home, version: PolicyVersion) -> PolicyUpdate | None:
    """Return the update by which the controllers of the version's name know of it; None if ``publish`` would send one.

    An update that a revoked key signed does not count: consumers no longer believe it. A waiting update about another
    version may have been put on the bus by a process that was killed, as one that was superseded.
    """
    outbox, wanted, target = open_outbox(home), _Wanted(version, is_for_all=False), version.name
    heard = _newest_by_target(outbox.delivered(), version.name)
    waiting = [event for event in outbox.readable_waiting() if not wanted.is_told_by(event)]
    withdrawn = sorted([*outbox.superseded(), *waiting], key=lambda event: event.created_at)
    doubtful = _newest_by_target(withdrawn, version.name)
    return unwrap(heard[target], PolicyUpdate) if _knows(target, wanted, heard, doubtful) else None


def check_event(event: EventEnvelope, keyring: SignatureCheck) -> None:
    """Raise IntegrityError or ContractError unless the event is an update signed by a trusted key."""
    update = unwrap(event, PolicyUpdate)
    verify_update(update, keyring)
    found = (event.type, event.created_at, event.event_id)
    expected = (POLICY_UPDATE_TYPE, update.issued_at, event_id_of(POLICY_UPDATE_TYPE, event.payload))
    if found != expected:
        raise IntegrityError(f"the envelope of update {update.version} says {found}, expected {expected}")


class _Wanted(NamedTuple):
    """What the targets are to have heard last."""

    version: PolicyVersion
    is_for_all: bool
    """Whether an update with a plan is not it."""

    def is_of_model(self, event: EventEnvelope) -> bool:
        return unwrap(event, PolicyUpdate).policy_name == self.version.name

    def is_told_by(self, event: EventEnvelope) -> bool:
        update, version = unwrap(event, PolicyUpdate), self.version
        named = (update.policy_name, update.version, update.digest)
        is_same = named == (version.name, version.semantic_version, version.digest)
        return is_same and not (self.is_for_all and update.rollout is not None)


def _update(
    version: PolicyVersion,
    validation: ValidationSummary,
    targets: list[str],
    signer: Signer,
    moment: datetime,
    plan: RolloutPlan | None,
    actor: Actor | None,
) -> PolicyUpdate:
    return sign_update(
        PolicyUpdate(
            policy_name=version.name,
            version=version.semantic_version,
            digest=version.digest,
            reference=version.reference,
            targets=targets,
            validation=validation,
            issued_at=moment,
            key_id=signer.key_id,
            rollout=plan,
            issued_by=actor,
        ),
        signer,
    )


def _set_aside_outdated(outbox: Outbox, wanted: _Wanted, now: datetime) -> None:
    """Withdraw undelivered updates about the model, except those that tell what is wanted and are new to a target."""
    waiting = [event for event in outbox.waiting() if wanted.is_of_model(event)]
    delivered = outbox.delivered()
    for event in waiting:
        held = [] if _is_held(event, now) else [envelope for envelope in delivered if _is_held(envelope, now)]
        heard = _newest_by_target((envelope for envelope in delivered if envelope not in held), wanted.version.name)
        targets = unwrap(event, PolicyUpdate).targets
        is_news = any(target not in heard or heard[target].created_at < event.created_at for target in targets)
        if not (is_news and wanted.is_told_by(event)):
            outbox.supersede(event)


def _knows(
    target: str, wanted: _Wanted, heard: Mapping[str, EventEnvelope], doubtful: Mapping[str, EventEnvelope]
) -> bool:
    """Return whether the target's newest update tells what is wanted.

    A superseded update that is newer may have been put by a process that was killed before it marked it.
    """
    newest = heard.get(target)
    if newest is None or not wanted.is_told_by(newest):
        return False
    return target not in doubtful or doubtful[target].created_at <= newest.created_at


def _newest_by_target(events: Iterable[EventEnvelope], name: str) -> dict[str, EventEnvelope]:
    """Return the newest update of policy ``name`` for each target; ``events`` are in the order of creation."""
    newest = {}
    for event in events:
        update = unwrap(event, PolicyUpdate)
        if update.policy_name == name:
            newest.update(dict.fromkeys(update.targets, event))
    return newest


def _is_held(event: EventEnvelope, now: datetime) -> bool:
    """Return whether consumers hold an update back, because it lies too far in the future."""
    return event.created_at - now > MOST_AHEAD


def _moments(events: Iterable[EventEnvelope], wanted: _Wanted, now: datetime) -> list[datetime]:
    """Return the time of a new update, and a second one if ``events`` of the model lie so far ahead that it is needed.

    Each lies after the events before it, so that updates stay ordered if the clock was set back. Distinct times also
    give two updates about one version distinct ids, because an id is a digest of the content.
    """
    known = [event for event in events if wanted.is_of_model(event)]
    held = [event.created_at for event in known if _is_held(event, now)]
    if held:
        _LOG.warning(
            "an update of %s was signed with a clock that was ahead: consumers hold it until then, so this one is "
            "followed by a second one of that time",
            max(held).isoformat(),
        )
    step = timedelta(microseconds=1)
    first = max([now, *(event.created_at + step for event in known if not _is_held(event, now))])
    return [first, max(held) + step] if held else [first]
