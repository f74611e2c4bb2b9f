"""Local copies of registered policies."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.builders.judged_candidates import SIGNER, sealed_policy
from support.builders.karns import no_karns

from simic.app.local_copies import LocalCopies
from simic.app.policies import Policies
from simic.contracts.errors import IntegrityError, TransientError
from simic.contracts.names import CHAMPION_REFERENCE, MODEL_NAME
from simic.runtime.home import Home
from simic.trust.keys import Keyring


class _Registry:
    """Holds one policy, and takes its time to hand it out."""

    def __init__(self, stored: Path, digest: str) -> None:
        self.stored, self.digest, self.loads = stored, digest, 0

    def find(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(digest=self.digest, reference="models:/tamiyo/1")

    def load(self, reference: str, into: Path) -> Path:
        assert reference == "models:/tamiyo/1"
        self.loads += 1
        time.sleep(0.1)
        return Path(shutil.copytree(self.stored, into))


@pytest.fixture
def place(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.create()
    Keyring(home.keys).trust(SIGNER.public_bytes)
    return home


@pytest.mark.parametrize("is_damaged", [False, True])
def test_two_who_fetch_at_once_fetch_once_and_both_find_it_whole(place: Home, is_damaged: bool) -> None:
    made, digest = sealed_policy(place, b"one")
    registry = _Registry(made.rename(place.tmp / "stored"), digest)
    if is_damaged:
        shutil.copytree(registry.stored, place.policies / digest)
        (place.policies / digest / "weights.safetensors").write_bytes(b"half")
    policies = [Policies(place, Keyring(place.keys), lambda: cast(Any, registry), no_karns(place)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda own: own.fetch(CHAMPION_REFERENCE), policies))
    assert paths == [place.policies / digest] * 2
    assert policies[0].check(paths[0]) == digest
    assert registry.loads == 1
    assert sorted(path.name for path in place.tmp.iterdir()) == ["stored"]


def test_a_reference_that_leads_to_another_policy_replaces_no_copy(place: Home) -> None:
    made, digest = sealed_policy(place, b"one")
    other, other_digest = sealed_policy(place, b"two")
    registry = _Registry(other.rename(place.tmp / "stored"), other_digest)
    copy = place.policies / digest
    shutil.copytree(made, copy)
    (copy / "weights.safetensors").write_bytes(b"half")
    copies = LocalCopies(place, Keyring(place.keys), lambda: cast(Any, registry), MODEL_NAME, "policies")
    with pytest.raises(IntegrityError, match=f"expected digest {digest}, found {other_digest}"):
        copies.ensure(copy, digest, "models:/tamiyo/1")
    assert (copy / "weights.safetensors").read_bytes() == b"half"
    assert sorted(path.name for path in place.tmp.iterdir()) == ["stored"]


def test_a_copy_that_cannot_be_replaced_leaves_nothing_unfinished(place: Home) -> None:
    made, digest = sealed_policy(place, b"one")
    registry = _Registry(made.rename(place.tmp / "stored"), digest)
    policies = Policies(place, Keyring(place.keys), lambda: cast(Any, registry), no_karns(place))
    (place.policies / digest).write_bytes(b"a file in place of the directory")
    with pytest.raises(TransientError, match="cannot replace"):
        policies.fetch(CHAMPION_REFERENCE)
    assert sorted(path.name for path in place.tmp.iterdir()) == ["stored"]
