"""A Grower in two processes under ``DistributedDataParallel``: one of them decides, and both grow the same network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.builders.deciding_policies import sealed_decider
from support.builders.observations import make_scene

CHILD = """
import hashlib, json, os, sys
from pathlib import Path
import torch, torch.distributed as dist
import torch._dynamo  # which torch would load with the first optimiser of every child
from torch.nn.parallel import DistributedDataParallel
import simic
from support.builders.deciding_policies import SIGNER
from support.builders.grown_loops import ARCHITECTURES, OPTIMIZERS
from support.fakes.custom_hosts import blobs
from test_grower import Keeper, seeds_of
import simic.api.grower_policy

def parameters(model):
    return [one.detach().clone() for one in model.parameters()]

def make(architecture, optimizer, count, folder, **settings):
    network, slots, shape = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    model = network()
    wrapped = DistributedDataParallel(model) if count == 2 else model
    chosen = OPTIMIZERS[optimizer](model.parameters())
    defaults = {"slots": slots, "validation": tuple(blobs(1, 60, shape)), "epochs": 12, "policy": "wait"}
    grower = simic.Grower(wrapped, chosen, **{**defaults, "seeds_max": 2, "report_to": folder, **settings})
    return model, wrapped, chosen, grower, tuple(blobs(0, 44, shape))

def train(rank, count, folder, architecture, optimizer):
    simic.api.grower_policy.make = lambda *_: Keeper()
    model, wrapped, chosen, grower, (inputs, labels) = make(architecture, optimizer, count, folder)
    found = []
    for epoch in range(12):
        model.train()
        order = torch.randperm(44, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(22):
            mine = rows[rank::count]
            chosen.zero_grad()
            grower.loss(wrapped(inputs[mine]), labels[mine]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            chosen.step()
        growth = grower.step()
        digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in parameters(model))).hexdigest()
        stages = [slot.stage.value for slot in grower.state.slots]
        action = None if growth.action is None else growth.action.model_dump_json()
        found.append([digest, action, stages, growth.validation_loss, grower.state.train_samples])
    return found, grower.finalize()

def alike(rank, folder):
    found, network = train(rank, 2, folder, "residual", "adamw")
    return {"epochs": found, "names": sorted(network.state_dict()), "plain": not seeds_of(network)}

def whole(rank, folder):
    half, shared = train(rank, 2, None, "recurrent", "sgd")
    dist.destroy_process_group()
    one, alone = train(0, 1, None, "recurrent", "sgd")
    pairs = zip(parameters(shared), parameters(alone), strict=True)
    gap = max(float((mine - theirs).abs().max()) for mine, theirs in pairs)
    return {"gap": gap, "actions": [row[1:3] for row in half] == [row[1:3] for row in one],
            "samples": [[row[4] for row in rows] for rows in (half, one)],
            "stages": sorted({stage for row in one for stage in row[2]})}

def unlike(rank, folder):
    keys, policy = [SIGNER.public_bytes.hex()], Path(sys.argv[2])
    model, wrapped, chosen, grower, (inputs, labels) = make(
        "recurrent", "sgd", 2, None, policy=policy if rank == 0 else "wait", trusted_keys=keys if rank == 0 else None)
    features = []
    for _ in range(2):
        model.train()
        grower.loss(wrapped(inputs[rank::2]), labels[rank::2]).backward()
        chosen.step()
        features.append([one.feature for one in grower.step().out_of_range])
    grower.load_state_dict(grower.state_dict())
    return {"features": features}

def refused(rank, folder):
    errors = []
    def attempt(**settings):
        try:
            make("recurrent", "sgd", 2, folder, **settings)
        except simic.ConfigError as error:
            errors.append(str(error))
    attempt(policy="nothing-of-this-name" if rank == 0 else "wait")
    attempt(epochs=12 + rank)
    attempt(slots=["nothing"] if rank == 1 else ["mixer"])
    model = ARCHITECTURES["recurrent"].network()
    try:
        simic.Grower(model, OPTIMIZERS["sgd"](model.parameters()), slots=["mixer"], policy="wait", epochs=12,
                     validation=tuple(blobs(1, 60, (5, 4))))
    except simic.ConfigError as error:
        errors.append(str(error))
    return {"errors": errors}

