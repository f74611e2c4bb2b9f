"""A controller at work in somebody else's training loop: it changes what it decided and nothing else."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.ensembles import action
from support.builders.grown_loops import ARCHITECTURES, OPTIMIZERS, Loop, Recurrent, make_loop, train, train_epoch
from support.fakes.custom_hosts import Maps, ToyFamily, install, modules_of
from torch import Tensor, nn

import simic
from simic.api.grower_state import VERSION
from simic.app import data
from simic.app.container import Container
from simic.contracts.actions import OPS, Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.field_report import GovernorKind
from simic.contracts.lifecycle import SeedStage
from simic.contracts.settings.run import WorldConfig
from simic.controllers.plugins.explore import operation_table
from simic.controllers.plugins.random import RandomController
from simic.controllers.sampling import deterministic
from simic.hosts import rng
from simic.hosts.custom.attached import SEED_PREFIX
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.hosts.rng import Purpose
from simic.hosts.rollout import controller_uniforms
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

CASES = [(architecture, optimizer) for architecture in ARCHITECTURES for optimizer in OPTIMIZERS]


def digest_of(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.state_dict().values())).hexdigest()


def seeds_of(model: nn.Module) -> list[nn.Parameter]:
    """The seeds that a model holds while it grows."""
    return [one for name, one in model.named_parameters() if name.startswith(SEED_PREFIX)]


class Script:
    """Takes the operations of a script on slot 0, one per epoch."""

    name = "script"
    policy_version: str | None = None

    def __init__(self, *ops: Op) -> None:
        self.ops = list(ops)

    def decide(self, _observations: Observations, _masks: Masks, _uniforms: Any) -> Decisions:
        return deterministic(action(self.ops.pop(0) if self.ops else Op.WAIT)[None])


class Keeper:
    """Grows a seed in a slot as soon as it may, and keeps it as soon as its gates allow."""

    name = "keeper"
    policy_version: str | None = None
    slot = 0

    def __init__(self, blueprint: str = "gate") -> None:
        self.blueprint = blueprint_names().index(blueprint)

    def decide(self, _observations: Observations, masks: Masks, _uniforms: Any) -> Decisions:
        wanted = (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE, Op.WAIT)
        legal = masks.slot[self.slot]
        op = next(op for op in wanted if legal[OPS.index(op)] or op is Op.WAIT)
        return deterministic(action(op, self.slot, self.blueprint)[None])


def steer(monkeypatch: pytest.MonkeyPatch, controller: Any, *arguments: Any, **settings: Any) -> Loop:
    """A loop whose Grower asks the controller."""
    with monkeypatch.context() as patch:
        patch.setattr("simic.api.grower_policy.make", lambda *_: controller)
        return make_loop(*arguments, policy="wait", **settings)


@pytest.mark.parametrize(("architecture", "optimizer"), CASES)
def test_without_growth_training_is_the_same_to_the_bit(architecture: str, optimizer: str) -> None:
    plain, watched = (make_loop(architecture, optimizer, policy=policy) for policy in (None, "wait"))
    for loop in (plain, watched):
        torch.manual_seed(1)
        train(loop)
    assert digest_of(plain.model) == digest_of(watched.model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_seed_that_learns_alone_changes_nothing_else(monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    """Its extra passes draw no random numbers of the loop and leave batch statistics alone."""
    alone = steer(monkeypatch, Script(Op.WAIT, Op.GERMINATE), "transformer", optimizer)
    plain = make_loop("transformer", optimizer, policy=None)
    for loop in (plain, alone):
        torch.manual_seed(1)
        train(loop, 3)
    assert alone.grower is not None
    assert alone.grower.state.slots[0].stage is SeedStage.TRAINING
    grown = alone.model.state_dict()
    assert grown.pop(f"{SEED_PREFIX}0").any()
    assert all(torch.equal(one, grown[name]) for name, one in plain.model.state_dict().items())


def test_a_loop_of_ones_own_meets_the_states_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """One implementation: the same module, data, order, optimiser and actions, in an ensemble and in a loop."""
    family = ToyFamily(Maps, (1, 4, 4), clip_norm=1e9)
    install(monkeypatch, {"toy_maps": family})
    key, epochs = 5, 12
    hosts = Ensemble(identify("toy_maps", [key]), WorldConfig(set="toy_maps", horizon=epochs))
    host = modules_of(hosts).hosts[0]
    model = copy.deepcopy(host.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=host.spec.learning_rate, momentum=host.spec.momentum)
    grower = simic.Grower(
        model,
        optimizer,
        slots=host.spec.layers,
        validation=host.spec.validation,
        test=host.spec.test,
        epochs=epochs,
        policy="random",
        seeds_max=2,
        seed=key,
        name="toy_maps",
    )
    controller, stages = RandomController(), set()
    for epoch in range(epochs):
        masks, seen = hosts.masks(), hosts.observe()
        decided = controller.decide(seen, masks, controller_uniforms(np.array([key]), 0, epoch))
        assert np.array_equal(decided.actions, grower._pending.decisions.actions)
        assert all(np.array_equal(one, vars(grower._pending.masks)[name]) for name, one in vars(masks).items())
        for name in ("system", "history", "slots", "layers"):
            mine, theirs = (getattr(one, name) for one in (grower._pending.observations, seen))
            for column, values in theirs.items():
                np.testing.assert_allclose(mine[column], values, rtol=2e-3, atol=2e-5, err_msg=f"{epoch} {column}")
        stages |= set(seen.slots["stage"].tolist())
        outcome = hosts.step(decided.actions)
        order = rng.permutations(rng.streams(key, Purpose.ORDER, epoch), len(host.spec.train.labels))[0]
        model.train()
        for rows in torch.from_numpy(order[: host.steps * host.batch]).split(host.batch):
            optimizer.zero_grad()
            grower.loss(model(host.spec.train.inputs[rows]), host.spec.train.labels[rows]).backward()
            optimizer.step()
        growth = grower.step()
        np.testing.assert_allclose(growth.validation_loss, outcome.validation_loss_after[0], rtol=2e-3)
    assert len(stages) >= 6


@pytest.mark.filterwarnings("ignore:The tensor attributes self.reader.0.gru._flat_weights")  # torch's export of a GRU
@pytest.mark.parametrize(("architecture", "optimizer"), CASES)
def test_a_grown_network_becomes_plain_modules_with_equal_outputs(
    monkeypatch: pytest.MonkeyPatch, architecture: str, optimizer: str
) -> None:
    loop = steer(monkeypatch, Keeper(), architecture, optimizer)
    train(loop)
    assert loop.grower is not None
    kept = {slot for slot, seed in enumerate(loop.grower.state.slots) if seed.stage is SeedStage.FOSSILIZED}
    assert kept, "the case must keep a seed"
    inputs = loop.data[0][:7]
    loop.model.eval()
    with torch.no_grad():
        before = loop.model(inputs)
        network = loop.grower.finalize()
        assert float((network(inputs) - before).abs().max()) <= 1e-6
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in network.modules())
    assert not any(one._post_accumulate_grad_hooks for one in network.parameters())
    assert not seeds_of(network)
    assert not any(part.training for part in network.modules())
    whole = pickle.dumps(network)
    assert b"simic" not in whole
    with torch.no_grad():
        assert torch.equal(pickle.loads(whole)(inputs), network(inputs))  # noqa: S301 - its own bytes
    assert {id(one) for group in loop.optimizer.param_groups for one in group["params"]} == {
        id(one) for one in network.parameters()
    }
    others = loop.data[0][:5]
    with torch.no_grad():
        exported = torch.export.export(network, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
        torch.testing.assert_close(exported(others), network(others), rtol=1e-6, atol=1e-6)
    network.train()
    loss = nn.functional.cross_entropy(network(inputs), loop.data[1][:7])
    loss.backward()
    assert all(one.grad is not None for name, one in network.named_parameters() if name.endswith("1.weight"))


def test_growing_may_end_early_and_training_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = steer(monkeypatch, Keeper(), "residual")
    train(loop, 8)
    assert loop.grower is not None
    network = loop.grower.finalize()
    names = list(network.state_dict())
    assert loop.grower.finalize() is network
    assert loop.grower.is_finished
    growth = train_epoch(loop)
    assert growth is not None
    assert growth.action is None
    assert list(network.state_dict()) == names
    assert any(name.endswith("1.weight") for name in names)


def test_seeds_of_a_layer_inside_another_are_both_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner layer is put in its place first, or its name would be gone."""
    keeper = Keeper()
    keeper.slot = 1
    loop = steer(monkeypatch, keeper, "residual", slots=["layer1.conv", "layer1"], seeds_max=2, epochs=24)
    train(loop, 12)
    keeper.slot = 0
    train(loop, 12)
    assert loop.grower is not None
    loop.model.eval()
    kept = [slot.stage for slot in loop.grower.state.slots]
    with torch.no_grad():
        before = loop.model(loop.data[0])
        after = loop.grower.finalize()(loop.data[0])
    assert kept == [SeedStage.FOSSILIZED, SeedStage.FOSSILIZED]
    assert float((after - before).abs().max()) <= 1e-6


