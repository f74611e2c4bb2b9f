"""Loops that run a model several times before a loss, go back, or train more than the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from support.builders.small_loops import INPUTS, LABELS, Grow, Net, grow, train, train_epoch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import simic
from simic.contracts.field_report import GovernorKind
from simic.hosts.custom.attached import SEED_PREFIX, AttachedHost
from simic.hosts.custom.owner_pass import MOST_WAITING

OTHERS = torch.full((12, 4), 100.0)


@pytest.fixture
def learned_on(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The mean of the inputs of each pass on which a seed learns alone."""
    means: list[float] = []
    real = AttachedHost._isolated_gradient

    def note(self: AttachedHost, slot: int, batch: Any, labels: Tensor) -> Tensor:
        means.append(float(batch.arguments[0].mean()))
        return real(self, slot, batch, labels)

    monkeypatch.setattr(AttachedHost, "_isolated_gradient", note)
    return means


def test_a_seed_learns_on_the_pass_whose_loss_is_computed(
    steer: Callable[[Any], None], learned_on: list[float]
) -> None:
    """As in a loop with a second pass over unlabelled inputs, before the loss of the first one."""
    steer(Grow())
    grower, optimizer = grow(Net())
    train(grower, optimizer, 2)
    learned_on.clear()
    for counts_both in (False, True):
        optimizer.zero_grad()
        labelled, unlabelled = grower.model.train()(INPUTS[:12]), grower.model(OTHERS)
        loss = grower.loss(labelled, LABELS[:12])
        if counts_both:
            loss = loss + grower.loss(unlabelled, LABELS[:12])
        (loss + unlabelled.mean() * 0.0).backward()
        optimizer.step()
    mine = pytest.approx(float(INPUTS[:12].mean()))
    assert sorted(learned_on) == [mine, mine, 100.0]
    labelled, _ = grower.model(INPUTS[:12]), grower.model(OTHERS)
    with pytest.raises(simic.ConfigError, match=r"2 passes wait .* right after its pass"):
        grower.loss(labelled.clone(), LABELS[:12])


def test_a_pass_without_a_loss_keeps_no_graph() -> None:
    """What an owner gave up is free before the next step, also of an output that is no tensor."""

    class Wide(Net):
        def forward(self, x: Tensor) -> Any:
            return {"logits": super().forward(x), "wide": self.stem(x).exp()} if self.training else super().forward(x)

    grower, _ = grow(Wide(), logits=lambda output: output["logits"])
    output = grower.model.train()(INPUTS)
    wide = ref(output["wide"])
    del output
    assert wide() is None


def test_a_pass_that_waited_too_long_is_named_as_the_cause() -> None:
    grower, _ = grow(Net())
    model = grower.model.train()
    for passes in (MOST_WAITING, MOST_WAITING + 1):
        found = [model(INPUTS) for _ in range(passes)]
        if passes == MOST_WAITING:
            for logits in found:
                grower.loss(logits, LABELS)
    with pytest.raises(simic.ConfigError, match=r"those of a pass with 4 others after it, which is lost; compute"):
        grower.loss(found[0], LABELS)


def test_a_pass_that_failed_waits_for_no_loss() -> None:
    """As where the owner goes on with the next batch after memory ran out, and takes a copy of the logits."""
    grower, _ = grow(Net())
    model = grower.model.train()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(INPUTS[:, :2])
        grower.loss(model(INPUTS).clone(), LABELS)


def test_a_pass_around_the_model_is_named_as_the_cause() -> None:
    grower, _ = grow(Net())
    logits = grower.model.train().forward(INPUTS)
    with pytest.raises(simic.ConfigError, match=r"it is in training mode, so call it as model\(inputs\)"):
        grower.loss(logits, LABELS)
    grower.model.eval()
    with pytest.raises(simic.ConfigError, match=r"found none; call model.train\(\)"):
        grower.loss(logits, LABELS)


