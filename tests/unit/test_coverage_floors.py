"""The floors of the coverage refuse what lies below them, and speak of full runs only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from coverage_floors import COMPLETE, ROOT, TOLERANCE, Figures, figures, problems


def report(lines: int = 970, branches: int = 90, missing: dict[str, list[int]] | None = None) -> dict[str, Any]:
    return {
        "totals": {"covered_lines": lines, "num_statements": 1000, "covered_branches": branches, "num_branches": 100},
        "files": {path: {"missing_lines": absent} for path, absent in (missing or {}).items()},
    }


def test_a_run_above_the_floors_passes() -> None:
    other = {"simic/app/runs.py": [3], "simic/numerics/vtrace.py": [], "simic/validation/trials.py": [8]}
    assert figures(report()) == Figures(97.0, 90.0)
    assert problems(report(missing=other), None) == []
    assert problems(report(missing=other), Figures(97.0 + TOLERANCE, 90.0)) == []


@pytest.mark.parametrize(
    ("found", "record", "words"),
    [
        (report(lines=949), None, "lines: 94.90 % are covered, expected at least 95 %"),
        (report(branches=84), None, "branches: 84.00 % are covered, expected at least 85 %"),
        (report(), Figures(97.3, 90.0), "lines: 97.00 % are covered, expected the recorded 97.30 %"),
        (report(), Figures(97.0, 90.3), "branches: 90.00 % are covered, expected the recorded 90.30 %"),
        *(
            (report(missing={path: [4, 7]}), None, f"{path}: every line must be covered, lines 4, 7 are not")
            for path in ("simic/contracts/ids.py", "simic/numerics/gae.py", "simic/validation/promotion_gate.py")
        ),
    ],
)
def test_each_floor_refuses_what_is_below_it(found: dict[str, Any], record: Figures | None, words: str) -> None:
    assert problems(found, record) == [words]


def test_the_files_that_must_be_covered_whole_exist() -> None:
    assert all((ROOT / path).exists() for path in COMPLETE)


@pytest.mark.parametrize(("how", "code"), [(["-o", "testpaths=tests/unit/contracts/test_errors.py"], 1),
                                           (["tests/unit/contracts/test_errors.py"], 0)],
                         ids=["full", "partial"])  # fmt: skip
def test_only_a_run_of_all_test_paths_is_held_against_them(tmp_path: Path, how: list[str], code: int) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--cov", "--cov-report="]
    data = f"[run]\nsource = simic.contracts\nbranch = true\ndata_file = {tmp_path / 'data'}\n"
    (tmp_path / "coveragerc").write_text(data)
    command += [f"--cov-config={tmp_path / 'coveragerc'}", *how]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("too little code is covered" in done.stdout) == (code == 1)
