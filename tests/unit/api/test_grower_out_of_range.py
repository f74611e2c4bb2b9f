"""A Grower on networks unlike those that its policy learned from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import zstandard
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.grown_loops import Loop, make_loop, train, train_epoch

import simic
from simic.contracts.actions import OPS
from simic.contracts.batches import Observations
from simic.contracts.config import WorldConfig
from simic.controllers.plugins.random import RandomController
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.rollout import rollout


def weights_of(loop: Loop) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in loop.model.state_dict().items()}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> simic.Policy:
    """A policy that learned from hosts of `benchmark` only, which are wider than the loops here."""
    steps = list(rollout(Ensemble(identify("benchmark", range(4)), WorldConfig()), RandomController().decide, 0))
    root = tmp_path_factory.mktemp("stranger")
    directory = sealed_decider(root / "policy", learned_from=Observations.join([step.observations for step in steps]))
    return simic.load_policy(directory, trusted_keys=[SIGNER.public_bytes.hex()])


def test_a_network_unlike_the_training_of_the_policy_is_named_once(
    stranger: simic.Policy, caplog: pytest.LogCaptureFixture
) -> None:
    loop = make_loop("recurrent", policy=stranger)
    found = [train_epoch(loop) for _ in range(3)]
    (warning,) = [one.getMessage() for one in caplog.records if "unlike" in one.getMessage()]
    assert stranger.digest[:12] in warning and "layer 2 width 3, in training 10 to 24" in warning
    assert "out_of_range='wait'" in warning
    assert all("width" in {one.feature for one in growth.out_of_range} for growth in found)


def test_reports_say_what_was_legal_and_not_what_the_grower_refused(stranger: simic.Policy, tmp_path: Path) -> None:
    """Another policy, evaluated on these reports, may germinate; the log lacks what would come of it."""
    loop = make_loop("recurrent", policy=stranger, out_of_range="wait", report_to=tmp_path)
    train(loop)
    files = tmp_path.rglob("*.jsonl.zst")
    lines = [json.loads(line) for file in files for line in zstandard.open(file, "rt").read().splitlines()]
    legal = [OPS[index].value for index, is_legal in enumerate(lines[3]["available"]["op"]) if is_legal]
    assert "GERMINATE" in legal and lines[3]["available"]["blueprint"]
    assert {line["action"]["op"] for line in lines} == {"WAIT"}
    assert {line["log_prob_behaviour"]["op"] for line in lines} == {0.0}


def test_no_seed_begins_on_a_network_unlike_the_training_if_told_to_wait(stranger: simic.Policy) -> None:
    """The policy would germinate: it does so in the loop that only warns."""
    plain, waiting, warned = (
        make_loop("recurrent", epochs=12, **settings)
        for settings in ({"policy": None}, {"policy": stranger, "out_of_range": "wait"}, {"policy": stranger})
    )
    for loop in (plain, waiting, warned):
        torch.manual_seed(1)
        train(loop)
    assert weights_of(plain) == weights_of(waiting)
    assert weights_of(plain) != weights_of(warned)
    with pytest.raises(simic.ConfigError, match="out_of_range: expected warn or wait, found 'stop'"):
        make_loop("recurrent", policy="wait", out_of_range="stop")
