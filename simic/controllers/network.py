"""The learned controller's network: two hetero graph encoders, one shaped by acting and one by valuing.

The heads that act read both. What predicts the return, such as how fast a host learns, is plain to the value encoder
long before the few and noisy advantages could have taught it to the policy's own; but no gradient of the policy
reaches the value encoder, and none of the value reaches the policy's parameters (Cobbe et al. 2021, section 2, on why
the two must not compete for one trunk). What the value learns does move what the policy says; acting and learning use
the same numbers, so every log-probability is exact.

Messages pass between layer, slot and context nodes (mean over neighbours, one matrix per relation, summed over
relations), as in Hamilton et al. 2017 (GraphSAGE) and Schlichtkrull et al. 2018 (R-GCN). Each round ends in one
LayerNorm after its residual sum, and there is no other normalisation than the fixed one of the inputs. Nothing
depends on the order of nodes, and no statistic is taken over a batch.

Shapes: N graphs, S slots, L layers, F features, H hidden width, K blueprints.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv  # type: ignore[import-untyped]

from simic.contracts.actions import HEAD_SIZES, OPS, Head, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.config import NetworkConfig
from simic.contracts.errors import ContractViolation
from simic.controllers.features import feature_names
from simic.controllers.graph import EDGE_TYPES, NODE_TYPES, GraphBatch, owners

__all__ = ["NetworkOutput", "NetworkShape", "Normaliser", "PolicyNetwork", "fit_normaliser"]

RETURN_POINTS = 10.0
"""Points of return per unit of the value network's last layer, until a snapshot's own scale is set."""
_CLIP = 6.0
"""Deviations beyond which a normalised input carries no more."""
_LEAST_DEVIATION = 1e-3
_LAST_LAYER_SCALE = 0.01
"""A fresh policy is uniform over what is available, up to this much."""
_RESTRAINT = 50.0
"""Subtracted from the logit of germinating in a host that has not trained yet; own episodes do not undo it."""

_READ_BY_HEADS = ("context", "slot")
_SLOT_OUTPUTS = (len(OPS), *(HEAD_SIZES[head] for head in (Head.TEMPO, Head.ALPHA_TARGET, Head.ALPHA_SPEED)),
                 HEAD_SIZES[Head.ALPHA_CURVE])  # fmt: skip
"""Widths of a slot's outputs before its blueprints: pointer, tempo, target, speed, curve."""


