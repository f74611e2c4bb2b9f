"""The learned controller: encode, one forward pass, then a decisive action or a draw from the mixture."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.errors import ConfigError
from simic.controllers import heads
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.controllers.network import NetworkOutput
from simic.controllers.request import Request
from simic.controllers.store import LoadedPolicy, load_policy
from simic.controllers.vocabulary import Dictionary, allow_only

__all__ = ["LearnedController", "make"]


class LearnedController:
    """Acts with a policy; a sampled action is reported with the log-probability of the mixture it was drawn from.

    A host's decision does not depend on the hosts it is decided with: the same bits alone and among thousands.
    Deciding for good, it germinates nothing its training never saw germinate; exploring, it may try.
    """

    name = "learned"

    def __init__(self, policy: LoadedPolicy, *, policy_version: str | None, is_decisive: bool) -> None:
        self.policy_version = policy_version
        # Products of different batch sizes round differently; in float64 the difference vanishes below float32.
        self._network, self._card = copy.deepcopy(policy.network).double(), policy.card
        self._is_decisive = is_decisive
        met = self._card.blueprints if self._card.germinated is None else self._card.germinated
        self._met: NDArray[np.bool_] = np.isin(self._card.blueprints, met)

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """One action per host."""
        dictionary = Dictionary(tuple(self._card.blueprints), observations.blueprints)
        legal = dictionary.narrow(masks, observations.slot_ptr)
        if self._is_decisive and not self._met.all():
            legal = allow_only(legal, self._met, observations.slot_ptr)
        batch, available = encode(dictionary.read(observations)), heads.MaskTensors.of(legal)
        with torch.inference_mode():
            output = self._act(batch)
            if self._is_decisive:
                decisions = heads.decisive(output, batch.slot_ptr, available, uniforms)
            else:
                decisions = heads.sample(output, batch.slot_ptr, available, uniforms, self._card.network.exploration)
        return dictionary.write(decisions)

    def _act(self, batch: GraphBatch) -> NetworkOutput:
        """Logits rounded to float32, held as float64 so that the distribution's own rounding stays below it too."""
        context, slot, layer = (x.double() for x in (batch.context_x, batch.slot_x, batch.layer_x))
        output = self._network.act(batch._replace(context_x=context, slot_x=slot, layer_x=layer))
        return NetworkOutput(*(logits.float().double() for logits in output))


def make(request: Request) -> LearnedController:
    """From a sealed directory; its digest, as the injected verifier found it, is the policy version."""
    spec = request.spec
    if spec.policy_path is None:
        raise ConfigError("controller 'learned' needs policy_path: a sealed policy directory")
    if request.verify is None:
        raise ConfigError("controller 'learned' needs a verifier: no policy is loaded before its seal was checked")
    path = Path(spec.policy_path)
    version = request.verify(path)
    return LearnedController(load_policy(path), policy_version=version, is_decisive=spec.is_decisive)
