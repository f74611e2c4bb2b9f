"""Controller that acts with a policy: encode, one forward pass, then a greedy or a sampled action."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations
from simic.controllers import heads
from simic.controllers.blueprint_mapping import BlueprintMapping, allow_only
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.controllers.network import NetworkOutput
from simic.controllers.policy_files import LoadedPolicy

__all__ = ["LearnedController"]


class LearnedController:
    """Acts with a policy; a sampled action is reported with its log-probability under the mixture.

    A host's decision does not depend on the other hosts of the batch, bit for bit. In decisive mode it germinates only
    blueprints whose germination was in its training data; when it explores, it may germinate any.
    """

    name = "learned"

    def __init__(self, policy: LoadedPolicy, *, policy_version: str | None, is_decisive: bool) -> None:
        self.policy_version = policy_version
        # Products of different batch sizes round differently; in float64 the difference is below float32 precision.
        self._network, self._card = copy.deepcopy(policy.network).double(), policy.card
        self._is_decisive = is_decisive
        germinated = self._card.blueprints if self._card.germinated is None else self._card.germinated
        self._germinated: NDArray[np.bool_] = np.isin(self._card.blueprints, germinated)

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return one legal action per host."""
        mapping = BlueprintMapping(tuple(self._card.blueprints), observations.blueprints)
        legal = mapping.mask_unknown(masks, observations.slot_ptr)
        if self._is_decisive and not self._germinated.all():
            legal = allow_only(legal, self._germinated, observations.slot_ptr)
        batch, available = encode(mapping.to_policy(observations)), heads.MaskTensors.of(legal)
        with torch.inference_mode():
            output = self._act(batch)
            if self._is_decisive:
                decisions = heads.sample_op_greedy_factors(output, batch.slot_ptr, available, uniforms)
            else:
                decisions = heads.sample(output, batch.slot_ptr, available, uniforms, self._card.network.exploration)
        return mapping.to_host(decisions)

    def _act(self, batch: GraphBatch) -> NetworkOutput:
        """Return logits rounded to float32 and stored as float64, so that the distribution adds no rounding."""
        context, slot, layer = (x.double() for x in (batch.context_x, batch.slot_x, batch.layer_x))
        output = self._network.act(batch._replace(context_x=context, slot_x=slot, layer_x=layer))
        return NetworkOutput(*(logits.float().double() for logits in output))
