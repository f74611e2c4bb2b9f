"""A Grower in the trainer of transformers: it changes what it decided alone, and goes on from a checkpoint."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from support.builders.trained_elsewhere import digest_of, landed_and_quarantined, loss_of, run_examples
from support.fakes.custom_hosts import blobs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

import simic
from simic.contracts.lifecycle import SeedStage
from simic.hosts.custom.attached import SEED_PREFIX
from simic.integrations.transformers import GrowerCallback
from simic.runtime.home import Home

TRAIN, VALIDATION = blobs(0, 64, (1, 4, 4)), tuple(blobs(1, 60, (1, 4, 4)))
ROWS = [{"pixel_values": one, "labels": int(label)} for one, label in zip(*TRAIN, strict=True)]
STEPS, EPOCHS = 4, 14
SLOTS = [f"resnet.encoder.stages.{stage}" for stage in range(2)]


def make_trainer(folder: Path, **settings: Any) -> Trainer:
    """A trainer of a fresh ResNet."""
    torch.manual_seed(0)
    config = ResNetConfig(
        num_channels=1, embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic", num_labels=3
    )
    defaults: dict[str, Any] = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": len(ROWS) // STEPS,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = TrainingArguments(folder, **{**defaults, **settings})
    return Trainer(ResNetForImageClassification(config), arguments, train_dataset=ROWS, eval_dataset=ROWS[:9])


def attach(trainer: Trainer, policy: str = "heuristic", **settings: Any) -> GrowerCallback:
    blueprints = ["norm", "gate", "bottleneck", "dense", "heavy"]
    return GrowerCallback.attach(
        trainer, slots=SLOTS, validation=VALIDATION, policy=policy, blueprints=blueprints, **settings
    )


def mean_over_a_step(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The loss without a Grower; that of the model adds the batches of an accumulation up."""
    return cross_entropy(outputs.logits, labels) * (len(labels) / (num_items_in_batch or len(labels)))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[GrowerCallback, nn.Module, Path]:
    """A training with the heuristic, its checkpoints after each epoch, and its reports in a home."""
    folder = tmp_path_factory.mktemp("grown")
    Home(folder / "home").create()
    trainer = make_trainer(folder, save_strategy="epoch")
    callback = attach(trainer, report_to=simic.Home(folder / "home"))
    trainer.train()
    return callback, trainer.model, folder


@pytest.mark.parametrize(
    "settings", [{}, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "eval_strategy": "epoch"}]
)
def test_without_growth_training_is_the_same_to_the_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    digests = []
    for policy in (None, "wait"):
        trainer = make_trainer(tmp_path, num_train_epochs=4, **settings)
        if policy is not None:
            attach(trainer, policy)
        elif settings:
            trainer.compute_loss_func = mean_over_a_step
        trainer.train()
        digests.append(digest_of(trainer.model))
    assert digests[0] == digests[1]


def test_the_trained_model_is_plain_and_the_one_that_was_measured(
    grown: tuple[GrowerCallback, nn.Module, Path],
) -> None:
    callback, model, _ = grown
    assert callback.growth is not None
    assert callback.grower is not None
    assert SeedStage.FOSSILIZED in [slot.stage for slot in callback.grower.state.slots]
    assert callback.network is model
    assert callback.growth.epoch == EPOCHS
    assert loss_of(model, VALIDATION) == pytest.approx(callback.growth.validation_loss, abs=1e-6)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert not [name for name in model.state_dict() if SEED_PREFIX in name]


def test_a_checkpoint_is_resumed_to_the_bit(grown: tuple[GrowerCallback, nn.Module, Path], tmp_path: Path) -> None:
    """One in which a seed is blended."""
    _, model, folder = grown
    checkpoint = folder / f"checkpoint-{8 * STEPS}"
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)["simic_grower"]
    assert saved["seeds"], "the case must hold a seed"
    trainer = make_trainer(tmp_path)
    attach(trainer)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert digest_of(trainer.model) == digest_of(model)


