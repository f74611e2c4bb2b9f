"""A Grower in loops and around modules that are unlike the usual ones: it follows them or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.builders.small_loops import (
    INPUTS,
    LABELS,
    VALIDATION,
    Grow,
    Net,
    batches,
    grow,
    seed_of,
    train,
    train_epoch,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import simic
from simic.contracts.actions import Op
from simic.contracts.field_report import GovernorKind
from simic.contracts.lifecycle import SeedStage
from simic.hosts.custom.attached import AttachedHost
from simic.hosts.custom.tasks import IGNORED
from simic.hosts.interfaces import DataSplit


def test_the_decision_before_the_first_epoch_is_known_before_it(steer: Callable[[Any], None]) -> None:
    """No step returns it, and a seed that begins then would be pruned later without ever having been named."""
    steer(Grow(first=0))
    grower, optimizer = grow(Net())
    first = grower.growth
    assert first.action is not None
    assert (first.epoch, first.action.op, first.action.slot, first.action.blueprint) == (0, Op.GERMINATE, 0, "dense")
    assert first.validation_loss == grower.state.validation_loss
    train_epoch(grower, optimizer)
    assert grower.step() == grower.growth != first


def test_samples_whose_label_is_ignored_count_for_nothing() -> None:
    """With a learning rate of 0, the training loss is that of the samples that count."""
    torch.manual_seed(0)
    model = Net()
    grower, optimizer = grow(model, torch.optim.SGD(model.parameters(), lr=0.0))
    labels = LABELS.clone()
    labels[:7] = IGNORED
    train(grower, optimizer, 1, given=batches(labels=labels))
    with torch.no_grad():
        wanted = cross_entropy(model(INPUTS[7:]), LABELS[7:])
    assert grower.state.train_loss == pytest.approx(float(wanted), rel=1e-5)
    with pytest.raises(simic.DatasetError, match=r"validation: the module gives 3 logits.* found -100 to 2"):
        grow(Net(), validation=(INPUTS, labels))


def test_an_epoch_in_which_no_label_counts_is_refused() -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, reduction="sum")

    grower, optimizer = grow(Net(), loss=loss)
    train_epoch(grower, optimizer, batches(labels=torch.full_like(LABELS, IGNORED)))
    with pytest.raises(simic.ConfigError, match="all labels of this epoch are -100"):
        grower.step()


def fail_once(monkeypatch: pytest.MonkeyPatch, method: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """Let the memory be used up in one call of a method of the host."""
    real, failed = getattr(AttachedHost, method), []

    def call(self: AttachedHost, *arguments: Any, **named: Any) -> Any:
        if not failed and when(*arguments):
            failed.append(True)
            raise torch.OutOfMemoryError
        return real(self, *arguments, **named)

    monkeypatch.setattr(AttachedHost, method, call)


@pytest.mark.parametrize("part", [DataSplit.VALIDATION, DataSplit.TEST])
def test_a_step_can_be_repeated_after_an_error_in_a_measurement(
    monkeypatch: pytest.MonkeyPatch, part: DataSplit
) -> None:
    found = []
    for fails in (False, True):
        torch.manual_seed(0)
        grower, optimizer = grow(Net(), epochs=4, test=VALIDATION)
        with monkeypatch.context() as patch:
            if fails:
                fail_once(patch, "evaluate", lambda chosen, *_: chosen is part)
            for _ in range(4):
                train_epoch(grower, optimizer)
                try:
                    growth = grower.step()
                except torch.OutOfMemoryError:
                    growth = grower.step()
                    fails = False
        assert not fails, "the case must meet the error"
        found.append((growth, grower.state.model_dump()))
    assert found[0] == found[1]


def test_an_error_in_the_probe_of_a_seed_ends_no_epoch_twice(
    monkeypatch: pytest.MonkeyPatch, steer: Callable[[Any], None]
) -> None:
    """The decision was acted on, so the step cannot be repeated; that is said and nothing is measured again."""
    steer(Grow())
    grower, optimizer = grow(Net())
    train_epoch(grower, optimizer)
    fail_once(monkeypatch, "probe")
    with pytest.raises(torch.OutOfMemoryError):
        grower.step()
    with pytest.raises(RuntimeError, match="end_epoch needs an epoch"):
        grower.step()
    assert grower.state.epoch == 1


def test_a_step_in_inference_mode_grows_as_any_other(steer: Callable[[Any], None]) -> None:
    seeds = []
    for mode in (torch.no_grad, torch.inference_mode):
        torch.manual_seed(0)
        steer(Grow(advances=True))
        model = Net()
        with mode():
            grower, optimizer = grow(model)
        for _ in range(6):
            train_epoch(grower, optimizer)
            with mode():
                grower.step()
        seeds.append(seed_of(model))
    assert torch.equal(*seeds)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # in measurements
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_the_noise_of_its_pass(steer: Callable[[Any], None], reentrant: bool) -> None:
    steer(Grow("dropout", advances=True))
    torch.manual_seed(0)
    model = Net(reentrant)
    grower, optimizer = grow(model, blueprints=["dropout"], epochs=20)
    while float(grower.state.slots[0].alpha) < 1.0:
        train(grower, optimizer, 1)
    gradients = []
    model.train()
    for model.reentrant in (reentrant, None):
        grower._host.begin(grower._host._assignment, 1)  # the same noise again
        optimizer.zero_grad()
        grower.loss(model(INPUTS[:12]), LABELS[:12]).backward()
        gradients.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_checkpoint_of_the_whole_module_is_no_second_pass(steer: Callable[[Any], None]) -> None:
    steer(Grow("dropout", advances=True))
    torch.manual_seed(0)
    model = Net()
    grower, optimizer = grow(model, blueprints=["dropout"], epochs=20)
    while float(grower.state.slots[0].alpha) < 1.0:
        train(grower, optimizer, 1)
    gradients = []
    model.train()
    for is_checkpointed in (True, False):
        grower._host.begin(grower._host._assignment, 1)  # the same noise again
        optimizer.zero_grad()
        x = INPUTS[:12]
        logits = checkpoint(model, x, use_reentrant=False) if is_checkpointed else model(x)
        grower.loss(logits, LABELS[:12]).backward()
        gradients.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # in measurements
def test_a_seed_within_a_reentrant_checkpoint_is_refused(steer: Callable[[Any], None]) -> None:
    steer(Grow())
    grower, optimizer = grow(Net(reentrant=True))
    with pytest.raises(simic.ConfigError, match="give it use_reentrant=False"):
        train(grower, optimizer, 2)
    steer(Grow())
    grower, optimizer = grow(model := Net(reentrant=False))
    train(grower, optimizer, 2)
    born = seed_of(model)
    train(grower, optimizer, 1)
    assert not torch.equal(born, seed_of(model))


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda parameters, **how: torch.optim.SGD(parameters, lr=0.05, **how),
    "adam": lambda parameters, **how: torch.optim.Adam(parameters, lr=0.01, **how),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_scaled_fused_step_moves_a_seed_that_learns_alone_as_any_other(
    steer: Callable[[Any], None], optimizer: str
) -> None:
    seeds = []
    for fused, scale in ((False, None), (True, None), (True, 2.0**16)):
        steer(Grow())
        torch.manual_seed(0)
        model = Net()
        grower, chosen = grow(model, OPTIMIZERS[optimizer](model.parameters(), fused=fused))
        scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        train(grower, chosen, 3, scaler=scaler)
        assert grower.state.slots[0].stage is SeedStage.TRAINING
        seeds.append(seed_of(model))
    torch.testing.assert_close(seeds[1], seeds[0])
    torch.testing.assert_close(seeds[2], seeds[0])


def test_a_scaled_loss_changes_no_gradient_norm_of_a_seed(steer: Callable[[Any], None]) -> None:
    """Neither while it learns alone nor while it acts, in any step of an epoch."""
    norms = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**16)):
        steer(Grow(advances=True))
        torch.manual_seed(0)
        grower, optimizer = grow(Net())
        found = []
        for _ in range(6):
            train(grower, optimizer, 1, given=[*batches()] * 9, scaler=scaler)
            found.append(grower.state.slots[0])
        assert {SeedStage.TRAINING, SeedStage.BLENDING} <= {seed.stage for seed in found}
        norms.append([seed.gradient_norm for seed in found if seed.gradient_norm is not None])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.parametrize("first", [0, 1])
def test_a_seed_joins_fused_momentum(steer: Callable[[Any], None], first: int) -> None:
    """It is born before any parameter has a momentum, or when all others have one."""
    seeds = []
    for fused in (False, True):
        steer(Grow(advances=True, first=first))
        torch.manual_seed(0)
        model = Net()
        grower, optimizer = grow(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused))
        train(grower, optimizer, 7)
        seeds.append(seed_of(model))
    torch.testing.assert_close(*seeds)


class InPlace(Net):
    """Works in place on its input, and notes what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.got.append(x.clone())
        return super().forward(x.sub_(5.0))


