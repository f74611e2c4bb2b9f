"""``simic rollout``: watch, continue or end the rollout of a champion in production."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from simic.cli.console import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, Reason, open_container
from simic.cli.tables import receipt_lines
from simic.runtime.home import HomeUse

if TYPE_CHECKING:
    from simic.contracts.results.rollout import RolloutStatus, SuccessRate

__all__ = ["add_to"]

_NONE = "No rollout is in progress: all consumers are to use the policy that was published last."

_CODES = EXIT_CODES.replace("rejected by the gate (the champion stays)", "rolled back by `advance`")


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    group = typer.Typer(
        help="The rollout of a new champion in production: a share of its consumers uses it first, and the reports "
        "that come back decide. With rollout.start = partial, `simic publish` and `simic run` begin one.",
        no_args_is_help=True,
    )
    for verb in (status, advance, abort):
        group.command(verb.__name__, epilog=_CODES)(verb)
    app.add_typer(group, name="rollout")


def status(as_json: AsJson = False) -> None:
    """Show the rollout in progress and what the landed reports say about it; changes nothing.

    An episode succeeds if the governor did not end it and the network kept its validation accuracy, to 0.005. One that
    is open for three times as long as the longest whole one of its set was cut off, and counts as a failure.
    The verdict is one of

    PASSING: the lower bound of the share of successes reaches rollout.min_success, also if every open episode counts
    as a failure;

    UNDECIDED: the share reaches it, that lower bound does not;

    INSUFFICIENT: fewer than rollout.min_episodes episodes;

    FAILING: the share is below it, or with few episodes the upper bound is.

    `simic ingest` lands new reports first. With --json, status is null if no rollout is in progress.
    """
    from simic.app import rollout

    container = open_container(use=HomeUse.LOOK)
    rollout_status = rollout.status(container.home, container.clock())
    answer = {"status": None if rollout_status is None else rollout_status.model_dump(mode="json")}
    emit(
        answer,
        as_json,
        lambda console: console.print(_NONE if rollout_status is None else _text(rollout_status), markup=False),
    )


def advance(profile: ProfileName = "default", override: Overrides = None, as_json: AsJson = False) -> None:
    """Do what the plan of the rollout says now; made for a schedule, such as once an hour after `simic ingest`.

    PASSING and the hours are over: the champion is published to all consumers. FAILING: it is rolled back at once, the
    former champion is published, and the exit code is 3. Otherwise nothing is sent and the exit code is 4; too little
    evidence never advances. Without a rollout in progress the exit code is 0.

    Example: [bold]simic ingest && simic rollout advance[/bold]
    """
    from simic.app import rollout

    rollout_status, publication = rollout.advance(open_container(profile, overrides=override))
    answer = {"status": rollout_status, "publication": publication}
    plain = {name: None if contract is None else contract.model_dump(mode="json") for name, contract in answer.items()}
    emit(
        plain,
        as_json,
        lambda console: console.print(_NONE if publication is None else receipt_lines(publication)),
    )


def abort(
    reason: Reason,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """End the rollout in progress: restore the former champion and publish it to all consumers.

    If the bus is unavailable, the exit code is 4: the former champion is champion again, and `simic publish` tells
    production. Without a rollout in progress the exit code is 2.
    """
    from simic.app import rollout

    receipt = rollout.abort(open_container(profile, overrides=override), reason)
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def _text(rollout: RolloutStatus) -> str:
    update, plan = rollout.update, rollout.plan
    return "\n".join(
        [
            f"{update.policy_name} {update.version} ({update.digest[:12]}) is rolled out to {plan.share:.0%} of the "
            f"consumers; the others use {plan.baseline_version} ({plan.baseline[:12]}).",
            f"Began {update.issued_at:%Y-%m-%d %H:%M} UTC, its hours are over at {rollout.ends_at:%Y-%m-%d %H:%M} UTC.",
            f"New policy: {_rate(rollout.policy)}. The others in the same time: {_rate(rollout.baseline)}.",
            f"{rollout.verdict.value}: {rollout.told()}.",
        ]
    )


def _rate(rate: SuccessRate) -> str:
    if rate.share is None:
        return "no whole episode"
    return (
        f"{rate.succeeded} of {rate.episodes} episodes succeeded, {rate.share:.0%} [{rate.lower:.0%}, {rate.upper:.0%}]"
    )
