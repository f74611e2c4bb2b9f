"""A stand-in for the room that grows hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simic.contracts.controllers import ControllerSpec
from simic.contracts.results.receipts import CollectionReceipt
from simic.contracts.state import HostIdentity
from support.builders.judged_candidates import NOW


class Collector(list[tuple[ControllerSpec, list[int]]]):
    """Notes under which controller it was to collect which hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.since: list[int] = []
        """First epoch of which decisions are branched, by collection."""

    def __call__(
        self, spec: ControllerSpec, hosts: Sequence[HostIdentity], *_: Any, **options: Any
    ) -> CollectionReceipt:
        self.append((spec, [host.key for host in hosts]))
        if options["choice"] is not None:
            self.since.append(options["choice"].since)
        return CollectionReceipt(
            **options["provenance"]._asdict(), started_at=NOW, finished_at=NOW, controller=spec.name,
            policy_digest=None, set="benchmark", host_keys_digest="0" * 64, episodes=len(hosts), reports=0,
            reports_digest=f"{len(self):064d}", governor_events=0, actions={}, mean_return=None, test_accuracy=None,
        )  # fmt: skip