CHILD = """
import os, signal, sys, torch
import torch._dynamo  # which torch would load with the first optimiser of every child
import simic.api.grower_policy
from support.builders.grown_loops import make_loop, train_epoch
from test_grower import Keeper, digest_of

def run(file, architecture, optimizer, fatal):
    batch, policy = 11, "random"
    if architecture == "recurrent":
        # Noise by the epoch, and more steps than are measured.
        batch, policy, simic.api.grower_policy.make = 1, "wait", lambda *_: Keeper("dropout")
    loop = make_loop(architecture, optimizer, epochs=12, seeds_max=2, policy=policy)
    start, states = 0, []
    if os.path.exists(file):
        saved = torch.load(file, weights_only=True)
        loop.grower.load_state_dict(saved["grower"])
        loop.model.load_state_dict(saved["model"])
        loop.optimizer.load_state_dict(saved["optimizer"])
        start, states = saved["epoch"], saved["states"]
    for epoch in range(start, 12):
        torch.manual_seed(epoch)
        if epoch == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        train_epoch(loop, batch)
        states.append(loop.grower.state.model_dump_json())
        if not loop.grower.is_finished:
            state = {"grower": loop.grower.state_dict(), "model": loop.model.state_dict(), "states": states}
            torch.save({**state, "optimizer": loop.optimizer.state_dict(), "epoch": epoch + 1}, file + "~")
            os.replace(file + "~", file)
    print(digest_of(loop.grower.finalize()), *states, flush=True)

for line in sys.stdin:
    file, architecture, optimizer, fatal = line.split()
    if (pid := os.fork()) == 0:
        run(file, architecture, optimizer, int(fatal))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Each line is a training in a process of its own, forked from one that trains nothing and loads the libraries once."""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Output of a whole training, of two that are killed, and of the one that ends what they began; for each case."""
    root, tests = tmp_path_factory.mktemp("killed"), Path(__file__).parents[2]
    questions = [
        f"{root / architecture}-{optimizer}-{file}.pt {architecture} {optimizer} {fatal}\n"
        for architecture, optimizer in CASES
        for file, fatal in (("whole", -1), ("killed", 3), ("killed", 7), ("killed", -1))
    ]
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input="".join(questions),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 6 * len(CASES), done.stderr
    return [lines[start : start + 6] for start in range(0, len(lines), 6)]


@pytest.mark.parametrize("case", range(len(CASES)), ids=map(str, CASES))
def test_a_killed_training_resumes_to_the_bit(trainings: list[list[str]], case: int) -> None:
    result, *ends, resumed, last = trainings[case]
    assert [*ends, last] == ["0", str(-signal.SIGKILL), str(-signal.SIGKILL), "0"]
    assert resumed == result


def test_trainings_are_reported_without_a_quarantined_line(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    places = Home(home)
    places.create()
    for architecture, optimizer in CASES:
        name = f"{architecture}_{optimizer}"
        loop = steer(monkeypatch, Keeper(), architecture, optimizer, report_to=simic.Home(home), name=name, epochs=20)
        train(loop, 20)
    container = Container(places, load_profile("default"), 0)
    receipt = data.ingest(container)
    assert (receipt.landed, receipt.quarantined) == (20 * len(CASES), 0)
    assert data.curate(container).rejected == {}
    query = "select count(distinct run_id) runs, count(distinct host.family) families, count(*) n from reports"
    assert simic.sql(query, home=simic.Home(home)).to_pylist() == [
        {"runs": len(CASES), "families": len(CASES), "n": 20 * len(CASES)}
    ]


def test_an_exploring_grower_keeps_seeds_and_reports_with_which_probability() -> None:
    """Its reports teach what a kept seed is worth; those of a random one hardly hold any."""
    kept: dict[str, int] = {"explore": 0, "random": 0}
    for policy, seed in itertools.product(kept, range(4)):
        loop = make_loop("recurrent", policy=policy, seed=seed, epochs=20)
        grower = loop.grower
        assert grower is not None
        for _ in range(20):
            pending = grower._pending
            if policy == "explore":
                (action,), (log_prob,) = pending.decisions.actions[:, 0], pending.decisions.log_probs[:, 0]
                rates = operation_table(pending.observations, pending.masks)[0]
                assert log_prob == pytest.approx(np.log(rates[action]), rel=1e-5)
            train_epoch(loop)
        kept[policy] += sum(slot.stage is SeedStage.FOSSILIZED for slot in grower.state.slots)
    assert kept["explore"] >= 3 > kept["random"]


def test_the_governor_undoes_an_epoch_that_diverges() -> None:
    loop = make_loop("residual", "adamw", policy="random", epochs=12)
    grower = loop.grower
    assert grower is not None
    train(loop, 3)
    before = {name: one.clone() for name, one in loop.model.state_dict().items() if SEED_PREFIX not in name}
    for group in loop.optimizer.param_groups:
        group["lr"] = float("nan")
    growth = train_epoch(loop)
    assert growth is not None
    assert growth.governor is not None
    assert growth.governor.kind is GovernorKind.NON_FINITE
    assert grower.is_finished
    assert all(torch.equal(one, loop.model.state_dict()[name]) for name, one in before.items())
    assert not seeds_of(loop.model)
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.01
    later = train_epoch(loop)
    assert later is not None
    assert later.action is None


def test_a_seed_follows_the_schedule_of_its_layer_and_leaves_when_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = steer(monkeypatch, Script(Op.WAIT, Op.GERMINATE, Op.WAIT, Op.PRUNE), "recurrent")
    schedule = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, 0.5)
    count = len(loop.optimizer.param_groups[0]["params"])
    train_epoch(loop)
    train_epoch(loop)
    schedule.step()
    (seed,) = seeds_of(loop.model)
    assert loop.optimizer.param_groups[0]["params"][-1] is seed
    assert loop.optimizer.state[seed]
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    train(loop, 4)
    assert len(loop.optimizer.param_groups[0]["params"]) == count
    assert seed not in loop.optimizer.state
    assert not seeds_of(loop.model)


def test_accumulated_and_scaled_losses_give_the_same_states() -> None:
    """Measured gradients are those of the loss, whatever factor a scaler or an accumulation puts on it."""

    def gradients(parts: int, scale: float) -> list[float | None]:
        loop = make_loop("recurrent", policy="wait")
        assert loop.grower is not None
        inputs, labels = loop.data
        loop.model.train()
        for rows in torch.arange(44).split(11 * parts):
            loop.optimizer.zero_grad()
            for part in rows.split(11):
                share = len(part) / len(rows)
                (loop.grower.loss(loop.model(inputs[part]), labels[part]) * share * scale).backward()
            for one in loop.model.parameters():
                one.grad = None if one.grad is None else one.grad / scale
            loop.optimizer.step()
        loop.grower.step()
        return [layer.gradient_norm for layer in loop.grower.state.graph.layers]

    assert gradients(1, 1024.0) == pytest.approx(gradients(1, 1.0), rel=1e-5)
    assert gradients(2, 64.0) == pytest.approx(gradients(2, 1.0), rel=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler asks for it
def test_a_network_grows_alike_however_its_batches_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two accumulated parts, compiled, or with automatic mixed precision, against the plain loop."""

    def losses(way: str) -> list[float]:
        loop = steer(monkeypatch, Keeper(), "recurrent")
        assert loop.grower is not None
        inputs, labels = loop.data
        model = torch.compile(loop.model, backend="aot_eager") if way == "compiled" else loop.model
        found = []
        for _ in range(6):
            loop.model.train()
            for rows in torch.arange(44).split(22):
                loop.optimizer.zero_grad()
                parts = rows.split(11 if way == "accumulated" else 22)
                for part in parts:
                    with torch.autocast("cpu", torch.bfloat16, enabled=way == "mixed"):
                        loss = loop.grower.loss(model(inputs[part]), labels[part])
                    (loss / len(parts)).backward()
                loop.optimizer.step()
            growth = loop.grower.step()
            assert growth is not None
            found.append(growth.validation_loss)
        state = loop.grower.state.slots[0]
        assert state.stage is SeedStage.FOSSILIZED
        assert state.gradient_norm
        assert len(seeds_of(loop.model)) == 1
        assert all(one.dtype == torch.float32 for one in loop.model.parameters())
        with torch.no_grad():
            before = loop.model.eval()(inputs)
            torch.testing.assert_close(loop.grower.finalize()(inputs), before, rtol=0, atol=1e-6)
        return found

    plain = losses("plain")
    assert losses("accumulated") == pytest.approx(plain, rel=1e-4)
    assert losses("compiled") == pytest.approx(plain, rel=1e-4)
    assert losses("mixed") == pytest.approx(plain, rel=0.02)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_code_compiled_before_the_grower_is_noticed() -> None:
    """It would run the layers without their seeds."""
    torch.compiler.reset()
    first, second = (make_loop("residual", policy=None) for _ in range(2))
    torch.compile(first.model, backend="aot_eager")(first.data[0])
    settings: dict[str, Any] = {"validation": first.data, "epochs": 8, "policy": "wait"}
    grower = simic.Grower(second.model, second.optimizer, slots=["layer1", "layer2"], **settings)
    compiled = torch.compile(second.model, backend="aot_eager")
    with pytest.raises(simic.ConfigError, match=r"all 2 layers .* found 0; call torch.compiler.reset\(\)"):
        grower.loss(compiled(second.data[0]), second.data[1])
    torch.compiler.reset()
    grower.loss(compiled(second.data[0]), second.data[1]).backward()


