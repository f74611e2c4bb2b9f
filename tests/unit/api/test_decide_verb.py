"""`simic decide` refuses with exit code 1 what the API refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import typer
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.observations import BLUEPRINTS

from simic.catalogue.contract_schemas import example_of
from simic.cli.console import errors_become_exit_codes
from simic.cli.main import app
from simic.trust.keys import Keyring


def only_germinate(blueprint: str) -> bytes:
    """The example's state, on which germinating one blueprint is all that is legal."""
    report = example_of("FieldReport")
    op, slots = [False, True, False, False, False, False], len(report["state"]["slots"])
    masks = {"op": op, "slot": [[is_legal] * slots for is_legal in op], "blueprint": [blueprint]}
    return json.dumps({"state": report["state"], "available": masks}).encode()


def changed(old: str, new: str) -> bytes:
    """The example with another text in one place."""
    report = example_of("FieldReport")
    text = json.dumps({name: report[name] for name in ("state", "available")})
    assert old in text
    return text.replace(old, new, 1).encode()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (only_germinate("beyond"), "offer WAIT"),
        (only_germinate(BLUEPRINTS[3]), "offer WAIT"),
        (changed('{"state": ', '{"state": {}, "state": '), "state: expected once in an object, found 2 times"),
        (changed('"epoch": ', '"epoch": 0, "epoch": '), "epoch: expected once in an object, found 2 times"),
        (changed('"op": [true', '"op": ["yes"'), "available.op.0: Input should be a valid boolean"),
        (b"[]", "expected a JSON object, found list"),
    ],
)
def test_what_the_api_refuses_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: bytes, message: str
) -> None:
    Keyring(tmp_path / "keys").trust(SIGNER.public_bytes)
    directory = sealed_decider(tmp_path / "policy", germinated=BLUEPRINTS[:3])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    arguments = ["decide", str(directory), "--trusted-keys", str(tmp_path / "keys"), "--state", "-"]
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        typer.main.get_command(app)(arguments, prog_name="simic")
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (1, "")
    assert message in " ".join(shown.err.split())


def test_an_empty_folder_name_is_not_the_current_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An unset variable in a script gives it; the current folder holds the key."""
    Keyring(tmp_path / "keys").trust(SIGNER.public_bytes)
    directory = sealed_decider(tmp_path / "policy", germinated=BLUEPRINTS)
    monkeypatch.chdir(tmp_path / "keys")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(only_germinate(BLUEPRINTS[0]))))
    arguments = ["decide", str(directory), "--trusted-keys", "", "--state", "-"]
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        typer.main.get_command(app)(arguments, prog_name="simic")
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert "trusted_keys" in shown.err
