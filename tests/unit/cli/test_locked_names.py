"""Names that others rely on: verbs, options, views and one function; changing one breaks somebody's script."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from simic.catalogue.query import load_views
from simic.cli.main import app
from simic.runtime.home import Home, resolve_home
from simic.runtime.settings import load_profile

ROOT = Path(__file__).parents[3]
LOCKED: dict[str, set[str]] = {
    "collect": {"--controller", "--host-keys", "--set", "--spool", "--seed", "--plot"},
    "trials": {"--controllers", "--host-keys", "--set"},
    "watch": {"--controller", "--key", "--set", "--delay", "--profile", "--seed"},
    "check-reports": {"--profile", "--override"},
    "decide": {"--state", "--trusted-keys", "--explain"},
    "export": {"--torch-export", "--trusted-keys"},
    "follow": {"--into", "--trusted-keys", "--policies", "--once", "--interval"},
    "run": {"--seed", "--profile"},
    "timeline": {"--plot"},
    "ingest": {"--spool"},
    **{
        verb: set()
        for verb in ("curate", "train", "validate", "stage", "promote", "publish", "sql", "verify", "schema")
    },
    **{verb: set() for verb in ("init", "up", "down", "ui")},
}
ARGUMENTS = {
    "check-reports": "file",
    "decide": "policy",
    "export": "policy",
    "follow": "source",
    "sql": "query",
    "verify": "reference",
    "schema": "name",
    "timeline": "run",
}
BOUNDS = re.compile(r"<(?P<kind>int|float)> \[(?:x>=(?P<only>\S+)|(?P<least>\S+)<=x<=(?P<most>\S+))\]")
"""Bounds of an option as ``--help`` shows them."""
VIEWS = {"reports", "steps", "episodes", "decisions", "rewards", "snapshots", "policies", "gates", "quarantine"}


@pytest.mark.parametrize("verb", LOCKED)
def test_verbs_and_their_options(verb: str) -> None:
    group = typer.main.get_command(app)
    command = group.commands[verb]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert options >= LOCKED[verb]
    if verb in ARGUMENTS:
        assert ARGUMENTS[verb] in {parameter.name for parameter in command.params}


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_every_verb_can_answer_in_json() -> None:
    found = dict(_commands(typer.main.get_command(app)))
    assert set(found) >= {*LOCKED, "plans search"}
    silent = [
        verb for verb, command in found.items() if "--json" not in {name for p in command.params for name in p.opts}
    ]
    assert silent == []


def _bounded_options() -> Iterator[tuple[str, Any, list[str], list[str]]]:
    """Yield verb, option, its bounds and values beyond them, of every option that shows bounds."""
    for verb, command in _commands(typer.main.get_command(app)):
        for option in command.params:
            assert getattr(option, "min", None) is getattr(option, "max", None) is None, (verb, option.name)
            if bounds := BOUNDS.search(option.metavar or ""):
                kind = int if bounds["kind"] == "int" else float
                least, most = bounds["only"] or bounds["least"], bounds["most"]
                beyond = ["x", "nan", str(kind(least) - 1), *([str(kind(most) + 1)] if most else [])]
                yield verb, option, [least, *([most] if most else [])], beyond


def test_a_number_out_of_bounds_is_a_usage_error_that_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    command, seen = typer.main.get_command(app), set()
    for verb, option, bounds, beyond in _bounded_options():
        seen.add(f"{verb} {option.opts[0]}")
        assert [float(option.process_value(typer.Context(command), bound)) for bound in bounds] == [*map(float, bounds)]
        for value in beyond:
            with pytest.raises(SystemExit) as ended:
                command([*verb.split(), option.opts[0], value], prog_name="simic")
            said = " ".join(capsys.readouterr().err.replace("│", " ").split())
            assert ended.value.code == 2
            assert f"'{option.opts[0]}': expected" in said and "found" in said, (verb, value, said)
    assert seen >= {
        "sql --timeout",
        "up --port",
        "watch --delay",
        "snapshots prune --keep",
        "lake vacuum --grace-minutes",
    }


def test_every_verb_documents_the_exit_codes() -> None:
    group = typer.main.get_command(app)
    for name in LOCKED:
        epilog = group.commands[name].epilog  # type: ignore[attr-defined]
        assert all(f"{code} " in epilog for code in range(5)), name


def test_vtrace_keeps_its_signature_and_the_names_of_its_result() -> None:
    from simic.numerics.vtrace import vtrace

    parameters = inspect.signature(vtrace).parameters
    assert list(parameters) == [
        "log_prob_target", "log_prob_behaviour", "rewards", "discounts", "values", "next_values", "is_cut",
        "rho_bar", "c_bar", "pg_rho_bar", "lambda_",
    ]  # fmt: skip
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert (defaults["rho_bar"], defaults["c_bar"], defaults["pg_rho_bar"], defaults["lambda_"]) == (1.0, 1.0, 1.0, 1.0)


def test_views_and_the_entry_point_of_the_flow() -> None:
    assert {view.name for view in load_views()} >= VIEWS
    tree = ast.parse((ROOT / "flows" / "retrain.py").read_text())
    flow = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "simic")
    assert ast.unparse(flow.decorator_list[0]) == "flow(name='simic', flow_run_name='{profile}-s{seed}')"
    assert [argument.arg for argument in flow.args.args] == ["profile", "seed", "overrides"]
    assert "entrypoint: flows/retrain.py:simic" in (ROOT / "prefect.yaml").read_text()


def test_the_deployments_are_described_by_what_their_profile_does() -> None:
    text = (ROOT / "prefect.yaml").read_text("utf-8")
    nightly, offline = (
        text.partition(f"- name: {name}\n")[2].partition("- name:")[0] for name in ("nightly", "offline")
    )
    assert "parameters: {profile: nightly, seed: 0}" in nightly and "parameters: {profile: nightly, seed: 0}" in offline
    assert "schedules:" in nightly and "schedules:" not in offline
    collect = load_profile("nightly").collect
    assert (collect.episodes, collect.rounds) == (0, 0), "all experience comes from the bus and the lake"
    for deployment in (nightly, offline):
        assert "reports on the bus" in deployment.partition("description:")[2].lower()


def test_simic_home_puts_everything_somewhere_else(home: Path) -> None:
    assert resolve_home() == Home(home)
    assert resolve_home().data == home / "data"
    assert resolve_home().mlruns == home / "mlruns"


def test_numbers_of_the_locked_function_are_arrays_of_time_by_batch() -> None:
    import torch

    from simic.numerics.vtrace import vtrace

    zeros = torch.zeros(2, 1)
    found = vtrace(
        log_prob_target=zeros, log_prob_behaviour=zeros, rewards=torch.ones(2, 1), discounts=zeros, values=zeros,
        next_values=zeros, is_cut=zeros.bool(),
    )  # fmt: skip
    np.testing.assert_allclose(found.vs.numpy(), np.ones((2, 1)))
    np.testing.assert_allclose(found.pg_advantages.numpy(), np.ones((2, 1)))
