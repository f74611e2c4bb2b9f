"""``simic follow``: the policy that production uses, kept as a folder for programs in any language."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias
from urllib.parse import urlsplit

import typer

from simic.cli.console import EXIT_CODES, emit_line, stderr, stdout, visible
from simic.cli.options import AsJson, naming_options, number
from simic.contracts.errors import ConfigError, TransientError
from simic.contracts.names import KARN
from simic.runtime.home import Home as HomePaths

if TYPE_CHECKING:
    from simic.api.home import Home
    from simic.api.subscriber import Subscriber
    from simic.contracts.policy_update import PolicyUpdate
    from simic.publication.follower import Refusal

__all__ = ["add_to"]

LONGEST_INTERVAL_S = 86_400
_OPTIONS = {
    "source": "SOURCE",
    "trusted_keys": "--trusted-keys",
    "state": "--into",
    "policies": "--policies",
    "consumer": "--consumer",
    "karns": "--karns",
}
"""Where the arguments of a subscriber come from."""


SourceName: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="Folder of a spool, a home, or redis://host\\[:port]\\[/database] without a password; default: the home "
        "of the command line, with the Redis that REDIS_URL names.",
    ),
]
SourceKeys: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--trusted-keys",
        metavar="FOLDER",
        help="Folder of <key id>.pub files; default: the keys of the home, if SOURCE is one.",
    ),
]
PolicyFolder: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of sealed policies by digest, or s3://bucket/prefix; default: data/policies of the home, or "
        "policies beside the spool. Redis needs it.",
    ),
]
ConsumerName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of this consumer, by which it is within the share of a rollout or not; default: one that is drawn "
        "and kept in FOLDER.",
    ),
]
ConsultKarn: TypeAlias = Annotated[
    bool,
    typer.Option("--consult-karn", help="Also follow updates about Karn: the current one is in FOLDER/karn/current."),
]
KarnFolder: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of sealed Karns by digest, or s3://bucket/prefix; default: data/karn of the home, or karn beside "
        "the spool. Redis needs it with --consult-karn.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("follow", epilog=EXIT_CODES)(follow)


def follow(
    into: Annotated[
        str, typer.Option("--into", metavar="FOLDER", help="Folder of this consumer alone; created if it is missing.")
    ],
    source: SourceName = None,
    trusted_keys: SourceKeys = None,
    policies: PolicyFolder = None,
    consumer: ConsumerName = None,
    consult_karn: ConsultKarn = False,
    karns: KarnFolder = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    interval: Annotated[float, number(least=0.1, most=LONGEST_INTERVAL_S, about="Seconds between two looks.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Follow policy updates: verify each, keep the policy that production is to use in FOLDER/current.

    FOLDER/current is a link to a directory whose digest and signature were verified; it is replaced atomically. Read
    the link once, then the files in the directory: the policy before it stays beside it. An update that is older than
    the accepted one, edited, or signed by a key that is unknown or revoked is refused, and the policy stays.

    Prints a line for each accepted or refused update, with --json an object a line. With --once, a line also says if
    there is no new update. Nothing is taken from the bus.

    With --consult-karn, FOLDER/karn/current is the Karn for the policy that validation.consulted_by of its update
    names; give both to [bold]simic decide[/bold] (--karn).

    Example: [bold]simic follow /srv/simic/data/spool --trusted-keys keys --into tamiyo[/bold]

    With --once: exit code 0 if nothing was refused, 1 if an update was, 4 if one waits for its policy or the bus does
    not answer.
    """
    resolved_source = _source(source)
    keys = resolved_source if trusted_keys is None else trusted_keys
    if trusted_keys is None and isinstance(resolved_source, str):
        raise ConfigError("--trusted-keys: expected a folder of <key id>.pub files, because SOURCE is not a home")
    from simic.api.subscriber import Subscriber  # it loads torch, which wrong usage need not wait for

    with naming_options(_OPTIONS):
        subscriber = Subscriber(
            resolved_source,
            trusted_keys=keys,
            state=into,
            policies=policies,
            consumer=consumer,
            consult_karn=consult_karn,
            karns=karns,
        )
    with subscriber:
        shown = 0
        while True:
            shown = _look(subscriber, shown, as_json, is_last=once)
            if once:
                raise typer.Exit(_code(subscriber.refused))
            time.sleep(interval)