def test_a_training_goes_on_from_within_an_epoch(tmp_path: Path) -> None:
    """A policy that never grows does not mind that the epoch is measured in part."""
    whole = make_trainer(tmp_path, num_train_epochs=4, save_strategy="steps", save_steps=2 * STEPS + 1)
    attach(whole, "wait")
    whole.train()
    again = make_trainer(tmp_path, num_train_epochs=4)
    callback = attach(again, "wait")
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{2 * STEPS + 1}"))
    assert digest_of(again.model) == digest_of(whole.model)
    assert callback.growth is not None
    assert callback.growth.epoch == 4


def test_reports_land_without_a_quarantined_line(grown: tuple[GrowerCallback, nn.Module, Path]) -> None:
    assert landed_and_quarantined(grown[2] / "home") == (EPOCHS, 0)


def test_what_cannot_grow_is_refused(grown: tuple[GrowerCallback, nn.Module, Path], tmp_path: Path) -> None:
    for settings, reason in (
        ({"max_steps": 20}, "epochs="),
        ({"num_train_epochs": 4.5}, "epochs="),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"restore_callback_states_from_checkpoint": True}, "restore_callback_states"),
        (
            {"load_best_model_at_end": True, "save_strategy": "epoch", "eval_strategy": "epoch"},
            "load_best_model_at_end",
        ),
    ):
        with pytest.raises(simic.ConfigError, match=reason):
            attach(make_trainer(tmp_path, **settings))
    trainer = make_trainer(tmp_path)
    attach(trainer)
    with pytest.raises(simic.ConfigError, match="compute_loss_func"):
        attach(trainer)
    with pytest.raises(simic.ConfigError, match="growing was over"):
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(grown[2])))


def test_the_surface_is_as_promised() -> None:
    """A change here is a change of the version (docs/api.md)."""
    assert str(inspect.signature(GrowerCallback.attach)) == (
        "(trainer: 'Trainer', *, slots: 'Sequence[str | Layer]', validation: 'Data', epochs: 'int | None' = None, "
        "logits: 'Callable[[Any], Tensor] | None' = None, **settings: 'Any') -> 'GrowerCallback'"
    )
    assert {"grower", "growth", "network"} <= set(dir(GrowerCallback))


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_examples("Transformers")["growing"].growth.epoch == 8  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["positions", "numbers"])
def test_several_labels_of_a_sample_train_as_without_a_callback(tmp_path: Path, kind: str) -> None:
    """Classes of words, of which many do not count, and several numbers of a text."""
    chance = torch.Generator().manual_seed(0)
    words = torch.randint(5, 30, (24, 6), generator=chance)
    labels = words % 3
    labels[torch.rand(24, 6, generator=chance) < 0.5] = -100
    if kind == "numbers":
        labels = torch.randn(24, 3, generator=chance)
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
        max_position_embeddings=6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        problem_type="regression" if kind == "numbers" else None,
    )
    made = BertForSequenceClassification if kind == "numbers" else BertForTokenClassification
    rows = [{"input_ids": one, "labels": own} for one, own in zip(words, labels, strict=True)]
    weights = []
    for policy in (None, "wait"):
        trainer = make_trainer(tmp_path, num_train_epochs=4, per_device_train_batch_size=8)
        torch.manual_seed(0)
        trainer = Trainer(made(config), trainer.args, train_dataset=rows)
        if policy is not None:
            slots = ["bert.encoder.layer.0.intermediate"]
            GrowerCallback.attach(trainer, slots=slots, validation=(words, labels), policy=policy)
        trainer.train()
        weights.append(torch.cat([one.detach().flatten() for one in trainer.model.parameters()]))
    torch.testing.assert_close(*weights)


