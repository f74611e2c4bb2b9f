"""``simic stage``, ``promote``, ``publish``, ``rollback`` and ``verify``: the registry and the champion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simic.cli import completion
from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, stderr, working
from simic.cli.options import POLICY_NAMES, AsJson, ModelName, Overrides, ProfileName, Reason, Seed, open_container
from simic.cli.tables import decision_table, receipt_lines
from simic.contracts.errors import GateRejectedError, SimicError
from simic.contracts.names import CHAMPION_REFERENCE, MODEL_NAME, judged_name, short
from simic.runtime.home import HomeUse

if TYPE_CHECKING:
    from rich.console import Console

    from simic.app.container import Container
    from simic.contracts.results.gate import GateDecision, ValidationReport
    from simic.contracts.results.receipts import PolicyVersion

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the verbs that change or check what is registered and published."""
    for verb in (stage, promote, publish, rollback, verify):
        app.command(verb.__name__, epilog=EXIT_CODES)(verb)


Validation: TypeAlias = Annotated[Path | None, typer.Option(help="Receipt of validate; default: the newest.")]


def stage(
    validation: Validation = None,
    model: ModelName = MODEL_NAME,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Judge a validated policy, register it, and let it wait as `staged` if it passes the gate; the champion stays.

    Somebody can look at it first: it is [bold]models:/tamiyo@staged[/bold]. `simic promote` then makes it champion. One
    policy is staged at a time, and a change of champion ends that.

    If the gate rejects it, the exit code is 3, and --json prints the decision of the gate. If the same decision made it
    champion already, the exit code is 0 and a remark says so.
    """
    from simic.app import promotion

    _judge(open_container(profile, seed, override), validation, model, promotion.stage, as_json)


def promote(
    validation: Validation = None,
    model: ModelName = MODEL_NAME,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Judge a validated policy, register and stage it, and make it the champion if it passes the gate.

    If the gate rejects it, the exit code is 3, and --json prints the decision of the gate. If the same decision made it
    champion already, the exit code is 0 and a remark says so.
    """
    from simic.app import promotion

    _judge(open_container(profile, seed, override), validation, model, promotion.promote, as_json)


def _judge(
    container: Container,
    validation: Path | None,
    model: str,
    move: Callable[[Container, PolicyVersion, ValidationReport, GateDecision], PolicyVersion],
    as_json: bool,
) -> None:
    """Judge and register a policy, ``move`` it and show both; what is champion by this decision is not changed.

    Raises:
        GateRejectedError: if the gate rejects it.
    """
    from simic.app import promotion

    with working(LOADING_TORCH):
        from simic.validation.promotion_gate import rejection_message

    report = promotion.resolve_validation(container, validation, model)
    decision = promotion.decide(container, report)
    # Recording takes a minute, so a champion is not recorded again.
    champion = promotion.champion_by(container, decision)
    candidate = champion or promotion.record(container, report, decision)
    if not decision.accepted:
        emit(decision, as_json, lambda console: console.print(decision_table(decision)))
        raise GateRejectedError(rejection_message(decision))
    version = move(container, candidate, report, decision)
    if champion is not None:
        name = f"{judged_name(model, champion.digest)} ({champion.reference})"
        stderr().print(f"this decision made {name} the champion already; the registry was not changed")
    emit(version, as_json, lambda console: console.print(decision_table(decision), receipt_lines(version)))


def publish(
    model: ModelName = MODEL_NAME,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Put a signed update about the champion on the bus; a repeated command sends nothing.

    Journal, gate decision, registry and every byte of the policy must agree; otherwise nothing is signed.
    """
    from simic.app import promotion

    receipt = promotion.publish_champion(open_container(profile, seed, override), model=model)
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def rollback(
    reason: Reason,
    model: ModelName = MODEL_NAME,
    profile: ProfileName = "default",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Restore the previous champion and publish it.

    The journal of promotions decides which one that is, whatever the state of MLflow or of the present champion. If the
    bus is unavailable, the exit code is 4, the update waits in data/outbox for `simic publish`, and --json has null for
    the publication.
    """
    from simic.app import promotion

    container = open_container(profile, seed)
    version = promotion.roll_back(container, reason, model=model)
    failure: SimicError | None = None
    try:
        publication = promotion.publish_champion(container, model=model)
    except SimicError as error:
        publication, failure = None, error
    answer = version.model_dump(mode="json")
    answer["publication"] = None if publication is None else publication.model_dump(mode="json")

    def show(console: Console) -> None:
        console.print(receipt_lines(version))
        if publication is not None:
            console.print(receipt_lines(publication))

    emit(answer, as_json, show)
    if failure is not None:
        raise type(failure)(
            f"version {version.semantic_version} ({version.reference}) is champion again, but was not published: "
            f"{failure}. Do not roll back again; `simic publish --model {model}` publishes it"
        ) from failure


def verify(
    reference: Annotated[
        str, typer.Argument(help=f"{CHAMPION_REFERENCE}, {POLICY_NAMES}.", autocompletion=completion.policies)
    ] = CHAMPION_REFERENCE,
    as_json: AsJson = False,
) -> None:
    """Read every file of a policy and check its digest and signature; exit code 1 if anything differs.

    A registered policy must also match the journal of promotions and the ledger of candidates.
    """
    from simic.app import promotion

    seal = promotion.verify(open_container(use=HomeUse.LOOK), reference)
    facts = {"reference": reference, "digest": seal.digest, "key_id": seal.key_id, "ok": True}
    line = f"ok: {reference} is {short(seal.digest)}, signed by {seal.key_id}"
    emit(facts, as_json, lambda console: console.print(line, markup=False))
