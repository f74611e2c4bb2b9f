"""Judging experience: the episodes of trials as field reports, marked so that no training uses them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.bus.factory import BusSpec, open_bus
from simic.collection.reporting import Source, field_reports
from simic.contracts.errors import ConfigError
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HardwareContext, HostIdentity
from simic.controllers.protocol import Controller
from simic.hosts.rollout import Step
from simic.trust.canonical import digest_of

__all__ = ["TrialReporter", "require_test_hosts"]

_LOG = logging.getLogger(__name__)


class TrialReporter(NamedTuple):
    """Puts the episodes of one trial on the bus; plain data, so that another process can take it."""

    bus: BusSpec
    trial_id: str
    judgement: int | None
    """Number of the judgement, if the trial belongs to one."""
    issued_at: datetime
    """Start of the trial, which all its reports carry."""

    def __call__(
        self,
        arm: str,
        controller: Controller,
        hosts: Sequence[HostIdentity],
        world: WorldConfig,
        steps: Sequence[Step],
        is_legal: NDArray[np.bool_],
    ) -> None:
        """Publish the episodes that ``arm`` of the trial grew on a chunk of hosts.

        Episodes with an illegal action are left out: the trial waited instead, which the controller did not choose.

        Raises:
            ConfigError: as ``require_test_hosts``.
        """
        require_test_hosts(hosts)
        if not is_legal.all():
            _LOG.warning("%d episodes of %s had illegal actions and do not land", int((~is_legal).sum()), arm)
        named = {"trial": self.trial_id, "arm": arm}
        source = Source(
            controller=controller.name,
            policy_version=controller.policy_version,
            hosts=hosts,
            run_ids=[digest_of({**named, "set": host.set, "key": host.key})[:32] for host in hosts],
            hardware=HardwareContext(device=world.device, threads=world.threads),
            issued_at=self.issued_at,
            trial_id=self.trial_id,
            judgement=self.judgement,
        )
        name = digest_of({**named, "hosts": [[host.set, host.key] for host in hosts]})[:16]
        lines = (
            report.model_dump_json().encode()
            for step in steps
            for row, report in field_reports(step, source)
            if is_legal[row]
        )
        open_bus(self.bus).put(FIELD_REPORTS, f"trial-{name}", lines)


def require_test_hosts(hosts: Sequence[HostIdentity]) -> None:
    """Raise ConfigError unless all hosts are of the test split, which no training uses, whatever a report says."""
    others = [host for host in hosts if split_of(host.set, host.key) is not Split.TEST]
    if others:
        first = others[0]
        raise ConfigError(
            f"only episodes on test hosts can land as judging experience, found host {first.key} of set {first.set} in "
            f"the {split_of(first.set, first.key).value} split and {len(others) - 1} others; leave --land out, or name "
            "test hosts"
        )
