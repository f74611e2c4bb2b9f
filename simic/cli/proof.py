"""``simic proof``: policies of several training seeds against all baselines on the same held-out hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.text import Text

from simic.app.names.host_set_names import check_set
from simic.cli import completion
from simic.cli.console import LOADING_TORCH, emit, working
from simic.cli.options import (
    SEARCHED_HELP,
    AsJson,
    Overrides,
    ProfileName,
    Seed,
    check_page_name,
    command_text,
    open_container,
    whole_number,
)
from simic.cli.proof_page import (
    controllers_table,
    costs_table,
    heading,
    left_out_table,
    page,
    rents_table,
    searched_table,
    static_table,
    summary,
)
from simic.cli.tables import numbers_table
from simic.contracts.controllers import SEARCHED
from simic.contracts.errors import ConfigError
from simic.contracts.results.proof import Proof
from simic.runtime.files import atomic_write, check_writable
from simic.runtime.home import HomeUse
from simic.validation.table import COST_NOTE, SCORED_NOTE, SEARCHED_NOTE, STATIC_NOTE

__all__ = ["add_to"]

_DEFAULT_PAGE = Path("docs/proof.md")
"""Where the page lies in a checkout; elsewhere its folder is made."""

PROOF_CODES = (
    "Exit codes: 0 the page is written, whatever the gate decided about the policies, 1 failed, 2 usage or "
    "configuration, or a part that another code version or configuration made (--fresh makes it again), 4 try again: "
    "another proof is being made in this home, or the failure was transient, 130 interrupted."
)


TrainingSets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A set to train on and to try on; repeatable. Default: the profile's.",
        autocompletion=completion.sets,
    ),
]
LeftOutFamilies: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="FAMILY",
        help="Also train without this family, and try on its hosts; repeatable, one family at a time.",
    ),
]
FurtherSets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="SET",
        help="Try the policies that other sets trained on the hosts of this set too; repeatable.",
        autocompletion=completion.sets,
    ),
]
SearchedArms: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        metavar=f"<{'|'.join(SEARCHED)}>",
        help=f"Also try an arm that searches on every host; repeatable: {SEARCHED_HELP}.",
    ),
]
Fresh: TypeAlias = Annotated[
    bool,
    typer.Option("--fresh", help="Make parts of another code version or configuration again; else they are refused."),
]


def add_to(app: typer.Typer) -> None:
    """Register `simic proof`, with its exit codes."""
    app.command("proof", epilog=PROOF_CODES)(proof)


def proof(
    sets: TrainingSets = None,
    seeds: Annotated[int, whole_number("--seeds", least=1, most=1000, about="Number of training seeds.")] = 5,
    hosts: Annotated[
        int, whole_number("--hosts", least=2, most=100_000, about="Number of held-out hosts of each family.")
    ] = 64,
    without: LeftOutFamilies = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="--without every family of every set, one at a time.")
    ] = False,
    also: FurtherSets = None,
    arm: SearchedArms = None,
    out: Annotated[
        Path, typer.Option("--out", help="Page to write; the plot lies beside it as a PNG file.")
    ] = _DEFAULT_PAGE,
    fresh: Fresh = False,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train with several seeds, try every policy beside all baselines on the same held-out hosts, and write the page.

    One training is one sample: another seed gives another policy. So each of --seeds trainings, from --seed on, goes
    through the stages of `simic run` in a new home of its own up to the verdict of the gate. Then its policy and the
    baselines that the set's plan book allows grow the same test hosts. Differences are paired by host, and their
    intervals are over hosts and training seeds.

    The page also shows accuracies, parameters and extra compute, the gains at other rents per parameter, and the
    policies against their static rivals: the networks that they ended with, trained from the start without growing.

    With --without or --leave-one-out, further trainings never meet a family (world.without), and their policies are
    tried on its hosts. This shows whether a policy reads what a host needs or recognises families. --also tries
    policies on another set, such as networks of your own.

    A proof takes hours: number of sets x seeds x (1 + families left out) trainings. They follow one another, because
    each uses all cores (world.workers). Everything lies in data/proof of the home, with one receipt per training and
    per trial: a proof that was killed continues with the same command after the last one, and so does one with more
    seeds, sets or families. Remove data/proof to free the space.

    Machines may share the seeds: --seeds 3 --seed 0 on one and --seeds 2 --seed 3 on another, all else equal. Copy
    data/proof/trainings/*.json and the folder data/proof/trials of the second into the home of the first, and run
    --seeds 5 there: it makes nothing again, because receipts alone are enough. Receipts of other code or PyTorch are
    refused, and so are trials of another kind of processor. More sets or hosts later need the folders in
    data/proof/trainings too.

    Example: [bold]simic proof --set benchmark --set varied --seeds 5 --leave-one-out[/bold]

    A small one: [bold]simic proof --profile quick --seeds 2 --hosts 4 --out proof.md[/bold]
    """
    check_page_name(out)
    if out != _DEFAULT_PAGE:
        check_writable(out, "--out")
    arms, others = _check_arms(arm or ()), tuple(dict.fromkeys(also or ()))
    for name in (*(sets or ()), *others):
        check_set(name)
    container = open_container(profile, seed, override, use=HomeUse.MAKE)
    chosen = tuple(dict.fromkeys(sets or [container.config.world.set]))
    left_out = None if leave_one_out else tuple(dict.fromkeys(without or ()))
    with working(LOADING_TORCH):
        from simic.app.comparisons.proof import ProofRequest, prove
        from simic.validation.proof_plot import draw_gains

    options: dict[str, object] = {"--set": chosen, "--seeds": seeds, "--hosts": hosts, "--leave-one-out": leave_one_out}
    options |= {"--without": left_out, "--also": others, "--arm": arms, "--profile": profile, "--seed": seed}
    request = ProofRequest(
        sets=chosen,
        also=others,
        seeds=tuple(range(seed, seed + seeds)),
        hosts=hosts,
        searched=arms,
        left_out=left_out,
        profile=profile,
        command=command_text("proof", [], {**options, "-o": override, "--out": out}),
        is_fresh=fresh,
    )
    report = prove(container, request)
    figure = draw_gains(report, out.with_suffix(".png"))
    atomic_write(out, page(report, figure.name).encode(), mode=0o644)
    emit(report, as_json, lambda console: _show(console, report, [out, figure]))


