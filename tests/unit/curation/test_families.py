"""Rewards of any family, over experience collected once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes
from support.builders.snapshots import reseal
from support.homes.pipeline import curate_all, land

from simic.catalogue.query import query
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.rewards import DEFAULT_FAMILY, FAMILIES
from simic.curation import run, statements
from simic.curation.statements import (
    family_statement,
    family_terms,
    load_statements,
    set_parameters,
    substitute_parameters,
)
from simic.runtime.home import Home
from simic.snapshots.manifest import read_manifest
from simic.snapshots.schema import STEP_COLUMNS
from simic.trust.canonical import digest_of


def bytes_below(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_rewards_are_computed_anew_and_experience_stays_as_it_is(tmp_path: Path) -> None:
    """DRL-04: what landed is never edited; another reward is another snapshot beside the first."""
    home = Home(tmp_path)
    land(home, episodes(range(4)) + episode(9, governor_at=3))
    landed = {**bytes_below(home.experience), **bytes_below(home.ledger)}
    manifests = {}
    for family, config in FAMILIES.items():
        manifests[family] = curate_all(home, reward=config())
        told = json.loads((Path(manifests[family].path) / "curation.json").read_text("utf-8"))
        assert told["config"]["reward"]["family"] == manifests[family].reward_family == family
        assert manifests[family].reward_digest == digest_of(config())
    assert {**bytes_below(home.experience), **bytes_below(home.ledger)} == landed
    assert len({manifest.digest for manifest in manifests.values()}) == len(FAMILIES)
    for manifest in manifests.values():
        assert read_manifest(Path(manifest.path)) == manifest
    assert curate_all(home) == manifests[DEFAULT_FAMILY]


def test_no_feature_depends_on_the_reward(tmp_path: Path) -> None:
    """D26: another family changes reward columns and nothing else."""
    home = Home(tmp_path)
    land(home, episodes(range(5)))
    paid = [name for name in STEP_COLUMNS if name.startswith("reward") or name in ("potential", "return_to_go")]
    tables = [pq.read_table(Path(curate_all(home, reward=config()).path) / "steps.parquet") for config in FAMILIES.values()]  # fmt: skip  # noqa: E501
    assert all(table.drop_columns(paid).equals(tables[0].drop_columns(paid)) for table in tables)
    assert not any(table["reward"].equals(tables[0]["reward"]) for table in tables[1:])


def test_the_view_shows_the_terms_of_each_snapshots_family(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)))
    for config in FAMILIES.values():
        curate_all(home, reward=config())
    rows = query(
        home,
        "SELECT reward_family, count(*) AS n, count(reward_shaping) AS shaping, count(reward_effort) AS effort, "
        "max(abs(reward_progress + reward_rent + reward_penalty + coalesce(reward_shaping, 0) "
        "+ coalesce(reward_effort, 0) - reward)) <= 1e-9 AS adds_up FROM rewards GROUP BY ALL ORDER BY ALL",
    )
    counts = {row.pop("reward_family"): tuple(row.values()) for row in rows}
    assert counts == {
        "basic": (60, 0, 0, True), "minimal": (60, 0, 60, True),
        "shaped": (60, 60, 0, True), "sparse": (60, 0, 0, True),
    }  # fmt: skip


def test_snapshots_of_before_still_show(tmp_path: Path) -> None:
    """A home whose only snapshots lack the newer columns."""
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    folder = Path(manifest.path)
    path = folder / "steps.parquet"
    table = pq.read_table(path)
    newer = ["contribution", "is_hacking", "is_ransomware", "reward_shaping", "reward_effort", "potential"]
    pq.write_table(table.drop_columns(newer), path)
    folder.rename(folder.with_name(reseal(folder).digest[:16]))
    assert query(home, "SELECT count(*) AS n, count(potential) AS p FROM rewards") == [{"n": 20, "p": 0}]


@pytest.mark.parametrize("term", [term.name for term in family_terms(family_statement("shaped"))])
def test_a_term_outside_its_declared_range_stops_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    """M3: for every term, however the sum comes out."""
    home = Home(tmp_path)
    land(home, episode(1))

    def spoiled(family: str) -> list[object]:
        beyond = f"{term} + 1e6 AS {term}, reward + 1e6 AS reward"
        return [
            item._replace(sql=f"SELECT * REPLACE ({beyond}) FROM ({item.sql})")  # noqa: S608
            if item.name == "family_terms"
            else item
            for item in load_statements(family)
        ]

    monkeypatch.setattr(run, "load_statements", spoiled)
    with pytest.raises(ContractError, match="invariants"):
        curate_all(home, reward=FAMILIES["shaped"]())
    assert f"'{term}_in_range'" in "".join(item.sql for item in load_statements("shaped"))
    assert not list(home.snapshots.glob("*"))


def test_a_potential_with_a_memory_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H8: shaping that does not telescope stops the stage."""
    home = Home(tmp_path)
    land(home, episode(1))

    def spoiled(family: str) -> list[object]:
        memory = "next_potential * (1 + step / 100) - potential AS reward_shaping"
        return [
            item._replace(sql=item.sql.replace("next_potential - potential AS reward_shaping", memory))
            for item in load_statements(family)
        ]

    monkeypatch.setattr(run, "load_statements", spoiled)
    with pytest.raises(ContractError, match="shaping_telescopes"):
        curate_all(home, reward=FAMILIES["shaped"]())


