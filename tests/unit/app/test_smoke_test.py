"""The smoke test does what a consumer does with a policy; what it cannot use does not stay champion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.builders.deciding_policies import SIGNER, sealed_decider

from simic.app.smoke_test import smoke_test
from simic.contracts.errors import IntegrityError, SmokeTestError
from simic.controllers.policy_files import CARD_NAME, load_policy, save_policy
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import seal


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    Keyring(home.keys).trust(SIGNER.public_bytes)
    return home


def tried(home: Home, policy: Path) -> None:
    smoke_test(home, Keyring(home.keys), policy, seal(policy, SIGNER).digest)


def test_a_policy_that_decides_passes_and_leaves_nothing(home: Home, tmp_path: Path) -> None:
    tried(home, sealed_decider(tmp_path / "policy"))
    assert list(home.tmp.iterdir()) == []


def test_a_policy_that_is_not_finite_is_refused(home: Home, tmp_path: Path) -> None:
    loaded = load_policy(sealed_decider(tmp_path / "policy"))
    with torch.no_grad():
        next(loaded.network.value_head.parameters()).fill_(float("inf"))
    save_policy(tmp_path / "broken", loaded.network, loaded.card)
    with pytest.raises(SmokeTestError, match=r"does not|finite value"):
        tried(home, tmp_path / "broken")


def test_damaged_and_foreign_policies_are_refused(home: Home, tmp_path: Path) -> None:
    policy = sealed_decider(tmp_path / "policy")
    (policy / "weights.safetensors").write_bytes(b"not weights")
    with pytest.raises(SmokeTestError, match="does not load"):
        tried(home, policy)
    with pytest.raises(SmokeTestError, match="does not load"):
        smoke_test(home, Keyring(home.keys), policy, "0" * 64)
    assert issubclass(SmokeTestError, IntegrityError)


def test_a_policy_of_other_code_is_left_to_its_consumers(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = sealed_decider(tmp_path / "policy")
    card = json.loads((policy / CARD_NAME).read_text())
    (policy / CARD_NAME).write_text(json.dumps({**card, "feature_version": "0" * 16}))
    tried(home, policy)
    assert "was made by other code" in caplog.text
