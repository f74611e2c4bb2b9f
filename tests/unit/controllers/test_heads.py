"""The distribution over actions: legal, normalised, smooth, and silent about heads that do not matter."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.builders.observations import BLUEPRINTS, Scene, make_scene
from torch import Tensor

from simic.contracts.actions import HEADS, OPS, RELEVANT_HEADS, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX
from simic.controllers import heads, sampling
from simic.controllers.heads import ActionDistribution
from simic.controllers.network import NetworkOutput

HEAD_OF_FIELD = {
    "blueprint": Head.BLUEPRINT, "tempo": Head.TEMPO, "target": Head.ALPHA_TARGET, "speed": Head.ALPHA_SPEED,
    "curve": Head.ALPHA_CURVE,
}  # fmt: skip


def random_output(scene: Scene, seed: int = 0, scale: float = 2.0) -> NetworkOutput:
    generator = torch.Generator().manual_seed(seed)
    n, s = len(scene.observations), int(scene.observations.slot_ptr[-1])
    sizes = [(n, 6), (s, 6), (s, len(BLUEPRINTS)), (s, 3), (s, 3), (s, 4), (s, 3), (n,)]
    return NetworkOutput(*(scale * torch.randn(size, generator=generator).double() for size in sizes))


def parts(scene: Scene) -> tuple[Tensor, heads.MaskTensors]:
    return torch.tensor(scene.observations.slot_ptr), heads.MaskTensors.of(scene.masks)


def mixture(scene: Scene, output: NetworkOutput, exploration: float) -> ActionDistribution:
    return ActionDistribution(output, *parts(scene), exploration)


def drawn(scene: Scene, output: NetworkOutput, exploration: float = 0.1) -> Tensor:
    return torch.from_numpy(mixture(scene, output, exploration).sample(scene.uniforms).actions)


def literal_mixture(logits: NDArray[np.float64], legal: NDArray[np.bool_], exploration: float) -> NDArray[np.float64]:
    weights = np.where(legal, np.exp(logits - logits[legal].max()), 0.0)
    return (1 - exploration) * weights / weights.sum() + exploration * legal / legal.sum()


def literal_log_prob(scene: Scene, output: NetworkOutput, host: int, row: list[int], exploration: float) -> float:
    """The definition, one host and one head at a time."""
    first = int(scene.observations.slot_ptr[host])
    own = slice(first, int(scene.observations.slot_ptr[host + 1]))
    op = row[0]
    total = math.log(literal_mixture(output.op[host].numpy(), scene.masks.op[host], exploration)[op])
    if op != OP_INDEX[Op.WAIT]:
        pointer = literal_mixture(output.slot[own, op].numpy(), scene.masks.slot[own, op], exploration)
        total += math.log(pointer[row[1]])
    for field, head in HEAD_OF_FIELD.items():
        if head in RELEVANT_HEADS[OPS[op]]:
            logits = getattr(output, field)[first + row[1]].numpy()
            legal = scene.masks.blueprint[host] if head is Head.BLUEPRINT else np.ones(len(logits), dtype=bool)
            total += math.log(literal_mixture(logits, legal, exploration)[row[HEAD_INDEX[head]]])
    return total


@pytest.mark.parametrize("exploration", [0.0, 0.02, 0.3])
def test_log_prob_equals_the_definition(exploration: float) -> None:
    scene = make_scene(41, 60)
    output = random_output(scene)
    actions = drawn(scene, output)
    found = mixture(scene, output, exploration).log_prob(actions)
    expected = [literal_log_prob(scene, output, i, row.tolist(), exploration) for i, row in enumerate(actions)]
    assert found.joint.tolist() == pytest.approx(expected, abs=1e-9)
    assert torch.equal(found.joint, found.heads.sum(1))
    assert bool((found.heads[~heads.relevant_heads(actions)] == 0).all())


@pytest.mark.parametrize("exploration", [0.0, 0.02])
def test_several_actions_of_a_state_have_the_log_probs_that_each_has_alone(exploration: float) -> None:
    scene = make_scene(47, 40)
    output = NetworkOutput(*(part.requires_grad_() for part in random_output(scene)))
    distribution, draw = mixture(scene, output, exploration), np.random.default_rng(47)
    some = torch.from_numpy(np.stack([draw.choice(legal_actions(scene, host), 5) for host in range(40)]))
    together = distribution.log_probs(some)
    each = [distribution.log_prob(actions).joint for actions in some.unbind(1)]
    assert torch.allclose(together, torch.stack(each, dim=1), atol=1e-12)
    weights = torch.rand(together.shape, dtype=together.dtype, generator=torch.Generator().manual_seed(47))
    ours, theirs = (
        torch.autograd.grad((found * weights).sum(), output[:-1], allow_unused=True)
        for found in (together, torch.stack(each, dim=1))
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_a_state_without_slots_has_only_operations() -> None:
    output = NetworkOutput(torch.zeros(2, 6), *(torch.zeros(0, size) for size in (6, 9, 3, 3, 4, 3)), torch.zeros(2))
    masks = heads.MaskTensors(torch.ones(2, 6) > 0, torch.ones(0, 6) > 0, torch.ones(2, 9) > 0)
    waiting = torch.tensor([0, -1, -1, -1, -1, -1, -1]).expand(2, 3, 7)
    found = ActionDistribution(output, torch.tensor([0, 0, 0]), masks, 0.0).log_probs(waiting)
    assert torch.allclose(found, torch.full((2, 3), -math.log(6.0)))


def legal_actions(scene: Scene, host: int) -> list[list[int]]:
    first, last = scene.observations.slot_ptr[host], scene.observations.slot_ptr[host + 1]
    legal: list[list[int]] = []
    sizes = {Head.ALPHA_TARGET: 3, Head.ALPHA_SPEED: 4, Head.ALPHA_CURVE: 3, Head.TEMPO: 3}
    for op in np.flatnonzero(scene.masks.op[host]):
        choices = {
            Head.OP: [int(op)],
            Head.SLOT: np.flatnonzero(scene.masks.slot[first:last, op]).tolist(),
            Head.BLUEPRINT: np.flatnonzero(scene.masks.blueprint[host]).tolist(),
            **{head: list(range(size)) for head, size in sizes.items()},
        }
        relevant = RELEVANT_HEADS[OPS[op]]
        legal += [list(row) for row in itertools.product(*(choices[h] if h in relevant else [-1] for h in HEADS))]
    return legal


@pytest.mark.parametrize("exploration", [0.0, 0.1])
def test_probabilities_of_all_legal_actions_add_up_to_one(exploration: float) -> None:
    scene = make_scene(42, 6)
    distribution = mixture(scene, random_output(scene), exploration)
    for host in range(6):
        rows = legal_actions(scene, host)
        total = 0.0
        for row in rows:
            actions = torch.zeros(6, 7, dtype=torch.int64).fill_(-1)
            actions[:, 0] = OP_INDEX[Op.WAIT]
            actions[host] = torch.tensor(row)
            total += math.exp(float(distribution.log_prob(actions).joint[host]))
        assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("logits", [(4.0, 0.0, -1.0), (12.0, 0.0, -9.0), (-8.0, 8.0, 8.0)])
@pytest.mark.parametrize("exploration", [0.15, 0.02])
def test_l1_a_saturated_head_still_has_a_gradient(logits: tuple[float, ...], exploration: float) -> None:
    """L1: every action's log-probability moves with every available logit, also where a floor would have clamped."""
    scene = make_scene(43, 1)
    legal = torch.tensor([[True, True, False, False, False, True]])
    masks = heads.MaskTensors(legal, torch.ones(int(scene.observations.slot_ptr[-1]), 6, dtype=torch.bool),
                              torch.ones(1, len(BLUEPRINTS), dtype=torch.bool))  # fmt: skip
    pointer = torch.tensor(scene.observations.slot_ptr)
    place = [0, 1, 5]

    def of(values: Tensor, op: int) -> Tensor:
        output = random_output(scene)._replace(
            op=torch.full((1, 6), 50.0).double().index_copy(1, torch.tensor(place), values)
        )
        actions = torch.tensor([[op, 0, 0, 0, 0, 0, 0]])
        return ActionDistribution(output, pointer, masks, exploration).log_prob(actions).heads[:, 0]

    values = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    for op in place:
        (gradient,) = torch.autograd.grad(of(values, op).sum(), values)
        assert bool((gradient != 0).all()), (op, gradient)
        assert torch.autograd.gradcheck(lambda x, op=op: of(x, op), (values,), atol=1e-9)


