"""Tables for people."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from support.builders.judged_candidates import NOW, decision, receipt, trials
from support.builders.published_policies import SUMMARY

from simic.cli.tables import cost_table, decision_table, family_table, receipt_lines, rows_table, trial_table
from simic.contracts.file_digest import FileDigest
from simic.contracts.policy_update import PolicyUpdate
from simic.contracts.results.gate import Verdict
from simic.contracts.results.receipts import PublicationReceipt, SnapshotManifest
from simic.contracts.results.trials import Estimate, FamilyTrial, TrialReport
from simic.validation.table import COST_NOTE, INTERVALS_NOTE
from simic.validation.trials import FEW


def _text(table: RenderableType, width: int = 140) -> str:
    sink = io.StringIO()
    Console(file=sink, width=width, highlight=False, soft_wrap=True).print(table)
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


def test_families_come_with_what_their_intervals_and_those_over_all_hosts_are() -> None:
    text = " ".join(_text(family_table(trials())).split())
    assert "Intervals by family are Student's." in text
    assert f"a percentile bootstrap's from {FEW} hosts of each family on" in text


def test_one_host_per_family_has_an_interval_over_all_hosts_and_a_dash_within_the_family() -> None:
    report = trials()
    own = {
        name: family.model_copy(update={"episodes": 1, "over_wait": None})
        for name, family in report.controllers[0].by_family.items()
    }
    rows = [row.model_copy(update={"by_family": own}) for row in report.controllers]
    single = report.model_copy(update={"controllers": rows})
    assert "+4.0 [+3.0, +5.0]" in _text(trial_table(single))
    families = _text(family_table(single))
    assert "families of one host: cap" in families
    assert "one host" not in _text(trial_table(report)) + _text(family_table(report))


LONG = "tamiyo/123 (f9c82d40)"


def _crowded() -> TrialReport:
    """As many families, controllers and characters as a table may have to hold."""
    report = trials(("candidate", LONG, "champion", "oracle", "symptom", "random", "blind", "heuristic", "wait"))
    families = ["both", "cap", "fine", "gain", "noisy", "select"]
    over = Estimate(mean=-12.3, lower=-14.5, upper=-10.1, confidence=0.95, n=320)
    family = FamilyTrial(
        episodes=320, mean_return=-53.1, over_wait=over, test_accuracy=0.612, validation_accuracy=0.6,
        committed_parameters=12345.0,
    )  # fmt: skip
    own = {"over_wait": over, "by_family": dict.fromkeys(families, family), "mean_return": -53.1}
    rows = [row.model_copy(update=own) for row in report.controllers]
    return report.model_copy(update={"set": "compound", "families": families, "controllers": rows})


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_numbers_are_never_cut_however_narrow_the_screen(width: int) -> None:
    report = _crowded()
    text = _text(trial_table(report), width) + _text(family_table(report), width)
    assert "…" not in text
    assert text.count("-12.3 [-14.5, -10.1]") == 9 + 6 * 9
    assert text.count("61.2 %") == 6 * 9
    assert text.count("-53.1") == 9 + 6 * 9
    assert text.count("12345") == 6 * 9
    assert text.count("f9c82d40") == 1 + 6
    if width >= 80:
        assert max(len(line) for line in text.splitlines() if line != INTERVALS_NOTE) <= width


def test_costs_fit_a_screen_of_80_columns() -> None:
    report = trials()
    over = Estimate(mean=-0.123, lower=-0.145, upper=-0.101, confidence=0.95, n=320)
    numbers = {"test_over_wait": over, "host_parameters": 24690.0, "extra_compute": 0.5, "controller_compute": 0.01}
    rows = [row.model_copy(update=numbers) for row in report.controllers]
    lines = _text(cost_table(report.model_copy(update={"controllers": rows})), 80).splitlines()
    assert max(len(line) for line in lines if line != COST_NOTE) <= 80
    assert any("50.0 %" in line for line in lines)
    of_compound = Estimate(mean=0.126, lower=0.122, upper=0.131, confidence=0.95, n=320)
    numbers = {"test_over_wait": of_compound, "host_parameters": 1820.0, "extra_compute": 0.314}
    numbers |= {"controller_compute": 0.151, "probe_compute": 0.267}
    rows = [row.model_copy(update=numbers) for row in report.controllers]
    lines = _text(cost_table(report.model_copy(update={"controllers": rows})), 80).splitlines()
    assert max(len(line) for line in lines if line != COST_NOTE) <= 80


def test_controllers_and_families_have_one_order_in_every_table() -> None:
    """As in the README: baselines, policies, the champion, the candidate; families as the set lists them."""
    order = ["wait", "random", "heuristic", "blind", "symptom", "oracle", LONG.split()[0], "champion", "candidate"]
    families = ["cap", "select", "gain", "noisy", "fine", "both"]
    lines = [line.split() for line in _text(trial_table(_crowded()), 160).splitlines() if line.strip()]
    assert [cells[0] for cells in lines[3:]] == order
    assert lines[1][4:10] == families
    rows = [line.split()[:2] for line in _text(family_table(_crowded()), 160).splitlines() if "-53.1" in line]
    assert rows == [[family, name] for family in families for name in order]
    root = Path(__file__).parents[3]
    pages = [(root / name).read_text() for name in ("README.md", "docs/results.md")]
    shown = {"never growing (`wait`)": "wait", "random legal (`random`)": "random",
             "heuristic, tuned (`heuristic`)": "heuristic",
             "best state-blind schedule (`blind`)": "blind",
             "tree that reads one observation (`symptom`)": "symptom",
             "per-family oracle, told the family (`oracle`)": "oracle"}  # fmt: skip
    proofs = with_tree = 0
    without_tree = [name for name in order[:6] if name != "symptom"]
    for table in re.findall(r"(?:^\|.*\n)+", "\n".join(pages), re.MULTILINE):
        header, _, *body = [[cell.strip() for cell in row.strip("|\n ").split("|")] for row in table.splitlines()]
        if header[0] != "controller":
            continue
        proofs += 1
        own = [name for name in ("match", *families) if name in header]
        assert header == ["controller", "return", "over never growing", *own, "test accuracy", "parameters"]
        names = [shown.get(row[0], "policy") for row in body]
        with_tree += "symptom" in names
        assert [name for name in names if name != "symptom"] == [*without_tree, "policy"]
        assert [name for name in order if name in names] == names[:-1]
    assert with_tree == 2, "every one"
    assert proofs == 2, "the proof in the README and images in docs/results.md"


def test_a_table_without_a_plan_book_says_what_lacks_and_what_makes_one() -> None:
    report = trials(("wait", "heuristic")).model_copy(
        update={"set": "own", "plans_digest": None, "without_book": ["heuristic", "blind", "symptom", "oracle"]}
    )
    text = " ".join(_text(trial_table(report)).split())
    assert "no plan book for set own: heuristic follows its default rules" in text
    assert "no comparison with blind, symptom and oracle; `simic plans search --set own` makes one" in text
    assert "plan book" not in _text(trial_table(trials()))
    no_tree = " ".join(_text(trial_table(report.model_copy(update={"without_book": ["symptom"]}))).split())
    assert "no tree in the plan book of set own: no comparison with symptom" in no_tree
    assert "`simic plans search --set own --only symptom` adds it" in no_tree


def test_the_gate_shows_value_bound_and_verdict_of_every_criterion() -> None:
    text = _text(decision_table(decision("1" * 64, accepted=False)))
    assert "Gate: rejected" in text
    assert any(line.split()[:5] == ["return_over_wait", "-5", ">", "0", "FAIL"] for line in text.splitlines())
    assert any(line.split()[:5] == ["episodes", "160", ">=", "150", "PASS"] for line in text.splitlines())


def test_the_gate_shows_what_does_not_pass_first_and_cuts_no_name() -> None:
    found = decision("1" * 64, accepted=False)
    passing = found.criteria[0].model_copy(update={"name": "median_over_blind_on_compound", "verdict": Verdict.PASS})
    failing = passing.model_copy(update={"name": "mean_over_symptom_on_varied", "verdict": Verdict.FAIL})
    lines = _text(decision_table(found.model_copy(update={"criteria": [passing, failing]})), width=80).splitlines()
    named = [line.split()[0] for line in lines if "_over_" in line]
    assert named == ["mean_over_symptom_on_varied", "median_over_blind_on_compound"]


def test_fractions_of_a_query_have_six_digits() -> None:
    row = {"a": 0.1 + 0.2, "b": 1e-12 / 3, "c": 1234567.891, "d": 2.0, "e": None, "f": -20.123456789}
    shown = _text(rows_table([row])).split()
    assert shown[-5:] == ["0.3", "3.3333333333333334e-13", "1234567.891", "2.0", "-20.1235"]


def test_a_receipt_is_shown_without_what_all_have_in_common() -> None:
    text = _text(receipt_lines(decision("1" * 64)))
    assert "policy digest" in text
    assert "1" * 12 in text and "1" * 13 not in text, "a digest for people"
    assert "code version" not in text
    assert "took" in text


def test_files_of_a_receipt_lie_one_a_line() -> None:
    files = [FileDigest(name=f"part-{at}.parquet", sha256=f"{at}" * 64, size_bytes=at) for at in range(10)]
    made = SnapshotManifest(
        **receipt(), digest="d" * 64, path="d", sql_digest="e" * 64, ledger_digest="f" * 64, files=files,
        ledger_parts=[], reward_family="basic", gamma=0.99, rows_in=10, rows_out=9, rejected={}, episodes={"train": 1},
    )  # fmt: skip
    lines = [" ".join(line.split()) for line in _text(receipt_lines(made)).splitlines()]
    at = lines.index("files name part-0.parquet, sha256 000000000000, size_bytes 0")
    assert lines[at + 1] == "name part-1.parquet, sha256 111111111111, size_bytes 1"
    assert lines[at + 8] == "and 2 more; --json shows them"


def test_a_publication_says_in_words_whether_something_was_sent() -> None:
    update = PolicyUpdate(
        policy_name="tamiyo", version="1.0.0", digest="a" * 64, reference="models:/tamiyo/1", targets=["tamiyo"],
        validation=SUMMARY, issued_at=NOW, key_id="0" * 16,
    )  # fmt: skip
    sent = PublicationReceipt(**receipt(), update=update, event_id="0" * 32, delivered=True)
    again = sent.model_copy(update={"delivered": False})
    said = [" ".join(_text(receipt_lines(one)).split()) for one in (sent, again)]
    assert "delivered now" in said[0]
    assert f"delivered this version was published on {NOW:%Y-%m-%d %H:%M} UTC; nothing was sent again" in said[1]
    assert again.model_dump()["delivered"] is False


def test_markup_in_data_is_only_text() -> None:
    assert "[bold]x[/bold]" in _text(rows_table([{"a": "[bold]x[/bold]", "b": None}]))
    assert _text(rows_table([])).strip() == ""


def test_a_row_wider_than_the_screen_loses_no_character() -> None:
    rows = [{f"digest_{index}": str(index) * 64 for index in range(4)}, {"digest_0": None}]
    text = _text(rows_table(rows))
    assert all(str(index) * 64 in text for index in range(4))
    assert text.index("row 1") < text.index("digest_0") < text.index("digest_3") < text.index("row 2")
    assert "row 1" not in _text(rows_table([{"digest": "0" * 64}]))


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