def repeated(rank, folder):
    def grow():
        model, wrapped, chosen, grower, (inputs, labels) = make("recurrent", "sgd", 2, None)
        grower.loss(wrapped(inputs[rank::2]), labels[rank::2]).backward()
        chosen.step()
        found = grower.step().validation_loss
        grower.finalize()
        return found
    opened, losses = [], []
    for attempt in range(4):
        try:
            make("recurrent", "sgd", 2, None, slots=["nothing"])
        except simic.ConfigError:
            pass
        losses.append(grow())
        opened.append(len(os.listdir("/dev/fd")))
        dist.barrier()  # a process that ends its groups closes connections of the other one
        if attempt == 2:
            dist.destroy_process_group()
            start(rank, f"{folder}.again")
    return {"opened": opened[:3], "losses": losses}

def start(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

for case in ("alike", "whole", "unlike", "refused", "repeated"):
    folder, pids = f"{sys.argv[1]}/{case}", []
    os.mkdir(folder)
    for rank in range(2):
        if (pid := os.fork()) == 0:
            torch.set_num_threads(1)
            start(rank, f"{folder}/store")
            result = globals()[case](rank, f"{folder}/reports")
            Path(folder, f"{rank}.json").write_text(json.dumps(result))
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per case with what its two processes found, forked from one that loads the libraries once."""
    root, tests = tmp_path_factory.mktemp("processes"), Path(__file__).parents[2]
    policy = sealed_decider(tmp_path_factory.mktemp("policies") / "one", learned_from=make_scene(0, 4).observations)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), str(policy)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert len(list(root.glob("*/?.json"))) == 10, done.stderr
    return root


def found_by(folder: Path) -> list[Any]:
    """What each process found."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_both_processes_grow_the_same_network_and_one_reports(folder: Path) -> None:
    first, second = found_by(folder / "alike")
    assert first == second
    assert first["plain"]
    stages = {stage for row in first["epochs"] for stage in row[2]}
    assert {"BLENDING", "FOSSILIZED"} <= stages
    files = (folder / "alike" / "reports").rglob("*.jsonl.zst")
    lines = [json.loads(line) for file in files for line in zstandard.open(file, "rt").read().splitlines()]
    assert sorted(line["step"] for line in lines) == list(range(12))
    assert len({line["run_id"] for line in lines}) == 1


def test_two_halves_of_a_batch_train_as_the_whole_batch_does(folder: Path) -> None:
    """The gradients of seeds are means over the processes, alone and while they act."""
    first, second = found_by(folder / "whole")
    assert first["actions"]
    assert first["samples"] == [[44] * 12] * 2
    assert {"BLENDING", "FOSSILIZED"} <= set(first["stages"])
    assert first["gap"] < 1e-4
    assert second["gap"] < 1e-4


def test_both_processes_hear_what_is_unlike_the_training_of_the_policy(folder: Path) -> None:
    """Only the first one has the policy; an owner who stops for a finding has to stop in both."""
    first, second = found_by(folder / "unlike")
    assert first == second
    assert all("parameters_per_sample" in features for features in first["features"])


def test_a_process_that_fails_stops_the_others_with_an_error(folder: Path) -> None:
    first, second = found_by(folder / "refused")
    assert [len(one["errors"]) for one in (first, second)] == [4, 4]
    assert "another process failed" in first["errors"][2]
    assert "another process failed" in second["errors"][0]
    assert "same arguments: expected (12" in second["errors"][1]
    assert "DistributedDataParallel" in first["errors"][3]


def test_later_growers_open_no_further_connections(folder: Path) -> None:
    """Three finished and three refused ones, and one after torch's processes ended and began anew."""
    first, second = found_by(folder / "repeated")
    for found in (first, second):
        assert len(set(found["opened"])) == 1
        assert len(set(found["losses"])) == 1
    assert first["losses"] == second["losses"]
