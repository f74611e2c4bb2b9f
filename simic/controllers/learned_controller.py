"""Controller that acts with a policy: encode, one forward pass, then a greedy or a sampled action."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.errors import ContractError
from simic.contracts.feature_ranges import FeatureRanges, OutOfRange
from simic.contracts.names import LEARNED, consulting_name
from simic.controllers.blueprint_mapping import BlueprintMapping, allow_only, consistent
from simic.controllers.feature_ranges import out_of_range
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.controllers.heads import ActionDistribution, MaskTensors
from simic.controllers.karn import ConsultedKarn, KarnNetwork
from simic.controllers.multiply_adds import multiply_adds
from simic.controllers.network import NetworkOutput
from simic.controllers.on_cpu import on_cpu
from simic.controllers.policy_files import LoadedPolicy
from simic.controllers.sampling import FactoredDistribution, sample, sample_op_greedy_factors

__all__ = ["Considered", "LearnedController"]

_DECIDING = ("policy_encoder", "value_encoder", "op_head", "slot_head")
"""Parts of a policy that ``act`` runs."""
_CONSULTED = ("policy_encoder", "blueprint_head")
"""Parts of a Karn that give logits."""


class Considered(NamedTuple):
    """Distribution over actions and value of N states under a policy, before an action is drawn.

    Explanations of decisions and the probabilities of logged actions come from it.
    """

    mapping: BlueprintMapping
    """Between the blueprints of the hosts and those of the policy."""
    distribution: FactoredDistribution
    """Of actions, in the policy's blueprints, with its share of exploration."""
    op_masks: NDArray[np.bool_]
    """[N, ops]: the operations that the policy may choose."""
    values: NDArray[np.float64]
    """[N]: expected discounted return from here on, in points."""


