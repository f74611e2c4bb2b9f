"""The stacked hosts against the benchmark's peers: one ``nn.Module`` per host under autograd, and ``torch.func``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peers.grouped import Grouped
from peers.in_turn import InTurn, ReferenceHost, flatten
from peers.scene import KINDS, Cast, Role
from peers.vmapped import Vmapped
from support.builders.ensembles import action, ensemble, stack, waits

from simic.contracts.actions import Op
from simic.hosts import host_sets as host_keys
from simic.hosts.interfaces import DataSplit
from simic.hosts.plugins import blueprint_names

SET = "benchmark"


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs.detach(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("key", range(5))
def test_two_epochs_of_every_family(key: int) -> None:
    grown, host = ensemble([key], horizon=4), ReferenceHost(key, SET)
    for epoch in range(2):
        grown.step(waits(1))
        train_loss = host.train_epoch(epoch)
        loss, accuracy, _ = host.evaluate()
        system = grown.observe().system
        assert system["train_loss"][0] == pytest.approx(train_loss, rel=2e-3)
        assert system["validation_loss"][0] == pytest.approx(loss, rel=5e-3)
        assert system["validation_accuracy"][0] == pytest.approx(accuracy, abs=2.1 / 450)
        if not epoch:
            _close(stack(grown).weights.parts[0][0], host.stem)
            _close(stack(grown).weights.parts[-1][0], host.head)
            blocks = [part for pair in zip(host.down, host.up, strict=True) for part in pair]
            for ours, theirs in zip(stack(grown).weights.parts[1:-1], blocks, strict=True):
                _close(ours[0], theirs)


@pytest.mark.parametrize("key", range(10))
def test_two_epochs_of_every_region_with_a_seed(key: int) -> None:
    """Learning rates, weight decay and initial scales of the host's own; the seed learns aside, then is felt."""
    grown, host = ensemble([key], horizon=4, world_set="varied"), ReferenceHost(key, "varied")
    host.germinate(1, "bottleneck")
    advance = action(Op.ADVANCE, slot=1, alpha_target=1)
    rows = (action(Op.GERMINATE, slot=1, blueprint=blueprint_names().index("bottleneck")), advance)
    for epoch, (row, alpha) in enumerate(zip(rows, (0.0, 0.7), strict=True)):
        grown.step(row[None])
        train_loss = host.train_epoch(epoch, [Role(1, "bottleneck", alpha, is_incubating=not epoch)])
        assert grown.observe().system["train_loss"][0] == pytest.approx(train_loss, rel=5e-3)
        if not epoch:
            theirs = torch.cat([value.detach() for value in flatten("bottleneck", host.seeds["1"])])
            _close(stack(grown).seeds.parameters[0, 1, : len(theirs)], theirs)
            _close(stack(grown).weights.parts[0][0], host.stem)
            _close(stack(grown).weights.parts[-1][0], host.head)


