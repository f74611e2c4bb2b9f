"""Families of other trunks: drawn from the key within ranges, and hosts of several topologies in one ensemble."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from support.builders.ensembles import action, random_actions, waits

from simic.contracts.actions import Op
from simic.contracts.batches import Observations
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import DatasetError, IllegalActionError
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HardwareContext
from simic.hosts import rng
from simic.hosts.custom import ModuleHost
from simic.hosts.custom.forward import RngStream, seeded_rng
from simic.hosts.ensemble import Ensemble
from simic.hosts.families import _text
from simic.hosts.families._causes import Draw, Ranges
from simic.hosts.families._series import CLASSES, LENGTH, series
from simic.hosts.host_sets import SETS, identify
from simic.hosts.interfaces import DataSplit
from simic.hosts.mixed_ensemble import MixedEnsemble, ensemble_of
from simic.hosts.plugins import load_module_family
from simic.hosts.rng import Purpose
from simic.hosts.world_identity import world_identity
from simic.validation.episodes import TrialJob, run_episodes

FAMILIES = SETS["trunks"].families
MIXED = [6, 3, 1, 0, 2]
"""Keys of all families, two of one, in no order."""


def made(name: str, key: int) -> ModuleHost:
    """The host that Simic makes of a key."""
    with seeded_rng(key, RngStream.BIRTH):
        return load_module_family(name).host(key)


def bits(host: ModuleHost) -> list[bytes]:
    tensors = [*host.module.state_dict().values(), *host.train, *host.validation, *host.test]
    return [tensor.numpy().tobytes() for tensor in tensors]


@pytest.fixture
def fresh_text() -> None:
    _text._corpus.cache_clear()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_key_alone_decides_a_host(name: str) -> None:
    torch.manual_seed(3)
    first = bits(made(name, 5))
    torch.manual_seed(4)
    assert bits(made(name, 5)) == first
    assert all(mine != other for mine, other in zip(bits(made(name, 6))[-6:], first[-6:], strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_causes_stay_in_their_ranges_and_reach_their_ends(name: str) -> None:
    ranges: Ranges = load_module_family(name).ranges
    drawn = [ranges.causes(key) for key in range(400)]
    for low, high, values in (
        (*ranges.samples, [one.samples for one in drawn]),
        (*ranges.rate, [one.rate for one in drawn]),
        (1, 12, [one.hidden[0] for one in drawn]),
        (0.0, 0.5, [one.label_noise for one in drawn]),
    ):
        assert low <= min(values) <= low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) <= max(values) <= high
    assert 0.4 < np.mean([one.label_noise == 0.0 for one in drawn]) < 0.6


@pytest.mark.parametrize("name", FAMILIES)
def test_the_share_of_wrong_training_labels_is_that_of_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = load_module_family(name)
    ranges: Ranges = family.ranges
    spoiled = [made(name, key) for key in range(24)]
    monkeypatch.setattr(type(family), "ranges", ranges._replace(label_noise=(0.0, 0.0)))
    clean = [made(name, key) for key in range(24)]
    wrong, expected = 0, 0.0
    for key, (noisy, right) in enumerate(zip(spoiled, clean, strict=True)):
        assert noisy.validation.labels.equal(right.validation.labels)
        assert noisy.test.labels.equal(right.test.labels)
        share = ranges.causes(key).label_noise
        differing = int((noisy.train.labels != right.train.labels).sum())
        assert bool(differing) == bool(share)
        wrong, expected = wrong + differing, expected + share * len(right.train.labels)
    assert abs(wrong - expected) < 0.1 * expected


@pytest.mark.parametrize("name", ["cnn_plain", "series_conv", "series_gru"])
def test_no_sample_is_in_two_splits(name: str) -> None:
    host = made(name, 8)
    assert load_module_family(name).ranges.causes(8).scale_spread == 0.0
    rows = [{row.numpy().tobytes() for row in part.inputs} for part in (host.train, host.validation, host.test)]
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]


def test_no_paragraph_of_the_text_is_in_two_splits(monkeypatch: pytest.MonkeyPatch, fresh_text: None) -> None:
    """Paragraphs are told apart by their first words; one that occurs in two topics still counts once."""
    words = [
        f"{chr(97 + number % 26)}{chr(97 + number // 26)}: the first words of a paragraph" for number in range(200)
    ]
    topics = {"one": "\n\n".join(words[:120]), "two": "\n\n".join(words[80:])}
    fake = ModuleType("topics")
    fake.topics = topics
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", fake)
    length = len(words[0])
    texts = [symbols.reshape(-1, length) for symbols, _ in _text._corpus().values()]
    kinds = [{row.tobytes() for row in text} for text in texts]
    assert sum(map(len, texts)) == 200
    assert len(set.union(*kinds)) == sum(map(len, kinds))
    assert all(30 < len(text) < 130 for text in texts)
    for _, starts in _text._corpus().values():
        assert (starts % length + _text.LENGTH < length).all()
    _text._corpus.cache_clear()


def test_labels_of_the_text_are_the_kind_of_the_next_symbol() -> None:
    symbols, starts = _text._corpus()[DataSplit.TRAIN]
    inputs, labels = _text.windows(4, DataSplit.TRAIN, 50)
    known = {symbols[start : start + _text.LENGTH].tobytes(): int(symbols[start + _text.LENGTH]) for start in starts}
    for window, label in zip(inputs, labels.tolist(), strict=True):
        follows = known[window.tobytes()]
        name = _text._ALPHABET[follows]
        assert label == (0 if name in "aeiouy" else 2 if name == " " else 1 if name.isalpha() else 3)


def test_a_python_without_the_text_is_a_typed_error(monkeypatch: pytest.MonkeyPatch, fresh_text: None) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DatasetError, match="this Python lacks its reference text"):
        made("text_transformer", 0)


def test_another_text_is_another_world(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world_identity(WorldConfig(set="trunks"))
    monkeypatch.setattr(sys.modules["simic.hosts.families.text_transformer"], "text_digest", lambda: "0" * 64)
    assert world_identity(WorldConfig(set="trunks")) != here
    assert "data of text_transformer" not in world_identity(WorldConfig())


def test_frequencies_and_orders_are_what_their_labels_say() -> None:
    """Without noise the class of a sine is its count of periods; both orders of two motifs have equal contents."""
    causes = Ranges(scale_spread=(0.0, 0.0)).causes(1)
    quiet = causes.draws.copy()
    quiet[[Draw.TASK, Draw.TASK_NOISE, Draw.TASK_DETAIL]] = 0.0, -0.125, 1.0
    values, labels = series(1, causes._replace(draws=quiet), DataSplit.TRAIN, 40)
    strongest = np.abs(np.fft.rfft(values, n=8 * LENGTH)).argmax(axis=1) / 8
    assert np.allclose(strongest, 1.5 * 1.6**labels, atol=0.5)
    quiet[Draw.TASK] = 0.99
    values, labels = series(1, causes._replace(draws=quiet), DataSplit.TRAIN, 200)
    halves = {label: values[labels == label].reshape(-1, 2, LENGTH // 2) for label in range(CLASSES)}
    energy = {label: (half**2).sum(axis=2).mean(axis=0) for label, half in halves.items()}
    assert np.allclose(energy[0], energy[1][::-1])
    assert np.allclose(energy[2], energy[3][::-1])
    assert not np.allclose(energy[0], energy[2])


def test_the_noise_that_is_added_does_not_drive_the_process() -> None:
    causes = Ranges(scale_spread=(0.0, 0.0)).causes(5)
    draws = causes.draws.copy()
    parts = []
    for noise in (-0.125, 1.0):
        draws[[Draw.TASK, Draw.TASK_NOISE]] = 0.3, noise
        parts.append(series(5, causes._replace(draws=draws.copy()), DataSplit.TRAIN, 200)[0])
    clean, noisy = parts
    assert np.isclose((noisy - clean).std(), 0.9, atol=0.05)
    assert abs(np.corrcoef(clean.ravel(), (noisy - clean).ravel())[0, 1]) < 0.06


def history(keys: list[int]) -> dict[int, list[bytes]]:
    """Observations and outcomes of every step under random legal actions that depend on the key alone."""
    grown = ensemble_of(identify("trunks", keys), WorldConfig(set="trunks", horizon=4))
    found: dict[int, list[bytes]] = {key: [] for key in keys}
    for epoch in range(4):
        seen = grown.observe()
        outcome = grown.step(
            random_actions(grown.masks(), rng.uniforms(rng.streams(keys, Purpose.CONTROLLER, epoch), 7))
        )
        for row, key in enumerate(keys):
            own = seen.take(np.array([row]))
            tables = (own.system, own.history, own.slots, own.layers)
            found[key] += [column.tobytes() for table in tables for column in table.values()]
            found[key] += [column[row].tobytes() for column in outcome if isinstance(column, np.ndarray)]
            found[key] += [str((outcome.seed_ids[row], outcome.blueprint_ids[row])).encode()]
    return found


def test_bits_do_not_depend_on_neighbours_of_any_family() -> None:
    together = history(MIXED)
    assert sum(b"None" not in line for own in together.values() for line in own if line.startswith(b"('")) > 3
    for keys in ([3], [2, 6, 1]):
        assert all(own == together[key] for key, own in history(keys).items())


def test_hosts_of_several_families_make_one_valid_observation() -> None:
    grown = ensemble_of(identify("trunks", MIXED), WorldConfig(set="trunks", horizon=4))
    grown.step(waits(len(MIXED)))
    states = grown.observe().to_states(HardwareContext(device="cpu", threads=1))
    names = grown.observe().blueprints
    again = Observations.from_states(states, names)
    assert np.array_equal(again.connects, grown.observe().connects)
    own = [len({layer.width for layer in state.graph.layers}) for state in states]
    assert own == [2] * 5
    assert [host.key for host in grown.identities] == MIXED
    offered = dict(zip(MIXED, grown.masks().blueprint, strict=True))
    special = [names.index("attention"), names.index("conv3x3")]
    assert {key: row[special].tolist() for key, row in offered.items()} == {
        key: [key % 4 != 0, key % 4 == 0] for key in MIXED
    }


def test_an_illegal_action_of_the_last_group_changes_no_host() -> None:
    grown = ensemble_of(identify("trunks", [0, 1]), WorldConfig(set="trunks", horizon=4))
    actions = waits(2)
    actions[1] = action(Op.PRUNE)
    with pytest.raises(IllegalActionError, match="host 1"):
        grown.step(actions)
    assert grown.observe().system["epoch"].tolist() == [0, 0]


def test_the_others_go_on_when_all_hosts_of_a_family_have_ended() -> None:
    grown = ensemble_of(identify("trunks", [0, 1]), WorldConfig(set="trunks", horizon=4))
    assert isinstance(grown, MixedEnsemble)
    grown._groups[0].ensemble._finished[:] = True
    for _ in range(4):
        outcome = grown.step(waits(2))
        assert outcome.live.tolist() == [False, True]
    assert grown.is_finished.all()
    assert np.isfinite(outcome.test_accuracy).tolist() == [False, True]


def test_hosts_of_one_family_need_no_mixing() -> None:
    assert isinstance(ensemble_of(identify("trunks", [1, 5]), WorldConfig(set="trunks")), Ensemble)
    assert isinstance(ensemble_of(identify("benchmark", [0, 1]), WorldConfig()), Ensemble)


def test_episodes_of_the_set_run_and_come_in_the_order_of_their_keys() -> None:
    world = WorldConfig(set="trunks", horizon=4)
    job = TrialJob("random", ControllerSpec(name="random"), identify("trunks", MIXED), world, RewardConfig(), seed=1)
    together = run_episodes(job)
    assert not together.illegal_actions.any()
    for row, host in enumerate(job.hosts):
        alone = run_episodes(TrialJob("random", job.spec, (host,), world, job.reward, seed=1))
        assert alone.returns[0] == together.returns[row]
        assert alone.test_accuracy[0] == together.test_accuracy[row]
