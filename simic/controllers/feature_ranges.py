"""What of a state lies outside the data that a policy learned from.

A policy says nothing reliable about states unlike any of its training. The ranges of single features find networks of
another size, task or scale; they do not find unusual combinations of usual values.

Shapes: N graphs, F features of a node type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simic.contracts.feature_ranges import FeatureRange, FeatureRanges, NodeType, OutOfRange
from simic.controllers.features import feature_names, in_unit_of_state
from simic.controllers.graph import GraphBatch, NodeFeatures
from simic.controllers.network import flag_columns

__all__ = ["joined_ranges", "out_of_range", "ranges_of"]

MARGIN = 0.05
"""Share of the width of a range, on the scale of the feature, by which a value may lie outside it: the largest of a
sample is not the largest of all."""
_NODES: tuple[NodeType, ...] = ("context", "slot", "layer")


def ranges_of(graphs: NodeFeatures, blueprints: Sequence[str]) -> FeatureRanges:
    """Return the range of every feature over N graphs."""
    ranges: FeatureRanges = {}
    for node, x in zip(_NODES, _tables(graphs), strict=True):
        names = feature_names(blueprints)[node]
        if not len(x):
            ranges[node] = [None] * len(names)
            continue
        is_present = _present(x, names)
        lowest = torch.where(is_present, x, torch.inf).amin(0).tolist()
        highest = torch.where(is_present, x, -torch.inf).amax(0).tolist()
        ranges[node] = [
            None if lower > upper else FeatureRange(lower=lower, upper=upper)
            for lower, upper in zip(lowest, highest, strict=True)
        ]
    return ranges


def joined_ranges(one: FeatureRanges, other: FeatureRanges) -> FeatureRanges:
    """Return the ranges of both data sets together; they have the same columns."""
    return {node: [_union(*pair) for pair in zip(one[node], other[node], strict=True)] for node in one}


def _union(one: FeatureRange | None, other: FeatureRange | None) -> FeatureRange | None:
    if one is None or other is None:
        return one or other
    return FeatureRange(lower=min(one.lower, other.lower), upper=max(one.upper, other.upper))


def out_of_range(graph: GraphBatch, ranges: FeatureRanges, blueprints: Sequence[str]) -> list[OutOfRange]:
    """Return what of one graph lies outside the ranges by more than ``MARGIN`` of their width, layers first.

    Of a feature of several slots or layers only the value that lies furthest outside is returned.
    """
    findings = []
    for node, x in reversed(list(zip(_NODES, _tables(graph), strict=True))):
        if not len(x):
            continue
        names = feature_names(blueprints)[node]
        excess = torch.where(_present(x, names), _excess(x, ranges[node]), 0.0)
        for column in excess.amax(0).nonzero().flatten().tolist():
            row = int(excess[:, column].argmax())
            findings.append(_finding(node, row, names[column], float(x[row, column]), ranges[node][column]))
    return findings


def _finding(node: NodeType, row: int, name: str, value: float, known: FeatureRange | None) -> OutOfRange:
    return OutOfRange(
        node=node,
        index=row,
        feature=name,
        value=in_unit_of_state(name, value),
        lower=None if known is None else in_unit_of_state(name, known.lower),
        upper=None if known is None else in_unit_of_state(name, known.upper),
    )


def _tables(graphs: NodeFeatures) -> tuple[Tensor, Tensor, Tensor]:
    return graphs.context_x, graphs.slot_x, graphs.layer_x


def _present(x: Tensor, names: Sequence[str]) -> Tensor:
    """Return bool [rows, F]: where a number is there; one without a companion column always is."""
    flags = flag_columns(names)
    return torch.where(flags >= 0, x[:, flags.clamp(min=0)] > 0, True)


def _excess(x: Tensor, ranges: Sequence[FeatureRange | None]) -> Tensor:
    """Return [rows, F]: how far values lie outside the widened ranges; infinite where a feature has none."""
    bounds = torch.tensor([(0.0, 0.0) if span is None else (span.lower, span.upper) for span in ranges])
    lower, upper = bounds.unbind(1)
    is_known = torch.tensor([span is not None for span in ranges])
    margin = MARGIN * (upper - lower)
    excess = torch.maximum(lower - margin - x, x - upper - margin).clamp(min=0.0)
    return torch.where(is_known, excess, torch.inf)
