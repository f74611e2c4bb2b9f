"""``simic status``: the champion, its training rows and its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from simic.cli.console import EXIT_CODES, cell, emit, short
from simic.cli.options import AsJson, ModelName, open_container
from simic.contracts.names import MODEL_NAME, judged_name, maker_of
from simic.runtime.home import HomeUse
from simic.validation.table import controller_rank, interval

if TYPE_CHECKING:
    from simic.contracts.receipts import PolicyVersion
    from simic.contracts.status import ChampionStatus, HomeStatus, TrainingRows

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("status", epilog=EXIT_CODES)(status)


def status(model: ModelName = MODEL_NAME, as_json: AsJson = False) -> None:
    """Show which policy is live, on which rows it was trained, and how it did on held-out hosts.

    Below: whether production was told of it, what is staged to replace it, and the newest decision of the gate.
    Differences are in points of return, paired by host, with their intervals. Ledgers and receipts are read, whose
    seals are checked; MLflow is not asked, and [bold]simic verify[/bold] checks the bytes of the policy.
    """
    from simic.app.status import home_status

    found = home_status(open_container(use=HomeUse.LOOK), model)
    emit(found, as_json, lambda console: console.print(_table(found)))


def _table(found: HomeStatus) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, highlight=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(found):
        table.add_row(name, cell(text))
    return table


def _lines(found: HomeStatus) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line."""
    champion = found.champion
    if champion is None:
        yield "champion", f"none; {maker_of(found.model)} makes one"
    else:
        change = "restored by a rollback" if champion.operation == "rollback" else "promoted"
        yield "champion", f"{_named(champion.version)}, {change} {champion.since:%Y-%m-%d %H:%M} UTC"
        yield from _training(champion.learned)
        yield from _evidence(champion)
        yield "published", _publication(champion)
    yield "staged", "nothing" if found.staged is None else f"{_named(found.staged)}; `simic promote` makes it champion"
    if (newest := found.newest) is not None:
        verdict = "accepted" if newest.accepted else f"rejected: {'; '.join(newest.unmet)}"
        name = judged_name(found.model, newest.policy)
        yield "newest decision", f"{name} {newest.decided_at:%Y-%m-%d %H:%M} UTC, {verdict}"


def _named(version: PolicyVersion) -> str:
    return f"{version.name}/{version.number}, version {version.semantic_version}, {short(version.digest)}"


def _training(learned: TrainingRows) -> Iterator[tuple[str, str]]:
    text = f"snapshot {short(learned.snapshot)}"
    if learned.rows is None:
        text += ", whose receipt is missing"
    else:
        text += f": {learned.rows:,} rows, {learned.episodes:,} training episodes"
        text += f" of {', '.join(learned.sets)}" if learned.sets else ""
        text += f", reward {learned.reward_family}"
    yield "trained on", text
    yield "trainings", f"{learned.trainings}, the last with seed {learned.seed}"


def _evidence(champion: ChampionStatus) -> Iterator[tuple[str, str]]:
    if champion.judged is None:
        gate = short(champion.version.gate_digest)
        yield "judged on", f"unknown: the receipt of its validation is missing; the gate's decision is {gate}"
    else:
        yield "judged on", f"{champion.judged.hosts} held-out hosts of {champion.judged.set}"
        for name in sorted(champion.judged.over, key=lambda name: (controller_rank(name), name)):
            yield f"  over {name}", interval(champion.judged.over[name])
    for gain in champion.further:
        yield f"  {gain.set}", f"{interval(gain.over['wait'])} over wait on {gain.hosts} held-out hosts"


def _publication(champion: ChampionStatus) -> str:
    if (update := champion.published) is None:
        return "no; `simic publish` tells production"
    text = f"{update.issued_at:%Y-%m-%d %H:%M} UTC"
    if update.rollout is not None:
        text += f", to {update.rollout.share:.0%} of the consumers first: `simic rollout status`"
    return text