def test_irrelevant_heads_send_no_gradient() -> None:
    """A WAIT teaches the operation head and nothing else, whatever was available."""
    scene = make_scene(44, 20)
    output = NetworkOutput(*(x.requires_grad_() for x in random_output(scene)))
    actions = torch.full((20, 7), -1)
    actions[:, 0] = OP_INDEX[Op.WAIT]
    ours, theirs = (mixture(scene, one, 0.02) for one in (output, random_output(scene, 9)))
    joint = ours.log_prob(actions).joint.sum() + ours.entropy(actions).sum() + ours.kl(theirs, actions).sum()
    gradients = torch.autograd.grad(joint, list(output), allow_unused=True, materialize_grads=True)
    for name, gradient in zip(NetworkOutput._fields, gradients, strict=True):
        assert torch.isfinite(gradient).all()
        assert bool((gradient != 0).any()) == (name == "op"), name


def test_h3_padding_with_irrelevant_steps_changes_no_gradient() -> None:
    """H3: a head's mean entropy is over the steps where it mattered, and 0 without gradient where none did."""
    scene = make_scene(45, 30)
    actions = drawn(scene, random_output(scene))
    relevant = heads.relevant_heads(actions)

    def slot_gradient(weight_of_waits: int) -> Tensor:
        output = NetworkOutput(*(x.requires_grad_() for x in random_output(scene)))
        per_head = mixture(scene, output, 0.02).entropy(actions)
        waits = torch.nonzero(actions[:, 0] == OP_INDEX[Op.WAIT]).flatten().repeat(weight_of_waits)
        rows = torch.cat([torch.arange(30), waits])
        mean = heads.head_mean(per_head[rows], relevant[rows])[HEAD_INDEX[Head.SLOT]]
        return torch.autograd.grad(mean, output.slot)[0]

    assert int((actions[:, 0] == OP_INDEX[Op.WAIT]).sum()) > 0
    assert torch.allclose(slot_gradient(0), slot_gradient(50), atol=1e-12)
    nowhere = torch.zeros_like(relevant)
    values = torch.ones(30, 7, requires_grad=True)
    mean = heads.head_mean(values, nowhere)
    assert mean.tolist() == [0.0] * 7
    assert torch.autograd.grad(mean.sum(), values)[0].abs().max() == 0


