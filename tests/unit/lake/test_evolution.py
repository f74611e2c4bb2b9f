"""Parts of an earlier contract are read as they are, or refused by the name of the column."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes
from support.homes.lakes import COUNT, maintenance
from support.homes.pipeline import NOW, curate_all, drop, ingest_all, land

from simic.catalogue.query import query
from simic.contracts.errors import ContractError, IntegrityError
from simic.lake.evolution import differences, required_columns
from simic.lake.lake import open_lake
from simic.lake.log import Part
from simic.lake.parts import schema_digest, write_part
from simic.lake.schema import LANDED_SCHEMA
from simic.runtime.home import Home


def rewrite_as(home: Home, change: Any) -> Part:
    """The home's only part, as an earlier version of the code would have written and committed it."""
    lake = open_lake(home)
    (part,) = lake.parts
    table = change(pq.read_table(home.experience / part.part, partitioning=None))
    (home.ledger / "ingest.jsonl").unlink()
    (home.experience / part.part).unlink()
    written = write_part(
        table, store=lake.store, tmp=home.tmp, stem=Path(part.part).stem.removeprefix("part-"), landed_at=NOW,
        checkpoint=lambda _: None,
    )  # fmt: skip
    older = part.model_copy(
        update={
            "part": written.name, "size_bytes": written.size_bytes, "sha256": written.sha256,
            "schema_digest": schema_digest(table.schema), "code_version": "0.0.9",
        }
    )  # fmt: skip
    lake.ledger.append(older.model_dump(mode="json"))
    return older


def without(*names: str) -> Any:
    return lambda table: table.drop_columns(list(names))


def without_child(struct: str, child: str) -> Any:
    def change(table: pa.Table) -> pa.Table:
        column = table[struct].combine_chunks()
        kept = [field for field in column.type if field.name != child]
        arrays = [column.field(field.name) for field in kept]
        place = table.column_names.index(struct)
        field = table.schema.field(struct)
        new = pa.StructArray.from_arrays(arrays, fields=kept, mask=column.is_null())
        return table.set_column(place, pa.field(struct, new.type, nullable=field.nullable), new)

    return change


def retyped(name: str, kind: pa.DataType) -> Any:
    def change(table: pa.Table) -> pa.Table:
        place, field = table.column_names.index(name), table.schema.field(name)
        return table.set_column(place, pa.field(name, kind, nullable=field.nullable), table[name].cast(kind))

    return change


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    land(home, episodes(range(2)))
    return home


@pytest.mark.parametrize("has_new", [False, True])
def test_an_added_optional_column_is_null_in_old_parts(home: Home, has_new: bool) -> None:
    part = rewrite_as(home, without("seed_id", "policy_version"))
    content = (home.experience / part.part).read_bytes()
    if has_new:
        land(home, episode(5), name="new")
    old = "SELECT count(*) AS n, count(seed_id) AS s FROM reports WHERE host.key < 5"
    assert query(home, old) == [{"n": 40, "s": 0}]
    assert [row["column_name"] for row in query(home, "DESCRIBE reports")] == LANDED_SCHEMA.names
    assert query(home, "SELECT count(*) AS n FROM decisions WHERE seed_id IS NOT NULL") == [{"n": 4 * has_new}]
    snapshot = curate_all(home)
    assert (snapshot.rows_out, snapshot.rejected) == (40 + 20 * has_new, {})
    assert (home.experience / part.part).read_bytes() == content
    drop(home, "again", episode(1))
    assert ingest_all(home).duplicate == 20


def test_parts_from_before_branches_read_as_of_no_branch(home: Home) -> None:
    rewrite_as(home, without("branch_of", "branch_step"))
    land(home, episode(0, branch_of=episode(0)[0].run_id, branch_step=2), name="branch")
    for view in ("reports", "steps", "decisions"):
        rows = query(home, f"FROM {view}")
        found = Counter((row["branch_of"], row["branch_step"]) for row in rows)
        assert found == {(None, None): 40, (episode(0)[0].run_id, 2): 20}, view
    snapshot = curate_all(home)
    assert (snapshot.rows_out, snapshot.rejected) == (60, {})
    drop(
        home, "again", (report.model_dump_json(exclude={"branch_of", "branch_step"}).encode() for report in episode(1))
    )
    assert ingest_all(home).duplicate == 20, "what landed before is told again, by a producer of before"
    assert curate_all(home).rejected == {}