def test_a_seed_learns_alone_on_what_its_owner_gave(steer: Callable[[Any], None]) -> None:
    """The module works in place on its input, and the owner reuses the tensors of an accumulation."""
    steer(Grow())
    targets: list[Tensor] = []

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        targets.append(labels.clone())
        return cross_entropy(logits, labels)

    model = InPlace()
    grower, optimizer = grow(model, loss=loss)
    train(grower, optimizer, 2, given=[(INPUTS[:8].clone(), LABELS[:8])])
    model.train()
    model.got.clear()
    targets.clear()
    inputs, labels = torch.empty(8, 4), torch.empty(8, dtype=torch.int64)
    for rows in torch.arange(16).split(8):
        inputs.copy_(INPUTS[rows])
        labels.copy_(LABELS[rows])
        grower.loss(model(inputs), labels).backward()
    optimizer.step()
    assert torch.equal(torch.cat(model.got), INPUTS[:16].repeat(2, 1))
    assert torch.equal(torch.cat(targets), LABELS[:16].repeat(2))


def test_a_seed_learns_alone_on_inputs_of_half_precision(steer: Callable[[Any], None]) -> None:
    steer(Grow())
    grower, optimizer = grow(model := Net())
    seeds = []
    for _ in range(3):
        model.train()
        for inputs, labels in batches(INPUTS.bfloat16()):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = grower.loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
        grower.step()
        seeds += [seed_of(model)] if grower.state.slots[0].stage is SeedStage.TRAINING else []
    assert not torch.equal(seeds[0], seeds[-1])


