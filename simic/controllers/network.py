"""The policy network: two heterogeneous graph encoders, one trained by the policy loss and one by the value loss.

The policy heads read both encoders: the value encoder learns features that predict the return, such as how fast a host
learns, long before the few noisy advantages could teach them to the policy encoder. No policy gradient reaches the
value encoder and no value gradient the policy parameters (Cobbe et al. 2021, section 2, on competing objectives).
Training the value therefore changes the policy's logits; acting and learning use the same network, so every
log-probability is exact.

Messages pass between layer, slot and context nodes (mean over neighbours, one matrix per relation, summed over
relations), as in Hamilton et al. 2017 (GraphSAGE) and Schlichtkrull et al. 2018 (R-GCN). Each layer ends in one
LayerNorm after its residual sum; inputs have a fixed normalisation. The result does not depend on the order of nodes,
and no statistic is computed over a batch.

Shapes: N graphs, S slots, L layers, F features, H hidden width, K blueprints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.actions import HEAD_SIZES, OPS, Head, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import ContractError
from simic.contracts.settings.network import NetworkConfig
from simic.controllers.features import feature_names, has_trained
from simic.controllers.graph import EDGE_TYPES, NODE_TYPES, EdgeType, GraphBatch, NodeFeatures
from simic.numerics.ragged import row_owners
from simic.numerics.reductions import largest_of_owners, sums_of_owners

__all__ = [
    "FeatureNoise",
    "GraphEncoder",
    "GraphNetwork",
    "HeteroSageLayer",
    "NetworkOutput",
    "NetworkShape",
    "Normaliser",
    "PolicyNetwork",
    "fit_normaliser",
    "flag_columns",
    "input_normalisers",
    "mlp_head",
    "relations_of",
    "strongest_slot",
]

RETURN_POINTS = 10.0
"""Default value scale: points of return per unit of the value network's last layer."""
_CLIP = 6.0
"""Normalised inputs are clipped to this many deviations."""
_LEAST_DEVIATION = 1e-3
_LAST_LAYER_SCALE = 0.01
"""Initial scale of last layers: an untrained policy is nearly uniform over available actions."""

_READ_BY_HEADS = ("context", "slot")
_SLOT_OUTPUTS = (len(OPS), *(HEAD_SIZES[head] for head in (Head.TEMPO, Head.ALPHA_TARGET, Head.ALPHA_SPEED)),
                 HEAD_SIZES[Head.ALPHA_CURVE])  # fmt: skip
"""Widths of a slot's outputs before its blueprints: pointer, tempo, target, speed, curve."""


