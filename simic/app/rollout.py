"""Rollouts of a champion in production: judge them by the reports that came back, continue them, end them."""

from __future__ import annotations

from datetime import datetime, timedelta

from simic.app.container import Container
from simic.app.promotion import publish_champion, roll_back
from simic.bus.codec import unwrap
from simic.catalogue.own_queries import own_query
from simic.catalogue.query import query
from simic.contracts.errors import ConfigError, RolloutFailedError, RolloutWaitsError
from simic.contracts.names import MODEL_NAME
from simic.contracts.policy_update import PolicyUpdate
from simic.contracts.results.receipts import PolicyVersion, PublicationReceipt
from simic.contracts.results.rollout import RolloutStatus, RolloutVerdict, SuccessRate
from simic.ledgers.collections import collection_starts
from simic.publication.publish import open_outbox
from simic.publication.rollout import success_rate, verdict_of
from simic.runtime.home import Home

__all__ = ["abort", "advance", "status"]


def status(home: Home, now: datetime) -> RolloutStatus | None:
    """Judge the rollout in progress by the landed reports that carry the policy's digest; None without a rollout.

    Episodes count that began after the update was issued. One without an end counts as a failure when it is open for
    three times as long as the longest whole episode of its set: its training crashed or was given up. Until then it is
    open. A training that crashes never ends, so whole episodes alone flatter the policy: a rollout passes only if it
    would with every open episode as a failure. Branches, which enumerate actions that the policy did not choose, do not
    count, nor do judging experience and this home's own collections, in which the policy explores.
    """
    update = _running(home)
    if update is None or update.rollout is None:
        return None
    plan = update.rollout
    rate = _rate(home, update.digest, update.issued_at, now)
    verdict = verdict_of(rate, plan)
    ends_at = update.issued_at + timedelta(hours=plan.hours)
    return RolloutStatus(
        update=update,
        judged_at=now,
        ends_at=ends_at,
        is_over=now >= ends_at,
        policy=rate,
        baseline=_rate(home, plan.baseline, update.issued_at, now),
        verdict=verdict,
    )


def advance(container: Container) -> tuple[RolloutStatus | None, PublicationReceipt | None]:
    """Do what the plan says now: publish the champion to all consumers, roll it back, or wait.

    Without a rollout in progress nothing is done. A change of champion that production has not heard of is published.

    Raises:
        RolloutWaitsError: its hours are not over or the evidence is not sufficient.
        TransientError: the champion changed meanwhile, or the bus is away; nothing was done, or the update waits.
        RolloutFailedError: the policy failed and was rolled back.
    """
    rollout = status(container.home, container.clock())
    if rollout is None:
        return None, None
    update, plan = rollout.update, rollout.plan
    champion = container.registry.champion()
    if champion is None or champion.digest != update.digest:  # rolled back or replaced, and not published yet
        return None, publish_champion(container)
    text = f"rollout of {update.policy_name} {update.version} to {plan.share:.0%}: {rollout.told()}"
    if rollout.verdict is RolloutVerdict.FAILING:
        former, publication = _end(container, champion, text)
        raise RolloutFailedError(
            f"{text}. It was rolled back: {publication.update.version} (version {former}) is champion and published"
        )
    if rollout.verdict is not RolloutVerdict.PASSING:
        raise RolloutWaitsError(f"{text}; it goes on until the evidence is sufficient. Nothing was sent")
    if not rollout.is_over:
        raise RolloutWaitsError(f"{text}; it goes on until {rollout.ends_at.isoformat()}. Nothing was sent")
    return rollout, publish_champion(container, is_for_all=True, expected=champion)


def abort(container: Container, reason: str) -> PublicationReceipt:
    """End the rollout in progress: restore the former champion and publish it to all consumers.

    Raises:
        ConfigError: no rollout is in progress.
        TransientError: the champion changed meanwhile; it stays, and nothing is published.
    """
    update = _running(container.home)
    if update is None:
        raise ConfigError("no rollout is in progress; `simic rollback --reason ...` restores the former champion")
    champion = container.registry.champion()
    if champion is None or champion.digest != update.digest:  # a killed process rolled back before
        return publish_champion(container)
    return _end(container, champion, reason)[1]


def _running(home: Home) -> PolicyUpdate | None:
    """Return the newest delivered update if it has a plan: its rollout is in progress."""
    updates = [unwrap(event, PolicyUpdate) for event in open_outbox(home).delivered()]
    named = [update for update in updates if update.policy_name == MODEL_NAME and MODEL_NAME in update.targets]
    return named[-1] if named and named[-1].rollout is not None else None


def _end(container: Container, champion: PolicyVersion, reason: str) -> tuple[int, PublicationReceipt]:
    """Roll this champion back and publish the former one; raise TransientError if another one is champion now."""
    former = roll_back(container, reason, champion)
    return former.number, publish_champion(container)


def _rate(home: Home, digest: str, since: datetime, now: datetime) -> SuccessRate:
    """Return how many episodes of a policy since a moment succeeded, with an exact interval of the share."""
    starts = sorted(start.isoformat() for start in collection_starts(home, digest) if start >= since)
    parameters = {"digest": digest, "since": since.isoformat(), "now": now.isoformat(), "collected": starts}
    (counts,) = query(home, own_query("rollout_success"), parameters=parameters)
    return success_rate(counts)
