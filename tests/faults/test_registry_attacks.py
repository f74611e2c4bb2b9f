"""What somebody can do to MLflow that no ledger knows of: it decides no number, is signed nowhere, and is found.

The home holds version 1, the champion before; version 2, the champion; and version 3, which the gate rejected.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from support.builders.judged_candidates import judged
from support.homes.champion_homes import FORMER, PRESENT, TURNED_AWAY, crowned_home, open_home, point_at, show_tag

from simic.app import promotion
from simic.app.checks.doctor import open_doctor
from simic.contracts.errors import IntegrityError, TransientError
from simic.contracts.results.lake import Health
from simic.registry.mlflow_store import open_client
from simic.registry.registry import Registry
from simic.runtime.home import Home

JOURNAL = "promotions.jsonl"


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return crowned_home(tmp_path / "place", tmp_path_factory)


def cut(home: Home, name: str, count: int) -> None:
    """Remove the last lines of a ledger."""
    path = home.ledger / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-count]))


def cut_journal(home: Home) -> None:
    """As if version 2 was never promoted."""
    cut(home, JOURNAL, 2)
    cut(home, "policies.jsonl", 1)
    point_at(home, FORMER)


def check_damaged(home: Home, text: str) -> None:
    """By the doctor, also when it repairs; and nothing is signed."""
    for is_repair in (False, True):
        report = open_doctor(open_home(home)).examine(is_repair=is_repair)
        assert not report.is_healthy
        assert any(check.health is Health.DAMAGED and text in check.found for check in report.checks), report
    with pytest.raises(IntegrityError):
        open_home(home).registry.repair()


def test_a_journal_cut_with_its_list_and_alias_is_not_repaired_if_the_gate_accepted_the_version(place: Home) -> None:
    cut_journal(place)
    check_damaged(place, "the gate accepted version 2")
    with pytest.raises(IntegrityError, match="last lines of the journal are missing"):
        promotion.publish_champion(open_home(place))


def test_a_cut_journal_is_found_by_the_signed_updates_when_mlflow_shows_no_trace_of_it(place: Home) -> None:
    """The tag is taken away too, and the decision is edited: only what production was told is left."""
    promotion.publish_champion(open_home(place))
    told = (place.ledger / JOURNAL).read_bytes()
    cut_journal(place)
    for number, key in ((PRESENT, "promoted_at"), (PRESENT, "previous")):
        open_client(place.tracking_uri).delete_model_version_tag("tamiyo", str(number), key)
    with pytest.raises(IntegrityError, match="a signed update in the outbox makes policy"):
        promotion.publish_champion(open_home(place))
    report = open_doctor(open_home(place)).examine(is_repair=True)
    assert [check.health for check in report.checks if "signed update in the outbox" in check.found] == [Health.DAMAGED]
    (place.ledger / JOURNAL).write_bytes(told)
    assert open_doctor(open_home(place)).examine(is_repair=True).is_healthy
    assert promotion.publish_champion(open_home(place)).update.reference == f"models:/tamiyo/{PRESENT}"


@pytest.mark.parametrize("number", [FORMER, PRESENT, TURNED_AWAY])
def test_an_edited_tag_decides_no_version_number(place: Home, number: int) -> None:
    show_tag(place, number, "semantic_version", "77.0.0")
    evidence = judged(place, b"fresh", champion=None)
    with pytest.raises(IntegrityError, match=f"tag semantic_version of tamiyo version {number}"):
        open_home(place).registry.record(evidence)
    assert open_doctor(open_home(place)).examine(is_repair=True).is_healthy
    assert open_home(place).registry.record(evidence).semantic_version == "1.0.3"


def test_a_version_by_other_hands_is_found_decides_no_number_and_is_not_taken_up(place: Home) -> None:
    evidence = judged(place, b"fresh", champion=open_home(place).policies.champion_digest())
    tags = {"semantic_version": "500.0.0", "contract": "1", "architecture": "z", "digest": "ab" * 32}
    client = open_client(place.tracking_uri)
    client.create_model_version("tamiyo", source=place.tmp.as_uri(), tags=tags)
    check = next(
        check for check in open_doctor(open_home(place)).examine().checks if "not made by Simic" in check.found
    )
    assert (check.health, "tamiyo version 4" in check.found) == (Health.DAMAGED, True)
    assert open_home(place).registry.record(evidence).semantic_version == "1.0.3"
    other = judged(place, b"other", champion=open_home(place).policies.champion_digest())
    client.create_model_version("tamiyo", source=place.tmp.as_uri(), tags={**tags, "digest": other.training.digest})
    with pytest.raises(IntegrityError, match="not made by Simic"):
        open_home(place).registry.record(other)


def test_the_journal_signs_no_tag_that_only_mlflow_shows(place: Home) -> None:
    registry = open_home(place).registry
    evidence = judged(place, b"fresh", champion=open_home(place).policies.champion_digest())
    version = registry.record(evidence)
    edited = {"architecture": "evil", "start_digest": "evil", "model_id": "evil", "return_over_other": "99"}
    for key, value in edited.items():
        show_tag(place, version.number, key, value)
    registry.promote(version, evidence.validation, evidence.gate)
    signed = json.loads((place.ledger / JOURNAL).read_bytes().splitlines()[-1])["tags"]
    assert not {"evil", "99"} & set(signed.values())
    shown = open_client(place.tracking_uri).get_model_version("tamiyo", str(version.number)).tags
    assert shown["architecture"] == signed["architecture"]
    assert open_doctor(open_home(place)).examine().is_healthy


def _raise_one(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number), "weights.safetensors")


def _raise_many(number: int) -> NoReturn:
    raise shutil.Error([("a", "b", str(OSError(number, os.strerror(number), "weights.safetensors")))])


@pytest.mark.parametrize(
    ("fail", "number"),
    [(_raise_one, errno.ENOSPC), (_raise_one, errno.EACCES), (_raise_many, errno.EIO)],
    ids=["disk-full", "not-permitted", "several-files-unreadable"],
)
def test_a_machine_that_cannot_copy_the_champion_undoes_no_promotion(
    place: Home, monkeypatch: pytest.MonkeyPatch, number: int, fail: Callable[[int], NoReturn]
) -> None:
    """The process is killed after the alias was moved; the next one meets the fault."""
    app = open_home(place)
    evidence = judged(place, b"fresh", champion=app.policies.champion_digest())

    def stop(step: str) -> None:
        if step == "aliased":
            raise KeyboardInterrupt

    registry = Registry(place, app.keyring, signer=lambda: app.signer, clock=app.clock, on_step=stop)
    version = registry.record(evidence)
    with pytest.raises(KeyboardInterrupt):
        registry.promote(version, evidence.validation, evidence.gate)
    with monkeypatch.context() as broken:
        broken.setattr("mlflow.artifacts.download_artifacts", lambda **_: fail(number))
        with pytest.raises(TransientError, match=os.strerror(number)):
            open_home(place).policies.champion_digest()
    assert open_home(place).policies.champion_digest() == version.digest
