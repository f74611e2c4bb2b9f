"""Checks and repair of the registry for `simic doctor`: MLflow is compared with the ledgers and set to match them."""

from __future__ import annotations

from collections.abc import Collection

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import PolicyVersion
from simic.registry.differences import Difference, differences, journal_cut, unlisted, wanted_aliases
from simic.registry.labels import Labels
from simic.registry.ledger_records import LedgerRecords
from simic.registry.models import Shown
from simic.registry.promotion import fetch_verified
from simic.registry.reader import RegistryReader

__all__ = ["RegistryDoctor"]


class RegistryDoctor:
    """Finds differences between MLflow and the ledgers, and removes them."""

    def __init__(self, reader: RegistryReader, labels: Labels) -> None:
        self._reader, self._labels = reader, labels

    def differences(self, update_digests: Collection[str]) -> list[Difference]:
        """Return every difference between MLflow and the ledgers; ``update_digests`` as in ``journal_cut``."""
        records, shown = self._reader.records(), self._reader.models.look()
        cut_short = self._cut_short(records, shown)
        problems = differences(records, shown, update_digests, cut_short)
        is_cut = journal_cut(records, shown, update_digests) is not None
        for problem in self._labels.differences(records, {shown.versions[number].run_id for number in cut_short}):
            problems.append(problem._replace(is_repairable=problem.is_repairable and not is_cut))
        return problems

    def damaged_versions(self) -> list[tuple[PolicyVersion, str]]:
        """Return every version whose stored files differ from the seal, with the problem; reads every byte."""
        reader = self._reader
        records, shown = reader.records(), reader.models.look()
        damaged = []
        for number in sorted(records.candidates.keys() & shown.versions.keys()):
            version = records.known(number)
            try:
                fetch_verified(reader.models, number, version.digest, reader.keyring, reader.home, None)
            except IntegrityError as error:
                damaged.append((version, str(error)))
        return damaged

    def repair(self, update_digests: Collection[str]) -> None:
        """Set MLflow's aliases, tags, names and texts from the ledgers; the caller holds the registry's lock.

        Raises:
            IntegrityError: The champion's files are damaged, or the journal lost lines. Nothing was changed.
        """
        reader = self._reader
        records, shown = reader.records(), reader.models.look()
        if (champion := records.history.champion) is not None:
            reader.fetch(champion.version, is_champion=True, into=None)
        if cut := journal_cut(records, shown, update_digests):
            raise IntegrityError(cut)
        self._labels.show(records, shown)
        for alias, wanted in wanted_aliases(records).items():
            if wanted is None and alias in shown.aliases:
                reader.models.clear_alias(alias)
            elif wanted in shown.versions and wanted is not None:
                reader.models.set_alias(alias, wanted)

    def _cut_short(self, records: LedgerRecords, shown: Shown) -> list[int]:
        """Return unlisted versions left by a killed recording: each holds the sealed policy that its tag names."""
        cut_short = []
        for number in unlisted(records, shown):
            try:
                self._reader.stored_lineage(number, shown.versions[number].tags.get("digest", ""))
            except IntegrityError:
                continue
            if records.history.promotion_of(number) is None:
                cut_short.append(number)
        return cut_short
