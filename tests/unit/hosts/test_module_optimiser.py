"""Hosts that train with an optimiser of their family."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.ensembles import waits
from support.fakes.custom_hosts import Toy, ToyFamily, grown_modules, install
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import simic
from simic.contracts.actions import OPS, Op
from simic.contracts.batches import Observations
from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import WorldConfig
from simic.hosts.blueprints import STANDARD
from simic.hosts.custom.attached import AttachedHost
from simic.hosts.custom.forward import RngStream, seeded_rng
from simic.hosts.custom.host import build_host
from simic.hosts.custom.optimised import OptimisedHosts
from simic.hosts.custom.training import batch_of, sample_order
from simic.hosts.ensemble import Ensemble
from simic.hosts.world_identity import world_identity

EPOCHS, KEY = 16, 8


def adamw(module: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    """Two groups, of which seeds must find theirs."""
    parts: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, one in module.named_parameters():
        parts[name.startswith("head")].append(one)
    return torch.optim.AdamW([{"params": parts[True]}, {"params": parts[False], "lr": lr / 2}], lr=lr)


def columns_of(seen: Observations) -> dict[str, Any]:
    """All columns that change, by name; those of the first host."""
    tables = {name: getattr(seen, name) for name in ("system", "history", "slots", "layers")}
    rows = {"slots": 2, "layers": 3}
    return {
        f"{table}.{name}": column[: rows.get(table, 1)]
        for table, columns in tables.items()
        for name, column in columns.items()
    }


def optimised(grown: Ensemble) -> list[tuple[AttachedHost, torch.optim.Optimizer]]:
    """The hosts of an ensemble."""
    hosts = grown._hosts
    assert isinstance(hosts, OptimisedHosts)
    return hosts._hosts


def test_a_family_with_adamw_gives_the_bits_of_a_grower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout and batch statistics included: the owner draws and clips as the host does. Another host stands beside."""
    family = ToyFamily(optimizer=adamw)
    install(monkeypatch, {"toy": family})
    spare = build_host(family, KEY, "spare")
    model, spec = copy.deepcopy(spare.module), spare.spec
    optimizer = adamw(model)
    samples = {"validation": spec.validation, "test": spec.test}
    settings: dict[str, Any] = {"epochs": EPOCHS, "policy": "random", "seeds_max": 2, "seed": KEY, "name": "toy"}
    grower = simic.Grower(model, optimizer, slots=spec.layers, **samples, **settings)
    hosts = grown_modules([KEY, 4], horizon=EPOCHS)
    done: set[int] = set()
    for epoch in range(EPOCHS):
        mine, theirs = (columns_of(one) for one in (grower._pending.observations, hosts.observe()))
        for name, column in mine.items():
            np.testing.assert_array_equal(column, theirs[name], err_msg=f"{epoch} {name}")
        actions = waits(2)
        actions[0] = grower._pending.decisions.actions[0]
        # Before the first batch, a Grower has only validation samples to probe a seed on.
        assert epoch or actions[0, 0] != OPS.index(Op.GERMINATE)
        done.add(int(actions[0, 0]))
        hosts.step(actions)
        model.train()
        rows = sample_order(spare, epoch)
        for step in range(spare.steps):
            inputs, labels = batch_of(spare, rows, step)
            optimizer.zero_grad()
            with seeded_rng(KEY, RngStream.TRAINING, epoch, step):
                grower.loss(model(inputs), labels).backward()
                clip_grad_norm_(model.parameters(), spec.clip_norm)
                optimizer.step()
        trained = copy.deepcopy(model.state_dict())
        grower.step()
        weights = optimised(hosts)[0][0].host.module.state_dict()
        assert weights.keys() >= spare.module.state_dict().keys()  # and the seeds that did not end with the epoch
        assert all(torch.equal(one, trained[name]) for name, one in weights.items()), epoch
    assert len(done) == len(OPS)


def test_bits_do_not_depend_on_neighbours_and_a_diverging_host_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second host gets a learning rate that destroys it; it goes back to its last epoch and its episode ends."""

    class Uneven(ToyFamily):
        def host(self, key: int) -> Any:
            return replace(super().host(key), optimizer=lambda module: adamw(module, 1e30 if key == 4 else 0.01))

    install(monkeypatch, {"toy": Uneven()})
    alone, together = grown_modules([KEY]), grown_modules([KEY, 4])
    for epoch in range(3):
        alone.step(waits(1))
        events = together.step(waits(2)).governor
        assert events[0] is None
        assert (events[1] is not None) == (epoch == 0)
    assert together.is_finished.tolist() == [False, True]
    for name, column in columns_of(alone.observe()).items():
        np.testing.assert_array_equal(column, columns_of(together.observe())[name], err_msg=name)
    mine, other = (host.host for host, _ in optimised(together))
    lone = optimised(alone)[0][0].host
    assert all(torch.equal(one, mine.module.state_dict()[name]) for name, one in lone.module.state_dict().items())
    born = build_host(Uneven(), 4, "born").module.state_dict()
    assert all(torch.equal(one, born[name]) for name, one in other.module.state_dict().items())


def test_the_optimiser_is_part_of_the_identity_of_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family may read its settings from a file, which the digest of its code does not cover."""
    seen = []
    for optimizer in (None, adamw, lambda module: adamw(module, 0.02)):
        install(monkeypatch, {"toy": ToyFamily(optimizer=optimizer)})
        seen.append(world_identity(WorldConfig(set="toy")).get("optimiser of toy"))
    assert seen[0] is None
    assert '"torch.optim.adamw.AdamW"' in str(seen[1])
    assert '"lr": 0.005' in str(seen[1])
    assert seen[1] != seen[2]


def test_an_optimiser_that_cannot_train_seeds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(reason: str, *blueprints: str, **changes: Any) -> None:
        family = ToyFamily(**{"optimizer": adamw, **changes})
        family.blueprints = (*STANDARD, *blueprints)
        install(monkeypatch, {"toy": family})
        with pytest.raises(ConfigError, match=reason):
            grown_modules([KEY])

    refused("LBFGS", optimizer=lambda module: torch.optim.LBFGS(module.parameters()))
    refused("a torch.optim.Optimizer, found list", optimizer=lambda module: list(module.parameters()))
    refused("learning_rate 0.1 and momentum 0.9 beside an optimizer", learning_rate=0.1)
    refused("widening seeds learn with SGD only", "widen")


class Drawing(Toy):
    """Draws from Python's and NumPy's generators, as stochastic depth does."""

    def forward(self, inputs: Tensor) -> Tensor:
        noise = random.random() + np.random.random()  # noqa: NPY002, S311
        return super().forward(inputs) * (1.0 + 0.1 * noise)


@pytest.mark.parametrize("optimizer", [None, adamw])
def test_what_a_module_draws_depends_on_its_key_alone(monkeypatch: pytest.MonkeyPatch, optimizer: Any) -> None:
    install(monkeypatch, {"toy": ToyFamily(Drawing, optimizer=optimizer)})
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    ends = []
    for _ in range(2):
        hosts = grown_modules([KEY, 4], horizon=4)
        for _ in range(3):
            outcome = hosts.step(waits(2))
        ends.append(outcome.validation_loss_after.tolist())
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    assert ends[0] == ends[1]
