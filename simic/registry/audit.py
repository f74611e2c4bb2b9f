"""Find every difference between MLflow and the ledgers, and let MLflow show what the ledgers say."""

from __future__ import annotations

from collections.abc import Collection

from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import PolicyVersion
from simic.registry.agreement import Difference, differences, journal_cut, unlisted, wanted_aliases
from simic.registry.books import Books
from simic.registry.labels import Labels
from simic.registry.models import Shown
from simic.registry.promotion import fetch_verified
from simic.registry.state import RegistryState

__all__ = ["Audit"]


class Audit:
    """The doctor's view of the registry."""

    def __init__(self, state: RegistryState, labels: Labels) -> None:
        self._state, self._labels = state, labels

    def differences(self, told: Collection[str]) -> list[Difference]:
        """Return everything that MLflow shows and the ledgers contradict; ``told`` as in ``journal_cut``."""
        books, shown = self._state.books(), self._state.models.look()
        cut_short = self._cut_short(books, shown)
        found = differences(books, shown, told, cut_short)
        is_cut = journal_cut(books, shown, told) is not None
        for one in self._labels.differences(books, {shown.versions[number].run_id for number in cut_short}):
            found.append(one._replace(is_repairable=one.is_repairable and not is_cut))
        return found

    def damaged_versions(self) -> list[tuple[PolicyVersion, str]]:
        """Return every version whose stored bytes are not what was sealed, with the problem; reads every byte."""
        state = self._state
        books, shown = state.books(), state.models.look()
        found = []
        for number in sorted(books.candidates.keys() & shown.versions.keys()):
            version = books.known(number)
            try:
                fetch_verified(state.models, number, version.digest, state.keyring, state.home, None)
            except IntegrityError as error:
                found.append((version, str(error)))
        return found

    def repair(self, told: Collection[str]) -> None:
        """Write aliases, tags, names and texts as the ledgers say; its user holds the registry's lock.

        Raises:
            IntegrityError: The champion's files are damaged, or the journal lost lines. Nothing was changed.
        """
        state = self._state
        books, shown = state.books(), state.models.look()
        if (champion := books.history.champion) is not None:
            state.fetch(champion.version, is_champion=True, into=None)
        if cut := journal_cut(books, shown, told):
            raise IntegrityError(cut)
        self._labels.show(books, shown)
        for alias, wanted in wanted_aliases(books).items():
            if wanted is None and alias in shown.aliases:
                state.models.clear_alias(alias)
            elif wanted in shown.versions and wanted is not None:
                state.models.set_alias(alias, wanted)

    def _cut_short(self, books: Books, shown: Shown) -> list[int]:
        """Return unlisted versions of a killed recording: they hold the sealed policy that their tag names."""
        found = []
        for number in unlisted(books, shown):
            try:
                self._state.stored_lineage(number, shown.versions[number].tags.get("digest", ""))
            except IntegrityError:
                continue
            if books.history.promotion_of(number) is None:
                found.append(number)
        return found
