"""Settings become live parts: the bus, the registry, the keys and all else that verbs work with."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from simic.app.journal import RunJournal
from simic.app.lineage import content_of
from simic.app.policies import Policies
from simic.app.shelf import Shelf
from simic.bus.opening import URL_VARIABLE, BusSpec
from simic.contracts.config import RunConfig
from simic.contracts.receipts import Provenance, Receipt
from simic.runtime.clock import Clock, utc_now
from simic.runtime.code_version import code_version
from simic.runtime.progress import NoProgress, Progress
from simic.runtime.settings import Home, config_digest

if TYPE_CHECKING:
    from simic.app.doctor import Doctor
    from simic.app.keeping import Keeper
    from simic.bus.protocol import Bus
    from simic.registry.catalogue import Registry
    from simic.trust.keys import Keyring, Signer

__all__ = ["Parts"]

R = TypeVar("R", bound=Receipt)


class Parts:
    """Everything a verb needs, made on first use: a verb that reads SQL loads neither torch nor MLflow."""

    def __init__(
        self,
        home: Home,
        config: RunConfig,
        seed: int,
        *,
        clock: Clock = utc_now,
        progress: Progress | None = None,
        spool: Path | None = None,
    ) -> None:
        home = home if config.lake.url is None else replace(home, lake_url=config.lake.url)
        self.home, self.config, self.seed, self.clock = home, config, seed, clock
        self.progress: Progress = progress or NoProgress()
        self.shelf = Shelf(home.receipts, clock)
        # A directory that is named is meant, whatever the environment says.
        self.bus_spec = BusSpec(spool or home.spool, config.bus, spool is None and bool(os.environ.get(URL_VARIABLE)))
        self.provenance = Provenance(code_version(), config_digest(config), seed)
        home.create()

    @cached_property
    def bus(self) -> Bus:
        """The one that ``bus_spec`` names."""
        from simic.bus.opening import open_bus

        return open_bus(self.bus_spec)

    @cached_property
    def keeper(self) -> Keeper:
        """Housekeeping of the lake."""
        from simic.app.keeping import Keeper

        return Keeper(self.home, self.config.lake, self.provenance.code_version, self.clock, self.progress)

    def doctor(self) -> Doctor:
        """Checks of everything this home holds."""
        from simic.app.doctor import Doctor
        from simic.bus.spool import SpoolBus

        def champion() -> int | None:
            found = self.registry.champion()
            return None if found is None else found.number

        return Doctor(
            self.home,
            SpoolBus(self.bus_spec.spool),
            champion,
            code_version=self.provenance.code_version,
            clock=self.clock,
            progress=self.progress,
            bus=self.bus_spec,
        )

    @cached_property
    def signer(self) -> Signer:
        """This home's key, made on first use unless the environment names one."""
        from simic.trust.keys import load_signer

        return load_signer(self.home.keys, os.environ)

    @cached_property
    def keyring(self) -> Keyring:
        """The keys this home trusts, its own among them."""
        from simic.trust.keys import Keyring

        return Keyring(self.home.keys)

    @cached_property
    def registry(self) -> Registry:
        """The catalogue of policies."""
        from simic.registry.catalogue import Registry

        return Registry(self.home, self.keyring, clock=self.clock)

    @cached_property
    def policies(self) -> Policies:
        """Sealed policies at hand, and controllers made of them."""
        return Policies(self.home, self.keyring, lambda: self.registry)

    def run_journal(self) -> RunJournal:
        """Runs begun and ended; hold the lock of the run while using it."""
        from simic.lake.ledger import Ledger

        return RunJournal(Ledger(self.home.ledger / "runs.jsonl"), self.clock)

    def keep(self, receipt: R) -> R:
        """Put a receipt on the shelf and hand it on."""
        self.shelf.put(receipt, content=content_of(receipt))
        return receipt