@pytest.mark.parametrize("slot", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_incubating_then_blending(name: str, slot: int) -> None:
    key = 4
    grown, host = ensemble([key], horizon=4), ReferenceHost(key, SET)
    germinate = action(Op.GERMINATE, slot=slot, blueprint=blueprint_names().index(name))
    advance = action(Op.ADVANCE, slot=slot, alpha_target=1)
    host.germinate(slot, name)
    for epoch, (row, alpha) in enumerate(((germinate, 0.0), (advance, 0.7))):
        grown.step(row[None])
        role = Role(slot, name, alpha, is_incubating=not epoch)
        train_loss = host.train_epoch(epoch, [role])
        assert grown.observe().system["train_loss"][0] == pytest.approx(train_loss, rel=2e-3)
        ours = stack(grown).seeds.parameters[0, slot]
        theirs = [value.detach() for value in flatten(name, host.seeds[str(slot)])]
        if theirs and not epoch:
            _close(ours[: sum(map(len, theirs))], torch.cat(theirs))
    loss, accuracy, without = host.evaluate([role])
    measured = grown._evaluate(DataSplit.VALIDATION, grown._slots["alpha"])
    assert measured.loss[0] == pytest.approx(loss, rel=5e-3)
    assert measured.accuracy[0] == pytest.approx(accuracy, abs=3.1 / 450)
    assert measured.accuracy_without[0, slot] == pytest.approx(without[slot], abs=3.1 / 450)
    assert np.isnan(measured.accuracy_without[0, [other for other in range(3) if other != slot]]).all()


def test_a_host_is_clipped_together_with_the_seed_it_feels() -> None:
    """Gradients of the gain family exceed the clip norm in most steps."""
    grown, host = ensemble([2], horizon=4), ReferenceHost(2, SET)
    host.germinate(0, "heavy")
    rows = (action(Op.GERMINATE, blueprint=blueprint_names().index("heavy")), action(Op.ADVANCE))
    for epoch, row in enumerate(rows):
        grown.step(row[None])
        host.train_epoch(epoch, [Role(0, "heavy", float(epoch), is_incubating=not epoch)])
    layers = grown.observe().layers["gradient_norm"]
    assert np.sqrt((layers**2).sum()) > 5
    moved = torch.linalg.vector_norm(stack(grown).weights.parts[0][0] - stack(ensemble([2])).weights.parts[0][0])
    assert moved > 0.5
    torch.testing.assert_close(stack(grown).weights.parts[0][0], host.stem.detach(), rtol=0.02, atol=0.01)


@pytest.mark.parametrize("peer", [InTurn, Vmapped, Grouped])
def test_three_seeds_side_by_side(monkeypatch: pytest.MonkeyPatch, peer: type[InTurn | Vmapped]) -> None:
    """Some felt, some learning beside their host, in front of each other and behind; every blueprint in every slot."""
    monkeypatch.setitem(host_keys.SETS, "three", host_keys.HostSet(("cap", "select", "noisy", "fine"), seeds_max=3))
    keys = list(range(len(KINDS)))
    grown, others = ensemble(keys, world_set="three"), peer(keys, "three")
    hosts = np.arange(len(keys))
    kind = np.array([[(key + slot * (1 + key // 3)) % len(KINDS) for slot in range(3)] for key in keys])
    alpha = np.zeros((len(keys), 3), dtype=np.float32)
    for epoch in range(6):
        # Odd hosts let the last slot's seed in first, so that every slot holds felt seeds and others at a time.
        slot = np.full(len(keys), epoch) if epoch < 3 else (epoch + 1 + hosts % 2) % 3
        if epoch < 3:
            names = [blueprint_names().index(KINDS[index]) for index in kind[:, epoch]]
            rows = [action(Op.GERMINATE, slot=epoch, blueprint=name, tempo=2) for name in names]
        else:
            alpha[hosts, slot] = 0.7
            rows = [action(Op.ADVANCE, slot=index, alpha_target=1) for index in slot.tolist()]
        grown.step(np.stack(rows))
        slots, system = grown.observe().slots, grown.observe().system
        np.testing.assert_array_equal(slots["alpha"].reshape(-1, 3), alpha)
        shown = others.epoch(epoch, Cast(np.where(np.arange(3) <= epoch, kind, -1), alpha.copy()))
        np.testing.assert_allclose(system["train_loss"], shown.train_loss, rtol=1e-3)
        np.testing.assert_allclose(system["validation_loss"], shown.loss, rtol=2e-3)
        np.testing.assert_allclose(system["validation_accuracy"], shown.accuracy, atol=2.1 / 450)
        np.testing.assert_array_equal(np.isfinite(shown.without), alpha > 0)
        if epoch >= 3:
            # The first measurement of a seed is its average.
            worth = shown.accuracy - shown.without[hosts, slot]
            measured = slots["contribution"].reshape(-1, 3)[hosts, slot]
            np.testing.assert_allclose(measured, worth, atol=2.1 / 450)
