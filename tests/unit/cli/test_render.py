"""Tables for people."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from support.judged import decision, trials

from simic.cli.render import decision_table, family_table, receipt_lines, rows_table, trial_table


def _text(table: RenderableType, width: int = 140) -> str:
    sink = io.StringIO()
    Console(file=sink, width=width, highlight=False).print(table)
    return sink.getvalue()


def test_the_proof_shows_every_controller_with_its_interval() -> None:
    lines = _text(trial_table(trials())).splitlines()
    for name in ("wait", "blind", "candidate"):
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    assert any("blind" in line and "+4.0 [+3.0, +5.0]" in line for line in lines)


def test_every_controller_has_its_numbers_within_a_family() -> None:
    lines = [line.split() for line in _text(family_table(trials())).splitlines()]
    assert ["cap", "wait", "2", "3.0", "-", "60.0", "%", "100"] in lines
    assert ["cap", "blind", "2", "3.0", "+4.0", "[+3.0,", "+5.0]", "60.0", "%", "100"] in lines


def test_the_gate_shows_value_bound_and_verdict_of_every_criterion() -> None:
    text = _text(decision_table(decision("1" * 64, accepted=False)))
    assert "Gate: rejected" in text
    assert any(line.split()[:5] == ["return_over_wait", "-5", ">", "0", "FAIL"] for line in text.splitlines())
    assert any(line.split()[:5] == ["episodes", "160", ">=", "150", "PASS"] for line in text.splitlines())


def test_a_receipt_is_shown_without_what_all_have_in_common() -> None:
    text = _text(receipt_lines(decision("1" * 64)))
    assert "policy digest" in text
    assert "1" * 12 in text and "1" * 13 not in text, "a digest for people"
    assert "code version" not in text
    assert "took" in text


def test_markup_in_data_is_only_text() -> None:
    assert "[bold]x[/bold]" in _text(rows_table([{"a": "[bold]x[/bold]", "b": None}]))
    assert _text(rows_table([])).strip() == ""


def test_control_characters_in_data_reach_no_terminal() -> None:
    """PD-5: dead letters and queries show what strangers sent."""
    text = _text(rows_table([{"a": "\x1b]0;title\x07\x1b[2J\r\x9b1m\x7f", "b": "one\ntwo ü"}]))
    assert r"\x1b]0;title\x07\x1b[2J\x0d\x9b1m\x7f" in text
    assert "two ü" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_names_of_columns_are_data_too() -> None:
    """A query names its columns after whatever it selects, and may pivot on what strangers sent."""
    text = _text(rows_table([{"[/bold]\x1b]0;title\x07": 1, "\u202eevil\u2028": 2}]))
    assert r"[/bold]\x1b]0;title\x07" in text
    assert r"\u202eevil\u2028" in text
    assert all(character.isprintable() or character == "\n" for character in text)
