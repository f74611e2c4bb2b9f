"""The stacked hosts against one ``nn.Module`` per host under autograd: the benchmark's reference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from support.grown import action, ensemble, stack, waits

from simic.contracts.actions import Op
from simic.hosts.catalogue import blueprint_names
from simic.hosts.keys import STANDARD
from simic.hosts.protocols import Part


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """``benchmarks/hosts.py``, which is no package."""
    path = Path(__file__).parents[2] / "benchmarks" / "hosts.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_hosts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs.detach(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("key", range(5))
def test_two_epochs_of_every_family(reference: ModuleType, key: int) -> None:
    grown, host = ensemble([key], horizon=4), reference.ReferenceHost(key)
    for epoch in range(2):
        grown.step(waits(1))
        train_loss = host.train_epoch(epoch, None)
        loss, accuracy, _ = host.evaluate(None)
        system = grown.observe().system
        assert system["train_loss"][0] == pytest.approx(train_loss, rel=2e-3)
        assert system["validation_loss"][0] == pytest.approx(loss, rel=5e-3)
        assert system["validation_accuracy"][0] == pytest.approx(accuracy, abs=2.1 / 450)
        if not epoch:
            _close(stack(grown).weights.parts[0][0], host.stem)
            _close(stack(grown).weights.parts[-1][0], host.head)
            for ours, theirs in zip(
                (*stack(grown).weights.parts[1:-1:2], *stack(grown).weights.parts[2:-1:2]),
                [*host.down, *host.up],
                strict=True,
            ):
                _close(ours[0], theirs)


@pytest.mark.parametrize("slot", range(3))
@pytest.mark.parametrize("name", STANDARD)
def test_incubating_then_blending(reference: ModuleType, name: str, slot: int) -> None:
    key = 4
    grown, host = ensemble([key], horizon=4), reference.ReferenceHost(key)
    germinate = action(Op.GERMINATE, slot=slot, blueprint=blueprint_names().index(name))
    advance = action(Op.ADVANCE, slot=slot, alpha_target=1)
    host.germinate(slot, name)
    for epoch, (row, alpha) in enumerate(((germinate, 0.0), (advance, 0.7))):
        grown.step(row[None])
        role = reference.Role(slot, name, alpha, is_incubating=not epoch)
        train_loss = host.train_epoch(epoch, role)
        assert grown.observe().system["train_loss"][0] == pytest.approx(train_loss, rel=2e-3)
        ours = stack(grown).seeds.parameters[0, slot]
        theirs = [value.detach() for value in reference.flatten(name, host.seeds[str(slot)])]
        if theirs and not epoch:
            _close(ours[: sum(map(len, theirs))], torch.cat(theirs))
    loss, accuracy, without = host.evaluate(role)
    measured = grown._evaluate(Part.VALIDATION, grown._slots["alpha"])
    assert measured.loss[0] == pytest.approx(loss, rel=5e-3)
    assert measured.accuracy[0] == pytest.approx(accuracy, abs=3.1 / 450)
    assert measured.accuracy_without[0, slot] == pytest.approx(without, abs=3.1 / 450)
    assert np.isnan(measured.accuracy_without[0, [other for other in range(3) if other != slot]]).all()


def test_a_host_is_clipped_together_with_the_seed_it_feels(reference: ModuleType) -> None:
    """Gradients of the gain family exceed the clip norm in most steps."""
    grown, host = ensemble([2], horizon=4), reference.ReferenceHost(2)
    host.germinate(0, "heavy")
    rows = (action(Op.GERMINATE, blueprint=4), action(Op.ADVANCE))
    for epoch, row in enumerate(rows):
        grown.step(row[None])
        host.train_epoch(epoch, reference.Role(0, "heavy", float(epoch), is_incubating=not epoch))
    layers = grown.observe().layers["gradient_norm"]
    assert np.sqrt((layers**2).sum()) > 5
    moved = torch.linalg.vector_norm(stack(grown).weights.parts[0][0] - stack(ensemble([2])).weights.parts[0][0])
    assert moved > 0.5
    torch.testing.assert_close(stack(grown).weights.parts[0][0], host.stem.detach(), rtol=0.02, atol=0.01)
