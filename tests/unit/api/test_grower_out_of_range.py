"""A Grower on networks unlike those that its policy learned from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from numpy.typing import NDArray
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.grown_loops import Loop, make_loop, train, train_epoch
from support.builders.observations import make_scene

import simic
from simic.api.grower_policy import Decider
from simic.contracts.actions import HEADS, OPS
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.feature_ranges import OutOfRange
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import LayerKind
from simic.controllers.learned_controller import LearnedController
from simic.controllers.plugins.random import RandomController
from simic.controllers.sampling import deterministic
from simic.hosts.custom import Layer
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
    assert stranger.digest[:12] in warning and "layer 'head' width 3, in training 10 to 24" in warning
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


class Stranger(LearnedController):
    """Finds a slot and a layer of every network unlike its training, and waits."""

    policy_version = "a" * 64

    def __init__(self) -> None:
        """Without a network."""

    def out_of_range(self, observations: Observations) -> list[OutOfRange] | None:
        return [
            OutOfRange(node=node, index=1, feature="norm", value=6.0, lower=10.0, upper=24.0)
            for node in ("slot", "layer")
        ]

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        return deterministic(np.full((1, len(HEADS)), -1, dtype=np.int16))


def test_a_warning_calls_slots_by_their_layer_where_not_every_layer_has_one(caplog: pytest.LogCaptureFixture) -> None:
    """Slot 1 is the one of layer 2 here: numbers of slots and of layers differ."""
    layers = [
        Layer("reader", LayerKind.STEM),
        Layer("mixer", LayerKind.BLOCK, has_slot=True),
        Layer("folder", LayerKind.BLOCK, has_slot=True),
        Layer("head", LayerKind.HEAD),
    ]
    scene = make_scene(0, 1)
    Decider(Stranger(), "warn", layers).decide(scene.observations, scene.masks, np.zeros((1, len(HEADS))))
    assert "slot 'folder' norm 6, in training 10 to 24; layer 'mixer' norm 6" in caplog.text
