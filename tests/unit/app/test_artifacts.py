"""An ingest's receipt stays true when its parts are merged or dropped, and not when one is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.judged_candidates import SIGNER, judged
from support.builders.reports import episodes
from support.homes.champion_homes import open_home
from support.homes.lakes import maintenance
from support.homes.pipeline import FixedClock, land

from simic.app.artifacts import artifacts_are_intact, move_damaged_artifacts
from simic.app.checks.doctor import Doctor
from simic.bus.spool.bus import SpoolBus
from simic.contracts.results.receipts import IngestReceipt
from simic.lake.lake import open_lake
from simic.runtime.home import Home
from simic.runtime.progress import NoProgress


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def receipt(home: Home) -> IngestReceipt:
    return land(home, episodes(range(3)), batch_reports=20)


def intact(receipt: IngestReceipt, home: Home) -> bool:
    return artifacts_are_intact(open_home(home), receipt)


def test_what_landed_has_landed(receipt: IngestReceipt, home: Home) -> None:
    assert intact(receipt, home)
    maintenance(home).compact()
    maintenance(home).vacuum(grace_minutes=0)
    assert intact(receipt, home)
    maintenance(home).retain(max_bytes=0)
    maintenance(home).vacuum(grace_minutes=0)
    assert intact(receipt, home)


def test_what_is_lost_has_not(receipt: IngestReceipt, home: Home) -> None:
    (home.experience / open_lake(home).parts[1].part).unlink()
    assert not intact(receipt, home)
    spool = SpoolBus(home.spool)
    Doctor(home, spool, lambda _: None, code_version="x", clock=FixedClock(), progress=NoProgress()).examine(
        is_repair=True
    )
    assert not intact(receipt, home), "taken out, and not landed again yet"


def test_a_part_that_no_line_names_never_landed(receipt: IngestReceipt, home: Home) -> None:
    (home.ledger / "ingest.jsonl").unlink()
    assert not intact(receipt, home)


@pytest.mark.parametrize("path", ["data/keys", "../outside", "/etc", "data/policies/../keys"])
def test_a_path_in_a_receipt_never_decides_which_directory_is_set_aside(tmp_path: Path, path: str) -> None:
    app = open_home(Home(tmp_path))
    training = judged(app.home, b"new").training
    assert app.signer.key_id
    before = sorted(one.name for one in app.home.keys.iterdir())
    edited = app.placed(training.model_copy(update={"path": path}))

    assert not artifacts_are_intact(app, edited)
    move_damaged_artifacts(app, edited)

    assert sorted(one.name for one in app.home.keys.iterdir()) == before
    assert list(tmp_path.rglob("damaged")) == []


def test_a_whole_policy_stays_and_a_damaged_one_is_set_aside_where_its_digest_says(tmp_path: Path) -> None:
    app = open_home(Home(tmp_path))
    app.keyring.trust(SIGNER.public_bytes)
    training = judged(app.home, b"new").training
    place = app.home.policies / training.digest
    if not place.exists():
        Path(training.path).rename(place)
    move_damaged_artifacts(app, training)
    assert place.is_dir(), "it is as it was sealed"
    (place / "weights.safetensors").write_bytes(b"other")
    move_damaged_artifacts(app, training)
    assert not place.exists()


def test_a_path_that_climbs_out_of_the_home_gives_way_to_the_place_of_the_digest(tmp_path: Path) -> None:
    app = open_home(Home(tmp_path))
    training = judged(app.home, b"new").training
    for path in ("../outside", f"{app.home.root}/../outside", "data/../../outside"):
        found = app.placed(training.model_copy(update={"path": path}))
        assert found.path == str(app.home.policies / training.digest)
