"""Probes: a sound policy passes each, and a policy with one fault fails the probe that is made for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.judged_candidates import evidence_of
from support.faults.deciding_under_faults import (
    answers_otherwise_without_files,
    asks_the_network,
    fails_without_files,
    is_lost_after_a_fault,
    load_anything,
    load_it,
    races,
    sound,
    takes_memory_for_ever,
)  # fmt: skip

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.errors import TransientError
from simic.contracts.results.gate import Probe
from simic.contracts.settings.run import GateConfig, WorldConfig
from simic.controllers.learned_controller import LearnedController
from simic.controllers.policy_files import load_policy
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.rollout import rollout
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import read_seal, seal
from simic.validation.criteria.artifact import faults
from simic.validation.disturbances import CASES, Job, failures
from simic.validation.probing import Subject, live_states
from simic.validation.promotion_gate import run_probes
from simic.validation.report import learned_spec

HOSTS = identify("benchmark", range(4))
PROBES = (
    "artifact", "blueprint_names", "decision_latency", "determinism_mismatches", "fault_recovery", "finite_outputs",
    "mask_respect", "node_order", "policy_memory", "repeatability", "slot_counts", "staleness",
)  # fmt: skip


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    Keyring(home.keys).trust(SIGNER.public_bytes)
    folder = sealed_decider(home.policies / "one")
    digest = read_seal(folder, Keyring(home.keys)).digest
    training = evidence_of(home, folder, digest).training
    spec = learned_spec(folder, digest, home.keys)
    policy = LearnedController(load_policy(folder), policy_version=None, is_decisive=False)
    steps = list(rollout(Ensemble(HOSTS, WorldConfig(horizon=6)), policy.decide, 3))
    return Subject(spec, HOSTS, live_states(steps), 0, training, GateConfig(), training.finished_at + timedelta(days=2))


def test_probes_use_one_thread_and_restore_the_number(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine threads that wait for each other at every small product take hours."""
    seen: list[int] = []
    probe = SimpleNamespace(NAME="one", measure=lambda _: seen.append(torch.get_num_threads()))
    monkeypatch.setattr("simic.validation.promotion_gate.applied_criteria", lambda *_: [probe])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_probes(subject)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def measure(name: str, subject: Subject) -> Probe:
    found: Probe = import_module(f"simic.validation.criteria.{name}").measure(subject)
    return found


@pytest.mark.parametrize("name", PROBES)
def test_a_sound_policy_passes(subject: Subject, name: str) -> None:
    found = measure(name, subject)
    assert found.count > 0
    if name == "policy_memory":
        assert 0.001 < found.value < 10.0
    elif name == "staleness":
        assert found.value == 2.0
    elif name != "decision_latency":
        assert (found.value, found.detail) == (0.0, "")


class Careless(LearnedController):
    """Everything is legal."""

    def decide(self, observations: Observations, masks: Masks, uniforms: Any) -> Decisions:
        everything = Masks(*(np.ones_like(one) for one in (masks.op, masks.slot, masks.blueprint)))
        return super().decide(observations, everything, uniforms)


class Fickle(LearnedController):
    """Draws for itself."""

    def decide(self, observations: Observations, masks: Masks, uniforms: Any) -> Decisions:
        return super().decide(observations, masks, np.random.default_rng().random(uniforms.shape))


class Nameless(LearnedController):
    """Gives no probability of what it does on hosts that are worse than this."""

    def decide(self, observations: Observations, masks: Masks, uniforms: Any) -> Decisions:
        found = super().decide(observations, masks, uniforms)
        is_bad = observations.system["validation_loss"] > 1e30
        return Decisions(found.actions, np.where(is_bad[:, None], np.nan, found.log_probs).astype(np.float32))


class Narrow(LearnedController):
    """Has a table of sixteen slots."""

    def decide(self, observations: Observations, masks: Masks, uniforms: Any) -> Decisions:
        np.zeros(16)[np.diff(observations.slot_ptr) - 1]
        return super().decide(observations, masks, uniforms)


class Literal(LearnedController):
    """Reads the host's index of a blueprint as its own."""

    def decide(self, observations: Observations, masks: Masks, uniforms: Any) -> Decisions:
        own = tuple(self._card.blueprints)
        mine = Observations(**{**vars(observations), "blueprints": own})
        return super().decide(mine, Masks(masks.op, masks.slot, masks.blueprint[:, : len(own)]), uniforms)


class InOrder(LearnedController):
    """Prefers the slot that is listed first."""

    def consider(self, observations: Observations, masks: Masks, *, is_decisive: bool) -> Any:
        found = super().consider(observations, masks, is_decisive=is_decisive)
        first = found.distribution.slots
        vars(found.distribution)["slots"] = lambda ops: first(ops) * 0.5 + 0.5 * (np.arange(first(ops).shape[1]) == 0)
        return found


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Careless, "mask_respect"),
        (Fickle, "repeatability"),
        (Nameless, "finite_outputs"),
        (Narrow, "slot_counts"),
        (Literal, "blueprint_names"),
        (InOrder, "node_order"),
    ],
)
def test_a_fault_fails_its_probe(subject: Subject, fault: type[LearnedController], name: str) -> None:
    class Planted(Subject):
        def policy(self, *, is_decisive: bool) -> LearnedController:
            return fault(load_policy(self.folder), policy_version=None, is_decisive=is_decisive)

    found = measure(name, Planted(*subject))
    assert 0 < found.value <= found.count
    assert found.detail


