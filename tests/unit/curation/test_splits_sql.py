"""The split in SQL is the split in Python."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np

from simic.catalogue.query import create_views
from simic.contracts.splits import TEST_SHARE, TRAIN_SHARE, split_of
from simic.curation.statements import create_types, load_statements
from simic.runtime.home import Home


def test_sql_twins_agree_on_thousands_of_keys(tmp_path: Path) -> None:
    keys = [*range(3000), *np.random.default_rng(0).integers(0, 2**31, 3000).tolist(), 2**31 - 1]
    expected = {(name, key): split_of(name, key).value for name in ("benchmark", "other_1") for key in keys}
    sql = next(statement.sql for statement in load_statements("basic") if statement.name == "splits")
    with duckdb.connect() as connection:
        create_types(connection)
        connection.execute('CREATE TABLE episode_heads ("set" VARCHAR, host_key BIGINT)')
        connection.execute(
            "INSERT INTO episode_heads SELECT s, k FROM (SELECT unnest($s) AS s), (SELECT unnest($k) AS k)",
            {"s": ["benchmark", "other_1"], "k": keys},
        )
        shares = {"train_share": TRAIN_SHARE, "test_share": TEST_SHARE}
        found = {(name, key): split for name, key, split in connection.execute(sql, shares).fetchall()}
        assert found == expected
        create_views(connection, Home(tmp_path))
        macro = connection.execute(
            'SELECT DISTINCT "set", host_key, internal.split_of("set", host_key) FROM episode_heads'
        ).fetchall()
        assert {(name, key): split for name, key, split in macro} == expected
    counts = [list(expected.values()).count(split) / len(expected) for split in ("train", "validation", "test")]
    np.testing.assert_allclose(counts, [0.8, 0.1, 0.1], atol=0.015)