class Outputs(nn.Module):
    """A GRU over sequences that gives a dictionary: a class per position, or a number per sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reader, self.mixer = Recurrent.Outputs(), nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head, self.is_tagger = nn.Linear(6, width), width > 1

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = self.mixer(self.reader(x))
        return {"out": self.head(found) if self.is_tagger else self.head(found[:, -1])[:, 0]}


@pytest.mark.parametrize("task", ["positions", "numbers"])
def test_a_network_without_one_class_per_sample_grows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str
) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(120, 5, 4)
    if task == "positions":
        labels = (inputs[..., 0] > 0).long() + (inputs[..., 1] > 0.5).long()
        labels[::3, 3:] = -100
    else:
        labels = inputs[:, :, 0].sum(dim=1) * 10
    model = Outputs(3 if task == "positions" else 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    # The GRU reads from left to right, so nothing that mixes positions may grow where they have labels.
    keeper = Keeper("dense" if task == "positions" else "gate")
    monkeypatch.setattr("simic.api.grower_policy.make", lambda *_: keeper)
    validation = (inputs[80:], labels[80:])
    grower = simic.Grower(
        model,
        optimizer,
        slots=["reader", "mixer"],
        validation=validation,
        epochs=12,
        policy="wait",
        logits=lambda output: output["out"],
        report_to=tmp_path,
    )
    born = grower.state.validation_loss
    for _ in range(12):
        model.train()
        for rows in torch.arange(80).split(20):
            optimizer.zero_grad()
            grower.loss(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        growth = grower.step()
    assert grower.state.slots[0].stage is SeedStage.FOSSILIZED
    assert grower.state.slots[0].contribution is not None
    network = grower.finalize().eval()
    with torch.no_grad():
        out, truth = network(validation[0])["out"], validation[1]
    if task == "positions":
        counts = truth != -100
        loss = nn.functional.cross_entropy(out.flatten(0, 1), truth.flatten())
        accuracy = (out.argmax(dim=2) == truth)[counts].float().mean()
    else:
        error = (out - truth).square() / truth.var(correction=0)
        loss, accuracy = error.mean(), (1 / (1 + error)).mean()
    assert growth.validation_loss == pytest.approx(float(loss), rel=1e-5)
    assert growth.validation_accuracy == pytest.approx(float(accuracy), rel=1e-5)
    assert born is not None
    assert growth.validation_loss < 0.9 * born


def test_outputs_that_do_not_fit_the_labels_are_refused() -> None:
    inputs = torch.randn(60, 5, 4)
    labels = torch.arange(60) % 3

    def grow(width: int, labels: Tensor) -> None:
        model = Outputs(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings: dict[str, Any] = {"validation": (inputs, labels), "logits": lambda output: output["out"]}
        simic.Grower(model, optimizer, slots=["mixer"], epochs=8, policy="wait", **settings)

    for width, wrong, error, reason in (
        (3, labels, simic.ConfigError, r"float32 logits \[32, C >= 2\], found torch.float32"),
        (1, labels.float()[:, None], simic.ConfigError, r"numbers \[\d+, 1\], as the targets, found .* \(32,\)$"),
        (
            3,
            labels[:, None].expand(60, 5).float(),
            simic.ConfigError,
            r"\(32, 5, 3\)\. Labels .* mean regression; .*long",
        ),
        (1, torch.ones(60), simic.DatasetError, "targets that differ"),
        (3, labels.float().double(), simic.DatasetError, "found torch.float64"),
        (3, torch.full((60, 5), -100), simic.DatasetError, "which counts for none"),
        (3, (labels[:, None] + torch.arange(5)), simic.DatasetError, r"labels must lie in \[0, 3\)"),
    ):
        with pytest.raises(error, match=reason):
            grow(width, wrong)


class Tuples(nn.Module):
    """A layer that gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.gru(x)[0][:, -1])
        return logits


