"""Under CI a skipped test fails the run, unless this machine really cannot run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"


ALLOWED = "import pytest\ndef test_gpu(): pytest.skip('needs a CUDA device')\ndef test_fine(): pass\n"
LAZY = ALLOWED + "def test_lazy(): pytest.skip('too slow')\n"
ABSENT = "import pytest\npytest.importorskip('no_such_library')\n"


def run_pytest(directory: Path, **files: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, directory / "conftest.py")
    for name, body in files.items():
        (directory / f"{name}.py").write_text(body)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", directory]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | {"CI": "true"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_what_a_machine_cannot_run_may_be_skipped(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, test_one=ALLOWED)
    assert done.returncode == 0, done.stdout
    assert "without an allowed reason" not in done.stdout


def test_every_other_skip_is_named_and_fails_the_run(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, test_one=LAZY, test_two=ABSENT)
    assert done.returncode == 1, done.stdout
    _, _, named = done.stdout.partition("skipped without an allowed reason")
    assert "test_one.py::test_lazy: too slow" in named
    assert "test_two.py: could not import 'no_such_library'" in named
    assert "CUDA" not in named
