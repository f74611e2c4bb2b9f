"""A person's query has a process of its own, with an end to its memory, its time and its disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from support.builders.reports import episode, episodes
from support.homes.pipeline import curate_all, land

from simic.catalogue.query import query
from simic.catalogue.query_process import Limits, ask
from simic.contracts.errors import ConfigError, ResourceLimitError
from simic.runtime.home import Home

MEMORY_MB = 128
PROCESS_MB = 600
"""Of the process that answers: the query's, `ROOM_MB`, and 180 of libraries as measured."""

WIDE = ", ".join(f"hash(range + {column})" for column in range(24))
HUNGRY = {
    "a list of a billion": "SELECT list_aggregate(range(1000000000), 'sum')",
    "a text of three billion": "SELECT length(repeat('a', 3000000000))",
    "texts joined": "SELECT length(string_agg(repeat('x', 1000), '')) FROM range(3000000)",
    "a list of all": "SELECT len(list(range)) FROM range(1000000000)",
    "rows of thirty megabytes": "SELECT range, repeat('a', 30000000) FROM range(100)",
    "one long row": "SELECT repeat('a', 30000000)",
    "a sort beyond the disk": f"SELECT {WIDE} FROM range(100000000) ORDER BY hash(range)",  # noqa: S608
    "a recursion that grows": "WITH RECURSIVE r AS (SELECT 'ab' AS t UNION ALL SELECT t || t FROM r) FROM r",
    "a replacement that grows": "SELECT length(regexp_replace(repeat('a', 50000), 'a', repeat('b', 50000), 'g'))",
    "a format that pads": "SELECT length(format('{:>2000000000}', 'a'))",
    "a product of lists": "SELECT length(list_transform(range(40000), lambda x: range(40000))::VARCHAR)",
}
SLOW = {
    "a hundred billion rows": "SELECT count(*) FROM range(100000000000) AS r WHERE hash(range) = 0",
    "a product": "SELECT count(*) FROM range(1000000) AS a, range(100000000) AS b WHERE hash(a) = hash(b) + 1",
    "a recursion without end": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT sum(n) FROM r",
    "a pattern": "SELECT count(*) FROM range(1000000000) WHERE regexp_matches(repeat('a', 2000) || range, '(a*)*c')",
}

# In a process of its own, for the peak that getrusage knows is that of all children ever.
ATTACKS = """
import json, resource, sys, time
from pathlib import Path
from simic.contracts.errors import SimicError
from simic.catalogue.query_process import Limits, ask
from simic.runtime.home import Home

home, memory_mb, timeout_s = Home(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])
for name, sql in json.load(sys.stdin).items():
    began = time.monotonic()
    try:
        kind, message = "none", str(list(ask(home, sql, Limits(timeout_s, memory_mb))))[:200]
    except SimicError as error:
        kind, message = type(error).__name__, str(error)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    told = {"name": name, "kind": kind, "message": message, "peak_mb": peak_mb, "s": time.monotonic() - began}
    print(json.dumps(told), flush=True)
"""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def attack(home: Path, attacks: dict[str, str], timeout_s: float) -> list[dict[str, Any]]:
    Home(home).create()
    command = [sys.executable, "-c", ATTACKS, str(home), str(MEMORY_MB), str(timeout_s)]
    done = subprocess.run(
        command, input=json.dumps(attacks), check=True, capture_output=True, text=True, env=environment()
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("home"))
    land(home, episodes(range(3)) + episode(7, governor_at=4), batch_reports=50)
    curate_all(home)
    return home


def test_hungry_queries_end_at_the_limit_with_one_sentence(tmp_path: Path) -> None:
    for found in attack(tmp_path, HUNGRY, timeout_s=120):
        assert found["kind"] == "ResourceLimitError", found
        assert f"{MEMORY_MB} MB" in found["message"] and "--memory-mb" in found["message"], found
        assert found["peak_mb"] < PROCESS_MB, found
    assert list((tmp_path / "data/tmp").iterdir()) == []


def test_slow_queries_end_at_the_time_limit_with_one_sentence(tmp_path: Path) -> None:
    for found in attack(tmp_path, SLOW, timeout_s=0.5):
        assert found["kind"] == "ResourceLimitError", found
        assert "0.5 s" in found["message"] and "--timeout" in found["message"], found
        assert found["peak_mb"] < PROCESS_MB, found
        assert found["s"] < 60
    assert list((tmp_path / "data/tmp").iterdir()) == []


