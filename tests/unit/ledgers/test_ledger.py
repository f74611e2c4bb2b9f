"""What was appended stays; what a crash tore never was; damage is not mistaken for a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from simic.contracts.errors import ContractError, IntegrityError
from simic.ledgers.ledger import Ledger


def test_records_come_back_in_order(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "deep" / "x.jsonl")
    assert ledger.read() == []
    records = [{"n": n, "text": "ä\u2028\n", "nothing": None} for n in range(3)]
    for record in records:
        ledger.append(record)
    assert Ledger(ledger.path).read() == records
    assert ledger.path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("torn", [b'{"n":1', b'{"n":1}', b"\x00" * 100, b"{" * 200_000])
def test_a_torn_tail_is_ignored_and_cut_by_the_next_append(tmp_path: Path, torn: bytes) -> None:
    """Even a whole record without its line end was never committed."""
    ledger = Ledger(tmp_path / "x.jsonl")
    ledger.append({"n": 0})
    with ledger.path.open("ab") as file:
        file.write(torn)
    assert ledger.read() == [{"n": 0}]
    ledger.append({"n": 2})
    assert ledger.read() == [{"n": 0}, {"n": 2}]
    assert ledger.path.read_bytes() == b'{"n":0}\n{"n":2}\n'


def test_a_file_that_is_one_torn_line_is_empty(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "x.jsonl")
    ledger.path.write_bytes(b'{"n"')
    assert ledger.read() == []
    ledger.append({"n": 1})
    assert ledger.read() == [{"n": 1}]


@pytest.mark.parametrize("damage", [b'{"n":\n', b"\n", b"[1]\n", b"\xff\n"])
def test_an_unreadable_line_elsewhere_is_damage(tmp_path: Path, damage: bytes) -> None:
    ledger = Ledger(tmp_path / "x.jsonl")
    ledger.path.write_bytes(b'{"n":0}\n' + damage + b'{"n":2}\n')
    with pytest.raises(IntegrityError, match="line 2"):
        ledger.read()


@pytest.mark.parametrize("record", [{"x": float("nan")}, {"x": object()}])
def test_what_is_not_json_is_refused_before_anything_is_written(tmp_path: Path, record: dict) -> None:
    ledger = Ledger(tmp_path / "x.jsonl")
    with pytest.raises(ContractError):
        ledger.append(record)
    assert not ledger.path.exists()


def test_a_torn_tail_is_measured_and_cut_without_a_new_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "x.jsonl")
    assert ledger.torn_bytes() == 0
    ledger.append({"n": 0})
    assert ledger.torn_bytes() == 0
    with ledger.path.open("ab") as file:
        file.write(b'{"n":1')
    assert ledger.torn_bytes() == 6
    ledger.cut_torn_tail()
    assert ledger.path.read_bytes() == b'{"n":0}\n'