def test_h6_an_irrelevant_head_cannot_inflate_the_kl() -> None:
    """H6: KL is summed over relevant heads, zero against oneself, and blind to heads that did not matter."""
    scene = make_scene(46, 25)
    first, second = random_output(scene, 1), random_output(scene, 2)
    louder = second._replace(slot=second.slot * 9, tempo=second.tempo * 9)
    ours, theirs, loud = (mixture(scene, one, 0.05) for one in (first, second, louder))
    actions = drawn(scene, first)
    divergence = ours.kl(theirs, actions)
    relevant = heads.relevant_heads(actions)
    assert bool((divergence[relevant] >= -1e-12).all())
    assert bool((divergence[~relevant] == 0).all())
    assert ours.kl(ours, actions).abs().max() == 0
    waits = actions[:, 0] == OP_INDEX[Op.WAIT]
    assert torch.equal(ours.kl(loud, actions)[waits], divergence[waits])


def test_kl_and_entropy_equal_their_sums() -> None:
    scene = make_scene(47, 12)
    ours, theirs = random_output(scene, 1), random_output(scene, 2)
    actions = drawn(scene, ours)
    divergence = mixture(scene, ours, 0.1).kl(mixture(scene, theirs, 0.1), actions)
    entropy = mixture(scene, ours, 0.1).entropy(actions)
    for host in range(12):
        legal = scene.masks.op[host]
        p, q = (literal_mixture(x.op[host].numpy(), legal, 0.1)[legal] for x in (ours, theirs))
        assert float(divergence[host, 0]) == pytest.approx(float((p * np.log(p / q)).sum()))
        assert float(entropy[host, 0]) == pytest.approx(float(-(p * np.log(p)).sum()))


def test_sampled_log_probs_are_those_of_the_mixture() -> None:
    scene = make_scene(48, 300)
    output = NetworkOutput(*(x.float() for x in random_output(scene)))
    distribution = mixture(scene, output, 0.02)
    decisions = distribution.sample(scene.uniforms)
    recomputed = distribution.log_prob(torch.from_numpy(decisions.actions))
    relevant = heads.relevant_heads(torch.from_numpy(decisions.actions)).numpy()
    assert np.abs(recomputed.heads.numpy()[relevant] - decisions.log_probs[relevant]).max() < 1e-6
    assert np.isnan(decisions.log_probs[~relevant]).all()
    assert (decisions.actions[~relevant] == -1).all()
    assert len(np.unique(decisions.actions[:, 0])) == 6


