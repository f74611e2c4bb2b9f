"""The console script as a person meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers.forked_commands import run_command, run_script

from simic.cli.main import PANELS
from simic.cli.options import open_container
from simic.contracts.errors import ConfigError
from simic.contracts.names import FIELD_REPORTS
from simic.runtime.home import Home, HomeUse


def test_an_unknown_key_of_a_profile_is_named_with_its_nearest_match_and_nothing_is_done(
    tmp_path: Path, home: Path
) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text("[train]\nbatch_seqences = 16\n")
    done = run_command("run", "--profile", str(profile))
    assert done.returncode == ConfigError.exit_code == 2
    assert "train.batch_seqences" in done.stderr
    assert "train.batch_sequences" in done.stderr
    assert "loading the flow" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not home.exists()


def test_a_run_with_a_bad_value_fails_before_it_loads_anything(home: Path) -> None:
    for words in (("-o", "train.lr=much"), ("-o", "world.set=benchmrk"), ("--profile", "qick"), ("-o", "nonsense")):
        done = run_command("run", *words)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "loading the flow" not in done.stderr
    assert not home.exists()


def test_a_spool_that_cannot_be_created_and_an_unknown_topic_are_usage_errors(tmp_path: Path, home: Path) -> None:
    Home(home).create()
    (tmp_path / "file").write_bytes(b"")
    done = run_command("collect", "--spool", str(tmp_path / "file" / "spool"))
    assert done.returncode == ConfigError.exit_code == 2, done.stderr
    assert f"--spool: cannot create {tmp_path}/file/spool: Not a directory; give" in done.stderr
    done = run_command("bus", "dead-letters", "--topic", "foo")
    assert done.returncode == ConfigError.exit_code
    assert "unknown topic 'foo'; topics: tamiyo.field_reports, innovation.policy" in done.stderr


def test_an_ingest_from_a_mistyped_spool_is_a_usage_error_and_creates_nothing(tmp_path: Path, home: Path) -> None:
    for missing in (tmp_path / "spol", home / "spol"):
        done = run_command("ingest", "--spool", str(missing))
        assert (done.returncode, done.stdout) == (ConfigError.exit_code, "")
        assert f"--spool: expected an existing folder, found none at {missing}" in done.stderr
    assert not (tmp_path / "spol").exists()
    assert not home.exists()


@pytest.mark.parametrize("verb", ["ingest", "collect"])
def test_a_spool_in_the_folder_of_a_topic_is_a_usage_error_that_names_the_spool(
    verb: str, tmp_path: Path, home: Path
) -> None:
    topic = tmp_path / FIELD_REPORTS
    for waiting in ("incoming", "claimed"):
        (topic / waiting).mkdir(parents=True)
        for folder, found in ((topic, "the folder of a topic"), (topic / waiting, "a folder inside that of a topic")):
            done = run_command(verb, "--spool", str(folder))
            assert (done.returncode, done.stdout) == (ConfigError.exit_code, "")
            assert f"--spool: expected a folder with a folder for each topic, found {found} at {folder}; give " in (
                done.stderr
            )
            assert done.stderr.rstrip().endswith(f"; give {tmp_path}")
        assert [path.name for path in topic.rglob("*")] == [waiting]
        (topic / waiting).rmdir()
    assert not home.exists()


def test_commands_and_queries_begin_without_libraries_that_few_need() -> None:
    heavy = ("matplotlib", "mlflow", "prefect", "scipy", "sklearn", "torch")
    for module in ("simic.cli.main", "simic.catalogue.query_worker"):
        code = f"import sys, {module}; print(*sorted(set({heavy}) & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "\n", f"{module} loads {done.stdout}"


VERBS = """
import sys, typer
from simic.cli.main import app
command, heavy = typer.main.get_command(app), {"matplotlib", "mlflow", "pandas", "prefect", "scipy", "sklearn", "torch"}
for words in sys.argv[1:]:
    try:
        command(words.split(), prog_name="simic")
    except SystemExit as ended:
        assert not ended.code, words
    loaded = heavy & set(sys.modules)
    assert not loaded, f"{words} loads {loaded}"
