"""One verb per stage; the input is the named one, else the newest receipt of the stage before."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from simic.cli import completion
from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, stderr, working
from simic.cli.options import (
    CONSULTING_HELP,
    CONTROLLER_HELP,
    POLICY_NAMES,
    AsJson,
    Land,
    ModelName,
    Overrides,
    ProfileName,
    Seed,
    SetName,
    SnapshotName,
    open_container,
    parse_host_keys,
)
from simic.cli.tables import proof_table, receipt_lines
from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION, KARN, MODEL_NAME
from simic.contracts.rewards import FAMILIES
from simic.runtime.home import HomeUse

__all__ = ["add_to"]


_INPUTS = {
    "collect": "--controller",
    "ingest": "--spool",
    "curate": "--reward",
    "train": "--snapshot",
    "validate": "--policy",
}
"""The option of each verb that a word without an option is most likely meant for."""


class _StageCommand(TyperCommand):
    """A verb that has options only, and answers a word without an option with the option of its input, if not given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; fail if such a word is left."""
        ctx.allow_extra_args = True
        rest: list[str] = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            option = _INPUTS[str(self.name)]
            is_free = ctx.get_parameter_source(option.removeprefix("--")).name != "COMMANDLINE"
            hint = f". Did you mean {option} {shlex.quote(rest[0])}?" if is_free else ""
            ctx.fail(f"Got unexpected extra argument {rest[0]!r}{hint}")
        return rest


def add_to(app: typer.Typer) -> None:
    """Register the verbs that each do one stage of a run."""
    for verb in (collect, ingest, curate, train, validate):
        app.command(verb.__name__, cls=_StageCommand, epilog=EXIT_CODES)(verb)


def collect(
    controller: Annotated[
        str,
        typer.Option(
            help=f"{CONTROLLER_HELP}; or a policy: {POLICY_NAMES}; {CONSULTING_HELP}.",
            autocompletion=completion.controllers,
        ),
    ] = "explore",
    host_keys: Annotated[
        str | None,
        typer.Option(
            help="Host keys, from any split: A:B (B excluded), A,B,C, or a mix; default: training hosts, new ones for "
            "each collection."
        ),
    ] = None,
    world_set: SetName = None,
    spool: Annotated[Path | None, typer.Option(help="Directory of the bus; default: data/spool of the home.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Also draw one collected host per family: slots, stages, alpha, decisions, accuracy.",
        ),
    ] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Grow hosts under a controller and put a field report of every decision on the bus.

    Example: [bold]simic collect --controller heuristic --host-keys 0:50 --plot heuristic.png[/bold]
    """
    if plot is not None:
        from simic.app.display.timelines import check_plot  # it loads numpy, which completion need not wait for

        check_plot(plot)
    extra = {"world.set": world_set}
    keys = None if host_keys is None else parse_host_keys(host_keys)
    container = open_container(profile, seed, override, extra, spool, use=HomeUse.MAKE, controllers=[controller])
    with working(LOADING_TORCH):
        from simic.app import training

    receipt = training.collect(container, controller, keys, plot)
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))
    if plot is not None:
        stderr().print(f"timeline: {plot}")


