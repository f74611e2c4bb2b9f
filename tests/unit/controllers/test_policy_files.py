"""Policies on disk: whole or absent, strict, and free of anything executable."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.observations import BLUEPRINTS, make_scene

from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.settings.network import NetworkConfig
from simic.controllers import network_files as store
from simic.controllers.features import encode
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.policy_files import CARD_NAME, WEIGHTS_NAME, PolicyCard, describe, load_policy, save_policy

CONFIG = NetworkConfig(hidden=8, layers=2, exploration=0.05)


def make_policy(seed: int = 0) -> tuple[PolicyNetwork, PolicyCard]:
    network = PolicyNetwork(NetworkShape.of(CONFIG, BLUEPRINTS), seed)
    network.set_normaliser(fit_normaliser(encode(make_scene(seed, 50).observations), BLUEPRINTS))
    network.set_value_scale(1.0, 4.0)
    card = describe(
        network,
        CONFIG,
        set_name="benchmark",
        snapshot_digest="a" * 64,
        code_version="0.1.0+abc",
        config_digest="b" * 64,
    )
    return network, card


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    directory = tmp_path / "policies" / "one"
    save_policy(directory, *make_policy())
    return directory


def test_what_is_loaded_is_what_was_saved(saved: Path) -> None:
    network, card = make_policy()
    loaded = load_policy(saved)
    assert loaded.card == card
    assert not loaded.network.training
    batch = encode(make_scene(5, 9).observations)
    with torch.no_grad():
        for ours, theirs in zip(network(batch), loaded.network(batch), strict=True):
            assert torch.equal(ours, theirs)
    assert sorted(path.name for path in saved.iterdir()) == [CARD_NAME, WEIGHTS_NAME]


def test_equal_policies_have_equal_bytes(saved: Path, tmp_path: Path) -> None:
    save_policy(tmp_path / "two", *make_policy())
    for name in (CARD_NAME, WEIGHTS_NAME):
        assert (saved / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_policy_is_never_overwritten(saved: Path) -> None:
    with pytest.raises(ContractError, match="never overwritten"):
        save_policy(saved, *make_policy(1))


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_bytes

    def full_disk(path: Path, content: bytes) -> int:
        assert not (tmp_path / "policies" / "one").exists(), "a half-written policy has its name already"
        if path.name == CARD_NAME:
            raise OSError("no space left")
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_policy(tmp_path / "policies" / "one", *make_policy())
    assert list((tmp_path / "policies").iterdir()) == []


def test_a_card_that_tells_another_story_is_not_saved(tmp_path: Path) -> None:
    network, card = make_policy()
    with pytest.raises(ContractError, match="normaliser_version"):
        save_policy(tmp_path / "one", network, card.model_copy(update={"normaliser_version": "0" * 16}))


def edit_card(directory: Path, **changes: object) -> None:
    card = json.loads((directory / CARD_NAME).read_text())
    (directory / CARD_NAME).write_text(json.dumps({**card, **changes}))


def edit_weights(directory: Path, without: str = "", **changes: torch.Tensor) -> None:
    weights = {**load_file(directory / WEIGHTS_NAME), **changes}
    save_file({name: value for name, value in weights.items() if name != without}, directory / WEIGHTS_NAME)


def of_no_known_type() -> bytes:
    """A file in the format, with a tensor of 4-bit numbers, which torch does not have."""
    header = json.dumps({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(2)


FAULTS: list[tuple[str, Callable[[Path], object]]] = [
    ("is malformed", lambda path: edit_card(path, surprise=1)),
    ("architecture another", lambda path: edit_card(path, architecture="another")),
    ("features 0000000000000000", lambda path: edit_card(path, feature_version="0" * 16)),
    ("disagree about \\['parameters'\\]", lambda path: edit_card(path, parameters=7)),
    ("disagree about \\['normaliser_version'\\]", lambda path: edit_card(path, normaliser_version="0" * 16)),
    ("should be torch.float32", lambda path: edit_card(path, blueprints=["gate"])),
    ("differ by \\['extra'\\]", lambda path: edit_weights(path, extra=torch.zeros(1))),
    ("differ by \\['op_head.0.bias'\\]", lambda path: edit_weights(path, without="op_head.0.bias")),
    ("found torch.float64", lambda path: edit_weights(path, value_mean=torch.zeros((), dtype=torch.float64))),
    ("is not finite", lambda path: edit_weights(path, value_mean=torch.tensor(float("nan")))),
    ("file is malformed", lambda path: torch.save({"a": 1}, path / WEIGHTS_NAME)),
    ("malformed: 'F4'", lambda path: (path / WEIGHTS_NAME).write_bytes(of_no_known_type())),
    ("more than the limit", lambda path: (path / CARD_NAME).write_bytes(b" " * (store.MAX_CARD_BYTES + 1))),
]


@pytest.mark.parametrize(("message", "damage"), FAULTS, ids=[message for message, _ in FAULTS])
def test_anything_that_does_not_fit_is_refused(saved: Path, message: str, damage: Callable[[Path], object]) -> None:
    damage(saved)
    with pytest.raises(ContractError, match=message):
        load_policy(saved)


def test_a_huge_architecture_is_refused_before_memory_is_taken(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_card(saved, network={"hidden": 1024, "layers": 16, "exploration": 0.02})
    made: list[object] = []
    real = PolicyNetwork.__init__

    def watched(self: PolicyNetwork, *args: object, **kwargs: object) -> None:
        real(self, *args, **kwargs)  # type: ignore[arg-type]
        made.append(self.value_mean.device.type)

    monkeypatch.setattr(PolicyNetwork, "__init__", watched)
    with pytest.raises(ContractError, match="tensors differ"):
        load_policy(saved)
    assert made == ["meta"]


def test_no_policy_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no policy here"):
        load_policy(tmp_path)
