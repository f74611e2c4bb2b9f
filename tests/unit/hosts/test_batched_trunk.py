"""The written-out backward pass of every trunk, against automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from support.builders.ensembles import ensemble, stack
from support.checks.autograd_reference import differentiate
from torch import Tensor

from simic.hosts.batched.host_batch import BatchedHosts
from simic.hosts.batched.seeds import PackedSeeds, pack_seeds
from simic.hosts.batched.trunk import StepBatch, per_row
from simic.hosts.batched.weights import HostWeights
from simic.hosts.interfaces import SeedAssignment
from simic.hosts.plugins import blueprint_names

SLOTS = 3
CASES = {
    "nothing grows": [],
    "incubating": [(host, host % SLOTS, "dense", None) for host in range(5)],
    "felt": [(host, slot, "heavy", 0.3 + 0.2 * slot) for host in range(5) for slot in range(SLOTS)],
    "an incubating seed passes through felt ones": [
        *[(host, 0, "gate", None) for host in range(4)],
        *[(host, 1, "norm", 0.7) for host in range(3)],
        *[(host, 2, name, 1.0) for host, name in enumerate(("dropout", "bottleneck", "heavy", "dense"))],
    ],
    "all blueprints": [
        (host, slot, name, None if (host + slot) % 2 else 0.5)
        for slot in range(SLOTS)
        for host, name in enumerate(("norm", "gate", "bottleneck", "dropout", "heavy"))
        if not (name == "dropout" and (host + slot) % 2)
    ],
}
"""(host, slot, blueprint, alpha), no alpha for a seed that incubates."""


class Step(NamedTuple):
    """What one backward pass needs."""

    parts: Sequence[Tensor]
    packed: PackedSeeds
    batch: StepBatch


def _prepare(hosts: BatchedHosts, seeds: Sequence[tuple[int, int, str, float | None]]) -> Step:
    slots = len(hosts.topology.sites)
    shape = (len(hosts.keys), slots)
    assignment = SeedAssignment(np.full(shape, -1, np.int16), np.zeros(shape, np.float32), np.zeros(shape, bool))
    for host, slot, name, alpha in (seed for seed in seeds if seed[1] < slots):
        index = blueprint_names().index(name)
        hosts.germinate(host, slot, 1, index)
        # Away from birth, where most of a seed has no effect yet.
        size = hosts.blueprints[index].parameters(hosts.topology.sites[slot])
        hosts.seeds.parameters[host, slot, :size] += 0.1
        assignment.blueprint[host, slot] = index
        assignment.alpha[host, slot], assignment.is_incubating[host, slot] = alpha or 0.0, alpha is None
    packed = pack_seeds(hosts.seeds, assignment, hosts.blueprints, hosts.topology.sites, in_training=True)
    for _, group in packed.groups():
        group.parameters.requires_grad_(bool(group.parameters.shape[1]))
    batches = hosts.dataset.batches(0)._replace(noise=hosts.dataset.noise(packed, 0))
    return Step(per_row(hosts.trunk, hosts.weights, packed.layout), packed, batches.step(0, packed))


def _is_close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-5 * max(1.0, float(theirs.abs().max())))


TRUNKS = (
    *("benchmark", "images", "plain_10x1", "plain_16x3", "residual_12x3", "conv_8x1", "conv_4x2", "pooled_8x2"),
    "normed_8x3",
)


@pytest.mark.parametrize("world_set", TRUNKS)
@pytest.mark.parametrize("case", CASES)
def test_automatic_and_written_out_gradients_agree(case: str, world_set: str) -> None:
    hosts = stack(ensemble(range(5), world_set=world_set))
    seeds = [seed for seed in CASES[case] if seed[1] < len(hosts.topology.sites)]
    step = _prepare(hosts, seeds)
    shapes = [part.shape for part in hosts.trunk.parts]
    found = [HostWeights.zeros(5, shapes) for _ in range(2)]
    with torch.no_grad():
        logits, own = hosts.trunk.backpropagate(*step, found[0])
        others, automatic = differentiate(hosts.trunk, *step, found[1])
    assert _is_close(logits, others)
    assert len(logits) == 5 + sum(alpha is None for *_, alpha in seeds)
    for ours, theirs in zip(found[0].parts, found[1].parts, strict=True):
        assert theirs.any()
        assert _is_close(ours, theirs)
    assert len(own) == len(automatic) == len({(slot, name) for _, slot, name, _ in seeds if name != "dropout"})
    for ours, theirs in zip(own, automatic, strict=True):
        assert theirs.flatten(1).any(dim=1).all(), "every seed feels a gradient"
        assert _is_close(ours, theirs)


def test_an_incubating_seed_gives_no_gradient_to_its_host() -> None:
    alone, growing = stack(ensemble(range(5), world_set="images")), stack(ensemble(range(5), world_set="images"))
    found = [HostWeights.zeros(5, [part.shape for part in alone.trunk.parts]) for _ in range(2)]
    with torch.no_grad():
        alone.trunk.backpropagate(*_prepare(alone, []), found[0])
        growing.trunk.backpropagate(*_prepare(growing, CASES["incubating"]), found[1])
    assert torch.equal(found[0].flat, found[1].flat)
