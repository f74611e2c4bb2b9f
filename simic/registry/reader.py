"""Read-only access to ledgers and MLflow together, and to the stored files of versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers.policies import champion_history, read_history
from simic.registry.differences import champion_differences, tag_differences
from simic.registry.ledger_records import LedgerRecords, read_ledger_records
from simic.registry.mlflow_run import lineage_of
from simic.registry.models import Models, Shown
from simic.registry.promotion import fetch_verified
from simic.registry.version_numbers import Lineage
from simic.runtime.files import scratch_dir
from simic.runtime.home import Home
from simic.trust.keys import Keyring

__all__ = ["RegistryReader"]


class RegistryReader:
    """Reads versions from the ledgers and MLflow; writes nothing."""

    def __init__(self, home: Home, keyring: Keyring, models: Models) -> None:
        self.home, self.keyring, self.models = home, keyring, models

    def records(self) -> LedgerRecords:
        """Read and verify the ledgers."""
        return read_ledger_records(self.home, read_history(self.home, self.keyring, self.models.name))

    def agreed(self, *numbers: int, digest: str | None = None) -> tuple[LedgerRecords, Shown]:
        """Read the ledgers and MLflow until both name the same champion.

        Where they differ the journal is read again, because another process may have moved the champion meanwhile.

        Args:
            numbers: Versions to read besides the champion.
            digest: Policy whose version is read too.

        Raises:
            IntegrityError: They differ about the champion and the journal did not change between two reads.
        """
        while True:
            records = read_ledger_records(self.home, champion_history(self.home, self.keyring, self.models.name))
            champion = records.history.champion
            shown = self.models.look_at(*numbers, *(() if champion is None else (champion.target,)), digest=digest)
            differences = list(champion_differences(records, shown))
            if not differences:
                return records, shown
            if read_history(self.home, self.keyring).head == records.history.head:
                raise IntegrityError("; ".join(differences))

    def version(self, number: int, records: LedgerRecords, shown: Shown) -> PolicyVersion:
        """Return a version from the ledgers with its aliases; raise IntegrityError if its tags in MLflow differ."""
        registered = shown.version(number)
        if differences := list(tag_differences(records, registered)):
            raise IntegrityError("; ".join(differences))
        return records.known(number).model_copy(update={"aliases": registered.aliases})

    def fetch(self, version: PolicyVersion, *, is_champion: bool, into: Path | None) -> None:
        """Fetch and verify every stored byte of a version; raise IntegrityError if the files are damaged."""
        try:
            fetch_verified(self.models, version.number, version.digest, self.keyring, self.home, into)
        except IntegrityError as error:
            if not is_champion:
                raise
            raise IntegrityError(
                f"the journal says that {version.name} version {version.number} with digest {version.digest} is "
                f"champion, but its files are not what was sealed: {error}. Restore them from a backup, or run "
                f"`simic rollback --reason ...`, which makes the previous champion current again"
            ) from error

    def stored_lineage(self, number: int, digest: str) -> Lineage:
        """Read the lineage from the stored card; raise IntegrityError if the files differ from the seal."""
        with self._fetched(number, digest) as policy:
            return lineage_of(policy)

    @contextmanager
    def _fetched(self, number: int, digest: str) -> Iterator[Path]:
        with scratch_dir(self.home, "card-") as folder:
            fetch_verified(self.models, number, digest, self.keyring, self.home, folder / "policy")
            yield folder / "policy"