def test_what_cannot_grow_is_refused_with_the_reason() -> None:
    from support.fakes.custom_hosts import blobs

    data = tuple(blobs(1, 60, (5, 4)))

    def grow(model: nn.Module, optimizer: Any = None, **changes: Any) -> simic.Grower:
        chosen = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"slots": ["gru"], "validation": data, "epochs": 8, "policy": "wait", **changes}
        return simic.Grower(model, chosen, **settings)

    for changes, reason in (
        ({}, "layer 'gru' must give a floating-point tensor"),
        ({"slots": ["grus"]}, "no submodules"),
        ({"slots": []}, "at least one name"),
        ({"slots": "gru"}, "a list of names"),
        ({"slots": 5}, "slots: expected a list of names or Layers, found int"),
        ({"slots": ["gru", 5]}, "slots: expected a list of names or Layers, found 5 in it"),
        ({"slots": iter(["gru"])}, "slots: expected a list of names or Layers, found list_iterator"),
        ({"slots": ["gru", "head"]}, "'head' gives the logits"),
        ({"blueprints": ["gate", "dens"]}, r"names among .*dense.*; found \['dens'\]"),
        ({"blueprints": "dense"}, "blueprints: expected a list of names"),
        ({"blueprints": 5}, "blueprints: expected a list of names, found int"),
        ({"blueprints": [5]}, "blueprints: expected a list of names, found 5 in it"),
        ({"blueprints": []}, "blueprints: expected at least one name among .*dense.*; found none"),
        ({"lifecycle": 5}, "lifecycle: expected settings by name, found 5; settings of lifecycle: .*embargo_epochs"),
        ({"loss": 5}, "loss: expected a function, found int"),
        ({"logits": 5}, "logits: expected a function, found int"),
        ({"epochs": 3}, "4 to 1,000"),
        ({"epochs": "10"}, "epochs: expected a whole number from 4 to 1,000, found '10'"),
        ({"seeds_max": 0}, "seeds_max: expected a whole number from 1"),
        ({"policy": "heuristc"}, "only wait, heuristic, explore, random. Did you mean 'heuristic'?"),
        ({"policy": "champoin"}, "only wait, heuristic, explore, random. Did you mean 'champion'?"),
        ({"policy": "oracle"}, "only a set of hosts has"),
        ({"policy": None}, "policy: expected a policy, its name or directory, .*; found NoneType"),
        ({"slots": ["gru", "gru"]}, "slots: expected each submodule once"),
        ({"name": "my-net"}, "a-z"),
        ({"validation": []}, "validation: expected"),
        ({"test": 5}, "test: expected .* as tensors, .*; found int"),
        (
            {"test": tuple(part.numpy() for part in data)},
            "found tuple of ndarray; convert arrays with torch.from_numpy",
        ),
        ({"test": [tuple(part.numpy() for part in data)]}, "convert arrays with torch.from_numpy"),
    ):
        with pytest.raises(simic.ConfigError, match=reason):
            grow(Tuples(), **changes)
    model: Any = 5
    with pytest.raises(simic.ConfigError, match=r"model: expected a torch.nn.Module, found int"):
        grow(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    model = make_loop("recurrent", policy=None).model
    with pytest.raises(simic.ConfigError, match=r"expected an optimiser of torch.optim, or .*; found int"):
        grow(model, 5, slots=["mixer"])
    with pytest.raises(simic.ConfigError, match="LBFGS"):
        grow(model, torch.optim.LBFGS(model.parameters()), slots=["mixer"])
    with pytest.raises(simic.ConfigError, match="trains no parameter"):
        grow(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), slots=["mixer"])
    grow(model, slots=["mixer"])
    for other, slot in ((model, "mixer"), (nn.Sequential(model), "0.mixer"), (model.get_submodule("mixer"), "0")):
        with pytest.raises(simic.ConfigError, match="another Grower"):
            grow(other, slots=[slot])