def test_an_answer_without_end_ends_at_the_time_limit_although_its_reader_never_waits(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    with pytest.raises(ResourceLimitError, match=r"limit of 1 s.*--timeout"):
        for _ in ask(home, "SELECT i FROM range(1000000000000) AS r(i)", Limits(timeout_s=1)):
            pass
    assert list(home.tmp.iterdir()) == []


def test_a_query_does_not_inherit_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIMIC_SIGNING_KEY", "REDIS_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "f00dfeed")
    home = Home(tmp_path)
    home.create()
    rows = ask(home, "SELECT range FROM range(100000)", Limits())
    assert next(rows) == {"range": 0}
    (child,) = processes(os.getpid())
    assert b"f00dfeed" not in Path(f"/proc/{child}/environ").read_bytes()
    rows.close()


SAME = [
    """SELECT 1 AS a, 2 AS a, 'nan'::DOUBLE AS n, 'inf'::DOUBLE AS i, -0.0::DOUBLE AS z, 1e308 AS big, 0.1 AS tenth,
        1.50::DECIMAL(9, 2) AS d, 170141183460469231731687303715884105727::HUGEINT AS h, 3.4::FLOAT AS f,
        TIMESTAMP '2026-01-05 01:02:03.000004' AS t, TIMESTAMPTZ '2026-01-05 01:02:03+02' AS z, DATE '2026-01-05',
        INTERVAL 3 DAYS AS i, TIME '01:02:03' AS t, NULL AS nothing, true AS yes, [1, NULL, 3] AS l,
        {'a': [1.5, 'nan'::DOUBLE], 'b': NULL} AS s, MAP {'k': [DATE '2026-01-05']} AS m, 'ü🙂' AS more, '' AS empty,
        '\\xFF\\x00'::BLOB AS b, chr(0) || chr(10) || chr(8232) || '"\\' AS text""",
    "SELECT i FROM range(3000) AS r(i)",
    "SELECT 1 WHERE false",
    "FROM steps ORDER BY report_id",
    "DESCRIBE steps",
]


def test_rows_are_the_very_ones_that_come_without_a_process(full: Home) -> None:
    for sql in SAME:
        there, here = list(ask(full, sql)), query(full, sql)
        assert there == here, sql
        assert [list(row) for row in there] == [list(row) for row in here], sql
        assert json.dumps(there) == json.dumps(here), sql  # tells 1 from 1.0 and 0.0 from -0.0


WRONG = ["selec 1", "FROM step", "DROP VIEW steps"]


def test_wrong_queries_are_told_in_the_same_words(full: Home) -> None:
    for sql in WRONG:
        texts = []
        for run in (lambda sql: list(ask(full, sql)), lambda sql: query(full, sql)):
            with pytest.raises(ConfigError) as caught:
                run(sql)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
    with pytest.raises(ConfigError, match='"steps"'):
        list(ask(full, "FROM step"))


FORBIDDEN = [
    "FROM read_text('/etc/passwd')",
    "FROM read_csv('/proc/self/environ')",
    "FROM read_blob('/proc/self/environ')",
    "FROM glob('/etc/*')",
    "FROM '/etc/passwd'",
    "FROM read_text('{home}/data/keys/signing.key')",
    "FROM read_text('{home}/data/experience/../keys/signing.key')",
    "FROM glob('{home}/data/keys/*')",
    "COPY (SELECT 1) TO '{home}/data/experience/x.csv'",
    "COPY (SELECT 1) TO '/dev/stdout'",
    "ATTACH '{home}/other.duckdb' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT getenv('HOME')",
    "SELECT * FROM read_parquet('https://example.org/x.parquet')",
    "SET memory_limit = '100GB'",
    "PRAGMA memory_limit = '100GB'",
    "SET max_temp_directory_size = '1TB'",
    "RESET max_temp_directory_size",
    "PRAGMA temp_directory = '/var/tmp'",
    "SET threads = 64",
    "SET lock_configuration = false",
    "CREATE TEMP TABLE x AS SELECT 1",
    "EXPORT DATABASE '{home}/data/experience/x'",
    "CALL pragma_database_size()",
    "FROM query('COPY (SELECT 1) TO ''/dev/stdout''')",
    "SELECT * FROM python_scan('x')",
]