class Wrapped(Optimizer):
    """An optimiser around another one that was never made as one itself, as accelerate's is."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups


def test_what_wraps_an_optimiser_is_refused_and_leaves_nothing_behind() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(
        simic.ConfigError, match="hooks of its steps as these do; a Wrapped takes none: give the optimiser that"
    ):
        grow(model, Wrapped(optimizer))
    grow(model, optimizer)


def test_a_host_that_cannot_attach_leaves_no_hook_and_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise simic.ConfigError("no hook")

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with monkeypatch.context() as patch, pytest.raises(simic.ConfigError, match="no hook"):
        patch.setattr("simic.hosts.custom.attached.partial", fail)
        grow(model, optimizer)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    grow(model, optimizer)


def test_a_compiled_module_is_refused() -> None:
    compiled = torch.compile(Net(), backend="eager")
    with pytest.raises(simic.ConfigError, match="give the Grower the module itself, and compile it afterwards"):
        grow(compiled)


class Sparse(nn.Module):
    """A classifier of words [B, 4] whose embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Embedding(9, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(words).mean(dim=1))
        return logits


def test_sparse_gradients_have_the_norm_of_dense_ones() -> None:
    words = torch.randint(9, (48, 4), generator=torch.Generator().manual_seed(0))
    norms = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = Sparse()
        model.body.sparse = sparse
        grower, optimizer = grow(model, validation=(words, LABELS))
        train(grower, optimizer, 1, given=batches(words))
        norms.append([layer.gradient_norm for layer in grower.state.graph.layers])
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[0][0] > 0


def test_a_frozen_mask_of_infinities_is_no_divergence() -> None:
    model = Net()
    mask = torch.full((8, 8), -torch.inf).triu(1)
    model.body.register_parameter("mask", nn.Parameter(mask, requires_grad=False))
    grower, optimizer = grow(model, torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.05))
    train_epoch(grower, optimizer)
    assert grower.step().governor is None
    weight = torch.linalg.vector_norm(torch.cat([one.detach().flatten() for one in model.body[0].parameters()]))
    assert grower.state.graph.layers[0].weight_norm == pytest.approx(float(weight), rel=1e-5)


def test_an_expanded_buffer_stays_as_it_is() -> None:
    model = Net()
    model.register_buffer("scale", torch.ones(1).expand(8))
    grower, optimizer = grow(model)
    train(grower, optimizer, 1)
    train_epoch(grower, optimizer, [(INPUTS * torch.nan, LABELS)])
    event = grower.step().governor
    assert event is not None
    assert event.kind is GovernorKind.NON_FINITE
    assert model.scale.stride() == (0,)
    assert model.scale.tolist() == [1.0] * 8


class Noisy(Net):
    """Adds noise in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn_like(x))


def test_a_module_that_is_noisy_in_evaluation_moves_no_generator() -> None:
    torch.manual_seed(0)
    model = Noisy()
    before = torch.get_rng_state()
    grower, optimizer = grow(model)
    assert torch.equal(torch.get_rng_state(), before)
    train_epoch(grower, optimizer)
    before = torch.get_rng_state()
    grower.step()
    assert torch.equal(torch.get_rng_state(), before)
