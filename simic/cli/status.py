"""``simic status``: the champion, its training rows and its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from simic.cli.console import EXIT_CODES, cell, emit
from simic.cli.options import AsJson, ModelName, open_container
from simic.contracts.names import MODEL_NAME, STAGED, WAIT, judged_name, maker_of, short
from simic.runtime.home import HomeUse
from simic.validation.table import controller_rank, interval

if TYPE_CHECKING:
    from datetime import datetime

    from simic.contracts.results.receipts import PolicyVersion
    from simic.contracts.results.status import ChampionStatus, HomeStatus, JudgedOn, TrainingRows

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("status", epilog=EXIT_CODES)(status)


def status(model: ModelName = MODEL_NAME, as_json: AsJson = False) -> None:
    """Show which policy is live, on which rows it was trained, and how it did on held-out hosts.

    Also whether production knows of it, what is staged to replace it, and the newest decision of the gate. Differences
    are in points of return, paired by host, with their intervals.

    The signed journal of promotions decides who is champion. Receipts of training and judgement, the newest decision
    and updates are shown only if a trusted key signed them. The figures of a snapshot come from its receipt, which has
    no seal. The last lines name every record that is missing or not trusted. MLflow is not asked.
    [bold]simic verify[/bold] checks the bytes of the policy.
    """
    from simic.app.status import home_status

    state = home_status(open_container(use=HomeUse.LOOK), model)
    emit(state, as_json, lambda console: console.print(_table(state)))


def _table(state: HomeStatus) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, highlight=False)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, text in _lines(state):
        table.add_row(cell(name), cell(text))
    return table


def _lines(state: HomeStatus) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line."""
    if (champion := state.champion) is None:
        yield "champion", f"none; {maker_of(state.model)} makes one"
    else:
        change = "restored by a rollback" if champion.operation == "rollback" else "promoted"
        yield "champion", f"{_named(champion.version)}, {change} {_moment(champion.since)}"
        yield from _training(champion.learned)
        yield from _evidence(champion.judged)
        yield "published", _publication(champion, state.model)
    yield STAGED, "nothing" if state.staged is None else f"{_named(state.staged)}, which waits to be promoted"
    if (newest := state.newest) is not None:
        verdict = "accepted" if newest.accepted else f"rejected: {'; '.join(newest.unmet)}"
        yield "newest decision", f"{judged_name(state.model, newest.policy)} {_moment(newest.decided_at)}, {verdict}"
    for record in state.not_shown:
        yield "not shown", record


def _named(version: PolicyVersion) -> str:
    return f"{version.name}/{version.number}, version {version.semantic_version}, {short(version.digest)}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _training(learned: TrainingRows) -> Iterator[tuple[str, str]]:
    text = f"snapshot {short(learned.snapshot)}"
    if learned.rows is not None:
        text += f", {learned.rows:,} rows in all splits, reward {learned.reward_family}"
    if learned.episodes is not None:
        text += f"; {learned.episodes:,} training episodes"
    if learned.sets:
        text += f"; sets {', '.join(learned.sets)}"
    yield "trained on", text
    start = "" if learned.start is None else f", from the weights of policy {short(learned.start)}"
    yield "last training", f"seed {learned.seed}{start}"


def _evidence(judged: JudgedOn) -> Iterator[tuple[str, str]]:
    summary = judged.summary
    kind = "estimates from a log, no trial, " if summary.evidence == "reports" else ""
    where = "" if judged.gain is None else f" of {judged.gain.set}"
    yield "judged on", f"{kind}{summary.episodes} held-out hosts{where}, judgement {judged.ordinal}"
    if summary.consulted_by is not None:
        yield "  consulted by", f"policy {short(summary.consulted_by)}, in all rows of the judgement"
    if judged.gain is None:
        level = f"lower bound {summary.lower_bound:+.1f} at {100 * summary.confidence:g}%"
        yield "  over wait", f"{summary.return_over_wait:+.1f}, {level}"
    else:
        for name in sorted(judged.gain.over, key=lambda name: (controller_rank(name), name)):
            yield f"  over {name}", interval(judged.gain.over[name])
    for gain in judged.further:
        yield f"  {gain.set}", f"{interval(gain.over[WAIT])} over wait on {gain.hosts} held-out hosts"


def _publication(champion: ChampionStatus, model: str) -> str:
    if (update := champion.published) is None:
        verb = "simic publish" if model == MODEL_NAME else f"simic publish --model {model}"
        return f"no; `{verb}` tells production"
    text = _moment(update.issued_at)
    if update.rollout is not None:
        text += f", to {update.rollout.share:.0%} of the consumers first: `simic rollout status`"
    return text
