"""Views over real files: typed when empty, right when full, and nothing but readable."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from support.builders.judgements import judgement
from support.builders.reports import episode, episodes, plain
from support.checks.lake_contents import parts_of
from support.homes.champions import crown
from support.homes.pipeline import NOW, curate_all, drop, ingest_all, land

from simic.catalogue.query import load_views, query, stream
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.results.gate import Criterion, GateDecision
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.splits import split_of
from simic.lake.schema import LANDED_SCHEMA
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home
from simic.trust.sealed_receipts import decision_digest

NAMES = [
    "reports", "steps", "episodes", "decisions", "rewards", "snapshots", "policies", "gates", "quarantine", "trainings",
    "rejected", "curves", "trials", "trial_episodes", "judgements", "judging_episodes",
    "updates", "update_reports", "report_updates", "telemetry", "slo_violations",
]  # fmt: skip
RECEIPT = {"code_version": "x", "config_digest": "c" * 64, "seed": 0, "started_at": NOW, "finished_at": NOW}


def described(home: Home) -> dict[str, dict[str, str]]:
    """Columns and types of every view, in order."""
    sql = """
        SELECT table_name, list(column_name ORDER BY ordinal_position) AS names,
            list(data_type ORDER BY ordinal_position) AS types
        FROM information_schema.columns GROUP BY table_name
    """
    found = {row["table_name"]: dict(zip(row["names"], row["types"], strict=True)) for row in query(home, sql)}
    return {name: found[name] for name in NAMES}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("home"))
    land(home, episodes(range(6)) + episode(7, governor_at=4) + episode(8)[:5], batch_reports=50)
    drop(home, "bad", [b"{", episode(0)[0], {**plain(episode(9)[0]), "extra": 1}])
    ingest_all(home)
    curate_all(home)
    return home


def test_views_exist_and_are_typed_before_anything_landed(tmp_path: Path, full: Home) -> None:
    assert [view.name for view in load_views()] == NAMES
    home = Home(tmp_path)
    counts = " UNION ALL ".join(f"SELECT count(*) AS n FROM {name}" for name in NAMES)  # noqa: S608
    assert query(home, counts) == [{"n": 0}] * len(NAMES)
    assert described(home) == described(full)


def test_every_column_is_documented_in_its_view(tmp_path: Path) -> None:
    columns = described(Home(tmp_path))
    for view in load_views():
        assert list(columns[view.name]) == (LANDED_SCHEMA.names if view.name == "reports" else list(view.columns))


def test_steps_and_reports_hold_every_landed_row_once(full: Home) -> None:
    assert query(full, "SELECT count(*) AS n, count(DISTINCT report_id) AS d FROM reports") == [{"n": 130, "d": 130}]
    report = episode(3)[12]
    row = query(full, f"FROM steps WHERE report_id = '{report.report_id}'")[0]
    assert (row["op"], row["slot"], row["blueprint"]) == ("FOSSILIZE", 0, "mlp")
    assert row["accuracy_after"] == report.metrics.validation_accuracy_after
    assert row["stages"] == [slot.stage.value for slot in report.state.slots]
    assert row["split"] == split_of("benchmark", 3).value
    assert row["issued_at"] == report.issued_at.isoformat()


def test_episodes_say_how_they_ended(full: Home) -> None:
    rows = {row["host_key"]: row for row in query(full, "FROM episodes")}
    assert len(rows) == 8
    assert {key: (row["ending"], row["is_complete"], row["steps"]) for key, row in rows.items() if key > 5} == {
        7: ("aborted", True, 5),
        8: ("open", False, 5),
    }
    assert (rows[0]["germinated"], rows[0]["fossilized"], rows[0]["pruned"]) == (1, 1, 0)
    assert rows[0]["accuracy_after"] == episode(0)[-1].metrics.validation_accuracy_after


def test_a_step_under_two_ids_counts_in_its_episode_as_it_landed_first(tmp_path: Path) -> None:
    """Both lines landed at the same time; the id of the second sorts before that of the first."""
    home, rows = Home(tmp_path), [plain(report) for report in episode(1)]
    rows[-1]["report_id"] = "f" * 32
    rows.append({**rows[-1], "report_id": "0" * 32, "metrics": {**rows[-1]["metrics"], "test_accuracy": 0.125}})
    drop(home, "rows", rows)
    assert ingest_all(home).landed == 21
    (found,) = query(home, "SELECT steps, test_accuracy FROM episodes")
    assert found == {"steps": 20, "test_accuracy": rows[-2]["metrics"]["test_accuracy"]}
    for view in load_views():
        if view.name in {"reports", "steps", "episodes", "decisions"}:
            sql = f"SELECT count(*) AS n, count(DISTINCT ({view.key})) AS keys FROM {view.name}"  # noqa: S608
            (count,) = query(home, sql)
            assert count["n"] == count["keys"], view.name


def test_decisions_name_what_was_legal(full: Home) -> None:
    report = episode(2)[2]
    row = query(full, f"FROM decisions WHERE command_id = '{report.command_id}'")[0]
    assert row["available"] == ["WAIT", "GERMINATE"]
    assert (row["op"], row["blueprint"], row["tempo"]) == ("GERMINATE", "mlp", 3)
    assert row["log_prob"] == report.log_prob_behaviour.joint


def test_rewards_and_snapshots_belong_together(full: Home) -> None:
    snapshot = query(full, "FROM snapshots")[0]
    assert (snapshot["rows_in"], snapshot["rows_out"], snapshot["rejected"]) == (130, 125, {"unfinished": 5})
    assert snapshot["parts"] == len(parts_of(full)) > 1
    terms = "reward_progress + reward_rent + reward_penalty + reward_shaping"
    off = f"max(abs({terms} - reward)) < 1e-9 AS adds_up"
    counts = query(full, f"SELECT snapshot, count(*) AS n, {off} FROM rewards GROUP BY ALL")  # noqa: S608
    assert counts == [{"snapshot": snapshot["snapshot"], "n": 125, "adds_up": True}]


def test_quarantine_names_the_reason(full: Home) -> None:
    rows = query(full, "SELECT line, reason, source, raw FROM quarantine ORDER BY line")
    assert [(row["line"], row["reason"]) for row in rows] == [
        (1, "malformed_json"),
        (2, "duplicate"),
        (3, "unknown_field"),
    ]
    assert rows[0]["raw"] == "{" and {row["source"] for row in rows} == {"bad.jsonl"}


def test_gates_and_policies_come_from_their_ledgers(tmp_path: Path) -> None:
    home = Home(tmp_path)
    criteria = [
        Criterion(name="over wait", value=5.5, bound=0.0, comparison=">", verdict="PASS", evidence="trials"),
        Criterion(name="accuracy", value=0.7, bound=0.5, comparison=">=", verdict="PASS", evidence="none"),
    ]
    digest = decision_digest("a" * 64, None, "d" * 64, judgement(), criteria)
    gate = GateDecision(
        **RECEIPT,
        policy_digest="a" * 64,
        champion_digest=None,
        judgement=judgement(),
        accepted=True,
        criteria=criteria,
        digest=digest,
    )
    version = PolicyVersion(
        **RECEIPT, name="tamiyo", number=1, semantic_version="1.0.0", digest="a" * 64, reference="models:/tamiyo/1",
        aliases=["champion"], previous=None, snapshot_digest="d" * 64, gate_digest=digest, mlflow_run_id="r",
    )  # fmt: skip
    Ledger(home.ledger / "gates.jsonl").append(gate.model_dump(mode="json"))
    crown(home, version)
    rows = query(home, "SELECT position, criterion, value, verdict, accepted FROM gates ORDER BY position")
    assert rows == [
        {"position": 1, "criterion": "over wait", "value": 5.5, "verdict": "PASS", "accepted": True},
        {"position": 2, "criterion": "accuracy", "value": 0.7, "verdict": "PASS", "accepted": True},
    ]
    joined = query(
        home, "SELECT p.name, p.is_live, count(*) AS n FROM policies p JOIN gates g USING (gate) GROUP BY ALL"
    )
    assert joined == [{"name": "tamiyo", "is_live": True, "n": 2}]


def test_one_policy_is_live_also_after_a_rollback(tmp_path: Path) -> None:
    """The answer to "which policy is live?": of all changes of champion, the last one."""
    home = Home(tmp_path)
    for hour, number in enumerate((1, 2, 1)):
        moment = NOW + timedelta(hours=hour)
        version = PolicyVersion(
            **{**RECEIPT, "finished_at": moment}, name="tamiyo", number=number, semantic_version=f"1.0.{number - 1}",
            digest=str(number) * 64, reference=f"models:/tamiyo/{number}", aliases=["champion"], previous=None,
            snapshot_digest="d" * 64, gate_digest="b" * 64, mlflow_run_id="r",
        )  # fmt: skip
        crown(home, version, is_rollback=hour == 2)
    rows = query(home, "SELECT number, is_live FROM policies ORDER BY finished_at")
    assert [(row["number"], row["is_live"]) for row in rows] == [(1, False), (2, False), (1, True)]


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW steps",
        "CREATE TABLE x (a INT)",
        "CREATE TEMP TABLE x (a INT)",
        "INSERT INTO snapshot_files VALUES ('a', 'b')",
        "COPY (SELECT 1) TO '{home}/data/experience/x.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{home}/data/experience/x.csv'",
        "ATTACH ':memory:' AS other",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT nope FROM steps",
        "FROM nowhere",
        "FROM read_text('/etc/hostname')",
        "FROM read_text('{home}/data/keys/signing.key')",
        "FROM read_csv('{home}/data/ledger/ingest.jsonl')",
        "FROM read_parquet('https://example.org/x.parquet')",
    ],
)
def test_whatever_is_not_a_read_of_the_views_is_a_config_error(full: Home, sql: str) -> None:
    full.keys.mkdir(parents=True, exist_ok=True)
    (full.keys / "signing.key").write_bytes(b"secret")
    with pytest.raises(ConfigError):
        query(full, sql.replace("{home}", str(full.root)))
    assert not (full.experience / "x.csv").exists()


@pytest.mark.parametrize("sql", ["FROM nowhere", "SELECT nowhere FROM reports", "SELECT r.nowhere FROM reports AS r"])
def test_duckdb_message_reaches_the_person_with_where_names_are_listed(full: Home, sql: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)nowhere.*SHOW TABLES.*DESCRIBE"):
        query(full, sql)


def test_results_are_plain_json_and_limited(full: Home) -> None:
    rows = query(full, "FROM reports", limit=3)
    assert len(rows) == 3
    json.dumps(rows, allow_nan=False)
    odd = query(
        full,
        "SELECT 1 AS a, 2 AS a, 'nan'::DOUBLE AS n, 1.5 AS d, MAP {'k': [DATE '2026-01-05']} AS m, '\\xFF'::BLOB AS b",
    )
    assert odd == [{"a": 1, "a_1": 2, "n": "nan", "d": 1.5, "m": {"k": ["2026-01-05"]}, "b": "ff"}]


def test_rows_come_before_all_are_there(full: Home) -> None:
    with closing(stream(full, "SELECT range AS n FROM range(1_000_000_000_000)")) as rows:
        assert [next(rows), next(rows)] == [{"n": 0}, {"n": 1}]


def test_new_rows_show_at_once_and_unlisted_parts_never(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(0))
    assert query(home, "SELECT count(*) AS n FROM steps") == [{"n": 20}]
    part = next(home.experience.glob("*/*.parquet"))
    part.with_name("part-abc-0123456789abcdef.parquet").write_bytes(part.read_bytes())
    assert query(home, "SELECT count(*) AS n FROM steps") == [{"n": 20}]
    (part.with_name("part-abc-0123456789abcdef.parquet")).unlink()
    land(home, episode(1), name="more")
    assert query(home, "SELECT count(*) AS n FROM steps") == [{"n": 40}]
    assert sorted(path.name for path in home.tmp.iterdir()) == ["ingest"]


def test_bytes_that_are_no_text_are_shown_escaped(tmp_path: Path) -> None:
    home = Home(tmp_path)
    drop(home, "bad", [b"\xff{"])
    ingest_all(home)
    assert query(home, "SELECT raw, size_bytes FROM quarantine") == [{"raw": "\\xFF{", "size_bytes": 2}]


def test_damage_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    Ledger(home.ledger / "gates.jsonl").append({"accepted": True})
    with pytest.raises(IntegrityError, match=r"gates\.jsonl, line 1"):
        query(home, "FROM gates")
    (home.ledger / "gates.jsonl").unlink()
    land(home, episode(0))
    next(home.experience.glob("*/*.parquet")).unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        query(home, "FROM steps")
