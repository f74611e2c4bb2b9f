"""Two snapshots side by side: counts against a slow literal comparison, and every kind of difference named."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes
from support.homes.pipeline import NOW, curate_all, land

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.snapshots import Change, SnapshotDifference
from simic.runtime.home import Home
from simic.snapshots.diff import compare
from simic.snapshots.manifest import describe_files, snapshot_digest

KINDS = ("only_a", "only_b", "changed", "same")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SnapshotManifest, SnapshotManifest]:
    """B lacks an episode that has expired, has four new ones, and discounts the others otherwise."""
    home = Home(tmp_path_factory.mktemp("home"))
    old = NOW.replace(month=1, day=1)
    land(home, episodes(range(12)) + episode(20)[:5] + episode(21, issued_at=old, controller="wait"))
    land(home, episodes(range(40, 43), script={}), name="waited")
    a = curate_all(home)
    land(home, episodes(range(30, 34), controller="learned", policy_version="ab" * 32), name="more")
    b = curate_all(home, ttl_days=3, gamma=0.95)
    return a, b


def diff(a: SnapshotManifest, b: SnapshotManifest, tmp_path: Path, **options: Any) -> SnapshotDifference:
    return compare(Path(a.path), Path(b.path), tmp=tmp_path / "tmp", **options)


def literal(a: SnapshotManifest, b: SnapshotManifest) -> tuple[Counter[Any], Counter[Any], Counter[str]]:
    """Rows and episodes per (group, kind), and other values per column, one Python object at a time."""
    rows_a, rows_b = (
        {(row["run_id"], row["step"]): row for row in pq.read_table(Path(m.path) / "steps.parquet").to_pylist()}
        for m in (a, b)
    )
    rows, columns = Counter[Any](), Counter[str]()
    kinds: dict[str, set[str]] = defaultdict(set)
    groups = {}
    for key in rows_a.keys() | rows_b.keys():
        ours, theirs = rows_a.get(key), rows_b.get(key)
        one = ours or theirs
        assert one is not None
        if ours is None or theirs is None:
            kind = "only_b" if ours is None else "only_a"
        else:
            other = [name for name in ours if ours[name] != theirs[name]]
            columns.update(other)
            kind = "changed" if other else "same"
        groups[key[0]] = (one["split"], one["controller"], one["family"])
        rows[groups[key[0]], kind] += 1
        kinds[key[0]].add(kind)
    runs = Counter((groups[run], next(iter(k)) if len(k) == 1 else "changed") for run, k in kinds.items())
    return rows, runs, columns


def test_counts_are_those_of_a_literal_comparison(
    made: tuple[SnapshotManifest, SnapshotManifest], tmp_path: Path
) -> None:
    found = diff(*made, tmp_path)
    rows, runs, columns = literal(*made)
    groups = {(group.split, group.controller, group.family): group for group in found.groups}
    assert groups.keys() == {group for group, _ in rows}
    for name, group in groups.items():
        for kind in KINDS:
            assert getattr(group.rows, kind) == rows[name, kind]
            assert getattr(group.episodes, kind) == runs[name, kind]
    for kind in KINDS:
        assert getattr(found.rows, kind) == sum(n for (_, k), n in rows.items() if k == kind)
        assert getattr(found.episodes, kind) == sum(n for (_, k), n in runs.items() if k == kind)
    assert found.changed_columns == columns
    assert (found.rows.only_a, found.rows.only_b) == (20, 80)
    assert found.rows.changed > 0 and found.rows.same > 0


def test_settings_reasons_and_examples_are_named(
    made: tuple[SnapshotManifest, SnapshotManifest], tmp_path: Path
) -> None:
    a, b = made
    found = diff(a, b, tmp_path)
    assert (found.a, found.b, found.has_same_rules) == (a.digest, b.digest, True)
    assert Change(name="config.gamma", a=0.99, b=0.95) in found.settings
    assert {change.name for change in found.settings} == {"config.gamma", "config.ttl_days"}
    assert Change(name="rows_in", a=325, b=405) in found.manifest
    assert found.rejected == {"expired": (0, 20), "unfinished": (5, 5)}
    assert found.episodes_only_a == [episode(21, controller="wait")[0].run_id]
    expected = sorted(
        episode(key, controller="learned", policy_version="ab" * 32)[0].run_id for key in range(30, 34)
    )  # fmt: skip
    assert found.episodes_only_b == expected
    few = diff(a, b, tmp_path, examples=2)
    assert few.episodes_only_b == expected[:2]
    assert len(few.episodes_changed) == 2


def test_backwards_is_the_mirror_image(made: tuple[SnapshotManifest, SnapshotManifest], tmp_path: Path) -> None:
    a, b = made
    there, back = diff(a, b, tmp_path), diff(b, a, tmp_path)
    assert (there.rows.only_a, there.rows.only_b) == (back.rows.only_b, back.rows.only_a)
    assert (there.rows.changed, there.rows.same) == (back.rows.changed, back.rows.same)
    assert there.changed_columns == back.changed_columns
    assert {reason: pair[::-1] for reason, pair in there.rejected.items()} == back.rejected


def test_a_snapshot_differs_from_itself_in_nothing(
    made: tuple[SnapshotManifest, SnapshotManifest], tmp_path: Path
) -> None:
    a, _ = made
    found = diff(a, a, tmp_path)
    assert (found.rows.same, found.rows.only_a, found.rows.only_b, found.rows.changed) == (a.rows_out, 0, 0, 0)
    assert not (found.manifest or found.settings or found.changed_columns or found.episodes_changed)


def test_a_change_deep_inside_a_state_is_seen(tmp_path: Path) -> None:
    home = Home(tmp_path / "place")
    land(home, episode(1))
    a = curate_all(home)
    folder = Path(a.path).with_name("0" * 16)
    shutil.copytree(a.path, folder)
    table = pq.read_table(folder / "steps.parquet")
    rows = table.to_pylist()
    rows[3]["content_id"] = uuid4()  # the digest of a content that differs anywhere
    rows[4]["policy_version"] = "ab" * 32
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "steps.parquet")
    files, _ = describe_files(folder)
    b = a.model_copy(
        update={"files": files, "digest": snapshot_digest(files, a.sql_digest), "path": str(folder)}
    )  # fmt: skip
    (folder / "manifest.json").write_text(b.model_dump_json())
    found = diff(a, b, tmp_path)
    assert found.changed_columns == {"policy_version": 1, "content_id": 1}
    assert (found.rows.changed, found.rows.same) == (2, 18)


def test_other_rules_are_told(
    made: tuple[SnapshotManifest, SnapshotManifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simic.curation import run
    from simic.curation.statements import Statement, load_statements

    a, _ = made

    def commented(family: str) -> list[Statement]:
        return [item._replace(sql=item.sql + "\n-- the same in effect\n") for item in load_statements(family)]

    monkeypatch.setattr(run, "load_statements", commented)
    other = curate_all(Home(Path(a.path).parents[2]))
    found = diff(a, other, tmp_path)
    assert not found.has_same_rules


def test_little_memory_gives_the_same_answer(made: tuple[SnapshotManifest, SnapshotManifest], tmp_path: Path) -> None:
    assert diff(*made, tmp_path, memory_limit_mb=128, threads=1) == diff(*made, tmp_path)


def test_damage_is_not_compared(tmp_path: Path) -> None:
    home = Home(tmp_path / "place")
    land(home, episode(1))
    a, b = curate_all(home), curate_all(home, gamma=0.9)
    (Path(b.path) / "steps.parquet").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"steps\.parquet"):
        diff(a, b, tmp_path)
