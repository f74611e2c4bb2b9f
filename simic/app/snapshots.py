"""The verbs about snapshots: list, compare, check, pin, prune, export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.snapshots import Pin, SnapshotCheck, SnapshotDifference, SnapshotList, SnapshotPruning
from simic.contracts.splits import Split
from simic.runtime.locks import exclusive

if TYPE_CHECKING:
    from simic.app.root import App
    from simic.replay.exports.card import ExportCard

__all__ = ["FORMATS", "Snapshots"]

FORMATS = ("minari", "pyg")


class Snapshots:
    """What a person does with the snapshots of a home; digests may be cut short wherever they stay unambiguous."""

    def __init__(self, app: App) -> None:
        self._app, self._home = app, app.home

    def listed(self) -> SnapshotList:
        """All of them, oldest first."""
        from simic.curation.holdings import list_snapshots

        return list_snapshots(self._home)

    def diff(self, a: str, b: str, examples: int) -> SnapshotDifference:
        """Two of them side by side."""
        from simic.curation.difference import compare
        from simic.curation.holdings import find_folder

        limits = self._app.config.curate
        folders = find_folder(self._home, a), find_folder(self._home, b)
        with (
            TemporaryDirectory(prefix="diff-", dir=self._home.tmp) as tmp,
            self._app.progress.task("compare", 1) as advance,
        ):
            found = compare(
                *folders,
                tmp=Path(tmp),
                examples=examples,
                memory_limit_mb=limits.memory_limit_mb,
                threads=limits.threads,
            )
            advance(1)
        return found

    def verify(self, digests: Sequence[str]) -> list[SnapshotCheck]:
        """Every byte of the named ones; of all, if none is named."""
        from simic.curation.checking import check_snapshot, files_of
        from simic.curation.holdings import find_folder, folders
        from simic.lake.ledger import Ledger
        from simic.lake.operations import PARTS_LEDGER, committed_digests

        chosen = [find_folder(self._home, digest) for digest in digests] or folders(self._home)
        committed = committed_digests(Ledger(self._home.ledger / PARTS_LEDGER))
        with (
            TemporaryDirectory(prefix="verify-", dir=self._home.tmp) as tmp,
            self._app.progress.task("verify", sum(files_of(folder) for folder in chosen)) as advance,
        ):
            return [check_snapshot(folder, tmp=Path(tmp), committed=committed, on_file=advance) for folder in chosen]

    def pin(self, digest: str, reason: str | None) -> Pin:
        """Keep it, whatever happens; it must be readable."""
        return self._set_pin(digest, is_pinned=True, reason=reason)

    def unpin(self, digest: str, reason: str | None) -> Pin:
        """It may go again."""
        return self._set_pin(digest, is_pinned=False, reason=reason)

    def _set_pin(self, digest: str, *, is_pinned: bool, reason: str | None) -> Pin:
        from simic.curation.holdings import find_folder
        from simic.curation.snapshot import read_manifest
        from simic.lake.pins import set_pin

        folder = find_folder(self._home, digest)
        pin = set_pin(
            self._home, read_manifest(folder).digest, is_pinned=is_pinned, reason=reason, at=self._app.clock()
        )
        read_manifest(folder)  # it may have been removed while the pin waited for its turn
        return pin

    def prune(self, keep: int, *, is_dry_run: bool, spare_rejected: bool) -> SnapshotPruning:
        """Remove old ones, or say which would go; progress is that of removing."""
        from simic.curation.pruning import prune

        plan = prune(self._home, keep, is_dry_run=True, spare_rejected=spare_rejected)
        leaving = sum(not item.kept_because for item in plan.snapshots)
        if is_dry_run or not leaving:
            return plan.model_copy(update={"is_dry_run": is_dry_run})
        with self._app.progress.task("prune", leaving) as advance:
            return prune(self._home, keep, is_dry_run=False, spare_rejected=spare_rejected, on_removed=advance)

    def export(self, digest: str, format_name: str, out: Path, split: str) -> ExportCard:
        """One split of a snapshot, checked byte by byte first, as a new folder for other programs."""
        from simic.curation.holdings import find_folder
        from simic.curation.snapshot import verify_snapshot
        from simic.hosts.catalogue import blueprint_names

        if format_name not in FORMATS:
            raise ConfigError(f"--format {format_name}: known are {', '.join(FORMATS)}")
        if split not in {known.value for known in Split}:
            raise ConfigError(f"--split {split}: known are {', '.join(known.value for known in Split)}")
        manifest = verify_snapshot(find_folder(self._home, digest))
        if not manifest.episodes.get(split):
            raise ConfigError(f"snapshot {manifest.digest[:16]} has no episodes in its {split} split")
        if format_name == "minari":
            from simic.replay.exports.to_minari import write_minari as write
        else:
            from simic.replay.exports.pyg import write_pyg as write
        with (
            exclusive(self._home.locks / "export", "exporting a snapshot"),
            self._app.progress.task("export", manifest.episodes[split]) as advance,
        ):
            card = write(
                manifest,
                split,
                out,
                blueprints=tuple(blueprint_names()),
                code_version=self._app.provenance.code_version,
                on_episodes=advance,
            )
        if card.episodes != manifest.episodes[split]:
            raise IntegrityError(f"{out}: wrote {card.episodes} episodes, the manifest says {manifest.episodes[split]}")
        return card
