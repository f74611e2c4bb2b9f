"""What a shell is offered after TAB, by the installed command under the protocol of its completion scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders.judged_candidates import receipt

from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import CANDIDATES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home

SIMIC = Path(sys.executable).with_name("simic")


def offered(line: str, home: Path, **environment: str) -> list[str]:
    """The words that bash is given for the last word of ``line``."""
    words = line.split(" ")
    asked = {"_SIMIC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [SIMIC], env={**os.environ, "SIMIC_HOME": str(home), **asked, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a policy on record, another that is not, and a snapshot."""
    home = Home(tmp_path_factory.mktemp("furnished"))
    home.create()
    version = PolicyVersion(
        **receipt(), name="tamiyo", number=1, semantic_version="1.0.0", digest="cd" * 32, reference="models:/tamiyo/1",
        aliases=[], previous=None, snapshot_digest="d" * 64, gate_digest="e" * 64, mlflow_run_id="r",
    )  # fmt: skip
    Ledger(home.ledger / CANDIDATES_LEDGER).append(version.model_dump(mode="json"))
    (home.policies / ("ab" * 32)).mkdir()
    (home.snapshots / "0123456789abcdef").mkdir()
    return home.root


def test_controllers_policies_snapshots_sets_and_profiles_are_offered(furnished: Path) -> None:
    home = furnished
    known = ["champion", "tamiyo/1", "ab" * 6]
    actors = ["wait", "random", "explore", "complete", "heuristic", "blind", "symptom", "oracle", "expert", *known]
    assert offered("simic watch --controller ", home) == actors
    assert offered("simic collect --controller he", home) == ["heuristic"]
    assert offered("simic trials --controllers wait,ra", home) == ["wait,random"]
    assert "wait,wait" not in offered("simic trials --controllers wait,", home)
    assert offered("simic verify ", home) == known
    assert offered("simic validate --policy a", home) == ["ab" * 6]
    assert offered("simic train --start ", home) == ["nothing", *known]
    assert offered("simic train --snapshot ", home) == ["0123456789ab"]
    assert offered("simic snapshots verify 01", home) == ["0123456789ab"]
    assert offered("simic trials --set ", home)[:8] == [
        "benchmark",
        "compound",
        "images",
        "maps",
        "shapes",
        "trunks",
        "varied",
        "both",
    ]
    assert offered("simic run --profile ", home) == ["default", "nightly", "quick"]


def test_behind_the_plus_of_a_policy_the_karns_are_offered_and_models_have_names(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.karn / ("ef" * 32)).mkdir(parents=True)
    assert offered("simic trials --controllers wait,champion+", home.root) == [
        "wait,champion+karn", "wait,champion+karn/champion", f"wait,champion+karn/{'ef' * 6}",
    ]  # fmt: skip
    assert offered("simic promote --model ", home.root) == ["tamiyo", "karn"]


def test_the_home_of_the_command_line_is_the_one_that_is_looked_at(furnished: Path, tmp_path: Path) -> None:
    home = furnished
    assert offered(f"simic --home {home} verify ta", tmp_path / "elsewhere") == ["tamiyo/1"]
    assert offered("simic verify ta", tmp_path / "elsewhere") == []
    assert offered(f"simic watch --home {home} --controller ta", tmp_path / "elsewhere") == ["tamiyo/1"]
    assert offered(f"simic snapshots --home {home} verify 01", tmp_path / "elsewhere") == ["0123456789ab"]
    assert offered(f"simic watch --home {tmp_path / 'other'} --controller ta", home) == []


def test_completion_makes_no_home_and_loads_no_heavy_library(tmp_path: Path) -> None:
    home = tmp_path / "none"
    log = tmp_path / "imports"
    code = (
        f"import atexit, sys\natexit.register(lambda: open({str(log)!r}, 'w').write(' '.join(sorted(sys.modules))))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for line in ("simic verify ", "simic trials --controllers ", "simic trials --set ", "simic snapshots pin "):
        offered(line, home, PYTHONPATH=path)
        loaded = set(log.read_text().split())
        assert "simic.cli.completion" in loaded
        assert not loaded & {"torch", "mlflow", "duckdb", "numpy", "pyarrow", "prefect", "simic.app.application"}
    assert not home.exists()


@pytest.mark.parametrize("ledger", [b"\x00\xff\n", b"[" * 100_000 + b"\n", b'{"number": "2"}\n[1]\n', b'{"number": 3'])
def test_a_broken_home_completes_to_what_is_whole_and_prints_no_error(tmp_path: Path, ledger: bytes) -> None:
    (tmp_path / "data" / "ledger").mkdir(parents=True)
    (tmp_path / "data" / "ledger" / "candidates.jsonl").write_bytes(ledger)
    (tmp_path / "data" / "policies").write_text("not a folder")
    assert offered("simic verify ", tmp_path) == ["champion"]
    assert offered("simic verify ", tmp_path, SIMIC_LAKE_URL="nonsense") == ["champion"]


def test_the_completion_script_names_the_installed_command() -> None:
    shown = subprocess.run(
        [SIMIC, "--show-completion", "bash"], capture_output=True, text=True, check=False,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )  # fmt: skip
    assert shown.returncode == 0
    assert "_SIMIC_COMPLETE=complete_bash" in shown.stdout