class NetworkShape(NamedTuple):
    """Sizes that determine the parameter shapes."""

    hidden: int
    layers: int
    blueprints: tuple[str, ...]
    """Blueprint names, in the order of the observations."""

    @staticmethod
    def of(config: NetworkConfig, blueprints: tuple[str, ...]) -> NetworkShape:
        """Return the shape of a run configuration."""
        return NetworkShape(config.hidden, config.layers, blueprints)

    @property
    def value_hidden(self) -> int:
        """Return the width of the value encoder: two thirds of the policy's, at least 8."""
        return max(8, 2 * self.hidden // 3)


class NetworkOutput(NamedTuple):
    """Unmasked logits, and values in points of discounted return."""

    op: Tensor
    """[N, ops]"""
    slot: Tensor
    """[S, ops]: pointer logit of each operation for this slot."""
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


class FeatureNoise(NamedTuple):
    """Normal noise on normalised features, so that hosts that are nearly alike get the same action.

    Training with such noise penalises the slope of the function (Bishop 1995, "Training with Noise is Equivalent to
    Tikhonov Regularization").
    """

    deviation: float
    """In units of a feature's standard deviation over the data."""
    generator: torch.Generator

    def added_to(self, features: Tensor) -> Tensor:
        """Return normalised features [rows, F] with noise; absent ones, which are 0, stay 0."""
        noise = torch.randn(features.shape, generator=self.generator, dtype=features.dtype).to(features.device)
        return features + self.deviation * noise * (features != 0)


class Normaliser(NamedTuple):
    """Mean and deviation per feature column and node type, over the rows where the feature is present."""

    mean: dict[str, Tensor]
    deviation: dict[str, Tensor]

    @property
    def version(self) -> str:
        """Return a digest of all statistics, 16 hexadecimal characters."""
        digest = hashlib.sha256()
        for node in NODE_TYPES:
            for values in (self.mean[node], self.deviation[node]):
                digest.update(values.to(torch.float32).cpu().numpy().tobytes())
        return digest.hexdigest()[:16]


def fit_normaliser(graphs: NodeFeatures, blueprints: tuple[str, ...]) -> Normaliser:
    """Compute feature statistics of many graphs; binary columns get mean 0 and deviation 1."""
    means, deviations = {}, {}
    for node, x in (("context", graphs.context_x), ("slot", graphs.slot_x), ("layer", graphs.layer_x)):
        flag = flag_columns(feature_names(blueprints)[node])
        weight = torch.where(flag >= 0, x[:, flag.clamp(min=0)], 1.0).double()
        count = weight.sum(0).clamp(min=1.0)
        mean = (x * weight).sum(0) / count
        variance = ((x - mean).square() * weight).sum(0) / count
        is_binary = ((x == 0) | (x == 1)).all(0)
        means[node] = torch.where(is_binary, 0.0, mean).float()
        deviations[node] = torch.where(is_binary, 1.0, variance.sqrt().clamp(min=_LEAST_DEVIATION)).float()
    return Normaliser(means, deviations)


def flag_columns(names: Sequence[str]) -> Tensor:
    """Return int64 [F]: the column of each feature's valid flag, or -1."""
    positions = {name: index for index, name in enumerate(names)}
    return torch.tensor([positions.get(f"{name}_valid", -1) for name in names])


class _InputNormaliser(nn.Module):
    """(x - mean) / deviation where present, 0 where absent; the statistics are buffers, not parameters."""

    mean: Tensor
    deviation: Tensor
    flag: Tensor

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(names)))
        self.register_buffer("deviation", torch.ones(len(names)))
        self.register_buffer("flag", flag_columns(names), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised features [rows, F]."""
        present = torch.where(self.flag >= 0, x.index_select(1, self.flag.clamp(min=0)), 1.0)
        return ((x - self.mean) / self.deviation).clamp(-_CLIP, _CLIP) * present


def input_normalisers(names: dict[str, tuple[str, ...]]) -> nn.ModuleDict:
    """Return the normalisers of the columns ``names`` by node type, with mean 0 and deviation 1."""
    return nn.ModuleDict({node: _InputNormaliser(names[node]) for node in NODE_TYPES})


class Relation(NamedTuple):
    """The edges of one type in a batch."""

    edges: Tensor
    """int64 [2, E]: source row, target row."""
    neighbours: Tensor
    """[targets, 1]: number of edges that end at each node, at least 1; of the features' dtype."""


def relations_of(batch: GraphBatch) -> dict[EdgeType, Relation]:
    """Return the edges of each type with the number of neighbours over which a mean is taken."""
    rows = {"context": batch.context_x, "slot": batch.slot_x, "layer": batch.layer_x}
    relations = {}
    for edge_type, edges in batch.edges.items():
        count = rows[edge_type[2]].new_zeros(len(rows[edge_type[2]]))
        count = count.index_add(0, edges[1], count.new_ones(edges.shape[1]))
        relations[edge_type] = Relation(edges, count.clamp(min=1.0).unsqueeze(1))
    return relations


class _ByNodeType(nn.Module):
    """A linear map of its own for each node type."""

    def __init__(self, nodes: Sequence[str], hidden: int) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({node: nn.Linear(hidden, hidden) for node in nodes})

    def forward(self, h: dict[str, Tensor]) -> dict[str, Tensor]:
        return {node: linear(h[node]) for node, linear in self.lins.items()}


class _MeanMessage(nn.Module):
    """W_r times the mean of the neighbours over one relation; 0 without neighbours."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(hidden, hidden, bias=False)

    def forward(self, source: Tensor, relation: Relation, targets: int) -> Tensor:
        """Return [targets, H] from the states [rows, H] of the sources."""
        begins, ends = relation.edges
        total = sums_of_owners(source.index_select(0, begins), ends, targets)
        message: Tensor = self.lin_l(total / relation.neighbours)
        return message


class _Messages(nn.Module):
    """The sum of the mean messages over all relations that lead to the target node types."""

    def __init__(self, hidden: int, targets: Sequence[str]) -> None:
        super().__init__()
        self._relations = [edge for edge in EDGE_TYPES if edge[2] in targets]
        self.convs = nn.ModuleDict({_parameter_name(edge): _MeanMessage(hidden) for edge in self._relations})

    def forward(self, h: dict[str, Tensor], relations: dict[EdgeType, Relation]) -> dict[str, Tensor]:
        received: dict[str, Tensor] = {}
        for edge in self._relations:
            source, _, target = edge
            message = self.convs[_parameter_name(edge)](h[source], relations[edge], len(h[target]))
            received[target] = received[target] + message if target in received else message
        return received


def _parameter_name(edge: EdgeType) -> str:
    return f"<{'___'.join(edge)}>"


class HeteroSageLayer(nn.Module):
    """One round of message passing.

    h <- LayerNorm(h + relu(W h + sum over relations of W_r times the mean of the neighbours))

    Parameters have the names that PyG's ``HeteroDictLinear`` and ``HeteroConv`` of ``SAGEConv`` give them, so that a
    policy can be loaded into either form. This one does without the import of PyG, which takes longer than that of
    torch (ADR 41).
    """

    def __init__(self, hidden: int, targets: tuple[str, ...]) -> None:
        """Build a layer that updates the node types ``targets`` only, those whose new state is read."""
        super().__init__()
        self.own = _ByNodeType(targets, hidden)
        self.messages = _Messages(hidden, targets)
        self.norms = nn.ModuleDict({node: nn.LayerNorm(hidden) for node in targets})

    def forward(self, h: dict[str, Tensor], relations: dict[EdgeType, Relation]) -> dict[str, Tensor]:
        """Return the new states [rows, H] of the target node types from those of all node types."""
        own, received = self.own(h), self.messages(h, relations)
        return {node: norm(h[node] + functional.relu(own[node] + received[node])) for node, norm in self.norms.items()}


class GraphEncoder(nn.Module):
    """Maps normalised features to the states of context and slot nodes."""

    def __init__(self, names: dict[str, tuple[str, ...]], hidden: int, rounds: int) -> None:
        """Build an encoder of the columns ``names`` by node type, of width ``hidden``."""
        super().__init__()
        self.inputs = nn.ModuleDict({node: nn.Linear(len(names[node]), hidden) for node in NODE_TYPES})
        targets = [NODE_TYPES] * (rounds - 1) + [_READ_BY_HEADS]
        self.layers = nn.ModuleList(HeteroSageLayer(hidden, read) for read in targets)

    def forward(self, x: dict[str, Tensor], relations: dict[EdgeType, Relation]) -> dict[str, Tensor]:
        """Return the states [rows, H] of context and slot nodes from normalised features."""
        h = {node: functional.relu(self.inputs[node](x[node])) for node in NODE_TYPES}
        for layer in self.layers:
            h = layer(h, relations)
        return h


class GraphNetwork(nn.Module):
    """Base of the networks that read host graphs; a subclass makes what is declared here, and names its parameters."""

    normalise: nn.ModuleDict
    """By node type: features [rows, F] to mean 0 and deviation 1 over the training data; 0 where absent."""
    value_mean: Tensor
    """float32 [], points: what a value head's output of 0 stands for."""
    value_scale: Tensor
    """float32 [], points per unit of a value head's output; above 0."""

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the policy losses; disjoint from ``value_parameters``."""
        raise NotImplementedError

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the value losses."""
        raise NotImplementedError

    def set_normaliser(self, normaliser: Normaliser) -> None:
        """Set the feature statistics; raise ContractError if a shape differs."""
        for node, module in self._normalisers().items():
            if normaliser.mean[node].shape != module.mean.shape:
                raise ContractError(
                    f"normaliser of {node}: expected {tuple(module.mean.shape)}, "
                    f"found {tuple(normaliser.mean[node].shape)}"
                )
            module.mean.copy_(normaliser.mean[node])
            module.deviation.copy_(normaliser.deviation[node])

    def normaliser(self) -> Normaliser:
        """Return a copy of the feature statistics."""
        return Normaliser(
            {node: module.mean.clone() for node, module in self._normalisers().items()},
            {node: module.deviation.clone() for node, module in self._normalisers().items()},
        )

    def set_value_scale(self, mean: float, scale: float) -> None:
        """Set offset and scale of the value head in points of return; raise ContractError if scale <= 0."""
        if not scale > 0.0:
            raise ContractError(f"value scale must be positive, found {scale}")
        self.value_mean.fill_(mean)
        self.value_scale.fill_(scale)

    def _normalisers(self) -> dict[str, _InputNormaliser]:
        return {node: cast(_InputNormaliser, module) for node, module in self.normalise.items()}

    def inputs(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the normalised features [rows, F] by node type."""
        tables = {"context": batch.context_x, "slot": batch.slot_x, "layer": batch.layer_x}
        return {node: module(tables[node]) for node, module in self.normalise.items()}

    @torch.no_grad()
    def initialise(self, seed: int, heads: Sequence[nn.Sequential]) -> None:
        """Draw weights uniformly with variance 1 / fan-in; biases are 0, LayerNorms the identity.

        The last layers of ``heads`` are near 0, so that an untrained policy is nearly uniform.
        """
        generator = torch.Generator().manual_seed(seed)
        last = {id(head[-1].weight) for head in heads}
        for name, parameter in sorted(self.named_parameters()):
            if parameter.dim() == 2:
                bound = (3.0 / parameter.shape[1]) ** 0.5 * (_LAST_LAYER_SCALE if id(parameter) in last else 1.0)
                parameter.uniform_(-bound, bound, generator=generator)
            else:
                parameter.fill_(1.0 if ".norms." in name and name.endswith("weight") else 0.0)


class PolicyNetwork(GraphNetwork):
    """Computes logits and values of N host graphs; deterministic on the CPU."""

    first_epoch_penalty: Tensor
    """float32 scalar: subtracted from the logit of GERMINATE in a host that has not trained an epoch; 0 once the policy
    has learned from branches of such decisions."""

    def __init__(self, shape: NetworkShape, seed: int | None = 0) -> None:
        """Initialise parameters from a generator of their own; with ``seed`` None they stay uninitialised."""
        super().__init__()
        self.shape = shape
        names = feature_names(shape.blueprints)
        hidden, small = shape.hidden, shape.value_hidden
        with torch.random.fork_rng(devices=[]):
            self.normalise = input_normalisers(names)
            self.policy_encoder = GraphEncoder(names, hidden, shape.layers)
            self.op_head = mlp_head(2 * hidden + 2 * small, hidden, len(OPS))
            self.slot_head = mlp_head(hidden + 2 * small, hidden, sum(_SLOT_OUTPUTS) + len(shape.blueprints))
            self.value_encoder = GraphEncoder(names, small, shape.layers)
            self.value_head = mlp_head(2 * small, small, 1)
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_scale", torch.tensor(RETURN_POINTS))
        self.register_buffer("first_epoch_penalty", torch.tensor(NetworkConfig().first_epoch_penalty))
        if seed is not None:
            self.initialise(seed, (self.op_head, self.slot_head, self.value_head))

    def forward(self, batch: GraphBatch) -> NetworkOutput:
        """Return logits and values."""
        x, relations = self.inputs(batch), relations_of(batch)
        value_states = self.value_encoder(x, relations)
        output = self._logits(batch, x, relations, _detached(value_states))
        return output._replace(value=self._value(batch, value_states))

    def act(self, batch: GraphBatch, noise: FeatureNoise | None = None) -> NetworkOutput:
        """Return logits only; the value is zero. With ``noise``, all present features are perturbed."""
        x, relations = self.inputs(batch), relations_of(batch)
        if noise is not None:
            x = {node: noise.added_to(features) for node, features in x.items()}
        with torch.no_grad():
            value_states = self.value_encoder(x, relations)
        return self._logits(batch, x, relations, value_states)

    def act_of_all_weights(self, batch: GraphBatch) -> NetworkOutput:
        """Return ``act(batch)`` with a gradient that also reaches the value encoder, which no loss of the policy does.

        It tells which weights the decisions depend on.
        """
        x, relations = self.inputs(batch), relations_of(batch)
        return self._logits(batch, x, relations, self.value_encoder(x, relations))

    def value(self, batch: GraphBatch) -> Tensor:
        """Return values [N] only, without running the policy encoder."""
        return self._value(batch, self.value_encoder(self.inputs(batch), relations_of(batch)))

    def act_and_value(self, steps: GraphBatch, with_finals: GraphBatch) -> tuple[NetworkOutput, Tensor]:
        """Return ``act(steps)`` and ``value(with_finals)``, with one pass of the value encoder.

        ``steps`` are the first graphs of ``with_finals``.
        """
        x, relations = self.inputs(with_finals), relations_of(with_finals)
        value_states = self.value_encoder(x, relations)
        rows = {"context": len(steps.context_x), "slot": len(steps.slot_x), "layer": len(steps.layer_x)}
        own = {
            edge_type: Relation(edges, relations[edge_type].neighbours[: rows[edge_type[2]]])
            for edge_type, edges in steps.edges.items()
        }
        read = {node: states[: rows[node]] for node, states in _detached(value_states).items()}
        output = self._logits(steps, {node: x[node][:count] for node, count in rows.items()}, own, read)
        return output, self._value(with_finals, value_states)

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the policy losses; disjoint from ``value_parameters``."""
        parts = (self.policy_encoder, self.op_head, self.slot_head)
        return [parameter for part in parts for parameter in part.parameters()]

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the value losses; the policy reads their encoder without gradient."""
        return [parameter for part in (self.value_encoder, self.value_head) for parameter in part.parameters()]

    @property
    def slot_sizes(self) -> list[int]:
        """Return the widths of a slot's outputs: pointer, tempo, target, speed, curve, blueprint."""
        return [*_SLOT_OUTPUTS, len(self.shape.blueprints)]

    def _logits(
        self,
        batch: GraphBatch,
        x: dict[str, Tensor],
        relations: dict[EdgeType, Relation],
        read: dict[str, Tensor],
    ) -> NetworkOutput:
        """Return logits; ``read`` are the states of the value encoder."""
        own = self.policy_encoder(x, relations)
        exact = batch.context_x.dtype  # logits leave an autocast to 16 bits, because probabilities are computed of them
        op = self.op_head(torch.cat([self._summary(batch, own), self._summary(batch, read)], dim=1)).to(exact)
        owners = row_owners(batch.slot_ptr, len(batch.slot_x))
        slots = torch.cat([own["slot"], read["slot"], read["context"].index_select(0, owners)], dim=1)
        slot, tempo, target, speed, curve, blueprint = self.slot_head(slots).to(exact).split(self.slot_sizes, dim=1)
        return NetworkOutput(
            self._penalise_first_epoch(op, batch),
            slot,
            blueprint,
            tempo,
            target,
            speed,
            curve,
            op.new_zeros(len(op)),
        )

    def _penalise_first_epoch(self, op: Tensor, batch: GraphBatch) -> Tensor:
        """Subtract ``first_epoch_penalty`` from the logit of GERMINATE in hosts that have not trained an epoch."""
        is_new = ~has_trained(batch.context_x).unsqueeze(1)
        germinate = torch.zeros_like(op[:1])
        germinate[:, OP_INDEX[Op.GERMINATE]] = self.first_epoch_penalty
        return op - is_new * germinate

    def _value(self, batch: GraphBatch, value_states: dict[str, Tensor]) -> Tensor:
        value: Tensor = self.value_head(self._summary(batch, value_states)).squeeze(1).to(batch.context_x.dtype)
        return self.value_mean + self.value_scale * value

    @staticmethod
    def _summary(batch: GraphBatch, h: dict[str, Tensor]) -> Tensor:
        """Return [N, 2 H]: the context, and the strongest positive response among the graph's slots."""
        return torch.cat([h["context"], strongest_slot(batch.slot_ptr, h["slot"])], dim=1)


def _detached(states: dict[str, Tensor]) -> dict[str, Tensor]:
    return {node: state.detach() for node, state in states.items()}


def mlp_head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a head of one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def strongest_slot(slot_ptr: Tensor, slots: Tensor) -> Tensor:
    """Return [N, H]: per column the largest positive value of a graph's slots [S, H]; 0 if there is none."""
    # With the zeros included, a value of 0 ties with them, and the gradient of relu is 0 there anyway.
    return largest_of_owners(slots.relu(), row_owners(slot_ptr, len(slots)), len(slot_ptr) - 1)
