"""Verbs about snapshots: ``simic snapshots list``, ``diff``, ``verify``, ``pin``, ``unpin``, ``prune``, ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from simic.cli.edge import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_app
from simic.cli.snapshot_view import check_table, difference_view, list_table, pruning_table
from simic.cli.text import short
from simic.contracts.errors import IntegrityError

__all__ = ["add_to"]

Digest: TypeAlias = Annotated[
    str, typer.Argument(help="Digest of a snapshot, or 4 characters or more of its beginning.")
]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    room = typer.Typer(help="The snapshots of this home: what they hold, which to keep, how to hand them on.",
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
        room.command(name, epilog=EXIT_CODES)(verb)
    app.add_typer(room, name="snapshots")


def list_snapshots(as_json: AsJson = False) -> None:
    """Every snapshot, oldest first: when made, rows, episodes per split, reward, pin, and who learned from it.

    A policy's standing is champion, former (champion once), accepted, rejected or unjudged (never before the gate).
    """
    found = open_app().snapshots.listed()
    emit(found, as_json, lambda console: console.print(list_table(found)))


def diff(
    a: Digest,
    b: Digest,
    examples: Annotated[int, typer.Option(min=0, max=1_000_000, help="Episodes to name per kind of difference.")] = 5,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Two snapshots side by side: rows and episodes in one or both, settings, rules, what each left out.

    Rows are paired by episode and step. Both are checked byte by byte first. The exit code is 0 whether or not they
    differ. `-o curate.memory_limit_mb=1024` bounds the memory; what does not fit goes to disk.
    """
    found = open_app(profile, overrides=override).snapshots.diff(a, b, examples)
    emit(found, as_json, lambda console: console.print(difference_view(found)))


def verify(
    digests: Annotated[list[str] | None, typer.Argument(help="Digests or their beginnings; default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check every file's size and SHA-256, the digest over them, and the rows; exit code 1 if anything differs.

    All snapshots are looked at, whatever is found in one; the damage is named. `simic curate` makes a damaged one anew
    where its rows have landed here.
    """
    checks = open_app().snapshots.verify(digests or [])
    emit([check.model_dump(mode="json") for check in checks], as_json, lambda c: c.print(check_table(checks)))
    damaged = [check.folder for check in checks if check.damage]
    if damaged:
        raise IntegrityError(f"{len(damaged)} of {len(checks)} snapshots are damaged: {', '.join(damaged)}")


def pin(
    digest: Digest,
    reason: Annotated[str | None, typer.Option(help="Why; shown by `simic snapshots list`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a snapshot whatever happens: `simic snapshots prune` never removes it. Doing it again changes nothing."""
    found = open_app().snapshots.pin(digest, reason)
    emit(found, as_json, lambda console: console.print(f"pinned {short(found.snapshot)}"))


def unpin(
    digest: Digest,
    reason: Annotated[str | None, typer.Option(help="Why; kept in the ledger.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let a pinned snapshot go when its time comes."""
    found = open_app().snapshots.unpin(digest, reason)
    emit(found, as_json, lambda console: console.print(f"not pinned {short(found.snapshot)}"))


def prune(
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest stay in any case.")],
    remove: Annotated[bool, typer.Option("--yes", help="Remove them; without it, only say which would go.")] = False,
    also_rejected: Annotated[
        bool, typer.Option("--also-rejected", help="Those too from which only rejected policies learned.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old snapshots: all but the newest, the pinned, and those from which a policy learned.

    Without --yes nothing is removed. A policy counts before the gate has judged it too, and with the policies it went
    on from: what was learned from stays there to be looked up. Landed experience is not touched.
    """
    found = open_app().snapshots.prune(keep, is_dry_run=not remove, spare_rejected=not also_rejected)
    emit(found, as_json, lambda console: console.print(pruning_table(found)))


def export(
    digest: Digest,
    out: Annotated[Path, typer.Option(help="A new folder; it appears whole, or not at all.")],
    format_name: Annotated[str, typer.Option("--format", help="minari (needs the extra: export), or pyg.")],
    split: Annotated[str, typer.Option(help="train, validation or test; hosts are never in two of them.")] = "train",
    as_json: AsJson = False,
) -> None:
    """One split of a snapshot for other programs: a Minari data set, or shards for PyTorch Geometric.

    The snapshot is checked byte by byte first. The folder says itself how to read it (README.md), and which rows they
    are (card.json: digest of the snapshot, reward, discount, features, SHA-256 of every file). No file is pickled.
    """
    card = open_app().snapshots.export(digest, format_name, out, split)
    emit(
        card,
        as_json,
        lambda console: console.print(
            f"wrote {out}: {card.episodes} episodes, {card.steps} steps of {short(card.snapshot)}; see {out}/README.md"
        ),
    )
