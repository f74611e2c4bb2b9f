"""A sealed policy that decides, and the decisions of a host that it grows; nothing is trained."""

from __future__ import annotations

from pathlib import Path

import torch

from simic.contracts.batches import Observations
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.run import WorldConfig
from simic.controllers.feature_ranges import ranges_of
from simic.controllers.features import encode
from simic.controllers.learned_controller import LearnedController
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.policy_files import describe, load_policy, save_policy
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.rollout import Step, rollout
from simic.trust.keys import Signer
from simic.trust.seal import seal
from support.builders.observations import BLUEPRINTS, make_scene

__all__ = ["SIGNER", "decisive", "grown", "sealed_decider"]

SIGNER = Signer(bytes(range(7, 39)))
CONFIG = NetworkConfig(hidden=16, layers=2, exploration=0.03)


def sealed_decider(
    directory: Path,
    *,
    germinated: tuple[str, ...] | None = BLUEPRINTS,
    seed: int = 0,
    learned_from: Observations | None = None,
) -> Path:
    """A policy directory with random weights large enough that states matter, and the ranges of some states."""
    network = PolicyNetwork(NetworkShape.of(CONFIG, BLUEPRINTS), seed)
    network.set_normaliser(fit_normaliser(encode(make_scene(0, 80).observations), BLUEPRINTS))
    with torch.no_grad():
        for head in (network.op_head, network.slot_head, network.value_head):
            head[-1].weight.mul_(60.0)
    card = describe(
        network, CONFIG, set_name="benchmark", snapshot_digest=None, code_version="0.1.0", config_digest="b" * 64,
        germinated=germinated,
        feature_ranges=None if learned_from is None else ranges_of(encode(learned_from), BLUEPRINTS),
    )  # fmt: skip
    save_policy(directory, network, card)
    seal(directory, SIGNER)
    return directory


def decisive(directory: Path, *, is_decisive: bool = True) -> LearnedController:
    """The controller inside Simic."""
    return LearnedController(load_policy(directory), policy_version=None, is_decisive=is_decisive)


def grown(directory: Path, keys: range = range(6)) -> list[Step]:
    """Every step of benchmark hosts that this policy grows, exploring."""
    controller = decisive(directory, is_decisive=False)
    return list(rollout(Ensemble(identify("benchmark", keys), WorldConfig()), controller.decide, 3))
