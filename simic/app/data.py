"""Commands on data: ingest, curate and everything about snapshots; none of them loads torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from simic.app.container import Container
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.metrics import METRICS, exported_name
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import IngestReceipt, SnapshotManifest
from simic.contracts.results.snapshots import Pin, SnapshotCheck, SnapshotDifference, SnapshotList, SnapshotPruning
from simic.contracts.splits import Split
from simic.curation import run as curation
from simic.ingestion import ingest as ingestion
from simic.lake.log import committed_digests
from simic.ledgers import PARTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.pins import set_pin
from simic.replay.exports import EXPORTS
from simic.runtime.files import scratch_dir
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.prometheus import Sample, write_textfile
from simic.runtime.telemetry import JsonLinesSink
from simic.snapshots import index
from simic.snapshots.diff import compare
from simic.snapshots.manifest import Verify, read_manifest
from simic.snapshots.prune import prune
from simic.snapshots.verify import check_snapshot, files_of

if TYPE_CHECKING:
    from simic.replay.exporting import ExportCard

__all__ = [
    "compare_snapshots",
    "curate",
    "export_snapshot",
    "ingest",
    "list_snapshots",
    "pin_snapshot",
    "prune_snapshots",
    "unpin_snapshot",
    "verify_snapshots",
]


_LOG = logging.getLogger(__name__)


def ingest(container: Container) -> IngestReceipt:
    """Maintain the lake, then land the reports that wait on the bus; quarantine malformed ones with a reason.

    The counts are appended to ``runs/ingest/<UTC day>.jsonl`` after each batch, those of the bus at the end. The last
    ones are in ``runs/metrics/ingest.prom`` for Prometheus.
    """
    container.maintenance.run_due()
    bus = container.open_bus()
    waiting = bus.pending(FIELD_REPORTS)
    counts = _counts_file(container.home, container.clock())
    with JsonLinesSink(counts) as sink, container.progress.task("ingest", waiting) as advance:
        receipt = ingestion.ingest(
            bus,
            container.home,
            container.config.ingest,
            frozenset(vocabulary(container.config.ingest)),
            provenance=container.provenance,
            clock=container.clock,
            sink=sink,
            on_progress=advance,
        )
    _write_counts(container, receipt)
    return container.save_receipt(receipt)


def _counts_file(home: Home, day: datetime) -> Path:
    return home.runs / "ingest" / f"{day:%Y-%m-%d}.jsonl"


def _write_counts(container: Container, receipt: IngestReceipt) -> None:
    """Write the counts of an ingestion for Prometheus, as ``telemetry`` says; a failure is logged and fails nothing."""
    if container.config.telemetry.level == "off" or not container.config.telemetry.prometheus:
        return
    counts = {"reports_processed": receipt.read, "reports_failed": receipt.quarantined}
    samples = [Sample(exported_name(name), METRICS[name].meaning, float(count)) for name, count in counts.items()]
    ended = receipt.finished_at.timestamp()
    samples.append(
        Sample("simic.processor.end_timestamp_seconds", "End of the ingestion, in seconds since 1970.", ended)
    )
    path = container.home.metrics / "ingest.prom"
    try:
        write_textfile(path, samples)
    except OSError as error:
        _LOG.warning("%s was not written, the ingestion is not affected: %s", path, error)


def curate(container: Container) -> SnapshotManifest:
    """Make a sealed snapshot of all landed experience."""
    config = container.config
    receipt = curation.curate(
        container.home, config.curate, config.world.horizon, provenance=container.provenance, clock=container.clock
    )
    return container.save_receipt(receipt)


def list_snapshots(container: Container) -> SnapshotList:
    """Return all snapshots of the home, oldest first."""
    return index.list_snapshots(container.home)


def compare_snapshots(container: Container, a: str, b: str, examples: int) -> SnapshotDifference:
    """Compare two snapshots by digest; ``examples`` bounds the rows that are listed for each difference."""
    limits = container.config.curate
    folders = index.find_folder(container.home, a), index.find_folder(container.home, b)
    with scratch_dir(container.home, "diff-") as tmp, container.progress.task("compare", 1) as advance:
        difference = compare(
            *folders,
            tmp=tmp,
            examples=examples,
            memory_limit_mb=limits.memory_limit_mb,
            threads=limits.threads,
        )
        advance(1)
    return difference


def verify_snapshots(container: Container, digests: Sequence[str]) -> list[SnapshotCheck]:
    """Read every byte of the named snapshots, or of all, and return what each check found."""
    home = container.home
    chosen = [index.find_folder(home, digest) for digest in digests] or index.folders(home)
    committed = committed_digests(Ledger(home.ledger / PARTS_LEDGER))
    with (
        scratch_dir(home, "verify-") as tmp,
        container.progress.task("verify", sum(files_of(folder) for folder in chosen)) as advance,
    ):
        return [check_snapshot(folder, tmp=tmp, committed=committed, on_file=advance) for folder in chosen]


def pin_snapshot(container: Container, digest: str, reason: str | None) -> Pin:
    """Exclude a readable snapshot from pruning."""
    return _set_pin(container, digest, is_pinned=True, reason=reason)


def unpin_snapshot(container: Container, digest: str, reason: str | None) -> Pin:
    """Let pruning consider a snapshot again."""
    return _set_pin(container, digest, is_pinned=False, reason=reason)


def _set_pin(container: Container, digest: str, *, is_pinned: bool, reason: str | None) -> Pin:
    folder = index.find_folder(container.home, digest)
    snapshot = read_manifest(folder, Verify.NONE).digest
    pin = set_pin(container.home, snapshot, is_pinned=is_pinned, reason=reason, at=container.clock())
    read_manifest(folder, Verify.NONE)  # it may have been removed while the pin waited for its lock
    return pin


def prune_snapshots(container: Container, keep: int, *, is_dry_run: bool, spare_rejected: bool) -> SnapshotPruning:
    """Remove snapshots beyond the newest ``keep`` that nothing needs, or only say which; shows progress."""
    plan = prune(container.home, keep, is_dry_run=True, spare_rejected=spare_rejected)
    leaving = sum(not item.kept_because for item in plan.snapshots)
    if is_dry_run or not leaving:
        return plan.model_copy(update={"is_dry_run": is_dry_run})
    with container.progress.task("prune", leaving) as advance:
        return prune(container.home, keep, is_dry_run=False, spare_rejected=spare_rejected, on_removed=advance)


def export_snapshot(container: Container, digest: str, format_name: str, out: Path, split: str) -> ExportCard:
    """Write one split of a verified snapshot as a new folder for other programs.

    Raises:
        ConfigError: if format or split is unknown, or the split has no episodes.
        IntegrityError: if a byte of the snapshot changed, or fewer episodes were written than it has.
    """
    if format_name not in EXPORTS.names():
        raise ConfigError(f"unknown --format {format_name}; known formats: {', '.join(EXPORTS.names())}")
    if split not in {known.value for known in Split}:
        raise ConfigError(f"unknown --split {split}; known splits: {', '.join(known.value for known in Split)}")
    manifest = read_manifest(index.find_folder(container.home, digest))
    if not manifest.episodes.get(split):
        raise ConfigError(
            f"snapshot {manifest.digest[:16]} has no episodes in its {split} split; splits with "
            f"episodes: {', '.join(name for name, count in manifest.episodes.items() if count) or 'none'}"
        )
    # Each format needs libraries that only an extra installs.
    write = EXPORTS.load(format_name).write
    with (
        exclusive(container.home.locks / "export", "exporting a snapshot"),
        container.progress.task("export", manifest.episodes[split]) as advance,
    ):
        card: ExportCard = write(
            manifest,
            split,
            out,
            blueprints=vocabulary(container.config.ingest),
            code_version=container.provenance.code_version,
            on_episodes=advance,
        )
    if card.episodes != manifest.episodes[split]:
        raise IntegrityError(f"{out}: wrote {card.episodes} episodes, the manifest says {manifest.episodes[split]}")
    return card
