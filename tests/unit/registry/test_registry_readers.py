"""Readers of the registry beside a process that records or promotes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.builders.judged_candidates import SIGNER, evidence_of, judged, ticking
from support.faults.full_disks import read_only

from simic.contracts.errors import ConfigError, IntegrityError
from simic.registry.mlflow_run import CandidateRecord
from simic.registry.mlflow_store import open_client
from simic.registry.models import Models, Shown
from simic.registry.promotion import OnStep
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring

WAIT_S = 60.0
BLOCKED_S = 0.5


def opened(place: Home, on_step: OnStep = lambda _: None) -> Registry:
    return Registry(place, Keyring(place.keys), signer=lambda: SIGNER, clock=ticking(), on_step=on_step)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Pause:
    """Lets a process that writes wait between two of its steps."""

    def __init__(self, step: str) -> None:
        self.step, self.reached, self.released = step, threading.Event(), threading.Event()

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.reached.set()
            assert self.released.wait(WAIT_S)


@pytest.mark.parametrize("reference", ["models:/tamiyo/1", "models:/tamiyo@candidate"])
@pytest.mark.parametrize("is_new", [True, False], ids=["first recording", "judged again"])
def test_a_version_that_is_being_recorded_is_found_when_it_is_recorded(
    place: Home, pool: ThreadPoolExecutor, reference: str, is_new: bool
) -> None:
    """MLflow shows the version and its new tags before the ledger of candidates lists them."""
    evidence = judged(place, accepted=False)
    if not is_new:
        opened(place).record(evidence)
        evidence = evidence_of(place, Path(evidence.training.path), evidence.training.digest)
    reader, pause = opened(place), Pause("registered")
    writing = pool.submit(opened(place, pause).record, evidence)
    assert pause.reached.wait(WAIT_S)
    if reference.endswith("candidate"):
        open_client(place.tracking_uri).set_registered_model_alias("tamiyo", "candidate", "1")  # the step after it
    finding = pool.submit(reader.find, reference)
    with pytest.raises(TimeoutError):
        finding.result(BLOCKED_S)
    pause.released.set()
    assert writing.result(WAIT_S).digest == evidence.training.digest
    found = finding.result(WAIT_S)
    assert (found.number, found.gate_digest) == (1, evidence.gate.digest)


FIND = """
import sys
from pathlib import Path
from simic.registry.registry import Registry
from simic.runtime.clock import utc_now
from simic.runtime.home import Home
from simic.trust.keys import Keyring

home = Home(Path(sys.argv[1]))
registry = Registry(home, Keyring(home.keys), signer=lambda: None, clock=utc_now)
print("opened", flush=True)
print(registry.find("models:/tamiyo/1").gate_digest)
"""


def test_a_reader_with_a_read_only_view_of_the_home_waits_for_the_writer_too(
    place: Home, pool: ThreadPoolExecutor
) -> None:
    evidence, pause = judged(place, accepted=False), Pause("registered")
    writing = pool.submit(opened(place, pause).record, evidence)
    assert pause.reached.wait(WAIT_S)
    command = read_only([sys.executable, "-c", FIND, str(place.root)], place.root)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "opened\n"
            with pytest.raises(subprocess.TimeoutExpired):
                reader.wait(4 * BLOCKED_S)
        finally:
            pause.released.set()
        told, errors = reader.communicate(timeout=WAIT_S)
    assert told == f"{evidence.gate.digest}\n", errors
    assert writing.result(WAIT_S).number == 1


def promoted_before(call: int, promote: Callable[[], object]) -> Callable[..., Shown]:
    """Return a read of MLflow before whose ``call``-th call another process promotes."""
    read, calls = Models.look_at, iter(range(1, 1_000))

    def look_at(models: Models, *numbers: int, digest: str | None = None) -> Shown:
        if not is_busy and next(calls) == call:
            is_busy.append(True)
            promote()
            is_busy.clear()
        return read(models, *numbers, digest=digest)

    is_busy: list[bool] = []
    return look_at


def staged(place: Home) -> CandidateRecord:
    evidence, registry = judged(place), opened(place)
    registry.stage(registry.record(evidence), evidence.validation, evidence.gate)
    return evidence


@pytest.mark.parametrize("reference", ["models:/tamiyo/1", "models:/tamiyo@candidate"])
def test_a_promotion_between_two_reads_is_no_difference(
    place: Home, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    evidence, reader, writer = staged(place), opened(place), opened(place)
    version = reader.find(reference)
    promote = promoted_before(1, lambda: writer.promote(version, evidence.validation, evidence.gate))
    monkeypatch.setattr(Models, "look_at", promote)
    assert reader.find(reference).aliases == ["candidate", "champion"]


def test_a_staged_version_that_is_promoted_between_two_reads_is_staged_no_more(
    place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence, reader, writer = staged(place), opened(place), opened(place)
    version = reader.find("models:/tamiyo@staged")
    promote = promoted_before(2, lambda: writer.promote(version, evidence.validation, evidence.gate))
    monkeypatch.setattr(Models, "look_at", promote)
    with pytest.raises(ConfigError, match="does not exist"):
        reader.find("models:/tamiyo@staged")


@pytest.mark.parametrize("grants_locks", [True, False], ids=["home", "read-only home"])
def test_a_difference_that_stays_is_an_error_also_where_no_lock_is_granted(place: Home, grants_locks: bool) -> None:
    reader = opened(place)
    version = reader.record(judged(place))
    open_client(place.tracking_uri).set_model_version_tag("tamiyo", "1", "digest", "e" * 64)
    if not grants_locks:
        shutil.rmtree(place.locks)
    with pytest.raises(IntegrityError, match=f"the ledger says '{version.digest}'"):
        reader.find("models:/tamiyo/1")
    assert place.locks.exists() is grants_locks
