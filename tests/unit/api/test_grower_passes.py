"""What an owner does between a pass of the model and its loss, which no pass of a seed's own repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.builders.small_loops import INPUTS, LABELS, Grow, Net, grow, train
from torch import Tensor, nn

import simic

IDS = torch.randint(11, (60, 9), generator=torch.Generator().manual_seed(0))


class Words(nn.Module):
    """The next word at every position [B, T, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(ids)))
        return logits


class Dictionary(Net):
    """Gives its logits in a dictionary while it trains, and their sum."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return {"logits": logits, "sum": logits.sum()} if self.training else logits


def test_logits_that_were_cut_after_the_pass_are_refused_at_the_first_batch() -> None:
    labels = IDS.roll(-1, 1)
    labels[:, -1] = -100
    model = Words()
    grower, optimizer = grow(model, validation=(IDS, labels))
    model.train()
    wanted = (
        r"expected logits \(12, 9, 11\), as the pass of the module gave them, found \(12, 8, 11\); .* process the "
        r"inputs before the pass, give logits=, or wrap the module"
    )
    with pytest.raises(simic.ConfigError, match=wanted):
        grower.loss(model(IDS[:12])[:, :-1], IDS[:12, 1:])
    grower.loss(model(IDS[:12]), labels[:12]).backward()
    optimizer.step()


def test_inputs_of_another_shape_than_the_validation_are_refused_at_the_first_batch() -> None:
    """And not when the first seed acts; a pass that is not counted may have any shape while no seed acts."""
    model = Words()
    grower, optimizer = grow(model, validation=(IDS, IDS), epochs=4)
    model.train()
    shorter, labels = model(IDS[:12, :-1]), IDS[:12, 1:]
    whole = model(IDS[:12])
    model.eval()
    model(IDS[:12, :-1])
    with pytest.raises(simic.ConfigError, match=r"'body': expected an output \(12, 9, 8\).*found \(12, 8, 8\)"):
        grower.loss(shorter, labels)
    grower.loss(whole, IDS[:12])
    train(grower, optimizer, 4, given=[(IDS, IDS)])
    assert grower.is_finished
    model.train()
    assert grower.loss(model(IDS[:12, :-1]), labels).requires_grad


def test_numbers_whose_last_axis_the_owner_takes_away_are_refused() -> None:
    """The seed's own pass would compare all outputs with all targets."""
    targets = INPUTS[:, :1] * 2.0
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    grower, _ = grow(model, slots=["1"], validation=(INPUTS, targets))
    model.train()
    with pytest.raises(simic.ConfigError, match=r"expected logits \(48, 1\), .* found \(48,\)"):
        grower.loss(model(INPUTS)[:, 0], targets[:, 0])


@pytest.mark.parametrize("takes", [lambda output: output, lambda output: output["logits"]])
def test_logits_of_a_dictionary_may_be_taken_by_the_owner_too(
    steer: Callable[[Any], None], takes: Callable[[Any], Any]
) -> None:
    steer(Grow())
    model = Dictionary()
    grower, optimizer = grow(model, logits=lambda output: output["logits"])
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        grower.loss(takes(model(INPUTS)), LABELS).backward()
        optimizer.step()
        grower.step()
    assert grower.state.slots[0].gradient_norm
    model.train()
    with pytest.raises(simic.ConfigError, match=r"expected logits \(48, 3\), .* found \(47, 3\)"):
        grower.loss(model(INPUTS)["logits"][1:], LABELS[1:])


def test_what_hooks_of_the_owner_do_is_part_of_the_pass(steer: Callable[[Any], None]) -> None:
    steer(Grow())
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model.register_forward_hook(lambda _model, _arguments, output: output[:, 0])
    targets = INPUTS[:, 0] * 2.0
    grower, optimizer = grow(model, slots=["1"], validation=(INPUTS, targets))
    train(grower, optimizer, 3, given=[(INPUTS, targets)])
    assert grower.state.slots[0].gradient_norm


def test_a_function_logits_that_meets_a_tensor_is_named_in_the_error() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(
        simic.ConfigError, match=r"float32 numbers .* found .*; logits= is not used, because .* a tensor"
    ):
        grow(model, slots=["1"], validation=(INPUTS, INPUTS[:, 0]), logits=lambda output: output[:, 0])
    with pytest.raises(simic.ConfigError, match=r"float32 numbers .* found [^;]*$"):
        grow(model, slots=["1"], validation=(INPUTS, INPUTS[:, 0]))

    class Pair(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            return {"out": super().forward(x)}

    with pytest.raises(simic.ConfigError, match=r"float32 numbers .* found [^;]*$"):
        grow(Pair(*model), slots=["1"], validation=(INPUTS, INPUTS[:, 0]), logits=lambda output: output["out"])


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="none"), lambda *_: 0.5])
def test_a_loss_of_more_than_one_number_is_refused(loss: Any) -> None:
    model = Net()
    grower, _ = grow(model, loss=loss)
    model.train()
    with pytest.raises(simic.ConfigError, match=r"loss: expected a tensor of one number, such as the mean .*, found"):
        grower.loss(model(INPUTS), LABELS)
    with torch.no_grad():
        grower.loss(model(INPUTS), LABELS)
