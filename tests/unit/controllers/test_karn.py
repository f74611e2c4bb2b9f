"""Karn's network and its sealed directory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.karns import files_of, loaded_karn
from support.builders.observations import BLUEPRINTS, make_scene

from simic.contracts.errors import ConfigError, ContractError, IntegrityError
from simic.controllers.features import encode
from simic.controllers.karn import load_karn, save_karn
from simic.controllers.network_files import CARD_NAME, WEIGHTS_NAME


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_karn(tmp_path / "karn", *loaded_karn())
    return tmp_path / "karn"


def test_it_gives_logits_and_returns_of_every_blueprint_for_every_slot_of_every_graph() -> None:
    scene, network = make_scene(5, 40), loaded_karn().network
    whole = encode(scene.observations)
    with torch.no_grad():
        logits, returns = network(whole), network.returns(whole)
        assert logits.shape == returns.shape == (len(whole.slot_x), len(BLUEPRINTS))
        for row in range(40):
            alone = encode(scene.observations.take(np.array([row])))
            own = slice(int(whole.slot_ptr[row]), int(whole.slot_ptr[row + 1]))
            torch.testing.assert_close(network(alone), logits[own], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(network.returns(alone), returns[own], rtol=1e-4, atol=1e-4)


def test_no_gradient_of_one_loss_reaches_the_parameters_of_the_other() -> None:
    network, batch = loaded_karn().network, encode(make_scene(5, 10).observations)
    policy, value = network.policy_parameters(), network.value_parameters()
    assert {*map(id, policy)}.isdisjoint(map(id, value))
    assert len(policy) + len(value) == len(list(network.parameters()))
    network(batch).square().sum().backward()
    assert all(one.grad is not None for one in policy) and all(one.grad is None for one in value)
    network.zero_grad()
    network.returns(batch).square().sum().backward()
    assert all(one.grad is None for one in policy) and all(one.grad is not None for one in value)


def test_what_is_loaded_is_what_was_saved(saved: Path) -> None:
    network, card = loaded_karn()
    found = load_karn(saved, files_of(saved))
    assert found.card == card and found.card.controller == "karn"
    assert not found.network.training
    batch = encode(make_scene(6, 12).observations)
    with torch.no_grad():
        assert torch.equal(found.network(batch), network(batch))
        assert torch.equal(found.network.returns(batch), network.returns(batch))
    assert sorted(path.name for path in saved.iterdir()) == [CARD_NAME, WEIGHTS_NAME]


@pytest.mark.parametrize("name", [CARD_NAME, WEIGHTS_NAME])
def test_a_byte_that_changed_after_the_seal_was_checked_is_refused(saved: Path, name: str) -> None:
    sealed = files_of(saved)
    content = bytearray((saved / name).read_bytes())
    content[-2] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(IntegrityError, match=f"{name} should have SHA-256"):
        load_karn(saved, sealed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "hetero-sage-4"}, "architecture hetero-sage-4, this code makes karn-sage-1"),
        ({"feature_version": "0" * 16}, "reads features 0000000000000000"),
        ({"controller": "tamiyo"}, "malformed"),
        ({"blueprints": list(BLUEPRINTS[1:])}, "should be"),
        ({"normaliser_version": "0" * 16}, r"disagree about \['normaliser_version'\]"),
        ({"feature_ranges": {"context": [], "slot": [], "layer": []}}, "expected one per column"),
    ],
)
def test_a_card_that_tells_another_story_is_refused(saved: Path, change: dict[str, object], message: str) -> None:
    card = json.loads((saved / CARD_NAME).read_text())
    (saved / CARD_NAME).write_text(json.dumps({**card, **change}))
    with pytest.raises(ContractError, match=message):
        load_karn(saved, files_of(saved))


def test_weights_that_are_not_finite_or_not_there_are_refused(saved: Path) -> None:
    weights = load_file(saved / WEIGHTS_NAME)
    save_file({**weights, "value_mean": torch.tensor(torch.nan)}, saved / WEIGHTS_NAME)
    with pytest.raises(ContractError, match="value_mean is not finite"):
        load_karn(saved, files_of(saved))
    save_file({name: value for name, value in weights.items() if name != "value_mean"}, saved / WEIGHTS_NAME)
    with pytest.raises(ContractError, match="tensors differ by \\['value_mean'\\]"):
        load_karn(saved, files_of(saved))
    (saved / WEIGHTS_NAME).unlink()
    with pytest.raises(ConfigError, match="no karn here"):
        load_karn(saved, files_of(saved))


def test_nothing_is_overwritten_and_a_wrong_card_is_not_written(saved: Path, tmp_path: Path) -> None:
    network, card = loaded_karn(1)
    with pytest.raises(ContractError, match="never overwritten"):
        save_karn(saved, network, card)
    with pytest.raises(ContractError, match="disagree about"):
        save_karn(tmp_path / "other", network, card.model_copy(update={"parameters": 1}))
    assert not (tmp_path / "other").exists()
