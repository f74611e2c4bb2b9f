"""Which batches belong to a step of the owner's optimiser, and what a Grower makes of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.builders.small_loops import INPUTS, LABELS, Grow, Net, batches, grow, seed_of, train, train_epoch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

import simic
from simic.hosts.custom.attached import MEASURED_STEPS, SEED_PREFIX, AttachedHost


class Half(Net):
    """Its gradients pass through float16, where a scaled loss overflows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).half().float()


class Answers(TorchDispatchMode):
    """Counts how often Python waits for a number of a tensor, which stops an accelerator."""

    count = 0

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket.__name__ == "_local_scalar_dense"
        return function(*args, **(kwargs or {}))


class Deep(Net):
    """With two layers of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.mid = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mid(self.body(self.stem(x))))
        return logits


def layer_norms(grower: simic.Grower) -> list[float | None]:
    return [layer.gradient_norm for layer in grower.state.graph.layers]


def single_samples() -> list[tuple[Tensor, Tensor]]:
    return list(zip(INPUTS.split(1), LABELS.split(1), strict=True))


@pytest.mark.parametrize("stage", ["none", "alone", "acting"])
def test_a_fused_step_that_a_scaler_skips_is_no_step(steer: Callable[[Any], None], stage: str) -> None:
    """A fused optimiser gets the call of a step that it skips; another one does not."""
    ends = []
    for fused in (False, True):
        steer(Grow(advances=stage == "acting", first=99 if stage == "none" else 1))
        torch.manual_seed(0)
        model = Half()
        grower, optimizer = grow(model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused))
        if stage != "none":
            train(grower, optimizer, 5 if stage == "acting" else 2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=10**6)
        train_epoch(grower, optimizer, single_samples(), scaler=scaler)
        assert scaler.get_scale() < 2.0**20, "the case must skip a step"
        grower.step()
        ends.append((layer_norms(grower), grower.state.slots[0]))
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-4)
    assert ends[1][1].gradient_health == ends[0][1].gradient_health
    assert ends[1][1].gradient_norm == (pytest.approx(ends[0][1].gradient_norm, rel=1e-4) if stage != "none" else None)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_layer_is_measured_that_its_owner_unfreezes_or_replaces_later(is_replaced: bool) -> None:
    """As in fine-tuning, where layers are unfrozen one after another."""
    torch.manual_seed(0)
    model = Net()
    model.head.requires_grad_(is_replaced)
    grower, optimizer = grow(model)
    train(grower, optimizer, 1)
    body, head = layer_norms(grower)
    assert body and bool(head) is is_replaced
    size = sum(parameter.numel() for parameter in model.parameters())
    frozen = 0 if is_replaced else sum(parameter.numel() for parameter in model.head.parameters())
    assert grower.state.host_parameters == size - frozen
    model.head.requires_grad_(True)
    if is_replaced:
        model.head.weight = torch.nn.Parameter(torch.randn_like(model.head.weight))
        optimizer.param_groups[0]["params"] = list(model.parameters())
        model.head.bias.requires_grad_(False)  # it was watched from the beginning
    train(grower, optimizer, 1)
    assert all(layer_norms(grower))
    frozen = model.head.bias.numel() if is_replaced else 0
    assert grower.state.host_parameters == size - frozen


def test_a_parameter_counts_in_each_layer_that_holds_it_now() -> None:
    """Its owner may share it between layers, or move it to another one; a learning rate of 0 changes none."""
    torch.manual_seed(0)
    model, slots = Deep(), ["body.0", "mid"]
    first, second = model.body[0], model.mid
    grower, optimizer = grow(model, torch.optim.SGD(model.parameters(), lr=0.0), slots=slots)
    train(grower, optimizer, 1)
    first.weight, second.weight = second.weight, first.weight
    first.bias, second.bias = second.bias, first.bias
    train(grower, optimizer, 1)
    exchanged = layer_norms(grower)
    grower.finalize()
    grower, _ = grow(model, optimizer, slots=slots)
    train(grower, optimizer, 1)
    assert exchanged == pytest.approx(layer_norms(grower))
    second.weight, second.bias = first.weight, first.bias
    train(grower, optimizer, 1)
    one, other, _ = layer_norms(grower)
    assert one and one == other


def test_a_gradient_that_is_not_finite_is_left_out_of_the_norms(steer: Callable[[Any], None]) -> None:
    """The owner clears the gradients of a loss that overflows, and steps all the same."""
    ends = []
    for overflows in (False, True):
        steer(Grow(advances=True))
        torch.manual_seed(0)
        grower, optimizer = grow(Net())
        train(grower, optimizer, 4)
        assert grower.state.slots[0].alpha == 1.0
        grower.model.train()
        for factor in (torch.inf, 1.0) if overflows else (1.0,):
            optimizer.zero_grad()
            (grower.loss(grower.model(INPUTS), LABELS) * factor).backward()
            if factor == torch.inf:
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
        grower.step()
        ends.append((layer_norms(grower), grower.state.slots[0].gradient_norm, grower.state.slots[0].gradient_health))
    assert ends[1][0] == pytest.approx(ends[0][0])
    assert ends[1][1] == pytest.approx(ends[0][1])
    assert (ends[0][2], ends[1][2]) == (1.0, 0.5)


def test_an_epoch_without_a_finite_gradient_has_no_norm() -> None:
    grower, optimizer = grow(Net())
    grower.model.train()
    (grower.loss(grower.model(INPUTS), LABELS) * 1e38).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    grower.step()
    assert layer_norms(grower) == [None, None]


@pytest.mark.parametrize("advances", [False, True])
def test_a_seed_that_its_owner_freezes_has_no_gradient(steer: Callable[[Any], None], advances: bool) -> None:
    steer(Grow(advances=advances))
    torch.manual_seed(0)
    model = Net()
    grower, optimizer = grow(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    train(grower, optimizer, 5 if advances else 3)
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    train(grower, optimizer, 1)
    assert grower.state.slots[0].gradient_norm == 0.0
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {"head.weight", "head.bias"}
    assert f"{SEED_PREFIX}0" in before


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_batch_whose_step_a_scaler_skipped_is_forgotten_wherever_its_gradients_are_cleared(
    set_to_none: bool,
) -> None:
    """An owner may clear them between the pass and its backward pass."""

    def norms(*, clears_late: bool, skips: bool) -> list[float | None]:
        torch.manual_seed(0)
        grower, optimizer = grow(Net())
        grower.model.train()
        for does_step in (False, True) if skips else (True,):
            if not clears_late:
                optimizer.zero_grad(set_to_none)
            loss = grower.loss(grower.model(INPUTS), LABELS)
            if clears_late:
                optimizer.zero_grad(set_to_none)
            loss.backward()
            if does_step:
                optimizer.step()
        grower.step()
        return layer_norms(grower)

    wanted = norms(clears_late=False, skips=False)
    assert norms(clears_late=False, skips=True) == pytest.approx(wanted)
    assert norms(clears_late=True, skips=True) == pytest.approx(wanted)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """First inputs of the batches on which a seed learned alone."""
    batches: list[list[float]] = []
    real = AttachedHost._isolated_gradient

    def note(self: AttachedHost, slot: int, batch: Any, labels: Tensor) -> Tensor:
        batches.append(batch.arguments[0][:, 0].tolist())
        return real(self, slot, batch, labels)

    monkeypatch.setattr(AttachedHost, "_isolated_gradient", note)
    return batches


def alone(steer: Callable[[Any], None]) -> tuple[simic.Grower, Optimizer]:
    """A Grower with a seed that learns alone."""
    steer(Grow())
    grower, optimizer = grow(Net())
    train(grower, optimizer, 2)
    grower.model.train()
    optimizer.zero_grad()
    return grower, optimizer


def loss_of(grower: simic.Grower, rows: slice) -> Tensor:
    return grower.loss(grower.model(INPUTS[rows]), LABELS[rows])


@pytest.mark.parametrize("way", ["summed", "separate", "repeated"])
def test_a_seed_learns_from_all_batches_of_a_step(
    steer: Callable[[Any], None], learned: list[list[float]], way: str
) -> None:
    grower, optimizer = alone(steer)
    learned.clear()
    first, second = slice(0, 10), slice(10, 20)
    if way == "summed":
        (loss_of(grower, first) + loss_of(grower, second)).backward()
    elif way == "separate":
        loss_of(grower, first).backward()
        loss_of(grower, second).backward()
    else:
        losses = [loss_of(grower, rows) for rows in (first, second)]
        for loss in (*losses, losses[0]):
            loss.backward(retain_graph=True)
    optimizer.step()
    assert sorted(learned) == sorted(INPUTS[rows, 0].tolist() for rows in (first, second))


def test_a_batch_without_a_backward_pass_teaches_nothing(
    steer: Callable[[Any], None], learned: list[list[float]]
) -> None:
    grower, optimizer = alone(steer)
    born = seed_of(grower.model)
    learned.clear()
    kept = loss_of(grower, slice(0, 10))  # noqa: F841 - alive, as in a list of losses
    optimizer.step()
    assert learned == []
    assert torch.equal(seed_of(grower.model), born)
    loss_of(grower, slice(10, 20)).backward()
    optimizer.step()
    assert learned == [INPUTS[10:20, 0].tolist()]


def test_a_loss_that_its_owner_keeps_holds_no_inputs(steer: Callable[[Any], None]) -> None:
    """As in a list of the losses of an epoch."""
    grower, optimizer = alone(steer)
    losses, inputs = [], []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(loss_of(grower, slice(0, 10)))
        losses[-1].backward()
        inputs.append(weakref.ref(grower._host._step.batches[0][0].arguments[0]))
        optimizer.step()
    assert [kept() is None for kept in inputs] == [True, False], "the latest batch is kept for a probe"


def penalised(loss: Tensor, inputs: Tensor, _logits: Tensor, _labels: Tensor) -> Tensor:
    """A penalty on the gradient of the inputs, which autograd computes in a pass of its own."""
    (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
    return loss + 1e-6 * gradient.square().sum()


def of_the_owner(_loss: Tensor, _inputs: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """A loss that the owner computes beside the counted one."""
    return torch.nn.functional.cross_entropy(logits, labels)


@pytest.mark.parametrize("minimised", [penalised, of_the_owner])
def test_a_seed_learns_from_a_batch_whatever_the_owner_makes_of_its_loss(
    steer: Callable[[Any], None], minimised: Callable[..., Tensor]
) -> None:
    ends = []
    for change in (lambda loss, *_: loss, minimised):
        steer(Grow())
        torch.manual_seed(0)
        model = Net()
        grower, optimizer = grow(model)
        train(grower, optimizer, 2)
        model.train()
        for rows in torch.arange(len(LABELS)).split(12):
            inputs = INPUTS[rows].requires_grad_()
            optimizer.zero_grad()
            logits = model(inputs)
            change(grower.loss(logits, LABELS[rows]), inputs, logits, LABELS[rows]).backward()
            optimizer.step()
        grower.step()
        ends.append((seed_of(model), layer_norms(grower)))
    assert torch.allclose(ends[0][0], ends[1][0], atol=1e-5)
    assert ends[1][1] == pytest.approx(ends[0][1], rel=1e-3)


def test_a_loss_of_one_number_in_a_vector_is_counted(steer: Callable[[Any], None]) -> None:
    steer(Grow())
    grower, optimizer = grow(Net(), loss=lambda logits, labels: torch.nn.functional.cross_entropy(logits, labels)[None])
    train(grower, optimizer, 3)
    assert grower.state.slots[0].gradient_norm


def test_a_pass_without_logits_that_is_not_counted_goes_on(steer: Callable[[Any], None]) -> None:
    """Some passes give features; `logits=` is asked for those alone whose loss is counted."""

    class Features(Net):
        def forward(self, x: Tensor) -> Any:
            return {"features": self.body(self.stem(x))} if x.shape[0] == 5 else {"logits": super().forward(x)}

    steer(Grow())
    model = Features()
    grower, optimizer = grow(model, logits=lambda output: output["logits"])
    model.train()
    assert "features" in model(INPUTS[:5])
    train(grower, optimizer, 2)


def test_gradients_that_are_clipped_between_batches_are_not_cleared_ones() -> None:
    """Clipping writes to the gradient that came last, which is 0 while the head passes nothing down."""

    def norms(*, clips: bool) -> list[float | None]:
        torch.manual_seed(0)
        model = Net()
        torch.nn.init.zeros_(model.head.weight)
        grower, optimizer = grow(model)
        model.train()
        for part in (slice(0, 24), slice(24, 48)):
            (grower.loss(model(INPUTS[part]), LABELS[part]) / 2).backward()
            if clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)
        optimizer.step()
        grower.step()
        return layer_norms(grower)

    assert norms(clips=True) == pytest.approx(norms(clips=False))


def test_no_device_has_to_answer_while_batches_accumulate() -> None:
    """Nor in steps after the first 32 of an epoch, which are not measured."""
    grower, optimizer = grow(Net())
    grower.model.train()
    answers = Answers()
    for _ in range(MEASURED_STEPS + 4):
        optimizer.zero_grad()
        for inputs, labels in batches():
            loss = grower.loss(grower.model(inputs), labels)
            with answers:
                loss.backward()
        optimizer.step()
    assert answers.count == 0
