"""The policy that production uses now: policy updates are followed, verified and loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from simic.api.home import Home, places_of
from simic.api.policy import Policy, TrustedKeys, policy_of, signature_check
from simic.bus.factory import URL_VARIABLE
from simic.bus.history import is_url, open_history
from simic.contracts.errors import ConfigError
from simic.contracts.names import MODEL_NAME, POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate
from simic.publication.follower import MOST_CONSUMER_CHARACTERS, Follower, Refusal
from simic.publication.policy_sources import FolderPolicies, PolicySource
from simic.runtime.clock import utc_now

__all__ = ["Subscriber"]


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

        Raises:
            ConfigError: if source, keys or policies are not usable.
            IntegrityError: if the state was edited.
            TransientError: if another process uses ``state``, or it cannot be written.
        """
        if not os.fspath(state):
            raise ConfigError("state: expected a folder, found an empty text")
        if consumer is not None and not 0 < len(consumer) <= MOST_CONSUMER_CHARACTERS:
            raise ConfigError(f"consumer: expected 1 to {MOST_CONSUMER_CHARACTERS} characters, found {len(consumer)}")
        place, beside = _places(source, os.environ)
        self._follower: Follower[Policy] = Follower(
            Path(state).expanduser().absolute(),
            open_history(place, POLICY_UPDATES),
            policies=_policies(beside if policies is None else policies),
            keyring=signature_check(trusted_keys),
            target=target,
            load=policy_of,
            clock=utc_now,
            consumer=consumer,
        )

    @property
    def policy(self) -> Policy | None:
        """Return the current policy; None before the first one."""
        held = self._follower.held
        return None if held is None else held[0]

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
        return self._follower.refused

    @property
    def refusals(self) -> int:
        """Return the number of refusals since this subscriber was opened."""
        return self._follower.refusals

    def poll(self) -> PolicyUpdate | None:
        """Look once, without waiting for an update, and return the one that was accepted; None if the policy stays.

        Of several new updates the newest good one is accepted. An update that may be accepted later, because its
        policy is not there yet, is tried again at the next look.

        Raises:
            TransientError: if the bus does not answer or the state cannot be written; the policy stays.
            ResourceLimitError: if the spool holds more than 20,000 files of policy updates.
        """
        return self._follower.poll()

    def close(self) -> None:
        """Release state and connection; the policy stays usable."""
        self._follower.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _policies(place: str | os.PathLike[str] | None) -> PolicySource:
    if place is None:
        raise ConfigError("policies: expected the folder with the policies by digest, because source is a URL")
    if isinstance(place, str) and "://" in place:
        # Only who uses a store needs the library of its client.
        from simic.publication.stored_policies import StoredPolicies

        return StoredPolicies(place)
    return FolderPolicies(Path(place).expanduser().absolute())


def _places(
    source: Home | str | os.PathLike[str], environment: Mapping[str, str]
) -> tuple[str | os.PathLike[str], Path | None]:
    """Return the bus of a source, and the folder of its policies if that is known."""
    if isinstance(source, Home):
        home = places_of(source)
        return environment.get(URL_VARIABLE) or home.spool, home.policies
    if is_url(source):
        return source, None
    if not os.fspath(source):
        raise ConfigError("source: expected the folder of a spool, a URL or a simic.Home, found an empty text")
    return source, Path(source).expanduser().absolute().parent / "policies"