def ingest(
    spool: Annotated[
        Path | None, typer.Option(help="Existing directory of the bus; default: data/spool of the home.")
    ] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Write the reports on the bus to the lake as Parquet; malformed ones go to the quarantine with the reason.

    The receipt counts the reports that landed, were duplicates or were quarantined. Its other counts: retried, repeated
    deliveries; dead lettered, entries that could not be delivered; lost, entries that left the stream before they were
    ingested; lag, deliveries that still wait; raw dropped, refused reports of which only the reason was kept because
    the quarantine was full. The ledger digest covers all parts of the lake. The file data/runs/ingest/<UTC day>.jsonl
    has the counts of each batch.
    """
    from simic.app import data

    if spool is not None and not spool.is_dir():
        raise ConfigError(f"--spool: expected an existing folder, found none at {spool}; check the path")
    receipt = data.ingest(open_container(profile, seed, override, spool=spool, use=HomeUse.MAKE))
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def curate(
    reward: Annotated[
        str | None,
        typer.Option(help=f"Reward family: {', '.join(FAMILIES)}; default: the profile's."),
    ] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Build an immutable snapshot of training rows from the reports in the lake, and compute the rewards.

    Rewards can be recomputed without collecting again; each reward family gives its own snapshot. Trials always use the
    reward family basic. If no row is usable, the snapshot is empty, a warning gives the reason, and the exit code
    is 0; training refuses an empty snapshot.

    Example: [bold]simic curate --reward shaped -o curate.reward.potential=3[/bold]
    """
    from simic.app import data
    from simic.curation.run import why_empty

    receipt = data.curate(open_container(profile, seed, override, {"curate.reward.family": reward}))

    def show(console: Console) -> None:
        console.print(receipt_lines(receipt))
        if (warning := why_empty(receipt)) is not None:
            console.print(Text(warning, style="bold red"))

    emit(receipt, as_json, show)


def train(
    snapshot: SnapshotName = None,
    start: Annotated[
        str,
        typer.Option(
            help=f"Policy to start from ({POLICY_NAMES}), or the word `nothing` for random weights; without a "
            "champion, `champion` also means random weights.",
            autocompletion=completion.starts,
        ),
    ] = CHAMPION,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the newest checkpoint of a killed training of the same snapshot, start, seed, settings "
            "and code; without one, begin.",
        ),
    ] = False,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a policy on a snapshot.

    If the snapshot holds branches (episodes that tried other actions at one decision of a host), training distils their
    returns into the policy. From other episodes the policy learns by train.objective: vtrace, ppo, awr, fitted_q or
    cloning. If one of the first three starts from random weights, behaviour cloning and value regression come first.
    An episode gets at most train.max_passes passes, those of the trainings that led to --start included.
    """
    container = open_container(profile, seed, override)
    with working(LOADING_TORCH):
        from simic.app import artifacts, training

    manifest = artifacts.resolve_snapshot(container, snapshot)
    receipt = training.train(container, manifest, training.resolve_start(container, start), resume=resume)
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))
    training.require_finished(receipt)


def validate(
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"A train receipt, {POLICY_NAMES}; with --model karn the first 8 or more characters of a digest, or a "
            "receipt of karn train; default: the newest.",
            autocompletion=completion.policies,
        ),
    ] = None,
    model: ModelName = MODEL_NAME,
    land: Land = False,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare a policy with every baseline and the champion on held-out hosts, and try it on further sets.

    With --land the episodes reach the lake at the next [bold]simic ingest[/bold]. View judging_episodes has them, with
    judgement, policy and set; no snapshot has them. Hosts, ordinal and result are the same without it.

    A policy of a set that Simic cannot grow is refused (exit 2), unless gate.evidence is reports: then logged episodes
    of held-out hosts judge it, and nothing is grown.

    With --model karn, the champion consulting a Karn is compared with the champion alone, and with the champion
    consulting the promoted Karn if there is one. The judgement counts in the same error budget.
    """
    container = open_container(profile, seed, override, {"trial.land": land or None})
    with working(LOADING_TORCH):
        from simic.app import artifacts, karn, training
        from simic.validation.further import further_sets

    if model == KARN:
        judged = karn.validate(container, karn.resolve_training(container, policy))
        emit(judged, as_json, lambda console: console.print(proof_table(judged)))
        return
    trained = artifacts.resolve_training(container, policy)
    champion, sets = container.policies.champion_digest(), further_sets(container.config)
    further = [training.try_further(container, trained, champion, name) for name in sets]
    receipt = training.validate(container, trained, champion, further)
    emit(receipt, as_json, lambda console: console.print(proof_table(receipt)))