def test_sampling_frequencies_follow_the_probabilities() -> None:
    scene = make_scene(49, 1, slots=(3, 4))
    output = random_output(scene, scale=1.0)
    many = scene.observations.take(np.zeros(40_000, dtype=np.int64))
    masks = scene.masks.take(np.zeros(40_000, dtype=np.int64), scene.observations.slot_ptr)
    repeated = NetworkOutput(*(x.repeat(40_000, *[1] * (x.dim() - 1)) for x in output))
    uniforms = np.random.default_rng(0).random((40_000, 7))
    distribution = ActionDistribution(repeated, torch.tensor(many.slot_ptr), heads.MaskTensors.of(masks), 0.1)
    decisions = distribution.sample(uniforms)
    keys, counts = np.unique(decisions.actions, axis=0, return_counts=True)
    rows = legal_actions(scene, 0)
    expected = {tuple(row): math.exp(literal_log_prob(scene, output, 0, row, 0.1)) for row in rows}
    found = {tuple(key.tolist()): count for key, count in zip(keys, counts, strict=True)}
    assert set(found) <= set(expected)
    statistic = sum((found.get(row, 0) - 40_000 * p) ** 2 / (40_000 * p) for row, p in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 4.0 * math.sqrt(2 * freedom)


def test_decisive_draws_the_operation_and_takes_the_best_of_the_rest() -> None:
    scene = make_scene(50, 80)
    output = random_output(scene)
    distribution = mixture(scene, output, 0.0)
    decisions = sampling.sample_op_greedy_factors(distribution, scene.uniforms)
    drawn_alike = distribution.sample(scene.uniforms)
    assert np.array_equal(decisions.actions[:, 0], drawn_alike.actions[:, 0])
    assert np.array_equal(decisions.log_probs[:, 0], drawn_alike.log_probs[:, 0])
    relevant = heads.relevant_heads(torch.from_numpy(decisions.actions)).numpy()[:, 1:]
    assert (decisions.log_probs[:, 1:][relevant] == 0).all()
    for host, row in enumerate(decisions.actions.tolist()):
        op = row[0]
        own = slice(*scene.observations.slot_ptr[host : host + 2])
        if op != OP_INDEX[Op.WAIT]:
            assert row[1] == np.where(scene.masks.slot[own, op], output.slot[own, op].numpy(), -np.inf).argmax()


@given(
    seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 3.0, 60.0]), exploration=st.sampled_from([0.0, 0.02, 0.4])
)
def test_masks_are_never_broken(seed: int, scale: float, exploration: float) -> None:
    """Whatever the logits and the draw, also at the ends of the interval, only legal actions come out."""
    scene = make_scene(seed, 8, slots=(0, 4))
    output = NetworkOutput(*(x.float() for x in random_output(scene, seed, scale)))
    extremes = np.where(scene.uniforms < 0.3, 0.0, np.where(scene.uniforms > 0.7, np.nextafter(1.0, 0.0), 0.5))
    for uniforms in (scene.uniforms, extremes):
        for decisions in (
            mixture(scene, output, exploration).sample(uniforms),
            sampling.sample_op_greedy_factors(mixture(scene, output, 0.0), uniforms),
        ):
            for host, (op, slot, blueprint, *_) in enumerate(decisions.actions.tolist()):
                assert scene.masks.op[host, op]
                if slot >= 0:
                    assert scene.masks.slot[scene.observations.slot_ptr[host] + slot, op]
                if blueprint >= 0:
                    assert scene.masks.blueprint[host, blueprint]
            logs = decisions.log_probs[~np.isnan(decisions.log_probs)]
            assert np.isfinite(logs).all()


def test_all_gradients_are_finite_at_float32_extremes() -> None:
    scene = make_scene(51, 30)
    output = NetworkOutput(*(x.float().requires_grad_() for x in random_output(scene, 3, scale=200.0)))
    actions = drawn(scene, output, 0.3)
    for exploration in (0.0, 0.02):
        distribution = mixture(scene, output, exploration)
        loss = distribution.log_prob(actions).joint.sum() + distribution.entropy(actions).sum()
        gradients = torch.autograd.grad(loss, list(output), allow_unused=True, materialize_grads=True)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_lf22_slot_and_blueprint_follow_any_joint_table() -> None:
    """A blueprint that pays in one slot only: its probability there says nothing about it in other slots."""
    scene = make_scene(43, 1, slots=(3, 4))
    pointer, masks = parts(scene)
    slots, germinate = int(pointer[1]), OP_INDEX[Op.GERMINATE]
    masks.op[:], masks.slot[:], masks.blueprint[:] = True, True, True
    table = torch.rand(slots, len(BLUEPRINTS), generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4
    table /= table.sum()
    output = random_output(scene)
    output.slot[:, germinate] = table.sum(1).log()
    output.blueprint[:] = (table / table.sum(1, keepdim=True)).log()
    for slot, blueprint in itertools.product(range(slots), range(len(BLUEPRINTS))):
        action = drawn(scene, output)
        action[0] = 0
        action[0, :3] = torch.tensor([germinate, slot, blueprint])
        found = ActionDistribution(output, pointer, masks, 0.0).log_prob(action).heads[0]
        joint = found[HEAD_INDEX[Head.SLOT]] + found[HEAD_INDEX[Head.BLUEPRINT]]
        assert float(joint) == pytest.approx(math.log(float(table[slot, blueprint])), abs=1e-9)
