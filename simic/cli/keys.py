"""``simic keys``: list, rotate, revoke, reseal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simic.cli.console import EXIT_CODES, cell, emit, visible
from simic.cli.options import AsJson, open_container
from simic.contracts.errors import ConfigError
from simic.contracts.names import short
from simic.runtime.home import HomeUse

if TYPE_CHECKING:
    from simic.contracts.results.keys import KeyChange, KeyList, Resealing

__all__ = ["add_to"]

HELP = """Signing keys: list, rotate, revoke, and sign again after a revocation.

Policies, receipts of train, validate and gate, and the journal of promotions are signed with the key in
SIMIC_SIGNING_KEY (base64 of 32 random bytes: openssl rand -base64 32), or else with data/keys/signing.key. A signature
is trusted if its key is in data/keys/<key id>.pub and data/keys/revoked.jsonl does not list it.

If a key leaked: simic keys revoke ID --reason "..." ; simic keys reseal ;
simic keys reseal --yes --head ... ; simic publish"""
STYLES = {"own": "green", "trusted": "", "revoked": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    group = typer.Typer(help=HELP, no_args_is_help=True)
    for name, verb in (("list", list_keys), ("rotate", rotate), ("revoke", revoke), ("reseal", reseal)):
        group.command(name, epilog=EXIT_CODES)(verb)
    app.add_typer(group, name="keys")


def list_keys(as_json: AsJson = False) -> None:
    """List every key: whether this home signs with it, whether it is trusted, since when, and how many files it signed.

    The count includes policies (in data/policies and in the registry), receipts, and the lines of data/ledger on gate
    decisions and candidates. Signatures are not checked here: simic doctor --deep does that. Exit code 1 if the
    revocation list is damaged.
    """
    from simic.app.keys import Keys

    listing = Keys(open_container(use=HomeUse.LOOK)).listed()
    emit(listing, as_json, lambda console: _show_list(console, listing))


def rotate(as_json: AsJson = False) -> None:
    """Create a new signing key. The old private key is deleted; signatures made with it stay trusted.

    The new key signs a line of the journal of promotions that covers all earlier lines. The exit code is 2 if
    SIMIC_SIGNING_KEY is set: change that variable instead.
    """
    from simic.app.keys import Keys

    done = Keys(open_container()).rotate()
    emit(done, as_json, lambda console: _show_change(console, done))


def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of a key: 16 hex characters, or its first 4 or more.")],
    reason: Annotated[
        str, typer.Option(help="Reason; kept in the revocation list and shown wherever the key is refused.")
    ],
    as_json: AsJson = False,
) -> None:
    """Revoke a key: its signatures are no longer trusted, and the key is never used again.

    If the key is the signing key of this home, a new one is created first. If the key is in SIMIC_SIGNING_KEY, nothing
    can be signed until that variable holds another key. Policies that the key sealed are refused, the champion
    included. `simic keys reseal` seals promoted policies again; all others must be trained and validated again. A
    revocation is permanent; repeating it changes nothing. A key that this home never had can be revoked by its whole
    id: the result then says so and names the keys still trusted.
    """
    from simic.app.keys import Keys

    done = Keys(open_container()).revoke(key_id, reason)
    emit(done, as_json, lambda console: _show_change(console, done))


def reseal(
    is_sure: Annotated[
        bool, typer.Option("--yes", help="Sign; without it the lines and policies are only shown.")
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(help="With --yes: sign only if the journal still ends with this line, as shown before."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign the journal of promotions and the promoted policies again after a key was revoked.

    Without --yes this lists the lines of the journal. Read them before signing: whoever held the revoked key could have
    added lines. If a line is not yours, restore data/ledger and mlruns from an earlier backup instead. Pass the --head
    that was shown, so that lines added later are refused. With --yes the present key signs every line of the journal
    and seals the policies whose bytes match the digests there. Receipts are not signed again: policies that were not
    promoted must be trained and validated again.
    """
    from simic.app.keys import Keys

    resealing = Keys(open_container()).reseal(is_dry_run=not is_sure, head=_checked(head))
    emit(resealing, as_json, lambda console: _show_resealing(console, resealing))


def _show_list(console: Console, listing: KeyList) -> None:
    table = Table(
        "key", "standing", "since", "signs", "policies", "receipts", "journal lines", "reason", box=SIMPLE_HEAD
    )
    for key in listing.keys:
        table.add_row(
            key.key_id,
            Text(key.standing.value, style=STYLES[key.standing.value]),
            "" if key.since is None else f"{key.since:%Y-%m-%d %H:%M}",
            "yes" if key.is_signing else "",
            str(key.policies),
            str(key.receipts),
            str(key.journal_lines),
            cell(key.reason),
        )
    console.print(table)
    if listing.signing_problem is not None:
        console.print(Text(visible(f"Nothing can be signed: {listing.signing_problem}"), style="bold red"))


def _show_change(console: Console, done: KeyChange) -> None:
    if done.revoked is not None:
        console.print(f"revoked: {done.revoked}")
    if done.signing_key is not None:
        console.print(f"signing key: {done.signing_key}{' (new)' if done.is_new else ''}")
    if done.is_countersigned:
        console.print("the journal of promotions is countersigned")
    for step in done.next_steps:
        console.print(Text(f"next: {visible(step)}"))


def _show_resealing(console: Console, resealing: Resealing) -> None:
    if resealing.lines:
        table = Table("line", "what", "phase", "version", "policy", "at", "reason", "key", box=SIMPLE_HEAD)
        for vouched in resealing.lines:
            moment = f"{vouched.at:%Y-%m-%d %H:%M}"
            target = "" if vouched.target is None else str(vouched.target)
            digest = "" if vouched.digest is None else short(vouched.digest)
            table.add_row(
                str(vouched.line),
                vouched.operation,
                vouched.phase or "",
                target,
                digest,
                moment,
                cell(vouched.reason),
                vouched.key_id,
            )
        console.print(table)
    for path in resealing.directories:
        console.print(Text(visible(path)))
    for line in resealing.left:
        console.print(Text(f"left as it is: {visible(line)}"))
    if not resealing.lines and not resealing.directories:
        console.print("Nothing to sign.")
        return
    count = f"{len(resealing.lines)} lines of the journal and {len(resealing.directories)} sealed policies"
    if resealing.is_done:
        console.print(f"signed by {resealing.signing_key}: {count}")
    else:
        console.print(f"would be signed by {resealing.signing_key}: {count}")
        option = "" if resealing.head is None else f" --head {short(resealing.head)}"
        console.print(f"if each line above is yours: simic keys reseal --yes{option}")


def _checked(head: str | None) -> str | None:
    if head is not None and re.fullmatch(r"[0-9a-f]{8,64}", head) is None:
        raise ConfigError(f"--head expects 8 or more hex characters, as `simic keys reseal` shows them; found {head!r}")
    return head
