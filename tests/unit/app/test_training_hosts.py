"""Collections of one home grow hosts of their own, also two at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.fakes.collector import Collector

from simic.app import training
from simic.app.container import Container
from simic.contracts.errors import TransientError
from simic.contracts.results.receipts import CollectionReceipt
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

COLLECT = "simic.collection.collect.collect"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Collector:
    stand_in = Collector()
    monkeypatch.setattr(COLLECT, stand_in)
    return stand_in


@pytest.fixture
def app(home: Path) -> Container:
    return Container(Home(home), load_profile("quick"), 0)


def test_collecting_again_by_hand_grows_other_hosts(app: Container, asked: Collector, tmp_path: Path) -> None:
    for _ in range(3):
        training.collect(app, "wait")
    drawn = [key for _, keys in asked for key in keys]
    assert len(drawn) == len(set(drawn)) == 3 * app.config.collect.episodes
    training.collect(Container(Home(tmp_path / "fresh"), app.config, app.seed), "wait")
    assert asked[-1] == asked[0]


def test_a_collection_does_not_grow_the_hosts_of_one_in_progress(
    app: Container, asked: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its receipt is not there yet, so a second one of the same kind would draw the same hosts. Other kinds may run."""
    seed_one = Container(app.home, app.config, 1)
    varied = Container(app.home, load_profile("quick", {"world.set": "varied"}), 0)

    def meanwhile(*arguments: Any, **options: Any) -> CollectionReceipt:
        monkeypatch.setattr(COLLECT, asked)
        busy = f"hosts of benchmark under wait with seed 0 is busy: process {os.getpid()} holds .*try again"
        with pytest.raises(TransientError, match=busy):
            training.collect(app, "wait")
        training.collect(app, "wait", [0])
        training.collect(app, "random")
        training.collect(seed_one, "wait")
        training.collect(varied, "wait")
        return asked(*arguments, **options)

    monkeypatch.setattr(COLLECT, meanwhile)
    training.collect(app, "wait")
    training.collect(app, "wait")
    (*_, (_, first), (_, second)) = asked
    assert len(asked) == 6
    assert not set(first) & set(second)


def test_an_interrupted_collection_blocks_none_and_is_repeated_with_its_hosts(
    app: Container, asked: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> CollectionReceipt:
        asked(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(COLLECT, interrupted)
        training.collect(app, "wait")
    training.collect(app, "wait")
    assert asked[0] == asked[1]