class LearnedController:
    """Acts with a policy; a sampled action is reported with its log-probability under the mixture.

    A host's decision does not depend on the other hosts of the batch, bit for bit. In decisive mode it germinates only
    blueprints whose germination was in its training data; when it explores, it may germinate any.

    With a Karn, the logits of blueprints are Karn's, in every other respect nothing changes: the same masks, the same
    share of exploration, the policy's own operation, slot and other factors. In decisive mode a blueprint must have
    germinated in the training data of both. ``name`` says which Karn was consulted.
    """

    def __init__(
        self, policy: LoadedPolicy, *, policy_version: str | None, is_decisive: bool, karn: ConsultedKarn | None = None
    ) -> None:
        """Act with a policy, and with a Karn if one is given.

        Raises:
            ContractError: if Karn does not know exactly the blueprints of the policy, in the same order.
        """
        self.name = LEARNED if karn is None else consulting_name(karn.digest)
        self.policy_version = policy_version
        # Products of different batch sizes round differently; in float64 the difference is below float32 precision.
        self._network, self._card = copy.deepcopy(policy.network).double(), policy.card
        self._is_decisive = is_decisive
        germinated = self._card.blueprints if self._card.germinated is None else self._card.germinated
        self._germinated: NDArray[np.bool_] = np.isin(self._card.blueprints, germinated)
        self._karn: KarnNetwork | None = None
        self._karn_ranges: FeatureRanges | None = None
        if karn is not None:
            self._consult(karn)

    @property
    def blueprints(self) -> tuple[str, ...]:
        """Return the blueprints that the policy knows; it cannot read a state with a seed of another one."""
        return tuple(self._card.blueprints)

    def _consult(self, karn: ConsultedKarn) -> None:
        card = karn.loaded.card
        if card.blueprints != self._card.blueprints:
            raise ContractError(
                f"Karn {karn.digest[:12]} knows blueprints {card.blueprints}, the policy that consults it "
                f"{self._card.blueprints}: train Karn where these blueprints are installed (`simic karn train`)"
            )
        self._karn, self._karn_ranges = copy.deepcopy(karn.loaded.network).double(), card.feature_ranges
        if card.germinated is not None:
            self._germinated = self._germinated & np.isin(card.blueprints, card.germinated)

    @on_cpu
    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return one legal action per host."""
        mapping, batch, available = self._policy_inputs(observations, masks, is_decisive=self._is_decisive)
        choose = sample_op_greedy_factors if self._is_decisive else sample
        with torch.inference_mode():
            output = self._with_karn(self._network.act(_as_float64(batch)), batch)
            distribution = self._distribution(output, batch, available, is_decisive=self._is_decisive)
            decisions = choose(distribution, uniforms)
        return mapping.to_host(decisions)

    @on_cpu
    def consider(self, observations: Observations, masks: Masks, *, is_decisive: bool) -> Considered:
        """Return what ``decide`` chooses from, in the policy's own blueprint indices, and the values.

        ``is_decisive`` takes the place of the controller's own mode.
        """
        mapping, batch, available = self._policy_inputs(observations, masks, is_decisive=is_decisive)
        with torch.inference_mode():
            output = self._with_karn(self._network(_as_float64(batch)), batch)
            distribution = self._distribution(output, batch, available, is_decisive=is_decisive)
        return Considered(mapping, distribution, available.op.numpy(), output.value.numpy())

    @on_cpu
    def out_of_range(self, observations: Observations) -> list[OutOfRange] | None:
        """Return what of one host lies outside the training data of the policy, or of Karn.

        None if the policy does not say what its data were.

        Raises:
            ContractError: if a slot holds a blueprint that the policy does not know.
        """
        if self._card.feature_ranges is None:
            return None
        mapping = BlueprintMapping(tuple(self._card.blueprints), observations.blueprints)
        graph = encode(mapping.to_policy(observations))
        findings = out_of_range(graph, self._card.feature_ranges, self._card.blueprints)
        if self._karn_ranges is not None:
            known = {(finding.node, finding.feature) for finding in findings}
            others = out_of_range(graph, self._karn_ranges, self._card.blueprints)
            findings += [finding for finding in others if (finding.node, finding.feature) not in known]
        return findings

    @on_cpu
    def multiply_adds(self, observations: Observations) -> NDArray[np.int64]:
        """Return int64 [N]: the products of one decision about each host, in the layers of the policy and of Karn."""
        total = multiply_adds(self._network, observations, _DECIDING)
        return total if self._karn is None else total + multiply_adds(self._karn, observations, _CONSULTED)

    def tensor_bytes(self) -> list[int]:
        """Return the size in bytes of each weight and statistic as it is held while deciding."""
        held = [network.state_dict() for network in (self._network, self._karn) if network is not None]
        return [value.numel() * value.element_size() for state in held for value in state.values()]

    def _policy_inputs(
        self, observations: Observations, masks: Masks, *, is_decisive: bool
    ) -> tuple[BlueprintMapping, GraphBatch, MaskTensors]:
        """Return graphs and masks in the policy's blueprint indices."""
        mapping = BlueprintMapping(tuple(self._card.blueprints), observations.blueprints)
        legal = consistent(mapping.mask_unknown(masks, observations.slot_ptr), observations.slot_ptr)
        if is_decisive and not self._germinated.all():
            legal = allow_only(legal, self._germinated, observations.slot_ptr)
        return mapping, encode(mapping.to_policy(observations)), MaskTensors.of(legal)

    def _distribution(
        self, output: NetworkOutput, batch: GraphBatch, available: MaskTensors, *, is_decisive: bool
    ) -> ActionDistribution:
        """Return the mixture, without exploration in decisive mode."""
        exploration = 0.0 if is_decisive else self._card.network.exploration
        return ActionDistribution(output, batch.slot_ptr, available, exploration)

    def _with_karn(self, output: NetworkOutput, batch: GraphBatch) -> NetworkOutput:
        """Return rounded outputs, with Karn's logits of blueprints if there is a Karn."""
        if self._karn is not None:
            output = output._replace(blueprint=self._karn(_as_float64(batch)))
        return _rounded(output)


def _as_float64(batch: GraphBatch) -> GraphBatch:
    context, slot, layer = (x.double() for x in (batch.context_x, batch.slot_x, batch.layer_x))
    return batch._replace(context_x=context, slot_x=slot, layer_x=layer)


def _rounded(output: NetworkOutput) -> NetworkOutput:
    """Return logits and values rounded to float32, which makes them independent of the batch.

    They are stored as float64, so that the distribution adds no rounding.
    """
    return NetworkOutput(*(logits.float().double() for logits in output))
