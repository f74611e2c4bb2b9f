"""`simic export --torch-export`: the file decides as the policy does, in a program that cannot import Simic."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.observations import BLUEPRINTS, Scene, make_scene
from support.servers.forked_commands import run_command

from simic.contracts.batches import Masks, Observations, masks_of
from simic.contracts.state import HardwareContext
from simic.controllers.features import encode
from simic.controllers.learned_controller import LearnedController
from simic.controllers.policy_files import load_policy
from simic.trust.keys import Keyring

HEADS = ("blueprint", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
PAGE = Path(__file__).parents[2] / "docs" / "api.md"
CHILD = """
import json, sys
sys.modules["simic"] = sys.modules["torch_geometric"] = None
{program}
for case in json.load(open(sys.argv[3])):
    inputs = inputs_of(case["state"], case["available"], table)
    shares = decide(inputs)
    exact = decide({{**inputs, **{{name: torch.tensor(case["features"][name]) for name in case["features"]}}}})
    answer = {{key: value.tolist() for key, value in shares.items()}}
    print(json.dumps([{{key: value.tolist() for key, value in inputs.items()}}, answer,
                      {{key: value.tolist() for key, value in exact.items()}}]))
"""


def program_of_the_page() -> str:
    (found,) = re.findall(r"```\n(import json, math.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return str(found)


def expected(controller: LearnedController, observations: Observations, masks: Masks) -> dict[str, Any]:
    """What the policy would choose from, by head."""
    considered = controller.consider(observations, masks, is_decisive=True)
    slots = int(observations.slot_ptr[-1])
    per_slot = [considered.distribution.factors(np.array([slot])) for slot in range(slots)]
    named = [{head.value: table[0] for head, table in one.items()} for one in per_slot]
    by_op = [considered.distribution.slots(np.array([op]))[0] for op in range(6)]
    return {
        "op": considered.distribution.ops()[0],
        "slot": np.array(by_op),
        "value": considered.values,
        **{head: np.array([one[head] for one in named]) for head in HEADS},
    }


def without_training_loss(scene: Scene) -> Scene:
    """The same host in a framework that does not measure how training goes."""
    absent = {"train_loss": None, "train_accuracy": None, "train_loss_history": []}
    states = [state.model_copy(update=absent) for state in scene.states]
    return scene._replace(states=states, observations=Observations.from_states(states, scene.observations.blueprints))


def test_the_program_decides_as_the_policy_and_its_inputs_follow_from_the_table(tmp_path: Path) -> None:
    Keyring(tmp_path / "keys").trust(SIGNER.public_bytes)
    policy = sealed_decider(tmp_path / "policy", germinated=BLUEPRINTS[:-1])
    file = tmp_path / "tamiyo.pt2"
    done = run_command("export", str(policy), "--torch-export", str(file), "--trusted-keys", str(tmp_path / "keys"))
    assert done.returncode == 0, done.stderr
    assert not [name for name in zipfile.ZipFile(file).namelist() if "pkl" in name or "pickle" in name]
    controller = LearnedController(load_policy(policy), policy_version=None, is_decisive=True)
    scenes = [make_scene(seed, 1, slots=(1, 7), layers=(1, 9)) for seed in range(12)]
    scenes += [without_training_loss(scene) for scene in scenes]
    assert len({len(scene.observations.slots["stage"]) for scene in scenes}) >= 4
    cases, answers = [], []
    for scene in scenes:
        (state,) = scene.observations.to_states(HardwareContext(device="cpu", threads=1))
        legal = masks_of(scene.masks, 0, scene.observations.slot_ptr, scene.observations.blueprints)
        graph = encode(scene.observations)
        rows = {"context": graph.context_x, "slots": graph.slot_x, "layers": graph.layer_x}
        cases.append(
            {"state": state.model_dump(mode="json"), "available": legal.model_dump(mode="json"),
             "features": {name: value.tolist() for name, value in rows.items()}}
        )  # fmt: skip
        answers.append(expected(controller, scene.observations, scene.masks))
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    code = CHILD.format(program=program_of_the_page())
    arguments = [str(file), str(file.with_suffix(".json")), str(tmp_path / "cases.json")]
    child = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert child.returncode == 0, child.stderr
    for line, case, answer in zip(child.stdout.splitlines(), cases, answers, strict=True):
        inputs, made, exact = json.loads(line)
        for name, value in case["features"].items():
            np.testing.assert_allclose(inputs[name], value, atol=2e-6)
        for head, table in answer.items():
            np.testing.assert_allclose(exact[head], table, atol=1e-6, err_msg=head)
            np.testing.assert_allclose(made[head], table, atol=1e-3, err_msg=head)


@pytest.mark.parametrize(("name", "message"), [("tamiyo.bin", "ends with .pt2"), ("nowhere/a.pt2", "create it first")])
def test_a_wrong_place_is_refused_before_anything_is_read(tmp_path: Path, name: str, message: str) -> None:
    done = run_command("export", "champion", "--torch-export", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr
