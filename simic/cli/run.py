"""``simic run`` and ``simic nightly``: the whole loop, in this process or on the worker of `simic up`."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from simic.app.names.host_set_names import check_run
from simic.cli.console import EXIT_CODES, emit, leave_on_interrupt, parse_overrides, stderr, working
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, show_progress, whole_number
from simic.cli.services.environment import prefect_environment, with_signing_key
from simic.cli.services.ephemeral import EphemeralServer
from simic.cli.services.login import load_login
from simic.cli.services.nightly import raise_for_state, run_deployment
from simic.cli.services.stack import healthy_api, ui_links
from simic.cli.tables import decision_table, numbers_table, proof_table
from simic.contracts.errors import GateRejectedError
from simic.contracts.names import short
from simic.contracts.results.run import RunReceipt
from simic.runtime.clock import utc_now
from simic.runtime.home import Home, HomeUse, default_home, resolve_home
from simic.runtime.settings import load_profile
from simic.runtime.telemetry import configure_logging
from simic.validation.table import render_gain, render_seeds, render_spread

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_to"]

FLOW = "simic"
NIGHTLY_CODES = (
    "Exit codes: 0 completed and promoted, 1 failed, crashed or cancelled, 2 usage or configuration, 3 rejected by the "
    "gate (the champion stays), 4 try again: the services of `simic up` are not running, another run is active or the "
    "failure was transient, 130 interrupted (the run itself goes on)."
)
QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
"""In process, progress bars and messages of the CLI suffice; the run's log has everything."""
_NEXT_ATTEMPT = (
    "The same command makes another policy, which learns from the episodes of this run and any new ones. Its judgement "
    "takes {hosts} and a smaller share of the error budget, so it is stricter"
)


def add_to(app: typer.Typer) -> None:
    """Register ``simic run`` and ``simic nightly``, each with its exit codes."""
    app.command("run", epilog=EXIT_CODES)(run)
    app.command("nightly", epilog=NIGHTLY_CODES)(nightly)


def run(
    training_seeds: Annotated[
        int | None,
        whole_number(
            "--training-seeds",
            least=1,
            most=100,
            about="Trainings of the last snapshot, with seeds from --seed on; validation hosts choose the candidate. "
            "Short for -o train.seeds=N; default: the profile's.",
        ),
    ] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Run all stages: collect, ingest, curate, train, validate, gate, promote, publish.

    Training is repeated in rounds, each with new episodes of the policy. The first run starts from random weights.
    Later runs start from the champion and replace it only if the gate finds the new policy better. If a run is killed,
    the same command continues it after the last finished stage.

    Trainings that differ in their seed alone give different policies. With --training-seeds the last training is made
    several times, all policies grow the same validation hosts, and the best one goes to the gate, which judges it on
    other hosts.
    """
    overrides = parse_overrides(override or ())
    if training_seeds is not None:
        overrides["train.seeds"] = training_seeds
    config = load_profile(profile, overrides, {"train.seeds": "--training-seeds"})
    check_run(config)
    home = resolve_home()
    with working("loading the flow and starting Prefect's server"):
        leave_on_interrupt("interrupted; the same command continues after the last finished stage")
        flow = _load_flow(home)
    receipt = flow(profile=profile, seed=seed, overrides=overrides, progress=show_progress())
    emit(receipt, as_json, lambda console: _show(console, receipt, home))
    if not receipt.decision.accepted:
        from simic.validation.criterion import REPORTS
        from simic.validation.promotion_gate import rejection_message

        is_logged = receipt.validation.evidence == REPORTS
        hosts = "the same hosts until new reports of held-out hosts land" if is_logged else "other hosts"
        raise GateRejectedError(f"{rejection_message(receipt.decision)}. {_NEXT_ATTEMPT.format(hosts=hosts)}")


def nightly(
    deployment: Annotated[
        str,
        typer.Option(
            "--deployment",
            help="A deployment of prefect.yaml: nightly, which also starts by itself every night, or offline, "
            "the same run without a schedule.",
        ),
    ] = "nightly",
    profile: Annotated[
        str | None, typer.Option("--profile", help="Profile of the run; default: that of the deployment.")
    ] = None,
    seed: Annotated[
        int | None,
        whole_number("--seed", least=0, about="Random seed of the run; default: that of the deployment."),
    ] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Start a run of a deployment on the worker of `simic up` and wait for its result.

    Unlike `prefect deployment run simic/nightly --watch` it fails at once if no worker is running, and its exit code
    distinguishes a rejection from a failure. Ctrl-C ends the wait, not the run.
    """
    home = resolve_home()
    home.require()
    given = {"profile": profile, "seed": seed, "overrides": parse_overrides(override) if override else None}
    parameters = {name: value for name, value in given.items() if value is not None}
    result = run_deployment(home, f"{FLOW}/{deployment}", parameters, stderr().print)
    emit(result, as_json, lambda console: console.print(f"{result.name}: {result.state_name}. {result.message}"))
    raise_for_state(result)


def _load_flow(home: Home) -> Callable[..., RunReceipt]:
    """Return the flow's function, connected to the server of `simic up` or to one for this command."""
    from simic.app.home_location import open_home

    open_home(home, HomeUse.MAKE, utc_now)
    configure_logging("WARNING")
    api, server = healthy_api(home), None
    if api is not None:
        environment = prefect_environment(home, api, load_login(home))
    else:
        server = EphemeralServer(home)
        environment = prefect_environment(home, server.api_url, server.login)
    flow = _import_flow(with_signing_key(environment | ui_links(home)))
    if server is not None:
        server.await_ready()
    return flow


def _import_flow(environment: dict[str, str]) -> Callable[..., RunReceipt]:
    """Import the flow after its environment is set, because Prefect reads its settings on import."""
    os.environ.clear()
    os.environ.update(QUIET | environment)
    from flows.retrain import run as run_flow

    return run_flow


def _show(console: Console, receipt: RunReceipt, home: Home) -> None:
    if (choice := receipt.choice) is not None:
        title = f"Training seeds on {choice.hosts} validation hosts of set {choice.set}, paired by host"
        console.print(numbers_table(render_seeds(choice), title, names=2))
        console.print(f"{render_spread(choice)}. New hosts show less than the greatest.", highlight=False)
    console.print(proof_table(receipt.validation))
    console.print(decision_table(receipt.decision))
    if receipt.version is not None:
        console.print(
            f"Promoted: models:/{receipt.version.name}@champion is version {receipt.version.semantic_version} "
            f"({short(receipt.version.digest)})",
            highlight=False,
        )
    else:
        console.print("Rejected.")
    if receipt.publication is not None:
        console.print(f"Published: update {receipt.publication.event_id}", highlight=False)
    for report in receipt.validation.further:
        console.print(f"Further set: {render_gain(report)}", highlight=False)
    judged = next(training for training in receipt.trainings if training.digest == receipt.validation.policy_digest)
    console.print(f"Policy: {judged.path}")
    for name, path in sorted(receipt.validation.figures.items()):
        console.print(f"Figure {name}: {path}")
    simic = "simic" if default_home() == home.root else f"simic --home {shlex.quote(str(home.root))}"
    console.print(
        f"Details: `{simic} ui` opens MLflow; `{simic} sql 'FROM policies'` lists all judged policies.",
        highlight=False,
        soft_wrap=True,
    )
    stderr().print(f"home: {home.root}")