def test_a_family_whose_terms_are_no_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = tmp_path / "sql" / "rewards"
    rewards.mkdir(parents=True)
    monkeypatch.setattr(statements, "files", lambda _: tmp_path)
    needed = [f"-- term reward_{name} in [0, 0]: nothing" for name in ("progress", "rent", "penalty")]
    for lines in (needed[:2], [*needed, "-- term reward_beauty in [0, 1]: of the network"]):
        (rewards / "dense.sql").write_text("\n".join(lines) + "\n", "utf-8")
        with pytest.raises(
            ConfigError,
            match=r"dense\.sql: wrong `-- term` lines. Required terms: .*; optional: .*; found: .*schema\.py",
        ):
            family_statement("dense")


def test_constants_are_settings_and_no_part_of_the_rules() -> None:
    """Default and wording of a constant may change without a new digest of the SQL."""
    text = "".join(family_statement(family) for family in FAMILIES)
    assert "-- constant" not in text and "-- summary" not in text


def test_a_family_without_a_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"dense\.sql"):
        family_statement("dense")


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_returns_of_a_very_long_episode_do_not_underflow(gamma: float) -> None:
    """0.9 to the power of 8,000 is 0 in double precision; the fold never forms it."""
    (statement,) = (item for item in load_statements("basic") if item.name == "returns")
    rewards = np.random.default_rng(0).normal(size=8000)
    with duckdb.connect() as connection:
        connection.register("told", {"step": np.arange(8000), "reward": rewards})
        connection.execute("CREATE TABLE reward_terms AS SELECT uuid() AS run_id, step, reward FROM told")
        connection.execute("UPDATE reward_terms SET run_id = '00000000-0000-0000-0000-000000000000'")
        set_parameters(connection, {"gamma": gamma})
        ((_, found),) = connection.execute(substitute_parameters(statement.sql)).fetchall()
    expected, to_go = np.empty(8000), 0.0
    for step in range(7999, -1, -1):
        expected[step] = to_go = rewards[step] + gamma * to_go
    np.testing.assert_array_equal(found, expected)


def test_threads_change_no_byte_over_many_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "_PARQUET", statements._PARQUET.replace("SIZE 65536", "SIZE 2048"))
    home = Home(tmp_path)
    land(home, [report for key in range(450) for report in episode(key, seed=1)], batch_reports=1700)
    first = curate_all(home, threads=1, reward=FAMILIES["shaped"]())
    assert pq.ParquetFile(Path(first.path) / "steps.parquet").num_row_groups > 1
    for threads in (2, 3):
        built = curate_all(home, threads=threads, memory_limit_mb=256 * threads, reward=FAMILIES["shaped"]())
        assert built.files == first.files