class Odd(nn.Module):
    """Layers that a sequence cannot replace, or that have a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scaled, self.head = nn.Linear(4, 8), Scaled(), nn.Linear(8, 3)
        self.layers = nn.ModuleList([self.first])

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x).to(self.head.weight.dtype)
        logits: Tensor = self.head(self.scaled(x, scale=1.0))
        return logits


class Scaled(nn.Module):
    """A layer with a second argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return torch.relu(self.linear(x) * scale)


def test_a_layer_is_replaced_under_every_name_or_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.fakes.custom_hosts import blobs

    torch.manual_seed(0)
    model, data = Odd(), tuple(blobs(1, 60))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    settings: dict[str, Any] = {"validation": data, "epochs": 16, "policy": "wait"}
    with pytest.raises(simic.ConfigError, match="in the place of 'scaled'"):
        simic.Grower(model, optimizer, slots=["scaled"], **settings)
    monkeypatch.setattr("simic.api.grower_policy.make", lambda *_: Keeper())
    grower = simic.Grower(model, optimizer, slots=["first"], **settings)
    loop = Loop(model, optimizer, grower, tuple(blobs(0, 44)))
    train(loop, 16)
    assert grower.state.slots[0].stage is SeedStage.FOSSILIZED
    model.eval()
    with torch.no_grad():
        before = model(data[0])
        assert torch.equal(grower.finalize()(data[0]), before)


