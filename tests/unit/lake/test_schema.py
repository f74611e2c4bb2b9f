"""Columns are derived from the contract, and hold exactly what the contract read."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from support.builders.reports import episode, episodes, line, plain

from simic.contracts.base import Contract
from simic.contracts.errors import ContractError
from simic.contracts.field_report import FieldReport
from simic.lake import arrow_reader as columns
from simic.lake.arrow_reader import AcceptedReports, open_arrow_reader
from simic.lake.schema import LANDED_SCHEMA, REPORT_SCHEMA, arrow_schema

NOW = datetime(2026, 1, 6, tzinfo=UTC)


def values(item: Any) -> Any:
    """As Arrow gives values back."""
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, dict):
        return {key: values(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [values(value) for value in item]
    return item


def landed(reports: list[FieldReport]) -> pa.Table:
    rows = AcceptedReports()
    for number, report in enumerate(reports, 1):
        rows.add(report.report_id, "d" * 64, report.model_dump_json().encode(), "file", number)
    return table_of(rows)


def table_of(rows: AcceptedReports) -> pa.Table:
    with tempfile.TemporaryDirectory() as tmp, open_arrow_reader(Path(tmp)) as reader:
        return reader.table(rows, NOW)


def assert_equal(reports: list[FieldReport]) -> None:
    table = landed(reports)
    assert table.schema == LANDED_SCHEMA
    assert table.select(REPORT_SCHEMA.names).to_pylist() == [values(report.model_dump()) for report in reports]


def test_whole_episodes_read_alike_nulls_and_all() -> None:
    assert_equal(episodes(range(4)) + episode(5, governor_at=3) + episode(6, truncate_at=0))


def test_decisive_columns_are_not_null() -> None:
    """D6: an experience without action or behaviour propensity cannot be stored."""
    for name in ("report_id", "run_id", "step", "state", "action", "log_prob_behaviour", "available", "issued_at"):
        assert not REPORT_SCHEMA.field(name).nullable
    for name in ("final_state", "governor", "policy_version"):
        assert REPORT_SCHEMA.field(name).nullable


real = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=150, deadline=None)
@given(
    loss=st.floats(0, allow_infinity=False, allow_nan=False),
    contribution=real,
    accuracy=st.floats(0, 1),
    device=text,
    mitigation=st.lists(text, max_size=3),
    rent=st.integers(0, 2**53),
    issued_at=st.datetimes(timezones=st.timezones() | st.just(UTC)),
    history=st.lists(real, max_size=5),
    edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4),
)
def test_any_value_the_contract_takes_reads_alike_to_the_last_bit(**drawn: Any) -> None:
    raw = plain(episode(1, truncate_at=0)[0])
    try:
        moment = drawn["issued_at"].astimezone(UTC)
    except OverflowError:
        return
    raw["issued_at"] = moment.isoformat()
    raw["metrics"].update(validation_loss_after=drawn["loss"], rent_parameters=drawn["rent"])
    raw["metrics"].update(validation_accuracy_before=drawn["accuracy"])
    raw["state"]["slots"][1].update(contribution=drawn["contribution"])
    raw["state"]["hardware"]["device"] = drawn["device"]
    raw["state"]["validation_loss_history"] = drawn["history"]
    raw["state"]["graph"]["connects"] = drawn["edges"]
    raw["mitigation"] = drawn["mitigation"]
    assert_equal([FieldReport.model_validate_json(json.dumps(raw))])


def test_coerced_values_are_stored_as_the_contract_reads_them() -> None:
    raw = plain(episode(1, truncate_at=0)[0])
    raw["step"], raw["metrics"]["rent_parameters"], raw["terminated"] = "0", 3.0, "false"
    raw["issued_at"] = "2026-01-05T14:00:00+02:00"
    report = FieldReport.model_validate_json(json.dumps(raw))
    assert_equal([report])
    assert landed([report]).column("issued_at")[0].as_py() == datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "spoilt", [b"", b'"step":null,', b'"step":"x",', b'"step":0,"step":1,', b'"step":1e30,'], ids=bytes.decode
)
def test_bytes_that_are_not_a_report_are_refused_rather_than_guessed(spoilt: bytes) -> None:
    """D6: not even by mistake does a row land without what the schema demands."""
    data = episode(1)[0].model_dump_json().encode()
    assert b'"step":0,' in data
    with pytest.raises(ContractError, match="not columns"):
        table_of(AcceptedReports(["id"], ["d" * 64], [data.replace(b'"step":0,', spoilt)], ["file"], [1], [None]))


@pytest.mark.parametrize("slice_bytes", [columns._SLICE_BYTES, 2**40], ids=["by slices", "by halves"])
def test_a_batch_of_the_longest_reports_fits_the_memory(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PD-5: 64 MiB of valid reports full of edges, which DuckDB's reader cannot hold at once."""
    raw = plain(episode(1)[0])
    raw["state"]["graph"] |= {"connects": [[0, 0]] * 16384, "monitors": [[0, 0]] * 16384}
    data = FieldReport.model_validate_json(json.dumps(raw)).model_dump_json().encode()
    monkeypatch.setattr(columns, "_SLICE_BYTES", slice_bytes)
    count = 330
    numbers = list(range(1, count + 1))
    table = table_of(
        AcceptedReports(["id"] * count, ["d" * 64] * count, [data] * count, ["file"] * count, numbers, [None] * count)
    )
    assert table.column("line").to_pylist() == numbers
    assert table.slice(count - 1).to_pylist()[0]["state"] == table.slice(0, 1).to_pylist()[0]["state"]


def test_slices_keep_the_order_of_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_SLICE_BYTES", 10_000)
    assert_equal(episodes(range(4)))


def test_a_reader_goes_on_to_the_next_batch_even_after_one_it_refused() -> None:
    batches = [AcceptedReports(), AcceptedReports()]
    for rows, key in zip(batches, (1, 2), strict=True):
        for number, report in enumerate(episode(key, truncate_at=key), 1):
            rows.add(report.report_id, "d" * 64, line(report), "file", number)
    with tempfile.TemporaryDirectory() as tmp, open_arrow_reader(Path(tmp)) as reader:
        for rows in (
            batches[0],
            AcceptedReports(["id"], ["d" * 64], [b"{}"], ["file"], [1], [None]),
            AcceptedReports(),
            batches[1],
        ):
            if rows.data == [b"{}"]:
                with pytest.raises(ContractError, match="not columns"):
                    reader.table(rows, NOW)
            else:
                assert reader.table(rows, NOW).column("report_id").to_pylist() == rows.report_ids


def test_landing_columns_say_where_and_when() -> None:
    row = landed(episode(1)).slice(3, 1).to_pylist()[0]
    assert (row["source"], row["line"], row["landed_at"], row["day"]) == ("file", 4, NOW, NOW.date())


def test_keys_are_texts_whatever_bounds_or_names_they_have() -> None:
    class Kind(StrEnum):
        ONE = "one"

    class Counted(Contract):
        kinds: dict[Kind, int]
        names: dict[Annotated[str, Field(max_length=3)], float]

    assert arrow_schema(Counted).types == [pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.float64())]


def test_a_contract_without_an_arrow_form_is_refused() -> None:
    class Odd(Contract):
        either: int | str

    class Worse(Contract):
        thing: set[int]

    class Numbered(Contract):
        thing: dict[int, int]

    for model in (Odd, Worse, Numbered):
        with pytest.raises(ContractError):
            arrow_schema(model)
