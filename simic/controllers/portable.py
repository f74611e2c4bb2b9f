"""A policy as a ``torch.export`` program for one host, which runs with torch alone.

The graph is dense here: adjacency matrices take the place of edge lists, so nothing is gathered by index and all sizes
of hosts share one program. The numbers are those of ``PolicyNetwork`` in float64, rounded as when it acts.

Shapes: S slots, L layers, F features of a node type, H hidden width, K blueprints, C choices of a head.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.controllers.features import has_trained
from simic.controllers.graph import EDGE_TYPES, NODE_TYPES
from simic.controllers.network import HeteroSageLayer
from simic.controllers.policy_files import LoadedPolicy
from simic.numerics.regret import IMPOSSIBLE

__all__ = ["PortablePolicy", "export_program"]

MOST_SLOTS, MOST_LAYERS = 1024, 4096


class PortablePolicy(nn.Module):
    """The probabilities of every head for one host, as ``Policy.explain`` gives them."""

    germinated: Tensor

    def __init__(self, policy: LoadedPolicy) -> None:
        super().__init__()
        self.network = copy.deepcopy(policy.network).double().requires_grad_(False)
        names = policy.card.blueprints
        known = names if policy.card.germinated is None else policy.card.germinated
        self.register_buffer("germinated", torch.tensor([name in known for name in names]))

    def forward(
        self,
        context: Tensor,
        slots: Tensor,
        layers: Tensor,
        connects: Tensor,
        monitors: Tensor,
        op_mask: Tensor,
        slot_mask: Tensor,
        blueprint_mask: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the tables of all heads.

        Args:
            context, slots, layers: features float32 [1, F], [S, F], [L, F].
            connects: float32 [L, L]; entry (i, j) is the number of edges from layer i to layer j.
            monitors: float32 [S, L]; likewise from a slot to the layers that it monitors.
            op_mask, slot_mask, blueprint_mask: legal choices, bool [6], [6, S] and [K].

        Returns:
            float64: p(op) [6]; p(slot | op) [6, S]; given the slot, p of the blueprint [S, K] and of tempo, target,
            speed and curve [S, C]; the value [1] in points.
        """
        network = self.network
        tables = {"context": context.double(), "slot": slots.double(), "layer": layers.double()}
        x = {node: network.normalise[node](tables[node]) for node in NODE_TYPES}
        into = _adjacency(connects.double(), monitors.double())
        own = _encode(cast(nn.Module, network.policy_encoder), x, into)
        read = _encode(cast(nn.Module, network.value_encoder), x, into)
        value = network.value_mean + network.value_scale * network.value_head(_summary(read)).squeeze(1)
        op = network.op_head(torch.cat([_summary(own), _summary(read)], dim=1))
        is_new = ~has_trained(tables["context"]).unsqueeze(1)
        germinates = functional.one_hot(torch.tensor(OP_INDEX[Op.GERMINATE]), op.shape[1]).to(op.dtype)
        op = op - is_new * network.first_epoch_penalty * germinates
        together = torch.cat([own["slot"], read["slot"], read["context"].expand(slots.shape[0], -1)], dim=1)
        pointer, tempo, target, speed, curve, blueprint = network.slot_head(together).split(network.slot_sizes, dim=1)
        blueprints = blueprint_mask & self.germinated
        may = ~germinates.bool() | blueprints.any()
        return (
            _shares(op, (op_mask & may).unsqueeze(0)).squeeze(0),
            _shares(pointer.T, slot_mask & may.unsqueeze(1)),
            _shares(blueprint, blueprints.unsqueeze(0).expand_as(blueprint)),
            *(_shares(table, torch.ones_like(table, dtype=torch.bool)) for table in (tempo, target, speed, curve)),
            value.float().double(),
        )


def _adjacency(connects: Tensor, monitors: Tensor) -> dict[tuple[str, str, str], Tensor]:
    """Return per edge type the number of edges [targets, sources]."""
    every_layer, every_slot = connects.new_ones(1, connects.shape[0]), monitors.new_ones(1, monitors.shape[0])
    matrices = (connects.T, monitors.T, monitors, every_layer, every_slot, every_layer.T, every_slot.T)
    return dict(zip(EDGE_TYPES, matrices, strict=True))


def _encode(encoder: nn.Module, x: dict[str, Tensor], into: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
    """Return the states [rows, H] of the nodes, as the encoder computes them from edge lists."""
    inputs = cast(nn.ModuleDict, encoder.inputs)
    h: dict[str, Tensor] = {node: functional.relu(inputs[node](x[node])) for node in NODE_TYPES}
    for layer in cast(nn.ModuleList, encoder.layers):
        h = _round(cast(HeteroSageLayer, layer), h, into)
    return h


def _round(layer: HeteroSageLayer, h: dict[str, Tensor], into: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
    new = {}
    for node, norm in layer.norms.items():
        own = layer.own.lins[node](h[node])
        received = torch.zeros_like(own)
        for edge in EDGE_TYPES:
            if edge[2] == node:
                mean = into[edge] @ h[edge[0]] / into[edge].sum(1, keepdim=True).clamp(min=1.0)
                transform = layer.get_submodule(f"messages.convs.<{'___'.join(edge)}>.lin_l")
                received = received + transform(mean)
        new[node] = norm(h[node] + functional.relu(own + received))
    return new


def _summary(h: dict[str, Tensor]) -> Tensor:
    """Return [1, 2 H]: the context, and per column the largest positive value of the slots."""
    return torch.cat([h["context"], h["slot"].relu().amax(0, keepdim=True)], dim=1)


def _shares(logits: Tensor, available: Tensor) -> Tensor:
    """Return the masked softmax [rows, C] of logits rounded to float32; a row without a choice counts as free."""
    usable = available | ~available.any(1, keepdim=True)
    return functional.softmax(logits.float().double().masked_fill(~usable, IMPOSSIBLE), dim=1)


def export_program(policy: LoadedPolicy) -> torch.export.ExportedProgram:
    """Return the program for 1 to ``MOST_SLOTS`` slots and 1 to ``MOST_LAYERS`` layers."""
    names = policy.card.features
    blueprints = len(policy.card.blueprints)
    few = (
        torch.zeros(1, len(names["context"])), torch.zeros(3, len(names["slot"])), torch.zeros(4, len(names["layer"])),
        torch.zeros(4, 4), torch.zeros(3, 4), torch.ones(6, dtype=torch.bool), torch.ones(6, 3, dtype=torch.bool),
        torch.ones(blueprints, dtype=torch.bool),
    )  # fmt: skip
    slots, layers = torch.export.Dim("slots", min=1, max=MOST_SLOTS), torch.export.Dim("layers", min=1, max=MOST_LAYERS)
    shapes = (None, {0: slots}, {0: layers}, {0: layers, 1: layers}, {0: slots, 1: layers}, None, {1: slots}, None)
    return torch.export.export(PortablePolicy(policy).eval(), few, dynamic_shapes=shapes)