class NetworkShape(NamedTuple):
    """All that fixes the parameters' shapes."""

    hidden: int
    layers: int
    blueprints: tuple[str, ...]
    """The vocabulary, in the order of the observations."""

    @staticmethod
    def of(config: NetworkConfig, blueprints: tuple[str, ...]) -> NetworkShape:
        """From the run's configuration."""
        return NetworkShape(config.hidden, config.layers, blueprints)

    @property
    def value_hidden(self) -> int:
        """Width of the value encoder: two thirds of the policy's, at least 8."""
        return max(8, 2 * self.hidden // 3)


class NetworkOutput(NamedTuple):
    """Unmasked logits, and the value in points of discounted return."""

    op: Tensor
    """[N, ops]"""
    slot: Tensor
    """[S, ops]: how well each operation's pointer likes this slot."""
    blueprint: Tensor
    """[S, K]"""
    tempo: Tensor
    """[S, tempos]"""
    target: Tensor
    """[S, alpha targets]"""
    speed: Tensor
    """[S, alpha speeds]"""
    curve: Tensor
    """[S, alpha curves]"""
    value: Tensor
    """[N]; zeros from ``PolicyNetwork.act``."""


class Normaliser(NamedTuple):
    """Mean and deviation per feature column of each node type, taken over the rows where the feature is present."""

    mean: dict[str, Tensor]
    deviation: dict[str, Tensor]

    @property
    def version(self) -> str:
        """Changes whenever a number does."""
        digest = hashlib.sha256()
        for node in NODE_TYPES:
            for values in (self.mean[node], self.deviation[node]):
                digest.update(values.to(torch.float32).cpu().numpy().tobytes())
        return digest.hexdigest()[:16]


def fit_normaliser(batch: GraphBatch, blueprints: tuple[str, ...]) -> Normaliser:
    """Statistics of a table of graphs. Flags and one-hot columns stay as they are (mean 0, deviation 1)."""
    means, deviations = {}, {}
    for node, x in (("context", batch.context_x), ("slot", batch.slot_x), ("layer", batch.layer_x)):
        flag = _flag_columns(feature_names(blueprints)[node])
        weight = torch.where(flag >= 0, x[:, flag.clamp(min=0)], 1.0).double()
        count = weight.sum(0).clamp(min=1.0)
        mean = (x * weight).sum(0) / count
        variance = ((x - mean).square() * weight).sum(0) / count
        is_binary = ((x == 0) | (x == 1)).all(0)
        means[node] = torch.where(is_binary, 0.0, mean).float()
        deviations[node] = torch.where(is_binary, 1.0, variance.sqrt().clamp(min=_LEAST_DEVIATION)).float()
    return Normaliser(means, deviations)


def _flag_columns(names: tuple[str, ...]) -> Tensor:
    """int64 [F]: the column of each feature's valid flag, or -1."""
    positions = {name: index for index, name in enumerate(names)}
    return torch.tensor([positions.get(f"{name}_valid", -1) for name in names])


class _InputNormaliser(nn.Module):
    """(x - mean) / deviation where present, 0 where absent; the statistics are state, not parameters."""

    mean: Tensor
    deviation: Tensor
    flag: Tensor

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(names)))
        self.register_buffer("deviation", torch.ones(len(names)))
        self.register_buffer("flag", _flag_columns(names), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, F] -> [rows, F]"""
        present = torch.where(self.flag >= 0, x[:, self.flag.clamp(min=0)], 1.0)
        return ((x - self.mean) / self.deviation).clamp(-_CLIP, _CLIP) * present


class _Round(nn.Module):
    """One round of message passing: h <- LayerNorm(h + relu(W h + sum over relations W_r mean of neighbours))."""

    def __init__(self, hidden: int, targets: tuple[str, ...]) -> None:
        """``targets``: the node types whose new state anyone will read; the others are left out."""
        super().__init__()
        self.own = nn.ModuleDict({node: nn.Linear(hidden, hidden) for node in targets})
        self.relations = [edge for edge in EDGE_TYPES if edge[2] in targets]
        self.messages = nn.ModuleDict(
            {
                "__".join(edge): SAGEConv((hidden, hidden), hidden, aggr="mean", root_weight=False, bias=False)
                for edge in self.relations
            }
        )
        self.norms = nn.ModuleDict({node: nn.LayerNorm(hidden) for node in targets})

    def forward(self, h: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
        """Node states [rows, H] per node type."""
        summed = {node: own(h[node]) for node, own in self.own.items()}
        for edge in self.relations:
            source, _, target = edge
            summed[target] = summed[target] + self.messages["__".join(edge)]((h[source], h[target]), edges[edge])
        return {node: norm(h[node] + functional.relu(summed[node])) for node, norm in self.norms.items()}


class _Encoder(nn.Module):
    """Normalised features to the states of contexts and slots."""

    def __init__(self, names: dict[str, tuple[str, ...]], hidden: int, rounds: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleDict({node: nn.Linear(len(names[node]), hidden) for node in NODE_TYPES})
        targets = [NODE_TYPES] * (rounds - 1) + [_READ_BY_HEADS]
        self.rounds = nn.ModuleList(_Round(hidden, read) for read in targets)

    def forward(self, x: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
        h = {node: functional.relu(self.inputs[node](x[node])) for node in NODE_TYPES}
        for one in self.rounds:
            h = one(h, edges)
        return h


class PolicyNetwork(nn.Module):
    """Logits and values of N host graphs; on CPU the same batch gives the same bits."""

    value_mean: Tensor
    value_scale: Tensor

    def __init__(self, shape: NetworkShape, seed: int | None = 0) -> None:
        """Parameters drawn from their own generator, the global one left as it was; None leaves them undrawn."""
        super().__init__()
        self.shape = shape
        names = feature_names(shape.blueprints)
        self._trained = names["context"].index("train_loss_valid")
        hidden, small = shape.hidden, shape.value_hidden
        with torch.random.fork_rng(devices=[]):
            self.normalise = nn.ModuleDict({node: _InputNormaliser(names[node]) for node in NODE_TYPES})
            self.policy_encoder = _Encoder(names, hidden, shape.layers)
            self.op_head = _head(2 * hidden + 2 * small, hidden, len(OPS))
            self.slot_head = _head(hidden + 2 * small, hidden, sum(_SLOT_OUTPUTS) + len(shape.blueprints))
            self.value_encoder = _Encoder(names, small, shape.layers)
            self.value_head = _head(2 * small, small, 1)
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_scale", torch.tensor(RETURN_POINTS))
        if seed is not None:
            self._initialise(seed)

    def forward(self, batch: GraphBatch) -> NetworkOutput:
        """Logits and value."""
        x = self._inputs(batch)
        valued = self.value_encoder(x, batch.edges)
        return self._logits(batch, x, valued)._replace(value=self._value(batch, valued))

    def act(self, batch: GraphBatch) -> NetworkOutput:
        """Logits only."""
        x = self._inputs(batch)
        with torch.no_grad():
            valued = self.value_encoder(x, batch.edges)
        return self._logits(batch, x, valued)

    def value(self, batch: GraphBatch) -> Tensor:
        """Values [N] only; the policy encoder does not run."""
        return self._value(batch, self.value_encoder(self._inputs(batch), batch.edges))

    def policy_parameters(self) -> list[nn.Parameter]:
        """Parameters that the policy's losses train; disjoint from ``value_parameters``."""
        parts = (self.policy_encoder, self.op_head, self.slot_head)
        return [parameter for part in parts for parameter in part.parameters()]

    def value_parameters(self) -> list[nn.Parameter]:
        """Parameters that the value's losses train; the policy reads their encoder without training it."""
        return [parameter for part in (self.value_encoder, self.value_head) for parameter in part.parameters()]

    def set_normaliser(self, normaliser: Normaliser) -> None:
        """Adopt a snapshot's feature statistics."""
        for node, module in self._normalisers().items():
            if normaliser.mean[node].shape != module.mean.shape:
                raise ContractViolation(
                    f"normaliser of {node}: expected {tuple(module.mean.shape)}, "
                    f"found {tuple(normaliser.mean[node].shape)}"
                )
            module.mean.copy_(normaliser.mean[node])
            module.deviation.copy_(normaliser.deviation[node])

    def normaliser(self) -> Normaliser:
        """The statistics in force."""
        return Normaliser(
            {node: module.mean.clone() for node, module in self._normalisers().items()},
            {node: module.deviation.clone() for node, module in self._normalisers().items()},
        )

    def set_value_scale(self, mean: float, scale: float) -> None:
        """Fix what 0 and 1 of the value's last layer mean in points of return."""
        if not scale > 0.0:
            raise ContractViolation(f"value scale must be positive, found {scale}")
        self.value_mean.fill_(mean)
        self.value_scale.fill_(scale)

    def _normalisers(self) -> dict[str, _InputNormaliser]:
        return {node: cast(_InputNormaliser, module) for node, module in self.normalise.items()}

    def _inputs(self, batch: GraphBatch) -> dict[str, Tensor]:
        tables = {"context": batch.context_x, "slot": batch.slot_x, "layer": batch.layer_x}
        return {node: module(tables[node]) for node, module in self.normalise.items()}

    def _logits(self, batch: GraphBatch, x: dict[str, Tensor], valued: dict[str, Tensor]) -> NetworkOutput:
        """``valued``: node states of the value encoder, read without a gradient to it."""
        own, read = self.policy_encoder(x, batch.edges), {node: state.detach() for node, state in valued.items()}
        op = self.op_head(torch.cat([_summary(batch, own), _summary(batch, read)], dim=1))
        slots = torch.cat([own["slot"], read["slot"], read["context"][owners(batch.slot_ptr)]], dim=1)
        sizes = [*_SLOT_OUTPUTS, len(self.shape.blueprints)]
        slot, tempo, target, speed, curve, blueprint = self.slot_head(slots).split(sizes, dim=1)
        return NetworkOutput(
            self._looking_first(op, batch), slot, blueprint, tempo, target, speed, curve, op.new_zeros(len(op))
        )

    def _looking_first(self, op: Tensor, batch: GraphBatch) -> Tensor:
        """No germination while a host has not trained an epoch, and hosts of different needs look alike.

        Growing one epoch sooner pays a little whatever is grown, so a policy that may do so learns to, and then never
        meets the states in which it could have told its hosts apart. Exploration may still do it.
        """
        is_new = 1.0 - batch.context_x[:, self._trained : self._trained + 1]
        germinate = torch.zeros_like(op[:1])
        germinate[:, OP_INDEX[Op.GERMINATE]] = _RESTRAINT
        return op - is_new * germinate

    def _value(self, batch: GraphBatch, valued: dict[str, Tensor]) -> Tensor:
        value: Tensor = self.value_head(_summary(batch, valued)).squeeze(1)
        return self.value_mean + self.value_scale * value

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """Weights uniform with variance 1 / fan-in, last layers almost 0, biases 0, LayerNorms the identity."""
        generator = torch.Generator().manual_seed(seed)
        last = {id(head[-1].weight) for head in (self.op_head, self.slot_head, self.value_head)}
        for name, parameter in sorted(self.named_parameters()):
            if parameter.dim() == 2:
                bound = (3.0 / parameter.shape[1]) ** 0.5 * (_LAST_LAYER_SCALE if id(parameter) in last else 1.0)
                parameter.uniform_(-bound, bound, generator=generator)
            else:
                parameter.fill_(1.0 if ".norms." in name and name.endswith("weight") else 0.0)


def _head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _summary(batch: GraphBatch, h: dict[str, Tensor]) -> Tensor:
    """[N, 2 H]: the context, and the strongest positive response among the graph's slots (0 without slots)."""
    context, slot = h["context"], h["slot"]
    index = owners(batch.slot_ptr).unsqueeze(1).expand_as(slot)
    strongest = torch.zeros_like(context).scatter_reduce(0, index, slot, reduce="amax")
    return torch.cat([context, strongest], dim=1)
