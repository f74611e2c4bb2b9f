"""`simic decide` as a program in another language meets it: one document in, one action out, a code for what failed."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.observations import make_scene

import simic
from simic.catalogue.contract_schemas import example_of
from simic.cli.console import errors_become_exit_codes
from simic.cli.decide import MOST_BYTES
from simic.cli.main import app
from simic.runtime.home import Home
from simic.trust.keys import Keyring


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Simic = Callable[..., Done]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learned_from = make_scene(0, 8).observations
    return sealed_decider(tmp_path_factory.mktemp("policies") / "one", learned_from=learned_from)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    Keyring(tmp_path / "keys").trust(SIGNER.public_bytes)
    return tmp_path / "keys"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    report = example_of("FieldReport")
    path.write_text(json.dumps({name: report[name] for name in ("state", "available")}))
    return path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Simic:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    command = typer.main.get_command(app)

    def run(*arguments: object, given: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
            command(["decide", *map(str, arguments)], prog_name="simic")
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return run


def test_the_action_is_the_one_of_the_api(call: Simic, directory: Path, keys: Path, state: Path, home: Path) -> None:
    asked = json.loads(state.read_text())
    why = simic.load_policy(directory, trusted_keys=keys).explain(asked["state"], asked["available"])
    arguments = (directory, "--trusted-keys", keys)
    done = call(*arguments, "--state", state, "--json")
    assert (done.code, done.err) == (0, "")
    assert simic.Action.model_validate_json(done.out) == why.action
    told = call(*arguments, "--state", "-", "--json", "--explain", given=state.read_bytes())
    assert simic.Explanation.model_validate_json(told.out) == why
    report = json.dumps(example_of("FieldReport")).encode()
    assert call(*arguments, "--state", "-", "--json", given=report).out == done.out
    assert not home.exists(), "a directory with keys of its own needs no home"


def test_people_read_words(call: Simic, directory: Path, keys: Path, state: Path) -> None:
    why = simic.load_policy(directory, trusted_keys=keys).explain(**json.loads(state.read_text()))
    done = call(directory, "--trusted-keys", keys, "--state", state)
    assert done.out.split()[0] == why.action.op.value and done.out.count("\n") == 1
    lines = call(directory, "--trusted-keys", keys, "--state", state, "--explain").out.splitlines()
    assert why.out_of_range, "the example is not of the scene that the policy learned from"
    assert lines[1] == f"unlike the policy's training: {why.out_of_range[0]}"
    assert f"value: {why.value:.2f} points of return from here on" in lines
    assert sum("%  " in line for line in lines) == len(why.alternatives) > 1
    assert "GERMINATE slot" in "\n".join(lines)


def test_a_home_is_asked_by_name_with_its_own_keys(call: Simic, directory: Path, state: Path, home: Path) -> None:
    places = Home(home)
    places.create()
    digest = json.loads((directory / "manifest.json").read_text())["digest"]
    shutil.copytree(directory, places.policies / digest)
    refused = call(digest[:8], "--state", state)
    assert (refused.code, refused.out) == (1, "") and "not trusted" in refused.err
    Keyring(places.keys).trust(SIGNER.public_bytes)
    assert call(digest[:8], "--state", state).code == 0
    assert call(places.policies / digest, "--state", state).code == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"", "expected one JSON object"),
        (b"[" * 100_000, "expected one JSON object"),
        (b"[]", "expected a JSON object, found list"),
        (b'{"state": {}}', "expected an object with the fields state and available, found ['state']"),
        (b'{"state": {}, "available": {}}', "state.epoch: Field required"),
        (b" " * (MOST_BYTES + 1), f"expected at most {MOST_BYTES} bytes"),
        (b"\xff\xfe", "expected one JSON object"),
    ],
)
def test_what_is_no_state_is_exit_code_1(call: Simic, directory: Path, keys: Path, given: bytes, message: str) -> None:
    done = call(directory, "--trusted-keys", keys, "--state", "-", given=given)
    assert (done.code, done.out) == (1, "")
    assert message in done.err and done.err.count("\n") == 1


def test_wrong_usage_is_exit_code_2(call: Simic, directory: Path, keys: Path, state: Path, tmp_path: Path) -> None:
    for arguments in (
        (directory,),
        (directory, "--trusted-keys", keys, "--state", tmp_path / "absent"),
        (directory, "--trusted-keys", tmp_path / "absent", "--state", state),
        (directory, "--state", state),
        ("champion", "--state", state),
        ("champoin", "--trusted-keys", keys, "--state", state),
    ):
        done = call(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
    Home(tmp_path / "home").create()
    assert call("champoin", "--state", state).code == 2