@pytest.mark.parametrize("has_new", [False, True])
def test_an_added_optional_field_of_a_struct_is_null_in_old_parts(home: Home, has_new: bool) -> None:
    rewrite_as(home, without_child("metrics", "test_accuracy"))
    if has_new:
        land(home, episode(5), name="new")
    sql = "SELECT count(*) AS n, count(metrics.test_accuracy) AS t FROM reports"
    assert query(home, sql) == [{"n": 40 + 20 * has_new, "t": int(has_new)}]
    assert curate_all(home).rows_out == 40 + 20 * has_new


@pytest.mark.parametrize(
    ("change", "column", "message"),
    [
        (retyped("step", pa.string()), "step", "expected int64, found string"),
        (without("outcome"), "outcome", "expected string, never null, found no such column"),
        (without_child("metrics", "rent_parameters"), "metrics.rent_parameters", "expected int64, never null"),
        (lambda table: table.append_column(pa.field("mood", pa.string(), nullable=False), [["x"] * 40]), "mood",
         "expected no such column, found string"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(home: Home, change: Any, column: str, message: str) -> None:
    part = rewrite_as(home, change)
    for read in (lambda: query(home, COUNT), lambda: curate_all(home)):
        with pytest.raises(ContractError) as caught:
            read()
        text = str(caught.value)
        assert f"column {column}: {message}" in text
        assert part.part in text and "0.0.9" in text and "simic lake retain" in text
    maintenance(home).retain(max_bytes=0)
    assert query(home, COUNT) == [{"n": 0, "d": 0}]


def test_a_gone_optional_column_is_left_out(home: Home) -> None:
    rewrite_as(home, lambda table: table.append_column(pa.field("mood", pa.string()), [["x"] * 40]))
    land(home, episode(5), name="new")
    assert [row["column_name"] for row in query(home, "DESCRIBE reports")] == LANDED_SCHEMA.names
    assert query(home, COUNT) == [{"n": 60, "d": 60}]


def test_parts_of_two_contracts_are_not_merged(home: Home) -> None:
    rewrite_as(home, without("seed_id"))
    land(home, episode(5), name="new")
    assert maintenance(home).compact().merges == 0
    assert query(home, COUNT) == [{"n": 60, "d": 60}]


def test_the_footer_of_a_landed_part_is_what_the_ledger_says(home: Home) -> None:
    (part,) = open_lake(home).parts
    footer = pq.read_schema(home.experience / part.part)
    assert str(footer) != str(LANDED_SCHEMA), "Parquet names the values of lists in its own way"
    assert schema_digest(footer) == part.schema_digest == schema_digest(LANDED_SCHEMA)


def test_a_footer_that_is_not_what_the_ledger_says_is_damage(home: Home) -> None:
    lake = open_lake(home)
    (part,) = lake.parts
    lake.ledger.path.write_text(part.model_copy(update={"schema_digest": "0" * 64}).model_dump_json() + "\n")
    with pytest.raises(IntegrityError, match="other columns"):
        query(home, COUNT)


def test_required_names_come_from_the_contract() -> None:
    required = required_columns()
    assert {"report_id", "state", "state.slots.[].stage", "metrics.rent_parameters", "landed_at"} <= required
    assert not {"policy_version", "metrics.test_accuracy", "state.slots.[].blueprint", "governor"} & required


def test_null_where_never_null_is_promised_is_a_difference() -> None:
    older = pa.schema([pa.field("a", pa.int64())])
    current = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert [d.found for d in differences(current, older, frozenset())] == ["int64, possibly null"]
    assert differences(older, current, frozenset()) == []
