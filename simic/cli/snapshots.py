"""``simic snapshots``: list, diff, verify, pin, unpin, prune and export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from simic.cli import completion
from simic.cli.console import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_container, whole_number
from simic.cli.tables import check_table, difference_view, list_table, pruning_table
from simic.contracts.errors import IntegrityError
from simic.contracts.names import short
from simic.replay.exports import EXPORTS
from simic.runtime.home import HomeUse

__all__ = ["add_to"]

EXPORT_HELP = "; ".join(f"{name}: {text}" for name, text in EXPORTS.summaries().items())

Digest: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Digest of a snapshot, or its first 4 or more characters.", autocompletion=completion.snapshots
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    group = typer.Typer(help="Snapshots of this home: list, compare, check, keep, remove and export them.",
                       no_args_is_help=True)  # fmt: skip
    for name, verb in (
        ("list", list_snapshots),
        ("diff", diff),
        ("verify", verify),
        ("pin", pin),
        ("unpin", unpin),
        ("prune", prune),
        ("export", export),
    ):
        group.command(name, epilog=EXIT_CODES)(verb)
    app.add_typer(group, name="snapshots")


def list_snapshots(as_json: AsJson = False) -> None:
    """List every snapshot, oldest first: time, rows, episodes per split, reward, pin, and the policies trained on it.

    The column "used by" shows the status of each policy: champion, former champion, accepted, rejected, or not judged
    by the gate.
    """
    from simic.app import data

    snapshots = data.list_snapshots(open_container(use=HomeUse.LOOK))
    emit(snapshots, as_json, lambda console: console.print(list_table(snapshots)))


def diff(
    a: Digest,
    b: Digest,
    examples: Annotated[
        int, whole_number(least=0, most=1_000_000, about="Episodes to show per kind of difference.")
    ] = 5,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare two snapshots: rows, episodes, settings, SQL, and the number of excluded rows per reason.

    Rows are paired by episode and step. Both snapshots are verified first. The exit code is 0 whether or not they
    differ. `-o curate.memory_limit_mb=1024` limits the memory; larger intermediate results are written to disk.
    """
    from simic.app import data

    difference = data.compare_snapshots(open_container(profile, overrides=override, use=HomeUse.LOOK), a, b, examples)
    emit(difference, as_json, lambda console: console.print(difference_view(difference)))


def verify(
    digests: Annotated[
        list[str] | None,
        typer.Argument(
            help="Digests, or their first 4 or more characters; default: all snapshots.",
            autocompletion=completion.snapshots,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check size and SHA-256 of every file, the digest of the snapshot, and its rows; exit code 1 if anything differs.

    All snapshots are checked, even if one is damaged; all damage is listed. `simic curate` rebuilds a damaged
    snapshot if its rows are in the lake of this home.
    """
    from simic.app import data

    checks = data.verify_snapshots(open_container(use=HomeUse.LOOK), digests or [])
    emit([check.model_dump(mode="json") for check in checks], as_json, lambda c: c.print(check_table(checks)))
    damaged = [check.folder for check in checks if check.damage]
    if damaged:
        raise IntegrityError(f"{len(damaged)} of {len(checks)} snapshots are damaged: {', '.join(damaged)}")


def pin(
    digest: Digest,
    reason: Annotated[str | None, typer.Option(help="Reason; shown by `simic snapshots list`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Pin a snapshot: `simic snapshots prune` never removes it. Pinning it again changes nothing."""
    from simic.app import data

    pinned = data.pin_snapshot(open_container(), digest, reason)
    emit(pinned, as_json, lambda console: console.print(f"pinned {short(pinned.snapshot)}"))


def unpin(
    digest: Digest,
    reason: Annotated[str | None, typer.Option(help="Reason; kept in the ledger.")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the pin of a snapshot, so that `simic snapshots prune` may remove it."""
    from simic.app import data

    unpinned = data.unpin_snapshot(open_container(), digest, reason)
    emit(unpinned, as_json, lambda console: console.print(f"not pinned {short(unpinned.snapshot)}"))


def prune(
    keep: Annotated[int, whole_number(least=1, about="Number of the newest snapshots that are always kept.")],
    remove: Annotated[
        bool, typer.Option("--yes", help="Remove the snapshots; without it they are only listed.")
    ] = False,
    also_rejected: Annotated[
        bool, typer.Option("--also-rejected", help="Also remove snapshots used only by rejected policies.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old snapshots: all but the newest, the pinned ones, and those used by a policy.

    Without --yes nothing is removed. Snapshots used by any policy, including policies not yet judged and their
    ancestors, are kept. The reports in the lake stay.
    """
    from simic.app import data

    pruning = data.prune_snapshots(open_container(), keep, is_dry_run=not remove, spare_rejected=not also_rejected)
    emit(pruning, as_json, lambda console: console.print(pruning_table(pruning)))


def export(
    digest: Digest,
    out: Annotated[Path, typer.Option(help="A new folder; it appears complete or not at all.")],
    format_name: Annotated[str, typer.Option("--format", help=EXPORT_HELP)],
    split: Annotated[str, typer.Option(help="train, validation or test; every host is in one split only.")] = "train",
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Export one split of a snapshot in one of the formats of --format.

    The snapshot is verified first. README.md in the folder explains how to read it; card.json lists the digest of the
    snapshot, reward, discount, features and the SHA-256 of every file. No file is pickled. Of the settings only
    ingest.declared_blueprints matters here: reports of other frameworks need the names with which they were ingested.
    """
    from simic.app import data

    card = data.export_snapshot(open_container(profile, overrides=override), digest, format_name, out, split)
    emit(
        card,
        as_json,
        lambda console: console.print(
            f"wrote {out}: {card.episodes} episodes, {card.steps} steps of {short(card.snapshot)}; see {out}/README.md"
        ),
    )