def test_a_grower_that_goes_back_reports_the_repeated_epochs(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with simic.FieldReportWriter(spool=spool) as writer:
        grower, optimizer = grow(Net(), report_to=writer)
        train(grower, optimizer, 2)
        saved = grower.state_dict()
        train(grower, optimizer, 3)
        grower.load_state_dict(saved)
        train(grower, optimizer, 10)
        assert grower.is_finished
        written = [simic.FieldReport.model_validate_json(line).step for line in writer._waiting]
    assert written == [0, 1, 2, 3, 4, *range(2, 12)]
    grower.finalize()
    with pytest.raises(simic.ConfigError, match="the model is plain"):
        grower.load_state_dict(saved)


def test_a_grower_that_goes_back_forgets_an_epoch_whose_end_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    model = Net()
    grower, optimizer = grow(model, epochs=6)
    train(grower, optimizer, 2)
    saved = grower.state_dict()
    train(grower, optimizer, 3)
    train_epoch(grower, optimizer)
    with monkeypatch.context() as full, pytest.raises(MemoryError):
        full.setattr("simic.hosts.ensemble.Ensemble._commit", fail)
        grower.step()
    grower.load_state_dict(saved)
    train(grower, optimizer, 1)
    assert grower.growth.epoch == 3
    assert not grower.is_finished


def test_the_governor_sets_back_what_the_loss_holds_too() -> None:
    model, scale = Net(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.05)
    grower, _ = grow(model, optimizer)
    train(grower, optimizer, 1)
    train_epoch(grower, optimizer)
    optimizer.zero_grad()
    (grower.loss(model(INPUTS), LABELS) * scale * float("nan")).backward()
    optimizer.step()
    assert scale.isnan()
    event = grower.step().governor
    assert event is not None
    assert event.kind is GovernorKind.NON_FINITE
    assert scale.item() == 1.0


def test_names_in_the_optimiser_follow_its_parameters(steer: Callable[[Any], None]) -> None:
    """Loading a state by name, as PyTorch describes it, needs the names beside their parameters."""
    steer(Grow(advances=True))
    model = Net()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    grower, _ = grow(model, optimizer)

    def pairs() -> dict[str, Tensor]:
        group = optimizer.param_groups[0]
        return dict(zip(group["param_names"], group["params"], strict=True))

    train(grower, optimizer, 3)
    assert f"{SEED_PREFIX}0" in pairs()
    assert pairs() == dict(model.named_parameters())
    grower.finalize()
    assert pairs() == dict(model.named_parameters())


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_seed_that_its_owner_took_out_of_the_optimiser_stays_out(
    steer: Callable[[Any], None], is_named: bool, is_kept: bool
) -> None:
    """As by a list of what is not frozen."""
    steer(Grow(advances=is_kept, keeps=is_kept))
    model = Net()
    optimizer = torch.optim.SGD(model.named_parameters() if is_named else model.parameters(), lr=0.05)
    grower, _ = grow(model, optimizer, lifecycle={"min_contribution": -1.0} if is_kept else None)
    train(grower, optimizer, 2)
    seed = dict(model.named_parameters())[f"{SEED_PREFIX}0"]
    seed.requires_grad_(False)
    optimizer.param_groups[0]["params"] = [one for one in model.parameters() if one.requires_grad]
    train(grower, optimizer, 10)
    assert grower.finalize() is model
    assert [one is seed for one in model.parameters()].count(True) == is_kept
    assert not any(one is seed for one in optimizer.param_groups[0]["params"])


def test_a_parametrized_head_is_found_as_head() -> None:
    model = Net()
    model.head = parametrizations.weight_norm(model.head)
    grower, optimizer = grow(model)
    train(grower, optimizer, 1)
    assert [layer.kind.value for layer in grower.state.graph.layers][-1] == "HEAD"
    assert grower._layers[-1] == "head"


def test_a_model_with_a_generator_of_its_own_is_not_taken_for_one_that_asks_for_types() -> None:
    """Its outputs differ from pass to pass, and what it draws is not among what a Grower puts back."""

    class Noisy(Net):
        chance = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn((), generator=self.chance)

    grower, optimizer = grow(Noisy())
    train(grower, optimizer, 1)


def test_a_model_that_asks_for_the_type_of_a_layer_is_refused_at_once() -> None:
    """With a kept seed the layer is a sequence, and the model would leave out its activation."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
                if isinstance(layer, nn.Linear) and layer.out_features == 8:
                    x = x.relu()
            return x

    class Asserts(Asks):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                assert isinstance(layer, nn.Linear)
                x = layer(x)
            return x

    class LooksUp(Asks):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = {nn.Linear: torch.tanh}[type(layer)](layer(x))
            return x

    torch.manual_seed(0)
    for model, found in ((Asks(), "gives other"), (Asserts(), "fails: [Aa]ssert"), (LooksUp(), "fails: <class .*Seq")):
        with pytest.raises(simic.ConfigError, match=rf"in the place of 'layers.1', with which the model {found}"):
            grow(model, slots=["layers.1"])
        assert isinstance(model.layers[1], nn.Linear)
