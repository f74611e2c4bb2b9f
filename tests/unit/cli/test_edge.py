"""Output and exit codes."""

from __future__ import annotations

import json
import sys

import pytest
from rich.console import Console

from simic.cli.edge import emit, errors_become_exit_codes, parse_overrides
from simic.contracts import errors
from simic.contracts.controllers import Plan


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.SimicError, 1),
        (errors.TrainingFailure, 1),
        (errors.IntegrityError, 1),
        (errors.ConfigError, 2),
        (errors.GateRejected, 3),
        (errors.TransientError, 4),
    ],
)
def test_every_error_of_the_tree_has_its_exit_code_and_one_message(
    kind: type[errors.SimicError], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        raise kind("what [bold]happened[/bold] here")
    assert ended.value.code == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"{kind.__name__}: what [bold]happened[/bold] here\n"


def test_an_unforeseen_error_is_one_line_with_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        with errors_become_exit_codes():
            raise ZeroDivisionError("nobody thought of this")
    except ZeroDivisionError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: nobody thought of this" in shown
    assert "test_edge.py" in shown
    assert "Traceback" not in shown


def test_json_goes_to_stdout_alone_and_people_get_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan()

    def human(console: Console) -> None:
        console.print("for people")

    emit(plan, True, human)
    assert json.loads(capsys.readouterr().out) == {"seeds": []}
    emit([{"a": None}], True, human)
    assert json.loads(capsys.readouterr().out) == [{"a": None}]
    emit(plan, False, human)
    assert capsys.readouterr().out == "for people\n"


def test_overrides_are_json_or_text() -> None:
    assert parse_overrides(["train.policy_lr=1e-4", "world.set=benchmark", "world.workers=null"]) == {
        "train.policy_lr": 1e-4,
        "world.set": "benchmark",
        "world.workers": None,
    }


@pytest.mark.parametrize("pair", ["train.policy_lr", "=3", ""])
def test_an_override_without_name_or_value_is_a_usage_error(pair: str) -> None:
    with pytest.raises(errors.ConfigError, match="--override"):
        parse_overrides([pair])
