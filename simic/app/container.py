"""The live parts of one home: bus, registry, keys and stores, made from the settings on first use."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from simic.app.home_location import open_home, settle_registry
from simic.app.names.karn_names import Karns
from simic.app.policies import Policies
from simic.app.receipts import ReceiptStore
from simic.app.smoke_test import smoke_test
from simic.bus.factory import URL_VARIABLE, BusSpec, open_bus
from simic.bus.protocol import Bus
from simic.contracts.names import KARN, MODEL_NAME
from simic.contracts.results.receipts import Provenance, Receipt
from simic.contracts.settings.run import RunConfig
from simic.ledgers import RUNS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.promotions import PromotionJournal
from simic.ledgers.runs import RunJournal
from simic.registry.registry import Registry
from simic.runtime.actor import present_actor
from simic.runtime.clock import Clock, utc_now
from simic.runtime.code_version import code_version
from simic.runtime.home import Home, HomeUse
from simic.runtime.progress import NoProgress, Progress
from simic.runtime.receipt_paths import placed, portable
from simic.runtime.settings import config_digest
from simic.trust.keys import Keyring, Signer, load_signer

if TYPE_CHECKING:
    from simic.lake.maintenance import LakeMaintenance

__all__ = ["Container"]

R = TypeVar("R", bound=Receipt)


class Container:
    """The parts that commands and stages work with, each made on first use.

    This module imports neither torch nor MLflow nor DuckDB, so a command that needs none of them starts quickly.
    """

    def __init__(
        self,
        home: Home,
        config: RunConfig,
        seed: int,
        *,
        clock: Clock = utc_now,
        progress: Progress | None = None,
        spool: Path | None = None,
        use: HomeUse = HomeUse.MAKE,
        run: str | None = None,
    ) -> None:
        """Open a home.

        Args:
            home: Where data, ledgers and registry are.
            config: The resolved settings.
            seed: Root of all randomness.
            clock: Returns the present time in UTC.
            progress: Shows how far long work is; nothing by default.
            spool: Directory of the bus instead of the home's own; it also replaces a Redis named in the environment.
            use: Whether the home is read, changed, or created if it is missing.
            run: Id of the retraining run that works with it, if one does.

        Raises:
            ConfigError: if the home does not exist or is not writable and ``use`` requires it.
        """
        home = home if config.lake.url is None else replace(home, lake_url=config.lake.url)
        self.home, self.config, self.seed, self.clock = home, config, seed, clock
        self.progress: Progress = progress or NoProgress()
        self.bus_spec = BusSpec(
            spool or home.spool, config.bus, spool is None and bool(os.environ.get(URL_VARIABLE)), config.ingest
        )
        self.actor = present_actor(run)
        self.provenance = Provenance(code_version(), config_digest(config), seed)
        open_home(home, use, clock)

    def open_bus(self, *, has_fallback: bool = True) -> Bus:
        """Open the bus that ``bus_spec`` names. A new one asks Redis again, so a fallback to the spool can end.

        Without the fallback, a put raises TransientError while Redis does not answer.
        """
        return open_bus(self.bus_spec._replace(has_fallback=has_fallback))

    @cached_property
    def maintenance(self) -> LakeMaintenance:
        """Maintenance of the lake: compaction, retention, removal of retired files."""
        from simic.lake.maintenance import LakeMaintenance  # it loads DuckDB

        return LakeMaintenance(self.home, self.config.lake, self.provenance.code_version, self.clock, self.progress)

    @cached_property
    def signer(self) -> Signer:
        """The signing key of this home, created on first use unless the environment holds one."""
        PromotionJournal(self.home.ledger, self.keyring).check_revocations()
        return load_signer(self.home.keys, os.environ)

    def forget_signer(self) -> None:
        """Load the signing key again before the next signature, because it may have been replaced."""
        self.__dict__.pop("signer", None)

    @cached_property
    def keyring(self) -> Keyring:
        """The keys this home trusts, including its own."""
        return Keyring(self.home.keys)

    @cached_property
    def registry(self) -> Registry:
        """The MLflow registry of policies."""
        return self._registry(MODEL_NAME)

    @cached_property
    def karn_registry(self) -> Registry:
        """The MLflow registry of Karn."""
        return self._registry(KARN)

    def registry_of(self, model: str) -> Registry:
        """Return the registry of a registered model."""
        return {MODEL_NAME: lambda: self.registry, KARN: lambda: self.karn_registry}[model]()

    def _registry(self, model: str) -> Registry:
        settle_registry(self.home, self.clock())
        return Registry(
            self.home,
            self.keyring,
            model=model,
            signer=lambda: self.signer,
            clock=self.clock,
            actor=self.actor,
            smoke_test=lambda sealed, digest: smoke_test(self.home, self.keyring, sealed, digest, model),
        )

    @cached_property
    def receipts(self) -> ReceiptStore:
        """The receipts of all stages; those that decide about a promotion are sealed with this home's key."""
        return ReceiptStore(self.home, self.clock, lambda: self.signer, self.keyring)

    @cached_property
    def policies(self) -> Policies:
        """The sealed policies of this home and the controllers made from them."""
        return Policies(self.home, self.keyring, lambda: self.registry, self.karns)

    @cached_property
    def karns(self) -> Karns:
        """The sealed Karns of this home, and the one that its settings let policies consult."""
        return Karns(self.home, self.keyring, self.receipts, self.config.controller, lambda: self.karn_registry)

    def run_journal(self) -> RunJournal:
        """Return the journal of opened and closed runs; hold the run lock while using it."""
        return RunJournal(Ledger(self.home.ledger / RUNS_LEDGER), self.clock)

    def placed(self, receipt: R) -> R:
        """Return a stored receipt with the paths of its artifacts in this home."""
        return placed(receipt, self.home)

    def portable(self, receipt: R) -> R:
        """Return a receipt with paths relative to the home, which stay valid when the home is moved."""
        return portable(receipt, self.home)

    def save_receipt(self, receipt: R) -> R:
        """Store a receipt and return it."""
        self.receipts.save(receipt)
        return receipt
