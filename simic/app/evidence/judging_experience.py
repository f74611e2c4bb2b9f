"""Landing of trials: which of them report their episodes, and under which id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

from simic.app.container import Container
from simic.app.names.trial_controllers import SelectedControllers
from simic.collection.judging import TrialReporter, require_test_hosts
from simic.contracts.controllers import SEARCHED
from simic.contracts.errors import ConfigError
from simic.contracts.results.judgements import JudgementEntry
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.world_identity import world_identity
from simic.trust.canonical import digest_of

__all__ = ["reporter_of_comparison", "reporter_of_judgement"]

_PLACES = {"policy_path", "keyring_path", "plans_path", "karn_path"}
"""Fields of a spec that say where files lie, not what they hold."""


def reporter_of_judgement(container: Container, entry: JudgementEntry, world: WorldConfig) -> TrialReporter | None:
    """Return what reports the trials of a judgement in ``world``; None unless ``trial.land`` is set.

    A judgement that is repeated has the same id, so its episodes land once.
    """
    return _reporter(container, world, {"judgement": entry.model_dump(mode="json")}, entry.ordinal)


def reporter_of_comparison(
    container: Container, chosen: SelectedControllers, hosts: Sequence[HostIdentity]
) -> TrialReporter | None:
    """Return what reports a comparison on ``hosts``; None unless ``trial.land`` is set.

    The hosts are no part of its id: a comparison that grows more of them goes on.

    Raises:
        ConfigError: if it is to land, and a host is not of the test split or an arm searches on the hosts.
    """
    if container.config.trial.land:
        require_test_hosts(hosts)
        if searched := [name for name in SEARCHED if name in chosen.specs]:
            raise ConfigError(
                f"trial.land: {', '.join(searched)} cannot land, because no controller decides there; leave it out"
            )
    arms = {name: spec.model_dump(mode="json", exclude=_PLACES) for name, spec in chosen.specs.items()}
    made_of = {"arms": arms, "plans": chosen.book.plans_digest, "seed": container.seed}
    return _reporter(container, container.config.world, made_of, None)


def _reporter(
    container: Container, world: WorldConfig, made_of: Mapping[str, object], judgement: int | None
) -> TrialReporter | None:
    if not container.config.trial.land:
        return None
    identity = {**made_of, "set": world.set, "world": world_identity(world)}
    bus = container.bus_spec._replace(conversation=uuid4().hex)
    return TrialReporter(bus, digest_of(identity)[:32], judgement, container.clock())