@pytest.mark.parametrize(
    ("decide", "failed"),
    [
        (sound, {}),
        (fails_without_files, {}),
        (takes_memory_for_ever, {}),
        (answers_otherwise_without_files, {"resource starvation": "other decisions during the fault"}),
        (races, {"timing variation": "other decisions during the fault"}),
        (asks_the_network, {"no network": "during the fault: OSError: the network is away"}),
    ],
)
def test_a_candidate_that_a_fault_changes_fails_that_case(
    tmp_path: Path, decide: Callable[[], bytes], failed: dict[str, str]
) -> None:
    (tmp_path / "card.json").write_bytes(b'{"a": 1}')
    found = failures(Job(partial(load_it, decide), tmp_path, b"same", 30.0))
    assert found == failed


def test_what_a_fault_leaves_behind_and_what_is_late_fails(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_bytes(b'{"a": 1}')
    found = failures(Job(partial(load_it, is_lost_after_a_fault), tmp_path, b"same", 30.0))
    assert found["resource starvation"] == "other decisions during the fault"
    assert found["data corruption"] == "other decisions after the fault", "it is lost from then on"
    late = failures(Job(partial(load_it, sound), tmp_path, b"same", -1.0))
    assert set(late) == set(CASES) and "to decide again" in late["no device"]
    assert failures(Job(load_anything, tmp_path, b"same", 30.0)) == {
        "data corruption": "a damaged card.json was loaded"
    }


def test_a_candidate_that_ends_its_process_recovers_from_nothing(subject: Subject, monkeypatch: Any) -> None:
    def die(_job: Job) -> dict[str, str]:
        raise TransientError("a worker process died")

    monkeypatch.setattr("simic.validation.criteria.fault_recovery.failures", die)
    found = measure("fault_recovery", subject)
    assert found.value == len(CASES) and "a worker process died" in found.detail


def test_a_slow_policy_has_a_share_of_slow_decisions(subject: Subject) -> None:
    hurried = subject._replace(gate=GateConfig(max_decision_ms=1e-6))
    assert measure("decision_latency", hurried).value == 1.0


def test_hosts_that_ended_otherwise_are_counted(subject: Subject) -> None:
    found = measure("determinism_mismatches", subject._replace(mismatches=3))
    assert (found.value, found.count) == (3.0, len(HOSTS))


def _weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "weights.safetensors"
        weights = load_file(path)
        change(weights)
        save_file(weights, path)

    return edit


def _card(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "card.json"
        card = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**card, **changes}), "utf-8")

    return edit


def _header(entry: dict[str, Any]) -> Callable[[Path], None]:
    """A file of eight bytes of data whose header claims something else."""

    def edit(folder: Path) -> None:
        header = json.dumps({"w": entry}).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(8)
        (folder / "weights.safetensors").write_bytes(content)

    return edit


HUGE = {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 8]}
FIRST = "op_head.0.weight"
HOSTILE: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "a pickle beside the weights",
        lambda at: (at / "policy.pkl").write_bytes(b"\x80\x04N."),
        "'policy.pkl' is not",
    ),
    ("a program", lambda at: (at / "load.py").write_text("import os"), "'load.py' is not in the allow-list"),
    ("a pickle as weights", lambda at: (at / "weights.safetensors").write_bytes(b"\x80\x04N."), "malformed"),
    ("weights cut short", lambda at: _cut(at / "weights.safetensors"), "malformed"),
    ("a huge shape", _header(HUGE), "malformed"),
    ("offsets outside the file", _header({**HUGE, "shape": [2], "data_offsets": [8, 16]}), "malformed"),
    ("a length of all memory", lambda at: (at / "weights.safetensors").write_bytes(b"\xff" * 16), "malformed"),
    ("no card", lambda at: (at / "card.json").unlink(), "card.json is missing"),
    ("a card that names another width", _card(parameters=1), "disagree about"),
    ("a card with a further field", _card(loader="os.system"), "malformed"),
    ("a card of nested lists", lambda at: (at / "card.json").write_text("[" * 100_000), "malformed"),
    ("weights that are not numbers", _weights(lambda w: w[FIRST].fill_(torch.nan)), "is not finite"),
    ("another type", _weights(lambda w: w.update({FIRST: w[FIRST].half()})), "should be torch.float32"),
    ("another shape", _weights(lambda w: w.update({FIRST: w[FIRST][:, 1:].contiguous()})), "should be"),
    ("a further tensor", _weights(lambda w: w.update({"extra": torch.zeros(1)})), "tensors differ"),
]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(("spoil", "reason"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_artifact_is_refused_even_if_a_trusted_key_sealed_it(
    subject: Subject, tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(subject.folder, folder)
    spoil(folder)
    digest = seal(folder, SIGNER).digest
    found = faults(folder, Keyring(subject.keyring), digest)
    assert len(found) == 1 and reason in found[0]


def _link(folder: Path) -> None:
    (folder / "card.json").unlink()
    (folder / "card.json").symlink_to("/etc/hostname")


def _rename(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    manifest["files"][0]["name"] = "../../card.json"
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def _flip(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_link, "is not a plain file"),
        (_rename, "is not a seal"),
        (_flip, "differ from what was sealed"),
        (lambda at: (at / "manifest.json").unlink(), "is not sealed"),
        (lambda at: shutil.rmtree(at), "is not sealed"),
    ],
    ids=["link", "path", "flipped bit", "no seal", "nothing"],
)
def test_an_artifact_that_differs_from_its_seal_is_refused(
    subject: Subject, tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(subject.folder, folder)
    spoil(folder)
    found = faults(folder, Keyring(subject.keyring), subject.training.digest)
    assert len(found) == 1 and reason in found[0]


def test_a_policy_of_an_unknown_key_or_with_another_digest_is_refused(subject: Subject, tmp_path: Path) -> None:
    assert "is not trusted" in faults(subject.folder, Keyring(tmp_path), None)[0]
    assert "expected digest" in faults(subject.folder, Keyring(subject.keyring), "0" * 64)[0]
