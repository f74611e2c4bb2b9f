"""The timeline of an episode as field reports tell it, in whatever training it was grown; loads no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simic.catalogue.own_queries import own_query
from simic.catalogue.query_process import ask
from simic.contracts.episode import EpisodeRecord, EpochRecord
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.state import HostIdentity
from simic.numerics.rewards import basic_rewards
from simic.runtime.files import check_writable, unwritable_as_config

if TYPE_CHECKING:
    from simic.app.container import Container

__all__ = ["check_plot", "draw_reported"]

_SHOWN = ("stage", "blueprint", "alpha", "contribution", "contribution_error")
"""Fields of a slot that a record of an epoch has too."""

_SHARED: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "host": itemgetter("host"),
    "controller": itemgetter("controller"),
    "state.horizon": lambda report: report["state"]["horizon"],
    "the number of slots": lambda report: len(report["state"]["slots"]),
}
"""What all reports of an episode have in common and a record says once."""


def check_plot(path: Path, option: str = "--plot") -> None:
    """Check before the work that a PNG can be written to ``path``, which ``option`` names.

    Raises:
        ConfigError: if it cannot.
    """
    target = Path(os.path.realpath(path))  # a link that leads to no file yet is written through
    with unwritable_as_config(path, option):
        is_present = target.is_file()
        # A pipe would wait for a reader.
        if path.suffix.lower() != ".png" or (os.path.lexists(target) and not is_present):
            raise ConfigError(f"{option} expects the name of a .png file, found {str(path)!r}")
        if is_present:
            target.open("ab").close()
            return
    check_writable(target, option)


def draw_reported(container: Container, run: str, path: Path) -> EpisodeRecord:
    """Draw the newest landed episode that ended and whose id begins with ``run``, and return it.

    Raises:
        ConfigError: if there is none, or ``run`` is no beginning of an id.
        ContractError: if its reports are not one for each step from 0 to the end, of one host, controller and horizon.
    """
    if not re.fullmatch("[0-9a-f]{0,32}", run):
        raise ConfigError(f"RUN: expected at most 32 hexadecimal digits, found {run!r}")
    from simic.validation.timeline import action_timeline  # loads matplotlib

    with closing(ask(container.home, own_query("reported_episode"), parameters={"run": run})) as rows:
        reports = list(_check_order(rows))
    if not reports:
        named = f"whose run_id begins with {run!r} " if run else ""
        hint = '`simic ingest` lands reports, `simic sql "FROM episodes"` lists episodes'
        raise ConfigError(f"no landed episode {named}has an end; {hint}")
    record = _record(reports, container)
    title = f"What {record.controller} did on {record.host.family} {record.host.key}, as reported"
    action_timeline([record], path, title)
    return record


def _check_order(reports: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the reports of an episode, ordered by step; raise ContractError at the first that does not continue it."""
    before: Mapping[str, Any] | None = None
    for report in reports:
        if (fault := _break(before, report)) is not None:
            raise ContractError(
                f"episode {report['run_id']}: expected one landed report for each step from 0 to the end, found that "
                f"{fault}; `simic check-reports FILE` says it of the file that the reports came from"
            )
        yield report
        before = report


def _break(before: Mapping[str, Any] | None, report: Mapping[str, Any]) -> str | None:
    """Return why a report does not follow the one ``before``, which is None for the first; None if it does."""
    step, expected = report["step"], 0 if before is None else before["step"] + 1
    if step < expected:
        return f"step {step} is repeated"
    if before is not None and before["has_end"]:
        return f"step {step} is after the end at step {before['step']}"
    if step > expected:
        missing = f"step {expected} is" if step == expected + 1 else f"steps {expected} to {step - 1} are"
        return f"{missing} missing"
    if before is not None and (differing := [name for name, of in _SHARED.items() if of(before) != of(report)]):
        return f"step {step} differs from the step before in {', '.join(differing)}"
    return None


def _record(reports: Sequence[Mapping[str, Any]], container: Container) -> EpisodeRecord:
    reward = container.config.curate.reward.basic
    first, last = reports[0], reports[-1]
    afters = [*(report["state"] for report in reports[1:]), last["final_state"]]
    metrics = [report["metrics"] for report in reports]
    committed = last["final_state"]["committed_validation_accuracy"]
    accuracies = [epoch["validation_accuracy_after"] for epoch in metrics]
    rewards = basic_rewards(
        reward,
        horizon=first["state"]["horizon"],
        accuracy_before=[epoch["validation_accuracy_before"] for epoch in metrics],
        accuracy_after=[*accuracies[:-1], accuracies[-1] if committed is None else committed],
        rent_parameters=[epoch["rent_parameters"] for epoch in metrics],
        governor=[report["governor"] is not None for report in reports],
    )
    return EpisodeRecord(
        host=HostIdentity.model_validate(first["host"]),
        controller=first["controller"],
        horizon=first["state"]["horizon"],
        start_accuracy=first["state"]["validation_accuracy"],
        epochs=[_epoch(step, *both) for step, both in enumerate(zip(reports, afters, strict=True))],
        committed_accuracy=accuracies[-1] if committed is None else committed,
        test_accuracy=metrics[-1]["test_accuracy"],
        committed_parameters=metrics[-1]["committed_parameters"],
        return_points=float(rewards.sum()),
    )


def _epoch(step: int, report: Mapping[str, Any], after: Mapping[str, Any]) -> EpochRecord:
    is_undone = report["governor"] is not None
    record = {
        "epoch": step,
        "action": report["action"],
        "slots": [{name: slot[name] for name in _SHOWN} for slot in after["slots"]],
        "validation_accuracy": after["validation_accuracy"],
        "validation_loss": after["validation_loss"],
        "train_loss": None if is_undone else after["train_loss"],
        "governor": report["governor"],
        "mitigation": report["mitigation"],
    }
    return EpochRecord.model_validate(record)