def test_a_grower_that_cannot_begin_leaves_the_model_as_it_was() -> None:
    loop = make_loop("recurrent", policy=None)
    settings: dict[str, Any] = {"slots": ["mixer"], "validation": loop.data, "epochs": 8, "policy": "wait"}
    with pytest.raises(simic.ConfigError, match="can grow"):
        simic.Grower(loop.model, loop.optimizer, blueprints=["conv3x3"], **settings)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in loop.model.modules())
    simic.Grower(loop.model, loop.optimizer, **settings)


def test_a_batch_without_a_step_is_forgotten_and_a_closure_refused() -> None:
    def norms(*, is_repeated: bool) -> list[float | None]:
        loop = make_loop("recurrent", policy="wait")
        assert loop.grower is not None
        loop.model.train()
        for _ in range(1 + is_repeated):
            loop.optimizer.zero_grad()
            loop.grower.loss(loop.model(loop.data[0]), loop.data[1]).backward()
        loop.optimizer.step()
        loop.grower.step()
        return [layer.gradient_norm for layer in loop.grower.state.graph.layers]

    assert norms(is_repeated=True) == pytest.approx(norms(is_repeated=False))
    loop = make_loop("recurrent", policy="wait")
    with pytest.raises(simic.ConfigError, match="closure"):
        loop.optimizer.step(lambda: 0.0)