"""


def test_verbs_about_reports_and_keys_run_without_libraries_that_they_do_not_need(home: Path) -> None:
    """A person waits for each import: torch or MLflow would double the time that these verbs take."""
    Home(home).create()
    verbs = ("ingest", "snapshots list", "keys list", "lake status", "bus dead-letters", "schema FieldReport")
    done = subprocess.run([sys.executable, "-c", VERBS, *verbs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_no_policy_is_a_usage_error(home: Path) -> None:
    Home(home).create()
    done = run_command("verify", "nothing")
    assert done.returncode == ConfigError.exit_code == 2
    assert "'nothing' is not a policy: expected champion, tamiyo/2, 2, 8 or more" in done.stderr


def test_wrong_usage_is_exit_2_and_so_is_an_option_nobody_knows() -> None:
    assert run_command("collect", "--controler", "wait").returncode == 2
    assert run_command("nonsense").returncode == 2


def test_an_option_that_was_not_given_changes_no_setting_and_is_named_in_no_error() -> None:
    hosts = "trial.hosts_per_family"
    given = open_container(overrides=[f"{hosts}=7"], extra={hosts: None, "trial.land": True}, use=HomeUse.NONE)
    assert (given.config.trial.hosts_per_family, given.config.trial.land) == (7, True)
    with pytest.raises(ConfigError, match=f"--override {hosts}"):
        open_container(overrides=[f"{hosts}=0"], extra={hosts: None}, use=HomeUse.NONE)
    with pytest.raises(ConfigError, match="--hosts"):
        open_container(overrides=[f"{hosts}=7"], extra={hosts: 0}, use=HomeUse.NONE)


def test_a_setting_without_an_equals_sign_is_named_with_its_form() -> None:
    done = run_command("trials", "-o", "trial.hosts_per_family", "4")
    assert done.returncode == ConfigError.exit_code
    assert "expected SECTION.KEY=VALUE, found" in " ".join(done.stderr.replace("│", " ").split())
    assert "unexpected extra argument" not in done.stderr


def test_help_lists_every_verb_once_and_begins_with_the_first_ones() -> None:
    lines = run_command("--help").stdout.splitlines()
    verbs = [words[1] for line in lines if (words := line.split()) and words[0] == "│" and line[2:3].isalpha()]
    assert verbs == [verb for panel in PANELS.values() for verb in panel]
    assert verbs[:5] == ["init", "run", "status", "watch", "sql"]


def test_an_error_nobody_foresaw_is_one_line_unless_asked_for_more(tmp_path: Path) -> None:
    (tmp_path / "data" / "ledger").mkdir(parents=True)
    (tmp_path / "data" / "receipts" / "train" / "a.json").mkdir(parents=True)
    home = ("--home", str(tmp_path))
    done = run_command(*home, "snapshots", "list")
    assert done.returncode == 1
    assert "IsADirectoryError" in done.stderr
    assert "Traceback" not in done.stderr
    assert "--debug" in done.stderr
    assert "Traceback" in run_command(*home, "--debug", "snapshots", "list").stderr


def test_an_error_in_a_worker_is_one_line_with_the_place_in_the_code_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import json\n\n\ndef parse(text):\n    return json.loads(text)\n")
    code = (
        f"import sys\nsys.path.append({str(tmp_path)!r})\nimport own\n"
        "from simic.cli.console import errors_become_exit_codes\nfrom simic.runtime.process_pool import run_jobs\n"
        "with errors_become_exit_codes():\n    run_jobs(own.parse, ['1', '{'], int(sys.argv[1]))\n"
    )
    for workers in ("1", "2"):
        done = run_script(code, workers)
        assert "JSONDecodeError: Expecting property name" in done.stderr
        assert f"({tmp_path}/own.py:5)" in done.stderr
        assert "Traceback" not in done.stderr


def test_sql_prints_nothing_but_a_list_of_row_objects(home: Path) -> None:
    Home(home).create()
    done = run_command("sql", "SELECT 1 AS a, NULL AS b FROM (SELECT count(*) FROM quarantine)", "--json")
    assert json.loads(done.stdout) == [{"a": 1, "b": None}]
    assert done.stderr == ""


def test_a_query_without_rows_says_so_to_people(home: Path) -> None:
    Home(home).create()
    done = run_command("sql", "SELECT * FROM policies")
    assert (done.returncode, done.stdout) == (0, "no rows\n")


def test_people_see_a_bounded_answer_and_are_told_programs_get_all_of_it(home: Path) -> None:
    Home(home).create()
    many = "SELECT range AS n FROM range(2500)"
    done = run_command("sql", many)
    assert [line.strip() for line in done.stdout.splitlines() if line.strip().isdecimal()] == [*map(str, range(1000))]
    assert "more than 1,000 rows: --limit 0" in done.stderr
    every = run_command("sql", many, "--limit", "0")
    assert sum(line.strip().isdecimal() for line in every.stdout.splitlines()) == 2500
    assert "more than" not in every.stderr
    assert json.loads(run_command("sql", many, "--json").stdout) == [{"n": number} for number in range(2500)]
    few = run_command("sql", many, "--json", "--limit", "2")
    assert (json.loads(few.stdout), "more than 2 rows" in few.stderr) == ([{"n": 0}, {"n": 1}], True)
    assert run_command("sql", "FROM range(2)", "--limit", "2").stderr == ""


def test_sql_that_is_wrong_writes_no_json(home: Path) -> None:
    done = run_command("sql", "FROM nowhere", "--json")
    assert (done.returncode, done.stdout) == (2, "")


def test_trials_of_nobody_are_a_usage_error(home: Path) -> None:
    Home(home).create()
    done = run_command("trials", "--controllers", " , ")
    assert done.returncode == 2
    assert "--controllers is empty" in done.stderr


def test_schema_is_printed_by_name_and_mistakes_are_answered() -> None:
    assert json.loads(run_command("schema", "FieldReport").stdout)["title"] == "FieldReport"
    assert "FieldReport" in run_command("schema").stdout.split()
    as_json = run_command("schema", "FieldReport", "--json").stdout
    assert as_json == run_command("schema", "FieldReport").stdout
    assert json.loads(run_command("schema", "--json").stdout) == run_command("schema").stdout.split()
    assert run_command("schema", "--markdown", "--json").returncode == 2
    done = run_command("schema", "FieldRepot")
    assert done.returncode == 2
    assert "FieldReport" in done.stderr


def test_ui_tells_in_json_where_it_would_be_and_makes_and_starts_nothing(home: Path) -> None:
    Home(home).create()
    done = run_command("ui", "--mlflow-port", "5999", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    url = "http://127.0.0.1:5999/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=simic"
    assert found == {"url": url, "is_running": False, "login": str(home / ".prefect" / "login")}
    assert not (home / "mlruns" / "mlflow.db").exists()
    assert not (home / ".prefect" / "login").exists()
    assert run_command("init").returncode == 0
    (home / "data" / "keys" / "signing.key").unlink()
    assert json.loads(run_command("ui", "--mlflow-port", "5999", "--json").stdout) == found
    assert not (home / "data" / "keys" / "signing.key").exists()


def test_a_stage_without_what_it_needs_says_which_verb_comes_first(home: Path) -> None:
    Home(home).create()
    done = run_command("train")
    assert done.returncode == 2
    assert "simic curate" in done.stderr


def test_curate_knows_the_reward_families() -> None:
    """DRL-09."""
    done = run_command("curate", "--reward", "dense")
    assert done.returncode == 2
    assert all(family in done.stderr for family in ("basic", "shaped", "sparse", "minimal"))
    done = run_command("curate", "--reward", "sparse", "-o", "curate.reward.potential=1")
    assert done.returncode == 2
    assert "--override: curate.reward.sparse has no setting 'potential'" in done.stderr


def test_pictures_that_are_missing_are_reported_before_the_plan_book_that_is_missing(
    tmp_path: Path, home: Path
) -> None:
    Home(home).create()
    pictures = ("-o", "world.set=images", "-o", f"world.images={tmp_path}/gone")
    for words in (("trials",), ("watch", "--controller", "oracle"), ("collect", "--controller", "heuristic")):
        done = run_command(*words, *pictures)
        assert f"found nothing at {tmp_path}/gone; see world.images" in done.stderr, words
        assert (done.returncode, "plan book" in done.stderr) == (1, False)


def test_an_unknown_verb_is_answered_with_the_nearest_one_and_with_what_lists_all() -> None:
    for words, said in (
        (("frobnicate",), ("Try 'simic --help'", "No such command 'frobnicate'.")),
        (("colect",), ("Try 'simic --help'", "No such command 'colect'. Did you mean 'collect'?")),
        (("lake", "show"), ("Try 'simic lake --help'", "No such command 'show'.")),
    ):
        done = run_command(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert all(part in " ".join(done.stderr.split()) for part in said)


@pytest.mark.parametrize(("verb", "option"), [("validate", "--policy"), ("train", "--snapshot")])
def test_a_word_without_an_option_is_answered_with_the_option_of_the_input(verb: str, option: str) -> None:
    done = run_command(verb, "2aa553b8", "--seed", "1", env=os.environ | {"COLUMNS": "120"})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Got unexpected extra argument '2aa553b8'. Did you mean {option} 2aa553b8?" in done.stderr


def test_an_option_that_is_given_is_no_answer_to_a_further_word() -> None:
    """It would replace the value that is given."""
    done = run_command("train", "--snapshot", "2aa553b8", "1c0ffee1", env=os.environ | {"COLUMNS": "120"})
    assert "Got unexpected extra argument '1c0ffee1' " in done.stderr
    assert "Did you mean" not in done.stderr
    done = run_command("validate", "a b", env=os.environ | {"COLUMNS": "120"})
    assert "Did you mean --policy 'a b'?" in done.stderr
