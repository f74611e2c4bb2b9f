"""Many commands in one process of its own, which loads the libraries once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Answer", "call_all"]

_CHILD = """
import io, json, os, sys, typer
from contextlib import redirect_stderr, redirect_stdout
from simic.cli.console import errors_become_exit_codes
from simic.cli.main import app
command, answers = typer.main.get_command(app), []
for words in json.loads(sys.argv[1]):
    environment, out, err = dict(os.environ), io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), errors_become_exit_codes():
            command(words, prog_name="simic")
    except SystemExit as ended:
        code = ended.code or 0
    except Exception as error:
        code, err = 1, io.StringIO(f"Traceback: {error!r}")
    answers.append([words, code, out.getvalue(), err.getvalue()])
    os.environ.clear()
    os.environ.update(environment)
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    """What one command left behind."""

    words: list[str]
    code: int
    out: str
    err: str


def call_all(
    calls: Sequence[Sequence[str]], home: Path, wrapped: Callable[[list[str]], list[str]] = list
) -> list[Answer]:
    """``calls`` in their order, each in ``home``; ``wrapped`` may change the command of their process."""
    words = [[*call, "--home", str(home)] for call in calls]
    done = subprocess.run(
        wrapped([sys.executable, "-c", _CHILD, json.dumps(words)]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [Answer(*answer) for answer in json.loads(done.stdout)]
