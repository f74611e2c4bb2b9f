"""The policy that production uses now, alone or consulting Karn: updates are followed, verified and loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from simic.api.home import Home, paths_of
from simic.api.policy import Policy, TrustedKeys, consulting, karn_of, policy_of, signature_check
from simic.bus.factory import URL_VARIABLE
from simic.bus.history import is_url, open_history
from simic.contracts.errors import ConfigError, ContractError, TransientError
from simic.contracts.names import KARN, MODEL_NAME, POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate
from simic.controllers.karn import ConsultedKarn
from simic.publication.follower import MOST_CONSUMER_CHARACTERS, MOST_REFUSALS, Follower, Refusal
from simic.publication.policy_sources import FolderPolicies, PolicySource
from simic.runtime.clock import utc_now

__all__ = ["Subscriber"]

_LOG = logging.getLogger(__name__)


class Subscriber:
    """Keeps the newest policy that a trusted key published; ``poll`` looks for updates.

    A bad update is refused and the policy stays. ``policy`` can be read in other threads while ``poll`` runs: they see
    the old policy or the new one. Nothing is taken from the bus, so any number of subscribers may follow it.
    """

    def __init__(
        self,
        source: Home | str | os.PathLike[str],
        *,
        trusted_keys: TrustedKeys,
        state: str | os.PathLike[str],
        policies: str | os.PathLike[str] | None = None,
        target: str = MODEL_NAME,
        consumer: str | None = None,
        consult_karn: bool = False,
        karns: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open the state, and load the policy that was current when it was closed or killed; no update is read yet.

        Args:
            source: A folder of the spool (``data/spool`` of a home), a URL ``redis://`` or ``rediss://``, or a home:
                the Redis that ``REDIS_URL`` names, or else its spool.
            trusted_keys: Keys of which one must have signed an update and one its policy, as for ``load_policy``.
            state: Folder of this subscriber alone. It holds the last accepted update, a copy of the current and of the
                previous policy, and the link ``current``. Without it, older updates count as new.
            policies: Folder with the policies by digest, or ``s3://bucket/prefix`` with the same below the prefix and
                credentials in the AWS environment variables. By default that of the home, or ``policies`` beside the
                folder of the spool; a URL needs it.
            target: Only updates that name this target count.
            consumer: Name of this subscriber, which decides with the policy's digest whether it is within the share of
                a rollout. By default one is drawn and kept in ``state``; give one where ``state`` does not last.
            consult_karn: Whether updates about Karn are followed too, into the folder ``karn`` of ``state``. The policy
                consults it while it is the one that Karn was judged with; another policy acts alone.
            karns: Folder with the Karns by digest, or an address as for ``policies``. By default that of the home, or
                ``karn`` beside the folder of the spool; a URL needs it.

        Raises:
            ConfigError: if source, keys or policies are not usable.
            IntegrityError: if the state was edited.
            TransientError: if another process uses ``state``, or it cannot be written.
        """
        if not os.fspath(state):
            raise ConfigError("state: expected a folder, found an empty text")
        if consumer is not None and not 0 < len(consumer) <= MOST_CONSUMER_CHARACTERS:
            raise ConfigError(f"consumer: expected 1 to {MOST_CONSUMER_CHARACTERS} characters, found {len(consumer)}")
        place, folders = _places(source, os.environ)
        root, keyring = Path(state).expanduser().absolute(), signature_check(trusted_keys)
        from_policies = _sources("policies", folders.policies if policies is None else policies)
        from_karns = _sources("karns", folders.karns if karns is None else karns) if consult_karn else None
        with ExitStack() as stack:
            follow = partial(Follower, keyring=keyring, clock=utc_now, consumer=consumer)
            self._follower: Follower[Policy] = follow(
                root, open_history(place, POLICY_UPDATES), policies=from_policies, target=target, load=policy_of
            )
            stack.callback(self._follower.close)
            self._karn: Follower[ConsultedKarn] | None = None
            if from_karns is not None:
                history = open_history(place, POLICY_UPDATES)
                self._karn = follow(
                    root / KARN, history, policies=from_karns, target=KARN, load=karn_of, is_beside=True
                )
                stack.callback(self._karn.close)
            self._misfits: list[Refusal] = []  # one for each pair of policy and Karn, so there are few
            self._tried: tuple[str, str] | None = None
            self._policy: Policy | None = None
            self._combine()
            self._stack = stack.pop_all()

    @property
    def policy(self) -> Policy | None:
        """Return the current policy; None before the first one. Its field ``karn`` says whether it consults Karn."""
        return self._policy

    @property
    def karn_update(self) -> PolicyUpdate | None:
        """Return the update that named the current Karn; None without one, or without ``consult_karn``.

        The policy consults that Karn only if it is the one of ``validation.consulted_by`` in this update.
        """
        held = None if self._karn is None else self._karn.held
        return None if held is None else held[1]

    @property
    def update(self) -> PolicyUpdate | None:
        """Return the update that named the current policy; None before the first one.

        Outside the share of its rollout the current policy is the baseline that it names.
        """
        held = self._follower.held
        return None if held is None else held[1]

    @property
    def is_within_share(self) -> bool:
        """Return whether the newest update is for this subscriber; False only outside the share of a rollout."""
        return self._follower.is_within

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Return the last 100 refusals, oldest first: each has ``at``, ``source``, ``update`` and ``error``."""
        karns = () if self._karn is None else self._karn.refused
        refusals = (*self._follower.refused, *karns, *self._misfits)
        return tuple(sorted(refusals, key=lambda refusal: refusal.at)[-MOST_REFUSALS:])

    @property
    def refusals(self) -> int:
        """Return the number of refusals since this subscriber was opened."""
        karns = 0 if self._karn is None else self._karn.refusals
        return self._follower.refusals + karns + len(self._misfits)

    def poll(self) -> PolicyUpdate | None:
        """Look once, without waiting for an update, and return the one that was accepted; None if the policy stays.

        Of several new updates the newest good one is accepted. An update that may be accepted later, because its
        policy is not there yet, is tried again at the next look. With ``consult_karn`` an update about Karn is accepted
        too; it is returned if there is none about the policy.

        Raises:
            TransientError: if the bus does not answer or the state cannot be written; the policy stays.
            ResourceLimitError: if the spool holds more than 20,000 files of policy updates.
        """
        try:
            accepted = self._follower.poll()
            about_karn = self._poll_karn(is_optional=accepted is not None)
        finally:
            self._combine()
        return about_karn if accepted is None else accepted

    def _poll_karn(self, *, is_optional: bool) -> PolicyUpdate | None:
        """Look for an update about Karn; with ``is_optional`` a failure is logged, and the next look tries again."""
        try:
            return None if self._karn is None else self._karn.poll()
        except TransientError as error:
            if not is_optional:
                raise
            _LOG.warning("the look for updates about Karn failed and is repeated by the next one: %s", error)
            return None

    def _combine(self) -> None:
        """Set the policy: the held one, consulting the held Karn if Karn was judged with it and fits it."""
        held, karn = self._follower.held, None if self._karn is None else self._karn.held
        policy = None if held is None else held[0]
        if policy is None or karn is None or karn[1].validation.consulted_by != policy.digest:
            self._policy, self._tried = policy, None
            return
        pair = (policy.digest, karn[1].signature)
        if pair == self._tried:
            return
        self._tried = pair
        try:
            self._policy = consulting(policy, karn[0])
        except ContractError as error:
            self._policy = policy
            self._misfits.append(Refusal(utc_now(), KARN, karn[1], error))

    def close(self) -> None:
        """Release state and connection; the policy stays usable."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sources(name: str, place: str | os.PathLike[str] | None) -> PolicySource:
    if place is None:
        raise ConfigError(f"{name}: expected the folder with the {name} by digest, because source is a URL")
    if isinstance(place, str) and "://" in place:
        # Only who uses a store needs the library of its client.
        from simic.publication.stored_policies import StoredPolicies

        return StoredPolicies(place)
    return FolderPolicies(name, Path(place).expanduser().absolute())


class _Folders(NamedTuple):
    """Where sealed directories lie, if that is known."""

    policies: Path | None = None
    karns: Path | None = None


def _places(
    source: Home | str | os.PathLike[str], environment: Mapping[str, str]
) -> tuple[str | os.PathLike[str], _Folders]:
    """Return the bus of a source, and the folders of its policies and Karns."""
    if isinstance(source, Home):
        paths = paths_of(source)
        return environment.get(URL_VARIABLE) or paths.spool, _Folders(paths.policies, paths.karn)
    if is_url(source):
        return source, _Folders()
    if not os.fspath(source):
        raise ConfigError("source: expected the folder of a spool, a URL or a simic.Home, found an empty text")
    data = Path(source).expanduser().absolute().parent
    return source, _Folders(data / "policies", data / KARN)
