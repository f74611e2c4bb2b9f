"""The network: node order tells nothing, no gradient crosses from value to policy, equal batches give equal bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.builders.observations import BLUEPRINTS, make_scene
from torch import nn

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX, Observations
from simic.contracts.errors import ContractError
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.state import SystemState
from simic.controllers.features import encode, feature_names
from simic.controllers.graph import GraphBatch
from simic.controllers.network import (
    FeatureNoise,
    NetworkOutput,
    NetworkShape,
    Normaliser,
    PolicyNetwork,
    fit_normaliser,
)
from simic.replay.graph_table import GraphTable

SHAPED = NetworkConfig(hidden=16, layers=2)
SHAPE = NetworkShape.of(SHAPED, BLUEPRINTS)


def lively(seed: int = 1, shape: NetworkShape = SHAPE) -> PolicyNetwork:
    """A network whose last layers say something."""
    network = PolicyNetwork(shape, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def batch_of(seed: int, hosts: int) -> GraphBatch:
    return encode(make_scene(seed, hosts).observations)


def renumbered(state: SystemState, slots: list[int], layers: list[int]) -> SystemState:
    """The same host with its slots and layers listed in another order, and its edges too."""
    slot_at, layer_at = {old: new for new, old in enumerate(slots)}, {old: new for new, old in enumerate(layers)}
    graph = state.graph.model_copy(
        update={
            "layers": [state.graph.layers[old] for old in layers],
            "connects": [(layer_at[a], layer_at[b]) for a, b in reversed(state.graph.connects)],
            "monitors": [(slot_at[a], layer_at[b]) for a, b in reversed(state.graph.monitors)],
        }
    )
    return state.model_copy(update={"slots": [state.slots[old] for old in slots], "graph": graph})


def test_renumbering_nodes_only_renumbers_rows() -> None:
    scene = make_scene(21, 30, slots=(2, 5), layers=(3, 6))
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(state.slots)).tolist() for state in scene.states]
    changed = [
        renumbered(state, order, rng.permutation(len(state.graph.layers)).tolist())
        for state, order in zip(scene.states, orders, strict=True)
    ]
    network = lively()
    with torch.no_grad():
        before, after = (
            network(encode(scene.observations)),
            network(encode(Observations.from_states(changed, BLUEPRINTS))),
        )
    moved = torch.tensor(
        [int(start) + old for start, order in zip(scene.observations.slot_ptr, orders, strict=False) for old in order]
    )
    assert not torch.equal(moved, torch.arange(len(moved)))
    for name in NetworkOutput._fields:
        expected = getattr(before, name)
        expected = expected if name in ("op", "value") else expected[moved]
        assert torch.allclose(getattr(after, name), expected, atol=2e-4, rtol=1e-4), name


def test_neighbours_are_averaged() -> None:
    """A slot listed twice says nothing new: neither operation nor value moves."""
    scene = make_scene(31, 10, slots=(1, 4))
    doubled = [
        state.model_copy(
            update={
                "slots": state.slots * 2,
                "graph": state.graph.model_copy(
                    update={
                        "monitors": state.graph.monitors
                        + [(slot + len(state.slots), layer) for slot, layer in state.graph.monitors]
                    }
                ),
            }
        )
        for state in scene.states
    ]
    network = lively()
    with torch.no_grad():
        once = network(encode(scene.observations))
        twice = network(encode(Observations.from_states(doubled, BLUEPRINTS)))
    assert torch.allclose(once.op, twice.op, atol=1e-4)
    assert torch.allclose(once.value, twice.value, atol=1e-3)


def test_a_host_does_not_see_its_neighbours_in_the_batch() -> None:
    table = batch_of(22, 40)
    network = lively()
    with torch.no_grad():
        together = network(table)
        for row in (0, 17, 39):
            alone = network(GraphTable.of(table).take(torch.tensor([row])))
            own = slice(int(table.slot_ptr[row]), int(table.slot_ptr[row + 1]))
            assert torch.allclose(alone.op[0], together.op[row], atol=1e-5, rtol=1e-5)
            assert torch.allclose(alone.slot, together.slot[own], atol=1e-5, rtol=1e-5)
            assert torch.allclose(alone.value[0], together.value[row], atol=1e-4, rtol=1e-5)


def test_equal_batches_give_equal_bits_and_leave_the_global_generator_alone() -> None:
    table = batch_of(23, 16)
    state = torch.random.get_rng_state()
    first, second, other = PolicyNetwork(SHAPE, 5), PolicyNetwork(SHAPE, 5), PolicyNetwork(SHAPE, 6)
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.no_grad():
        for a, b in zip(first(table), second(table), strict=True):
            assert torch.equal(a, b)
        assert not torch.equal(first(table).op, other(table).op)


def test_no_gradient_crosses_between_policy_and_value() -> None:
    """The policy reads the value encoder and yet leaves it alone."""
    network, table = lively(), batch_of(24, 8)
    network(table).value.square().sum().backward()
    assert all(parameter.grad is None for parameter in network.policy_parameters())
    assert all(parameter.grad is not None for parameter in network.value_parameters())
    network.zero_grad(set_to_none=True)
    output = network(table)
    sum(getattr(output, name).square().sum() for name in NetworkOutput._fields if name != "value").backward()
    assert all(parameter.grad is None for parameter in network.value_parameters())
    everything = {id(p) for p in network.parameters()}
    policy, value = ({id(p) for p in ps} for ps in (network.policy_parameters(), network.value_parameters()))
    assert policy | value == everything
    assert not policy & value


@pytest.mark.parametrize("node", ["context", "slot"])
def test_the_policy_reads_both_states_of_the_value_encoder(node: str) -> None:
    network, table = lively(), batch_of(24, 8)
    with torch.no_grad():
        before = network.act(table)
        network.value_encoder.layers[-1].norms[node].bias[3] += 1.0
        after = network.act(table)
    for name in ("op", "slot", "blueprint"):
        assert not torch.equal(getattr(after, name), getattr(before, name)), name


def test_no_parameter_is_dead() -> None:
    """L2 in kind: every parameter of a fresh network has a gradient somewhere."""
    network, table = lively(), batch_of(25, 40)
    output = network(table)
    sum(tensor.square().sum() for tensor in output).backward()
    dead = [name for name, p in network.named_parameters() if p.grad is None or not bool((p.grad != 0).any())]
    assert dead == []


def test_act_and_value_equal_forward() -> None:
    network, table = lively(), batch_of(26, 9)
    with torch.no_grad():
        whole, act, value = network(table), network.act(table), network.value(table)
    for name in NetworkOutput._fields:
        assert torch.equal(value if name == "value" else getattr(act, name), getattr(whole, name))


@pytest.mark.parametrize(("shape", "steps"), [(SHAPE, 9), (SHAPE, 4), (SHAPE, 1), (NetworkShape(24, 1, BLUEPRINTS), 6)])
def test_one_pass_over_both_equals_acting_and_valuing(shape: NetworkShape, steps: int) -> None:
    """The last graphs are final states, which have values and no logits.

    In double precision, because how a processor rounds in single precision depends on the size of the batch.
    """
    network, seen = lively(shape=shape).double(), batch_of(26, 9)
    everything = seen._replace(
        context_x=seen.context_x.double(), slot_x=seen.slot_x.double(), layer_x=seen.layer_x.double()
    )
    chosen = everything.first(steps, GraphTable.of(everything).sizes(steps))
    both, values = network.act_and_value(chosen, everything)
    apart = network.act(chosen)
    for name in NetworkOutput._fields:
        torch.testing.assert_close(getattr(both, name), getattr(apart, name), rtol=1e-12, atol=1e-12)
    assert torch.equal(values, network.value(everything))
    sum((part.square().sum() for part in both), values.square().sum()).backward()
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    network.zero_grad(set_to_none=True)
    apart = network.act(chosen)
    sum((part.square().sum() for part in apart), network.value(everything).square().sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            found[name], parameter.grad, rtol=0.0, atol=1e-12 * float(parameter.grad.norm()) + 1e-12
        )


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_m7_one_layer_norm_per_round_and_node_type(layers: int) -> None:
    """M7: norms sit at the end of a round and nowhere else; what no head reads is not computed in the last one."""
    network = PolicyNetwork(NetworkShape(16, layers, BLUEPRINTS))
    names = sorted(name for name, module in network.named_modules() if isinstance(module, nn.LayerNorm))
    expected = [
        f"{encoder}.layers.{number}.norms.{node}"
        for encoder in ("policy_encoder", "value_encoder")
        for number in range(layers)
        for node in ("context", "layer", "slot")
        if number < layers - 1 or node != "layer"
    ]
    assert names == sorted(expected)
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())


def test_a_fresh_policy_has_no_opinion() -> None:
    batch, germinate = batch_of(27, 50), OP_INDEX[Op.GERMINATE]
    with torch.no_grad():
        output = PolicyNetwork(SHAPE, 3)(batch)
    is_new = batch.context_x[:, feature_names(SHAPE.blueprints)["context"].index("epoch_fraction")] == 0
    assert 0 < is_new.sum() < len(is_new)
    assert (output.op[is_new, germinate] < -40).all(), "it looks before it grows"
    output.op[is_new, germinate] = 0.0
    for name in NetworkOutput._fields:
        bound = 1.0 if name == "value" else 0.1
        assert float(getattr(output, name).abs().max()) < bound, name


def test_normaliser_scales_what_is_present_and_leaves_absence_at_zero() -> None:
    table = batch_of(28, 400)
    network = PolicyNetwork(SHAPE)
    network.set_normaliser(fit_normaliser(table, BLUEPRINTS))
    names = feature_names(BLUEPRINTS)
    for node, x in (("context", table.context_x), ("slot", table.slot_x), ("layer", table.layer_x)):
        z = network.normalise[node](x)
        for index, name in enumerate(names[node]):
            flag = names[node].index(f"{name}_valid") if f"{name}_valid" in names[node] else None
            present = x[:, flag] > 0 if flag is not None else torch.ones(len(x), dtype=torch.bool)
            assert bool((z[~present, index] == 0).all()), name
            values = z[present, index]
            if len(values) > 50 and len(values.unique()) > 10:
                assert abs(float(values.mean())) < 0.05, name
                assert 0.8 < float(values.std()) < 1.1, name
            if name.endswith("_valid") or "=" in name:
                assert torch.equal(values, x[present, index]), name


def test_normaliser_version_follows_its_numbers() -> None:
    first, second = (fit_normaliser(batch_of(seed, 30), BLUEPRINTS) for seed in (1, 2))
    assert first.version == fit_normaliser(batch_of(1, 30), BLUEPRINTS).version != second.version
    network = PolicyNetwork(SHAPE)
    network.set_normaliser(first)
    assert network.normaliser().version == first.version
    short = Normaliser({**first.mean, "slot": torch.zeros(3)}, first.deviation)
    with pytest.raises(ContractError, match="slot"):
        network.set_normaliser(short)


def test_value_is_in_points_of_return() -> None:
    network, table = lively(), batch_of(29, 5)
    with torch.no_grad():
        network.set_value_scale(0.0, 1.0)
        raw = network.value(table)
        network.set_value_scale(3.0, 7.0)
        assert torch.allclose(network.value(table), 3.0 + 7.0 * raw, atol=1e-5)
    with pytest.raises(ContractError):
        network.set_value_scale(0.0, 0.0)


def test_hosts_without_slots_have_a_value_and_operations() -> None:
    table = encode(make_scene(30, 5, slots=(0, 1)).observations)
    with torch.no_grad():
        output = lively()(table)
    assert output.op.shape == (5, 6)
    assert output.slot.shape == (0, 6)
    assert torch.isfinite(output.value).all()


def test_feature_noise_perturbs_what_is_present_by_its_deviation() -> None:
    features = torch.cat([torch.full((4000, 3), 2.0), torch.zeros(4000, 2)], dim=1)
    noisy = FeatureNoise(0.3, torch.Generator().manual_seed(0)).added_to(features)
    assert torch.equal(noisy[:, 3:], features[:, 3:]), "an absent feature stays absent"
    assert (noisy - features)[:, :3].std().item() == pytest.approx(0.3, rel=0.05)
    assert (noisy - features)[:, :3].mean().item() == pytest.approx(0.0, abs=0.02)
    again = FeatureNoise(0.3, torch.Generator().manual_seed(0)).added_to(features)
    assert torch.equal(noisy, again)


def test_lf75_the_restraint_of_the_first_epoch_is_a_setting() -> None:
    """Without it, the logits are those of the network alone; elsewhere it changes nothing."""
    batch, germinate, network = batch_of(27, 50), OP_INDEX[Op.GERMINATE], lively()
    with torch.no_grad():
        kept = network(batch).op
        network.first_epoch_penalty.zero_()
        free = network(batch).op
    is_new = batch.context_x[:, feature_names(BLUEPRINTS)["context"].index("epoch_fraction")] == 0
    torch.testing.assert_close((free - kept)[:, germinate], 50.0 * is_new.float())
    assert torch.equal(free[~is_new], kept[~is_new])


@pytest.mark.parametrize("loss", [None, 0.7])
def test_the_epoch_and_not_the_training_loss_tells_whether_a_host_has_trained(loss: float | None) -> None:
    """A framework may leave the training loss out in every epoch."""
    scene, network = make_scene(27, 12), lively()
    measured = {"train_loss": loss, "train_accuracy": loss, "train_loss_history": [] if loss is None else [loss]}
    states = [one.model_copy(update={**measured, "epoch": index}) for index, one in enumerate(scene.states)]
    batch = encode(Observations.from_states(states, BLUEPRINTS))
    with torch.no_grad():
        kept = network.act(batch).op
        network.first_epoch_penalty.zero_()
        free = network.act(batch).op
    penalty = torch.zeros_like(free)
    penalty[0, OP_INDEX[Op.GERMINATE]] = 50.0
    torch.testing.assert_close(free - kept, penalty)