def test_a_seed_that_learns_alone_learns_on_the_network_as_its_owner_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch normalisation that the owner froze stays frozen in the seed's own passes."""
    loop = steer(monkeypatch, Script(Op.WAIT, Op.GERMINATE), "residual")
    train_epoch(loop)
    modes: set[bool] = set()
    frozen = loop.model.get_submodule("layer1.norm")
    frozen.register_forward_hook(lambda part, *_: modes.add(part.training))
    assert loop.grower is not None
    loop.model.train()
    frozen.eval()
    for _ in range(2):
        loop.optimizer.zero_grad()
        loop.grower.loss(loop.model(loop.data[0]), loop.data[1]).backward()
        loop.optimizer.step()
    assert modes == {False}


def test_a_loop_that_forgets_a_call_is_told() -> None:
    loop = make_loop("recurrent", policy="wait")
    assert loop.grower is not None
    with pytest.raises(
        simic.ConfigError, match=r"no loss was computed .* compute that of each batch with grower.loss, and call step"
    ):
        loop.grower.step()
    loop.model.eval()
    with pytest.raises(simic.ConfigError, match="training mode"):
        loop.grower.loss(loop.model(loop.data[0]), loop.data[1])
    loop.model.train()
    with pytest.raises(simic.ConfigError, match="found dict; give the Grower logits="):
        loop.grower.loss({"logits": loop.model(loop.data[0])}, loop.data[1])
    with pytest.raises(simic.ConfigError, match="labels"):
        loop.grower.loss(loop.model(loop.data[0]), loop.data[1][:3])
    loop = make_loop("recurrent", policy="wait")
    assert loop.grower is not None
    loop.model.train()
    loop.grower.loss(loop.model(loop.data[0]), loop.data[1])
    with pytest.raises(simic.ConfigError, match="took no step"):
        loop.grower.step()


