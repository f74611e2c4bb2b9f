"""Graph tables: gathering columns is the same as collating PyG's own objects."""

from __future__ import annotations

import pytest
import torch
from support.builders.observations import make_scene
from torch_geometric.data import Batch

from simic.controllers.features import encode
from simic.controllers.graph import EDGE_TYPES, NODE_TYPES, GraphBatch
from simic.numerics.ragged import row_owners
from simic.replay.exports.pyg import hetero_data
from simic.replay.graph_table import GraphTable


@pytest.mark.parametrize("rows", [[0], [5, 2, 2, 9], list(range(12)), [11, 0, 11]])
def test_take_equals_collating_pyg_graphs(rows: list[int]) -> None:
    table = GraphTable.of(encode(make_scene(7, 12).observations))
    taken = table.take(torch.tensor(rows))
    collated = Batch.from_data_list([hetero_data(table.take(torch.tensor([row]))) for row in rows])
    for node, ours in zip(NODE_TYPES, (taken.context_x, taken.slot_x, taken.layer_x), strict=True):
        assert torch.equal(ours, collated[node].x), node
    for edge in EDGE_TYPES:
        assert torch.equal(taken.edges[edge], collated[edge].edge_index), edge
    assert torch.equal(taken.slot_ptr, collated["slot"].ptr)
    assert torch.equal(taken.layer_ptr, collated["layer"].ptr)
    assert torch.equal(row_owners(taken.slot_ptr), collated["slot"].batch)


def test_take_of_a_take_is_a_take() -> None:
    table = GraphTable.of(encode(make_scene(8, 10).observations))
    twice = GraphTable.of(table.take(torch.tensor([4, 1, 7, 7]))).take(torch.tensor([2, 0]))
    once = table.take(torch.tensor([7, 4]))
    assert_equal(twice, once)


def test_everything_in_order_changes_nothing() -> None:
    batch = encode(make_scene(9, 6).observations)
    assert_equal(GraphTable.of(batch).take(torch.arange(6)), batch)


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_m8_the_first_graphs_are_views(count: int) -> None:
    batch = encode(make_scene(9, 6, slots=(0, 3)).observations)
    first = batch.first(count, GraphTable.of(batch).sizes(count))
    assert_equal(first, GraphTable.of(batch).take(torch.arange(count)))
    edge = ("layer", "connects", "layer")
    for part, whole in ((first.layer_x, batch.layer_x), (first.edges[edge], batch.edges[edge])):
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_edges_stay_within_their_graph() -> None:
    stored = GraphTable.of(encode(make_scene(10, 20).observations))
    table = stored.take(torch.randint(0, 20, (50,), generator=torch.Generator()))
    owner = {"context": torch.arange(50), "slot": row_owners(table.slot_ptr), "layer": row_owners(table.layer_ptr)}
    for (source, _, target), edge in table.edges.items():
        assert torch.equal(owner[source][edge[0]], owner[target][edge[1]])


def test_hosts_without_slots_are_graphs_too() -> None:
    table = GraphTable.of(encode(make_scene(11, 4, slots=(0, 2)).observations))
    assert int(table.slot_ptr.diff().min()) == 0
    assert_equal(GraphTable.of(table.take(torch.tensor([3, 0]))).take(torch.tensor([1])), table.take(torch.tensor([0])))
    assert table.take(torch.tensor([], dtype=torch.int64)).graphs == 0


def assert_equal(a: GraphBatch, b: GraphBatch) -> None:
    for name, value in a._asdict().items():
        if name == "edges":
            assert all(torch.equal(value[edge], b.edges[edge]) for edge in EDGE_TYPES)
        else:
            assert torch.equal(value, getattr(b, name)), name