SMALL_LLAMA = {
    "vocab_size": 12,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 6,
}


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize(
    ("case", "loss", "is_flat"),
    [("causal", shifted_loss, False), ("causal", shifted_loss, True), ("binary", nn.BCEWithLogitsLoss(), False)],
)
def test_another_loss_of_the_model_is_refused_until_it_is_given(
    tmp_path: Path, case: str, loss: Any, is_flat: bool
) -> None:
    """Also where all losses are equal, because the logits of a fresh model are zeros; then it trains as without one."""
    chance = torch.Generator().manual_seed(0)
    words = torch.randint(12, (24, 6), generator=chance)
    labels = words if case == "causal" else (torch.rand(24, 3, generator=chance) > 0.7).float()
    weights = []
    for is_grown in (False, True):
        torch.manual_seed(0)
        if case == "causal":
            slots = ["model.layers.0.mlp"]
            model = LlamaForCausalLM(LlamaConfig(**SMALL_LLAMA))
            rows = [{"input_ids": one, "labels": one} for one in words]
            inputs = words
            if is_flat:
                nn.init.zeros_(model.lm_head.weight)
        else:
            slots, inputs, model = SLOTS[:1], VALIDATION[0][:24], make_trainer(tmp_path).model
            model.config.problem_type = "multi_label_classification"
            rows = [{"pixel_values": one, "labels": own} for one, own in zip(inputs, labels, strict=True)]
        arguments = make_trainer(tmp_path, num_train_epochs=4, per_device_train_batch_size=8).args
        trainer = Trainer(model, arguments, train_dataset=rows)
        if is_grown:
            settings = {"slots": slots, "validation": (inputs, labels), "policy": "wait"}
            before, state = digest_of(model), torch.get_rng_state()
            with pytest.raises(simic.ConfigError, match=r"found [\d.]+ for the loss of the model, [\d.]+ for .*loss="):
                GrowerCallback.attach(trainer, **settings)
            GrowerCallback.attach(trainer, **settings, loss=loss)
            assert digest_of(model) == before
            assert torch.equal(torch.get_rng_state(), state)
        trainer.train()
        weights.append(torch.cat([one.detach().flatten() for one in trainer.model.parameters()]))
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("gives_tuples", [False, True])
def test_logits_may_be_taken_by_their_place_in_an_output(tmp_path: Path, gives_tuples: bool) -> None:
    """First, as in each pass of the training; with labels the model puts its loss there."""
    trainer = make_trainer(tmp_path, num_train_epochs=4)
    trainer.model.config.return_dict = not gives_tuples
    callback = attach(trainer, "wait", logits=lambda output: output[0])
    trainer.train()
    assert callback.growth is not None
    assert callback.growth.epoch == 4


def test_labels_that_the_model_itself_cannot_read_are_for_the_loss_alone(tmp_path: Path) -> None:
    """As where it takes a dictionary of them; in the training it gets none."""
    trainer, plain = make_trainer(tmp_path, num_train_epochs=4), ResNetForImageClassification.forward

    def forward(self: Any, pixel_values: Tensor, labels: Any = None, **others: Any) -> Any:
        return plain(self, pixel_values, None if labels is None else labels.get("classes"), **others)

    trainer.model.forward = MethodType(forward, trainer.model)
    attach(trainer, "wait")
    trainer.train()


def test_an_error_in_the_comparison_of_losses_leaves_no_grower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    trainer = make_trainer(tmp_path)
    monkeypatch.setattr("simic.integrations.transformers._losses_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attach(trainer)
    assert not any(part._forward_hooks for part in trainer.model.modules())
    monkeypatch.undo()
    attach(trainer)


def test_the_loss_of_a_wrapped_model_is_compared_too(tmp_path: Path) -> None:
    """As in a model of PEFT without a task, which takes any arguments."""
    trainer, labels = make_trainer(tmp_path), (VALIDATION[0][:24, 0, 0, :3] > 0).float()
    model = trainer.model
    model.config.problem_type = "multi_label_classification"
    plain = model.forward
    model.forward = lambda *given, **named: plain(*given, **named)
    settings = {"slots": SLOTS[:1], "validation": (VALIDATION[0][:24], labels), "policy": "wait"}
    with pytest.raises(simic.ConfigError, match="for the loss of the model"):
        GrowerCallback.attach(trainer, **settings)
    GrowerCallback.attach(trainer, **settings, loss=nn.BCEWithLogitsLoss())