def test_a_query_reaches_nothing_but_the_views(full: Home) -> None:
    full.keys.mkdir(parents=True, exist_ok=True)
    (full.keys / "signing.key").write_bytes(b"secret")
    for sql in FORBIDDEN:
        with pytest.raises(ConfigError):
            rows = query(full, sql.replace("{home}", str(full.root)))
            pytest.fail(f"{sql}: {rows}")
    settings = "SELECT current_setting('enable_external_access') AS a, current_setting('lock_configuration') AS b"
    assert list(ask(full, settings)) == [{"a": False, "b": True}]
    assert not (full.experience / "x.csv").exists() and not (full.root / "other.duckdb").exists()


def test_a_query_that_is_no_text_is_told_where(full: Home) -> None:
    with pytest.raises(ConfigError, match="not UTF-8: character 9 of 10"):
        list(ask(full, b"SELECT '\xff'".decode("utf-8", "surrogateescape")))


def processes(parent: int) -> list[int]:
    """Those that answer a query, among the children of ``parent``."""
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [pid for pid in children if b"simic.catalogue.query_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_rows_come_before_all_are_there_and_closing_ends_the_process(full: Home) -> None:
    before = set(processes(os.getpid()))
    with closing(ask(full, "SELECT range AS n FROM range(1_000_000_000_000)")) as rows:
        assert [next(rows), next(rows)] == [{"n": 0}, {"n": 1}]
        assert set(processes(os.getpid())) > before
    assert set(processes(os.getpid())) == before
    assert [path.name for path in full.tmp.iterdir() if path.name.startswith("query")] == []


def test_the_time_that_a_reader_takes_is_not_the_query_s(full: Home) -> None:
    """The reader stands still for longer than the query may take."""
    with closing(ask(full, "SELECT range AS n FROM range(30000)", Limits(timeout_s=4))) as rows:
        assert next(rows) == {"n": 0}
        time.sleep(4.1)
        assert sum(1 for _ in rows) == 29_999


ENDLESS = "SELECT count(*) FROM range(100000000000) AS r WHERE hash(range) = 0"


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    Home(tmp_path).create()
    command = [Path(sys.executable).with_name("simic"), "sql", ENDLESS]
    process = subprocess.Popen(
        command, env=os.environ | {"SIMIC_HOME": str(tmp_path)}, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("data/tmp/query-*")) or not processes(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_query_ends_with_whoever_asked(
    asking: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    """And its temporary files are gone, although nobody was left to delete them."""
    (child,) = processes(asking.pid)
    asking.send_signal(number)
    _, told = asking.communicate(timeout=30)
    assert asking.returncode == (130 if number is signal.SIGINT else -number)
    assert b"Traceback" not in told
    deadline = time.monotonic() + 30
    while is_running(child) or list(tmp_path.glob("data/tmp/*")):
        assert time.monotonic() < deadline, (is_running(child), list(tmp_path.glob("data/tmp/*")))
        time.sleep(0.02)


def test_an_asker_that_is_killed_with_the_answer_unread_leaves_no_files(tmp_path: Path) -> None:
    Home(tmp_path).create()
    command = [Path(sys.executable).with_name("simic"), "sql", "SELECT 1 AS n"]
    asking = subprocess.Popen(command, env=os.environ | {"SIMIC_HOME": str(tmp_path)}, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (children := processes(asking.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    asking.send_signal(signal.SIGSTOP)
    while is_running(children[0]) and time.monotonic() < deadline and not is_asleep(children[0]):
        time.sleep(0.02)
    asking.kill()
    asking.wait()
    while is_running(children[0]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list(tmp_path.glob("data/tmp/*")) == []


def is_asleep(pid: int) -> bool:
    """Whether the process used no processor for a second."""
    with suppress(FileNotFoundError, ProcessLookupError):
        before = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        time.sleep(1)
        return before == Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return True


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_is_killed_is_a_limit_reached(full: Home) -> None:
    """As the kernel does where the machine's memory ends."""
    with closing(ask(full, "SELECT range AS n FROM range(1_000_000_000_000)")) as rows:
        next(rows)
        (child,) = set(processes(os.getpid()))
        os.kill(child, signal.SIGKILL)
        with pytest.raises(ResourceLimitError, match=r"SIGKILL.*1024 MB.*--memory-mb"):
            list(rows)
