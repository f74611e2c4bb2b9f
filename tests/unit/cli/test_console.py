"""Output and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from simic.cli.console import emit, errors_become_exit_codes, parse_overrides, stdout, stream_rows
from simic.contracts import errors
from simic.contracts.controllers import Plan
from simic.contracts.results.lake import Check, Health


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.SimicError, 1),
        (errors.TrainingError, 1),
        (errors.IntegrityError, 1),
        (errors.ConfigError, 2),
        (errors.GateRejectedError, 3),
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
    assert "test_console.py" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(("group", "named"), [("simic.host_families", "own_net.py:5"), ("others", "test_console.py:")])
def test_the_place_of_an_error_is_in_installed_code_only_if_that_extends_simic(
    group: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts and blueprints of a user are installed packages, as PyTorch is."""
    folder = tmp_path / "site-packages"
    (metadata := folder / "own-1.0.dist-info").mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\nown = own_net:FAMILY\n")
    (folder / "own_net.py").write_text("import json\n\n\ndef load():\n    json.loads('{')\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        with errors_become_exit_codes():
            import_module("own_net").load()
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    assert named in capsys.readouterr().err


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


HOSTILE = "\x1b[2J\x7f\x9b1m\u2028ü"


def test_no_json_holds_a_control_character_or_a_line_end_of_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    """PD-5: scripts print it, and terminals obey what they are shown."""
    emit(Check(name=HOSTILE, health=Health.HEALTHY, found="", remedy=""), True, lambda _: None)
    emit([{HOSTILE: HOSTILE}], True, lambda _: None)
    stream_rows([{HOSTILE: HOSTILE}])
    shown = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert json.loads(shown[: shown.index("}") + 1])["name"] == HOSTILE
    assert json.loads(shown[shown.rindex("[\n  {") :]) == [{HOSTILE: HOSTILE}]


def test_rows_are_written_as_they_come_and_an_error_leaves_no_whole_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rows(count: int) -> Iterator[dict[str, int]]:
        for number in range(count):
            yield {"n": number}
        if count > 2:
            raise errors.TransientError("a file went away")

    for count in range(3):
        stream_rows(rows(count))
        assert json.loads(capsys.readouterr().out) == [{"n": number} for number in range(count)]
    with pytest.raises(errors.TransientError):
        stream_rows(rows(3))
    written = capsys.readouterr().out
    assert '{"n": 2}' in written
    with pytest.raises(json.JSONDecodeError):
        json.loads(written)


def test_what_json_cannot_say_is_not_written_as_if_it_could() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        stream_rows([{"a": float("nan")}])


def test_an_error_cannot_command_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit), errors_become_exit_codes():
        raise errors.ConfigError(f"cannot read {HOSTILE}")
    assert capsys.readouterr().err == "ConfigError: cannot read \\x1b[2J\\x7f\\x9b1m\\u2028ü\n"


def test_overrides_are_json_or_text() -> None:
    assert parse_overrides(["train.policy_lr=1e-4", "world.set=benchmark", "world.workers=null"]) == {
        "train.policy_lr": 1e-4,
        "world.set": "benchmark",
        "world.workers": None,
    }


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 200_000])
def test_an_override_too_long_or_too_deep_is_a_usage_error(value: str) -> None:
    with pytest.raises(errors.ConfigError, match="the value is too long or nested too deeply"):
        parse_overrides([f"train.batch_sequences={value}"])


@pytest.mark.parametrize("pair", ["train.policy_lr", "=3", " =3", ""])
def test_an_override_without_name_or_value_is_a_usage_error(pair: str) -> None:
    with pytest.raises(errors.ConfigError, match="--override"):
        parse_overrides([pair])


def test_into_a_pipe_a_page_is_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in ((None, 140), ("", 140), ("0", 140), ("60", 60)):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        assert stdout().width == width
