"""Publish a champion: one signed ``PolicyUpdate`` on the bus, once for every time it becomes news to a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from simic.bus.codec import envelop, unwrap
from simic.bus.protocol import POLICY_UPDATES, Bus
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ConfigError
from simic.contracts.policy_update import PolicyUpdate, ValidationSummary
from simic.contracts.receipts import PolicyVersion, Provenance, PublicationReceipt
from simic.publication.outbox import Outbox
from simic.runtime.clock import Clock
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home
from simic.trust.keys import Signer
from simic.trust.updates import sign_update

__all__ = ["EVENT_TYPE", "SOURCE", "publish"]

EVENT_TYPE = "innovation.policy_update"
SOURCE = "simic"
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
) -> PublicationReceipt:
    """Tell ``targets`` of ``version``, which the registry holds and the gate let through.

    Updates that an earlier, killed call left in the outbox go out first. Targets whose newest update of this
    policy names this version get nothing; when none is left, the receipt repeats that update with ``delivered``
    false. A version that a target left for another, as after a rollback, is news to it again.
    """
    if not targets:
        raise ConfigError(f"publishing {version.name} {version.semantic_version}: name at least one target")
    started_at = clock()
    outbox = Outbox(home.outbox)
    with exclusive(home.locks / "publish", "publishing policies", LOCK_WAIT_S):
        sent = {event.event_id for event in outbox.flush(bus, POLICY_UPDATES)}
        heard = _newest_by_target(outbox.delivered(), version.name)
        missing = [
            target for target in dict.fromkeys(targets) if target not in heard or not _concerns(heard[target], version)
        ]
        if missing:
            update = _update(version, validation, missing, signer, _moment_after(heard.values(), clock()))
            event = envelop(update, type_=EVENT_TYPE, source=SOURCE, created_at=update.issued_at)
            outbox.add(event)
            sent |= {event.event_id for event in outbox.flush(bus, POLICY_UPDATES)}
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


def _update(
    version: PolicyVersion, validation: ValidationSummary, targets: list[str], signer: Signer, moment: datetime
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
        ),
        signer,
    )


def _concerns(event: EventEnvelope, version: PolicyVersion) -> bool:
    update = unwrap(event, PolicyUpdate)
    return (update.policy_name, update.version, update.digest) == (
        version.name,
        version.semantic_version,
        version.digest,
    )


def _newest_by_target(events: Iterable[EventEnvelope], name: str) -> dict[str, EventEnvelope]:
    """What each target was told last of the policy ``name``; ``events`` in the order of creation."""
    newest = {}
    for event in events:
        update = unwrap(event, PolicyUpdate)
        if update.policy_name == name:
            newest.update(dict.fromkeys(update.targets, event))
    return newest


def _moment_after(events: Iterable[EventEnvelope], now: datetime) -> datetime:
    """``now``, or just after the last of ``events``: a clock set back must not make new updates look old.

    It also keeps the ids of two updates about one version apart, since an id is that of the content.
    """
    return max([now, *(event.created_at + timedelta(microseconds=1) for event in events)])
