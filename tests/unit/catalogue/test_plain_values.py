"""Values of queries say what they are and keep all their digits, as JSON and in tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.servers.forked_commands import run_command

from simic.catalogue.plain_values import plain_value
from simic.catalogue.query import query
from simic.contracts.errors import ConfigError
from simic.runtime.home import Home

PLAIN: Mapping[str, Any] = {
    "'infinity'::TIMESTAMP": "infinity",
    "'-infinity'::TIMESTAMP": "-infinity",
    "'infinity'::TIMESTAMPTZ": "infinity",
    "'infinity'::TIMESTAMP_S": "infinity",
    "'infinity'::TIMESTAMP_MS": "infinity",
    "'infinity'::TIMESTAMP_NS": "infinity",
    "'infinity'::TIMESTAMPTZ_NS": "infinity",
    "'infinity'::DATE": "infinity",
    "'-infinity'::DATE": "-infinity",
    "NULL::TIMESTAMP": None,
    "DATE '2026-01-05'": "2026-01-05",
    "DATE '12000-01-01'": "12000-01-01",
    "DATE '0044-03-15 (BC)'": "0044-03-15 (BC)",
    "TIMESTAMP '12000-01-01 10:00:00'": "12000-01-01 10:00:00",
    "TIMESTAMPTZ '12000-01-01 10:00:00Z'": "12000-01-01 10:00:00+00",
    "TIMESTAMP '0044-03-15 (BC) 10:00:00'": "0044-03-15 (BC) 10:00:00",
    "TIMESTAMP '9999-12-31 23:59:59.999999'": "9999-12-31T23:59:59.999999",
    "TIMESTAMP '2026-01-05 01:02:03'": "2026-01-05T01:02:03",
    "TIMESTAMPTZ '2026-01-05 01:02:03.5+02'": "2026-01-04T23:02:03.500000+00:00",
    "TIMESTAMP_NS '2026-01-05 01:02:03.123456789'": "2026-01-05T01:02:03.123456789",
    "TIME '24:00:00'": "24:00:00",
    "TIMETZ '10:00:00+02'": "10:00:00+02:00",
    "TIMETZ '24:00:00+02'": "24:00:00+02",
    "TIME_NS '10:00:00.123456789'": "10:00:00.123456789",
    "INTERVAL '3 months 2 days 4 hours'": "3 months 2 days 04:00:00",
    "INTERVAL 2147483647 MONTH": "178956970 years 7 months",
    "170141183460469231731687303715884105727::HUGEINT": 2**127 - 1,
    "340282366920938463463374607431768211455::UHUGEINT": 2**128 - 1,
    "(repeat('9', 60))::BIGNUM": "9" * 60,
    "'\\xAA\\x00b'::BLOB": "aa0062",
    "UUID '0a5b1c6e-0000-4000-8000-000000000001'": "0a5b1c6e-0000-4000-8000-000000000001",
    "'101'::BIT": "101",
    "'POINT(1 2)'::GEOMETRY": "POINT (1 2)",
    "'nan'::DOUBLE": "nan",
    "'-inf'::FLOAT": "-inf",
    "['nan'::DOUBLE, 1, NULL]": ["nan", 1.0, None],
    "array_value('inf'::FLOAT, 1)": ["inf", 1.0],
    "{'a': 'nan'::DOUBLE, 'b': [{'c': 'inf'::FLOAT}]}": {"a": "nan", "b": [{"c": "inf"}]},
    "{'a b\"c': ['infinity'::DATE, NULL], 'n': NULL}": {'a b"c': ["infinity", None], "n": None},
    "NULL::STRUCT(a DATE)": None,
    "array_value('infinity'::DATE)": ["infinity"],
    "ROW(1, TIMESTAMP '2026-01-05')": [1, "2026-01-05T00:00:00"],
    "MAP {'infinity'::TIMESTAMP: INTERVAL 3 MONTH}": {"infinity": "3 months"},
    "MAP {[DATE '-infinity']: 1}": {"key": [["-infinity"]], "value": [1]},
    "MAP {'\\xAA'::BLOB: 'nan'::DOUBLE}": {"aa": "nan"},
    "union_value(k := 'infinity'::DATE)": "infinity",
    "{'t': 'infinity'::DATE, 'x': 'nan'::DOUBLE}::VARIANT": {"t": "infinity", "x": "nan"},
}
SQL = "SELECT " + ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(PLAIN)) + ";  -- c'est tout"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("0.10", 0.1),
        ("-2.5", -2.5),
        ("3", 3.0),
        ("123456789012345678.123", "123456789012345678.123"),
        ("0.12345678901234567890", "0.12345678901234567890"),
    ],
)
def test_a_decimal_is_text_where_a_float_lacks_digits(value: str, plain: float | str) -> None:
    found = plain_value(Decimal(value))
    assert (type(found), found) == (type(plain), plain)


def test_every_value_says_what_it_is(tmp_path: Path) -> None:
    (row,) = query(Home(tmp_path), SQL)
    assert dict(zip(PLAIN, row.values(), strict=True)) == PLAIN
    json.dumps(row, allow_nan=False)


def test_the_verb_says_it_as_json_and_in_a_table(tmp_path: Path) -> None:
    Home(tmp_path).create()
    done = run_command("--home", str(tmp_path), "sql", "--json", SQL)
    assert list(json.loads(done.stdout)[0].values()) == list(PLAIN.values()), done.stderr
    shown = run_command("--home", str(tmp_path), "sql", SQL)
    values = dict(re.findall(r"^ +c(\d+) +(\S.*?) *$", shown.stdout, re.MULTILINE))
    texts = {str(number): value for number, value in enumerate(PLAIN.values()) if type(value) is str}
    assert {number: values.get(number) for number in texts} == texts, shown.stderr


def test_rows_keep_their_order_and_names(tmp_path: Path) -> None:
    sql = "SELECT range AS n, DATE '2026-01-05' + range::INTEGER AS n FROM range(20000) ORDER BY hash(range)"
    rows = query(Home(tmp_path), sql)
    numbers = [row["n"] for row in query(Home(tmp_path), sql.replace(", DATE '2026-01-05' + range::INTEGER AS n", ""))]
    assert [row["n"] for row in rows] == numbers
    assert {row["n_1"] for row in rows if row["n"] == 1} == {"2026-01-06"}


def test_an_error_does_not_show_the_casts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failed:
        query(Home(tmp_path), "SELECT (range || 'a')::INTEGER, DATE '2026-01-05' FROM range(3)")
    assert str(failed.value) == "the query failed: Conversion Error: Could not convert string '0a' to INT32"
