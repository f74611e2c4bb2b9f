"""The learned controller: encode, one forward pass, then the likeliest action or a draw from the mixture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.errors import ConfigError, ContractViolation
from simic.controllers import heads
from simic.controllers.features import encode
from simic.controllers.request import Request
from simic.controllers.store import LoadedPolicy, load_policy

__all__ = ["LearnedController", "make"]


class LearnedController:
    """Acts with a policy; a sampled action is reported with the log-probability of the mixture it was drawn from."""

    name = "learned"

    def __init__(self, policy: LoadedPolicy, *, policy_version: str | None, is_greedy: bool) -> None:
        self.policy_version = policy_version
        self._network, self._card = policy
        self._is_greedy = is_greedy

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """One action per host."""
        vocabulary = tuple(self._card.blueprints)
        if observations.blueprints != vocabulary:
            raise ContractViolation(f"policy knows blueprints {vocabulary}, the hosts offer {observations.blueprints}")
        batch, available = encode(observations), heads.MaskTensors.of(masks)
        with torch.inference_mode():
            output = self._network.act(batch)
            if self._is_greedy:
                return heads.greedy(output, batch.slot_ptr, available)
            return heads.sample(output, batch.slot_ptr, available, uniforms, self._card.network.exploration)


def make(request: Request) -> LearnedController:
    """From a sealed directory; its digest, as the injected verifier found it, is the policy version."""
    spec = request.spec
    if spec.policy_path is None:
        raise ConfigError("controller 'learned' needs policy_path: a sealed policy directory")
    if request.verify is None:
        raise ConfigError("controller 'learned' needs a verifier: no policy is loaded before its seal was checked")
    path = Path(spec.policy_path)
    version = request.verify(path)
    return LearnedController(load_policy(path), policy_version=version, is_greedy=spec.is_greedy)
