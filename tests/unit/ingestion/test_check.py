"""The check of a file says of lines what an ingest would say, and of episodes what curation would; memory is flat."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from support.builders.reports import BLUEPRINTS, EPOCH_ZERO, episode, plain

from simic.bus.protocol import Defect, Line
from simic.bus.spool.lines import read_stream
from simic.contracts.field_report import FieldReport
from simic.contracts.settings.run import IngestConfig
from simic.ingestion import check as checking
from simic.ingestion.check import Fault, ReportCheck
from simic.ingestion.episode_order import EpisodeOrder, read_link
from simic.ingestion.validate import Refused, Validator

NOW = EPOCH_ZERO + timedelta(days=1)
KNOWN = frozenset(BLUEPRINTS)
Row = FieldReport | dict[str, Any] | bytes


def checked(rows: Iterable[Row], config: IngestConfig | None = None) -> tuple[ReportCheck, list[Fault]]:
    check = ReportCheck(config or IngestConfig(), KNOWN, lambda: NOW)
    return check, list(check.faults(lines_of(rows)))


def lines_of(rows: Iterable[Row]) -> list[Line]:
    return [Line(number, as_bytes(row), None) for number, row in enumerate(rows, start=1)]


def as_bytes(row: Row) -> bytes:
    if isinstance(row, FieldReport):
        return row.model_dump_json().encode()
    return row if isinstance(row, bytes) else json.dumps(row).encode()


def changed(report: FieldReport, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(json.dumps(plain(report)))
    for name, value in fields.items():
        *above, last = name.split("__")
        place = row
        for key in above:
            place = place[key]
        place[last] = value
    return row


def test_whole_episodes_in_any_mix_are_complete() -> None:
    one, other, cut = episode(1), episode(2), episode(3, truncate_at=4)
    mixed = [row for pair in zip(one, other, strict=True) for row in pair]
    check, faults = checked([*mixed, *cut])
    assert faults == []
    assert (check.accepted, check.complete, check.incomplete, check.refused) == (45, 3, 0, 0)
    assert check.horizons == {20: 45}


def test_a_part_of_an_episode_is_accepted_and_incomplete() -> None:
    rows = episode()
    for part in (rows[:5], rows[5:], rows[3:9]):
        check, faults = checked(part)
        assert (faults, check.accepted, check.complete, check.incomplete) == ([], len(part), 0, 1)


def test_every_refusal_names_line_episode_field_value_and_remedy() -> None:
    rows: list[Row] = list(episode())
    run_id = episode()[0].run_id
    rows[3] = changed(episode()[3], state__epoch="3")
    rows[7] = as_bytes(rows[7])[:700]
    rows[12] = changed(episode()[12], available__blueprint=["ours"], action={"op": "WAIT"})
    check, faults = checked(rows)
    assert [(fault.line, fault.run_id, fault.step, fault.reason) for fault in faults] == [
        (4, run_id, 3, "contract"),
        (8, run_id, None, "malformed_json"),
        (13, run_id, 12, "contract"),
    ]
    assert faults[0].message == "state.epoch: Input should be a valid integer"
    assert faults[0].found == '"3"'
    assert "simic schema FieldReport" in faults[0].remedy
    assert "one JSON object per line" in faults[1].remedy
    assert (check.accepted, check.complete, check.incomplete) == (17, 0, 1), "one fault does not spoil the next lines"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"controller": "mine"}, "controller: expected explore, that of the episode's report before, found mine"),
        (
            {"state__seeds_max": 2},
            r"state\.seeds_max: expected that of the episode's report before, found 2",
        ),
        ({"host__key": 8}, "host: expected that of the episode's report before, found .*8"),
        (
            {"state__validation_accuracy": 0.9, "metrics__validation_accuracy_before": 0.9},
            r"state\.validation_accuracy: expected .* of the report before, found 0\.9",
        ),
    ],
)
def test_a_break_of_an_episode_is_told_once(change: dict[str, Any], message: str) -> None:
    rows = episode()
    bent = changed(rows[4], state__validation_accuracy_history=[], **change)
    check, faults = checked([*rows[:4], bent, *rows[5:]])
    assert [(fault.line, fault.reason) for fault in faults] == [(5, "order")]
    assert re.search(message, faults[0].message), faults[0].message
    assert faults[0].remedy.startswith("correct the field here or in the report before"), "the order was right"
    assert (check.complete, check.incomplete) == (0, 1)


@pytest.mark.parametrize("rent", [0, 100, 9_000_000])
def test_the_report_after_a_germination_shows_that_its_rent_was_false(rent: int) -> None:
    rows = episode()
    check, faults = checked([*rows[:2], changed(rows[2], metrics__rent_parameters=rent), *rows[3:]])
    assert [(fault.line, fault.reason, fault.message) for fault in faults] == [
        (
            4,
            "order",
            f"state.slots.0.parameters: expected {rent}, metrics.rent_parameters - state.seed_parameters of the report "
            "before, which germinated the seed, found 820",
        )
    ]
    assert (check.complete, check.incomplete) == (0, 1)


def test_a_germinated_seed_that_did_not_live_on_shows_nothing_of_its_rent() -> None:
    rows = episode(script={2: "GERMINATE", 3: "PRUNE"})
    gone = {"stage": "PRUNED", "blueprint": "mlp", "stage_epochs": 0}
    first = changed(rows[2], metrics__rent_parameters=500)
    state = changed(rows[4])["state"]
    state["slots"][0].update(gone)
    following = changed(episode(script={})[3], state__slots=state["slots"])
    assert checked([*rows[:2], first, following])[1] == []
    longer = changed(rows[2], metrics__rent_parameters=500, observation_window_epochs=2)
    after = changed(episode()[3], state__epoch=4)
    assert checked([*rows[:2], longer, after])[1] == [], "seeds may end in a longer window"


def test_a_gap_is_told_once() -> None:
    rows = episode()
    check, faults = checked([*rows[:4], *rows[5:]])
    assert [(fault.line, fault.message) for fault in faults] == [(5, "step: expected 4, the next one, found 5")]
    assert "once, in the order of the steps" in faults[0].remedy
    assert (check.accepted, check.complete, check.incomplete) == (18, 0, 1)


def test_only_episodes_without_an_end_are_named_as_such() -> None:
    """Nor is one of which a report cannot be read, because that may be the end, or come before it in another file."""
    gap, unread, cut = episode(1), episode(2), [episode(key)[:5] for key in range(3, 9)]
    unread[9] = unread[9].model_copy(update={"step": -1})
    check = ReportCheck(IngestConfig(), KNOWN, lambda: NOW, has_several=True)
    for rows in ([*gap[:4], *gap[5:]], unread[:12], unread[12:], *cut[:5]):
        list(check.faults(lines_of(rows), "a.jsonl"))
    list(check.rest())
    assert (check.complete, check.incomplete) == (0, 7)
    assert check.without_end == [(rows[0].run_id, 4) for rows in cut[:5]]
    assert not check.has_more_without_end
    list(check.faults(lines_of(cut[5]), "a.jsonl"))
    assert check.has_more_without_end


def test_a_report_after_the_end_spoils_a_complete_episode_once() -> None:
    one, other = episode(1), episode(2)
    again = [changed(one[5], report_id=f"{number:032x}", command_id=f"{number:032x}") for number in (1, 2)]
    check, faults = checked([*one, *other, *again])
    assert [(fault.line, fault.reason) for fault in faults] == [(41, "order"), (42, "order")]
    assert (check.complete, check.incomplete) == (1, 1), "curation leaves it out"
    check, _ = checked([*one[:5], *one[6:], again[0]])
    assert (check.complete, check.incomplete) == (0, 1), "it was not complete before"


def test_a_line_twice_is_a_duplicate_and_an_id_twice_a_conflict() -> None:
    rows: list[Row] = list(episode())
    again = changed(episode()[2], issued_at=(EPOCH_ZERO + timedelta(hours=2)).isoformat())
    check, faults = checked([*rows[:3], again, *rows[3:]])
    assert (faults, check.duplicates, check.complete) == ([], 1, 1), "as an ingest: the content is the same"
    rows[5] = changed(episode()[5], report_id=episode()[1].report_id)
    check, faults = checked(rows)
    assert [(fault.line, fault.reason) for fault in faults] == [(6, "conflict")]
    assert faults[0].message == "report_id: expected one that no other report has, found that of line 2"
    assert (check.complete, check.incomplete) == (0, 1)


HOSTILE: list[Callable[[FieldReport], Row]] = [
    lambda _: b"{",
    lambda _: b"[1]",
    lambda _: b"\xff\xfe",
    lambda _: b"[" * 60_000,
    lambda report: as_bytes(report).replace(b'"step":0', b'"step":0,"step":0'),
    lambda report: as_bytes(report).replace(b'"step":0', b'"step":' + b"9" * 5000),
    lambda report: as_bytes(report).replace(b'"step":0', b'"step":NaN'),
    lambda report: as_bytes(report).replace(b'"schema_version":1', b'"schema_version":2'),
    lambda report: as_bytes(changed(report, state__epoch=21)).replace(b'"step": 0', b'"step": ' + b"9" * 5000),
    lambda report: changed(report, run_id="7"),
    lambda report: changed(report, run_id=["0" * 32]),
    lambda report: changed(report, step=True),
    lambda report: changed(report, host=None),
    lambda report: changed(report, notes="\x1b]0;x\x07"),
    lambda report: changed(report, issued_at="1999-01-01T00:00:00Z"),
    lambda report: changed(report, metrics__rent_parameters=7),
    lambda report: changed(report, blueprint_id="ours", action__blueprint="ours"),
]


@pytest.mark.parametrize("bend", HOSTILE)
def test_reason_and_message_are_those_of_an_ingest(bend: Callable[[FieldReport], Row]) -> None:
    validator = Validator(IngestConfig(), KNOWN)
    validator.begin(NOW, NOW)
    row = bend(episode()[0])
    expected = validator.validate(Line(1, as_bytes(row), None))
    assert isinstance(expected, Refused)
    _, [fault] = checked([row])
    assert (fault.reason, fault.message) == (expected.reason.value, expected.message)


@pytest.mark.parametrize(
    "change",
    [
        {"relevant": ["op", "slot"]},
        {"action": {"op": "PRUNE"}},
        {"action__slot": 1},
        {"state__epoch": 21},
        {"log_prob_behaviour__joint": -5.0},
        {"terminated": True},
    ],
)
def test_fields_that_do_not_fit_each_other_are_explained_by_the_documentation(change: dict[str, Any]) -> None:
    _, [fault] = checked([changed(episode()[0], **change)])
    assert fault.reason == "contract"
    assert fault.remedy == "correct the fields; docs/reports.md, section 'What must hold', has the rule"


@pytest.mark.parametrize("change", [{"state__epoch": -1}, {"state__epoch": {}}, {"observation_window_epochs": 0.5}])
def test_a_field_that_is_wrong_by_itself_is_explained_by_its_schema(change: dict[str, Any]) -> None:
    _, [fault] = checked([changed(episode()[0], **change)])
    assert fault.remedy == "correct the field; `simic schema FieldReport` prints its rule"


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (
            {"state__validaton_loss": 0.5},
            "remove the field, or correct its name. Did you mean 'validation_loss'?",
        ),
        ({"outcomes": "SUCCESS"}, "remove the field, or correct its name. Did you mean 'outcome'?"),
        (
            {"final_state": {"trainloss": 0.5}},
            "remove the field, or correct its name. Did you mean 'train_loss'?",
        ),
        (
            {"state__slots": [{"paramters": 3}]},
            "remove the field, or correct its name. Did you mean 'parameters'?",
        ),
        ({"vendor": "us"}, "remove the field"),
    ],
)
def test_the_name_that_an_unknown_field_resembles_is_asked_for(change: dict[str, Any], remedy: str) -> None:
    _, [fault] = checked([changed(episode()[0], **change)])
    assert (fault.reason, fault.remedy) == ("unknown_field", remedy)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ours", "unknown blueprints ['ours']"),
        ("attenton", "unknown blueprints ['attenton']. Did you mean 'attention'?"),
    ],
)
def test_an_unknown_blueprint_is_named_without_the_list_of_all(name: str, message: str) -> None:
    _, [fault] = checked([changed(episode()[0], available__blueprint=[name])])
    assert (fault.reason, fault.message) == ("unknown_blueprint", message)
    assert "ingest.declared_blueprints" in fault.remedy


def test_json_over_several_lines_is_told_once() -> None:
    reports = [changed(report) for report in episode()[:2]]
    for text, filter_ in (
        (json.dumps(reports[0], indent=2), "."),
        ("\n".join(json.dumps(report, indent=2) for report in reports), "."),
        (json.dumps(reports, indent=2), "'.[]'"),
        ("[\n" + ",\n".join(map(json.dumps, reports)) + "\n]", "'.[]'"),
    ):
        check, faults = checked(text.encode().splitlines())
        assert [(fault.line, fault.reason) for fault in faults] == [(1, "malformed_json")]
        assert "found JSON over several lines" in faults[0].message
        assert faults[0].remedy == f"write each report on a line of its own, as `jq -c {filter_}` does"
        assert check.refused == 1
    check, faults = checked([b"{", *episode()])
    assert (len(faults), check.accepted) == (1, 20), "one line is torn, and the others are reports"


@pytest.mark.parametrize("defect", [Defect.TOO_LONG, Defect.TORN])
def test_a_defect_of_a_line_is_a_refusal(defect: Defect) -> None:
    check = ReportCheck(IngestConfig(), KNOWN, lambda: NOW)
    run_id = episode()[0].run_id
    [fault] = check.faults([Line(1, as_bytes(episode()[0])[:400], defect)])
    assert (fault.reason, fault.run_id, check.incomplete) == (defect.value, run_id, 1)


def test_too_many_refused_lines_end_the_check() -> None:
    few = IngestConfig(max_file_refusals=3)
    _, faults = checked([b"x"] * 10, few)
    assert [fault.reason for fault in faults] == ["malformed_json"] * 4 + ["given_up"]
    assert "what follows line 4 was not read" in faults[-1].message


def test_memory_is_bounded_and_what_was_forgotten_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, bound in (("MOST_OPEN", 2), ("MOST_ENDED", 1), ("MOST_IDS", 30), ("MOST_HORIZONS", 1)):
        monkeypatch.setattr(checking, name, bound)
    starts = [episode(key)[0] for key in range(5)]
    check, _ = checked(starts)
    assert check.forgotten == {"open_episodes": 3, "ended_episodes": 0, "report_ids": 0}
    assert check.incomplete == 5
    check, faults = checked([*episode(0), *episode(1), episode(2, horizon=4)[0]])
    assert (faults, check.complete, check.horizons) == ([], 2, {20: 40})
    assert check.forgotten == {"open_episodes": 0, "ended_episodes": 1, "report_ids": 11}


def test_order_keeps_no_more_than_its_bounds() -> None:
    order, link = EpisodeOrder(3, 2), read_link(as_bytes(episode()[0]))
    for number in range(1000):
        link.run_id = f"{number:032x}"
        link.terminated = number % 2 == 0
        assert order.check(link) is None
        order.record(link)
    assert (len(order._open), len(order._ended)) == (3, 2)
    assert (order.complete, order.incomplete) == (500, 500)
    assert (order.forgotten_open, order.forgotten_ended) == (497, 498)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_stream_is_split_into_the_lines_of_a_file(size: int) -> None:
    class Slow(BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            return super().read(min(size, count or 0))

    text = b"one\n\n  \ntwo\r\n" + b"x" * 50 + b"\nlast"
    found = [(line.number, line.data, line.defect) for line in read_stream(Slow(text), 20, is_packed=False)]
    assert found == [
        (1, b"one", None), (4, b"two\r", None), (5, b"x" * 20, Defect.TOO_LONG), (6, b"last", None),
    ]  # fmt: skip