def _check_arms(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named arms that search, each once and in the order of all.

    Raises:
        ConfigError: if one of them does not search.
    """
    if unknown := sorted({*names} - {*SEARCHED}):
        raise ConfigError(f"--arm {unknown[0]}: expected {' or '.join(SEARCHED)}; the baselines take part anyway")
    return tuple(name for name in SEARCHED if name in names)


def _show(console: Console, report: Proof, written: list[Path]) -> None:
    for proof_set in report.sets:
        console.print(numbers_table(controllers_table(proof_set), heading(proof_set), names=1))
        console.print(Text(summary(proof_set)))
        if (searched := searched_table(proof_set)) is not None:
            console.print(Text(SCORED_NOTE))
            console.print(numbers_table(searched, "Scored by test accuracy", names=1), Text(SEARCHED_NOTE))
        console.print(numbers_table(costs_table(proof_set), "Cost and accuracy", names=1), Text(COST_NOTE))
        console.print(numbers_table(rents_table(proof_set), "Over never growing at other rents per parameter", names=1))
        console.print(numbers_table(static_table(proof_set), "Final networks trained from the start", names=1))
        console.print(Text(STATIC_NOTE))
        if proof_set.left_out:
            console.print(numbers_table(left_out_table(proof_set), "Families left out of the training", names=1))
    for path in written:
        console.print(f"wrote {path}")