def _source(given: str | None) -> Home | str:
    """Return the home of a path that is one, else the path or URL itself."""
    from simic.api.home import Home

    if given is None:
        return Home()
    if "://" in given:
        parts = urlsplit(given)
        if parts.password is not None or parts.username is not None:
            raise ConfigError(
                "SOURCE: other users of this machine can read arguments, so an address with user and password belongs "
                "in REDIS_URL; leave SOURCE out then"
            )
        return given
    if given and HomePaths(Path(given).expanduser()).is_home():
        return Home(given)
    return given


def _look(subscriber: Subscriber, shown: int, as_json: bool, *, is_last: bool) -> int:
    """Poll once and print what is new; return how many refusals were printed so far."""
    accepted, karn = None, subscriber.karn_update
    try:
        accepted = subscriber.poll()
    except TransientError as error:
        if is_last:
            raise
        stderr().print(f"{visible(str(error))}; the next look tries again")
    fresh = subscriber.refusals - shown
    for refusal in subscriber.refused[-fresh:] if fresh else ():
        _tell_refusal(refusal, as_json)
    about_karn = subscriber.karn_update
    told = {update.signature: update for update in (accepted, about_karn if about_karn != karn else None) if update}
    for update in told.values():
        _tell(update, as_json, is_within=update.policy_name == KARN or subscriber.is_within_share)
    if told:
        return subscriber.refusals
    if is_last and not fresh:
        _tell_unchanged(subscriber, as_json)
    return subscriber.refusals


def _tell(update: PolicyUpdate, as_json: bool, *, is_within: bool) -> None:
    if as_json:
        emit_line({"event": "accepted", "update": update.model_dump(mode="json"), "is_within_share": is_within})
    else:
        stdout().print(
            f"accepted {update.policy_name} {update.version} ({update.digest[:12]}), issued "
            f"{update.issued_at.isoformat()}, key {update.key_id}{'' if is_within else _outside(update)}"
            f"{_unusual(update)}"
        )


def _outside(update: PolicyUpdate) -> str:
    plan = update.rollout
    return (
        ""
        if plan is None
        else f"; this consumer is outside its share of {plan.share:.0%} and uses {plan.baseline_version}"
    )


def _tell_unchanged(subscriber: Subscriber, as_json: bool) -> None:
    update, policy, is_within = subscriber.update, subscriber.policy, subscriber.is_within_share
    if as_json:
        told = None if update is None else update.model_dump(mode="json")
        emit_line({"event": "unchanged", "update": told, "is_within_share": is_within})
    elif update is None or policy is None:
        stdout().print("no update yet: no policy is current")
    else:
        plan = update.rollout
        version = update.version if plan is None or policy.digest == update.digest else plan.baseline_version
        stdout().print(
            f"no new update: {update.policy_name} {version} ({policy.digest[:12]}) stays current"
            f"{'' if is_within else _outside(update)}{_unusual(update)}"
        )


def _unusual(update: PolicyUpdate) -> str:
    """Return what is unusual about the judgement behind an update; empty for trials with all criteria."""
    judged = update.validation
    if judged.without is None or judged.evidence is None:
        return "; the update does not say which criteria and evidence it was judged by: it is of an earlier release"
    by_reports = "; judged from logged episodes, without trials" if judged.evidence == "reports" else ""
    return by_reports + (visible(f"; judged without {', '.join(judged.without)}") if judged.without else "")


def _tell_refusal(refusal: Refusal, as_json: bool) -> None:
    kind, message = type(refusal.error).__name__, str(refusal.error)
    if as_json:
        update = None if refusal.update is None else refusal.update.model_dump(mode="json")
        emit_line({"event": "refused", "source": refusal.source, "error": kind, "message": message, "update": update})
    else:
        stdout().print(visible(f"refused {refusal.source}: {kind}: {message}"))


def _code(refused: tuple[Refusal, ...]) -> int:
    if not refused:
        return 0
    return TransientError.exit_code if all(isinstance(refusal.error, TransientError) for refusal in refused) else 1