def test_a_state_of_another_model_is_refused() -> None:
    states = [make_loop(name, policy="wait").grower for name in ("recurrent", "residual")]
    assert states[0] is not None
    assert states[1] is not None
    with pytest.raises(simic.ContractError, match="layers"):
        states[1].load_state_dict(states[0].state_dict())
    with pytest.raises(simic.ContractError, match=f"expected version {VERSION} .*, found version {VERSION - 1} "):
        states[0].load_state_dict({**states[0].state_dict(), "version": VERSION - 1})
    longer = make_loop("recurrent", policy="wait", epochs=20).grower
    assert longer is not None
    with pytest.raises(simic.ContractError, match="one of 20 epochs, found 12; give epochs=12"):
        longer.load_state_dict(states[0].state_dict())
    for changes, reason in (
        ({"seed": 1}, "expected seed 1 as here, found 0"),
        ({"name": "other"}, "expected name 'other' as here, found 'own'"),
        ({"policy": "random"}, "expected controller 'random' as here, found 'wait'"),
        ({"seeds_max": 2}, "expected seeds_max 2 as here, found 1"),
    ):
        other = make_loop("recurrent", **{"policy": "wait", **changes}).grower
        assert other is not None
        with pytest.raises(simic.ContractError, match=reason):
            other.load_state_dict(states[0].state_dict())


def test_labels_without_a_logit_are_those_of_the_validation() -> None:
    loop = make_loop("recurrent", policy=None)
    inputs, labels = loop.data
    with pytest.raises(simic.DatasetError, match="validation: the module gives 3 logits"):
        simic.Grower(
            loop.model, loop.optimizer, slots=["mixer"], validation=(inputs, labels + 1), epochs=8, policy="wait"
        )


@pytest.mark.parametrize("samples", [300, 600])
def test_what_a_later_layer_does_in_place_changes_no_measurement(samples: int) -> None:
    """More than 512 samples are chosen among, so their outputs are copies in any case."""
    x, y = torch.randn(samples, 8, generator=torch.Generator().manual_seed(0)), torch.arange(samples) % 3

    def layers(*, inplace: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(inplace=inplace), nn.Linear(12, 3))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        grower = simic.Grower(model, optimiser, slots=["0"], validation=(x, y), epochs=4, policy="wait")
        return dict(grower._ensemble.observe().layers)

    apart, within = layers(inplace=False), layers(inplace=True)
    for name in ("activation_spread", "effective_dimension"):
        assert within[name].tolist() == apart[name].tolist()


def test_a_seed_that_was_not_fossilised_is_named_when_it_is_removed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = steer(monkeypatch, Script(Op.WAIT, Op.GERMINATE), "transformer")
    train(loop)
    assert loop.grower is not None
    with caplog.at_level("WARNING", logger="simic.api"):
        loop.grower.finalize()
        loop.grower.finalize()
    assert [record.message for record in caplog.records] == [
        "finalize removes what was not fossilised: gate behind layers.0"
    ]
