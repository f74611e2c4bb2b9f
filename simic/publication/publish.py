"""Publish a champion: one signed ``PolicyUpdate`` on the bus, exactly once per version and target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    Updates that an earlier, killed call left in the outbox go out first. Targets that already have this
    version get nothing; when none is left, the receipt repeats the last update with ``delivered`` false.
    """
    if not targets:
        raise ConfigError(f"publishing {version.name} {version.semantic_version}: name at least one target")
    started_at = clock()
    outbox = Outbox(home.outbox)
    with exclusive(home.locks / "publish", "publishing policies", LOCK_WAIT_S):
        sent = [event for event in outbox.flush(bus, POLICY_UPDATES) if _concerns(event, version)]
        known = [event for event in outbox.delivered() if _concerns(event, version)]
        reached = {target for event in known for target in unwrap(event, PolicyUpdate).targets}
        missing = [target for target in dict.fromkeys(targets) if target not in reached]
        if missing:
            update = _update(version, validation, missing, signer, clock)
            outbox.add(envelop(update, type_=EVENT_TYPE, source=SOURCE, created_at=update.issued_at))
            sent = outbox.flush(bus, POLICY_UPDATES)
        event = sent[-1] if sent else _latest(known)
    return PublicationReceipt(
        code_version=provenance.code_version,
        config_digest=provenance.config_digest,
        seed=provenance.seed,
        started_at=started_at,
        finished_at=clock(),
        update=unwrap(event, PolicyUpdate),
        event_id=event.event_id,
        delivered=bool(sent),
    )


def _update(
    version: PolicyVersion, validation: ValidationSummary, targets: list[str], signer: Signer, clock: Clock
) -> PolicyUpdate:
    return sign_update(
        PolicyUpdate(
            policy_name=version.name,
            version=version.semantic_version,
            digest=version.digest,
            reference=version.reference,
            targets=targets,
            validation=validation,
            issued_at=clock(),
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


def _latest(events: Iterable[EventEnvelope]) -> EventEnvelope:
    return max(events, key=lambda event: (event.created_at, event.event_id))
