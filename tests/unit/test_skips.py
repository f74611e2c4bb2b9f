"""Under CI a skipped test fails the run, unless this machine really cannot run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

ALLOWED = "import pytest\ndef test_gpu(): pytest.skip('needs a CUDA device')\ndef test_fine(): pass\n"
LAZY = ALLOWED + "def test_lazy(): pytest.skip('too slow')\n"
ABSENT = "import pytest\npytest.importorskip('no_such_library')\n"


def run_pytest(directory: Path, processes: int, **files: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, directory / "conftest.py")
    for name, body in files.items():
        (directory / f"{name}.py").write_text(body)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(processes), directory]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | {"CI": "true"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("processes", [0, 2])
def test_what_a_machine_cannot_run_may_be_skipped(tmp_path: Path, processes: int) -> None:
    done = run_pytest(tmp_path, processes, test_one=ALLOWED)
    assert done.returncode == 0, done.stdout
    assert "without an allowed reason" not in done.stdout


@pytest.mark.parametrize("processes", [0, 2])
def test_every_other_skip_is_named_and_fails_the_run(tmp_path: Path, processes: int) -> None:
    done = run_pytest(tmp_path, processes, test_one=LAZY, test_two=ABSENT)
    assert done.returncode == 1, done.stdout
    _, _, named = done.stdout.partition("skipped without an allowed reason")
    assert named.count("test_one.py::test_lazy: too slow") == 1
    assert named.count("test_two.py: could not import 'no_such_library'") == 1
    assert "CUDA" not in named
