"""``mlflow.pyfunc.load_model`` on a champion that the real registry recorded and promoted, in a process of its own."""

from __future__ import annotations

import json
import os
import pickletools
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.judged_candidates import evidence_of
from support.homes.champion_homes import open_home
from support.homes.mlflow_databases import furnished_home
from support.servers.forked_commands import run_script

import simic
from simic.api.pyfunc import PyfuncPolicy
from simic.catalogue.contract_schemas import example_of
from simic.contracts.errors import ContractError
from simic.registry.pyfunc_files import POLICY_FOLDER
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import verify

LOAD = """
import json, sys, mlflow, pandas
mlflow.set_tracking_uri(sys.argv[1])
config = json.loads(sys.argv[2])
try:
    model = mlflow.pyfunc.load_model("models:/tamiyo@champion", **config)
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    raise SystemExit
example = model.input_example
print(json.dumps({
    "actions": list(model.predict(example)) + list(model.predict(pandas.DataFrame(json.loads(sys.argv[3])))),
    "inputs": model.metadata.signature.inputs.to_dict(),
    "shown": mlflow.models.get_model_info("models:/tamiyo@champion").signature.to_dict(),
    "example": example.to_dict("list"),
}))
"""


@pytest.fixture(scope="module")
def crowned(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose champion is a policy that decides."""
    home = furnished_home(tmp_path_factory.mktemp("home") / "crowned", tmp_path_factory)
    Keyring(home.keys).trust(SIGNER.public_bytes)
    path = sealed_decider(home.policies / "one")
    evidence = evidence_of(home, path, verify(path, Keyring(home.keys)).digest)
    registry = open_home(home).registry
    registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    return home


def loaded(home: Home, inputs: dict[str, Any], *, simic_home: Path, **config: object) -> dict[str, Any]:
    arguments = (home.tracking_uri, json.dumps(config), json.dumps(inputs))
    done = run_script(LOAD, *arguments, env=os.environ | {"SIMIC_HOME": str(simic_home)})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_champion_decides_through_mlflow_as_through_the_api(crowned: Home, tmp_path: Path) -> None:
    report = example_of("FieldReport")
    row = {name: [json.dumps(report[name])] for name in ("state", "available")}
    policy = simic.load_policy("champion", home=simic.Home(crowned.root))
    expected = policy.decide(report["state"], report["available"])
    found = loaded(crowned, row, simic_home=crowned.root)
    assert [simic.Action.model_validate_json(text) for text in found["actions"]] == [expected, expected]
    assert found["inputs"] == [{"type": "string", "name": name, "required": True} for name in row]
    assert json.loads(found["shown"]["inputs"]) == found["inputs"]
    assert json.loads(found["shown"]["outputs"])[0]["type"] == "string"
    assert {name: list(map(json.loads, texts)) for name, texts in found["example"].items()} == {
        name: list(map(json.loads, texts)) for name, texts in row.items()
    }
    folder = tmp_path / "keys"
    Keyring(folder).trust(SIGNER.public_bytes)
    elsewhere = loaded(crowned, row, simic_home=tmp_path / "none", model_config={"trusted_keys": str(folder)})
    assert elsewhere["actions"] == found["actions"]


def test_mlflow_loads_no_policy_without_the_key_that_sealed_it(crowned: Home, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    refused = loaded(crowned, {}, simic_home=tmp_path / "none")["error"]
    assert refused.startswith("ConfigError: no Simic home at") and "model_config" in refused
    refused = loaded(crowned, {}, simic_home=crowned.root, model_config={"trusted_keys": str(tmp_path)})["error"]
    assert refused.startswith("IntegrityError") and "not trusted" in refused


def test_the_registry_stores_no_code_and_nothing_pickled(crowned: Home) -> None:
    stored = next((crowned.artifacts / "models").rglob("MLmodel")).parent
    files = {path.relative_to(stored).as_posix() for path in stored.rglob("*") if path.is_file()}
    files.discard("registered_model_meta")  # MLflow's own note, beside the policy, when it loads from a local store
    sealed = {path.name for path in (crowned.policies / "one").iterdir()}
    assert files == {"MLmodel", "input_example.json"} | {f"{POLICY_FOLDER}/{name}" for name in sealed}
    for name in sealed:
        assert (stored / POLICY_FOLDER / name).read_bytes() == (crowned.policies / "one" / name).read_bytes()
    for name in files:
        with pytest.raises((ValueError, UnicodeDecodeError)):
            for _ in pickletools.genops((stored / name).read_bytes()):
                pass


def test_a_version_of_before_holds_the_policy_alone_and_is_read(crowned: Home, tmp_path: Path) -> None:
    stored = next((crowned.artifacts / "models").rglob("MLmodel")).parent
    kept = shutil.copytree(stored, tmp_path / "kept")
    try:
        for path in stored.iterdir():
            if path.is_file():
                path.unlink()
        for path in (stored / POLICY_FOLDER).iterdir():
            path.rename(stored / path.name)
        (stored / POLICY_FOLDER).rmdir()
        assert open_home(crowned).registry.load("models:/tamiyo@champion", tmp_path / "old").is_dir()
    finally:
        shutil.rmtree(stored)
        shutil.copytree(kept, stored)


def test_a_row_that_is_no_state_is_refused(tmp_path: Path) -> None:
    path = sealed_decider(tmp_path / "one")
    model = PyfuncPolicy(simic.load_policy(path, trusted_keys=[SIGNER.public_bytes.hex()]))
    for text, message in (("{", "expected one JSON object"), ("[]", "found list"), ("{}", "state.epoch")):
        with pytest.raises(ContractError, match=message):
            model.predict({"state": [text], "available": ["{}"]})
