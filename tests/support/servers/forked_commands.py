"""``simic`` commands as processes of their own, forked from one that has loaded the libraries once.

A fresh ``simic`` spends seconds on imports before it does its work. Here every command still has memory, descriptors,
environment, working directory and exit code of its own. Not for tests of imports, signals, terminals or Prefect.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

__all__ = ["run_command"]

TESTS = Path(__file__).parents[2]
PRELOADED = (
    "simic.cli.main",
    "mlflow",
    "simic.app.data",
    "simic.app.doctor",
    "simic.app.promotion",
    "simic.app.training",
    "simic.catalogue.query",
    "simic.registry.registry",
)


def run_command(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``simic`` with ``arguments``, with ``os.environ`` and the working directory of the test by default."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        question = {
            "arguments": arguments,
            "environment": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "out": str(out),
            "err": str(err),
        }
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(question) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(["simic", *arguments], code, out.read_text("utf-8"), err.read_text("utf-8"))


@cache
def _server() -> subprocess.Popen[str]:
    """The process from which commands are forked; it ends with this one."""
    paths = [str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    server = subprocess.Popen(
        [sys.executable, "-m", "support.servers.forked_commands"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=TESTS.parent,
    )
    atexit.register(server.kill)
    return server


# What follows runs in the server and in its children.


def _become(question: dict[str, object]) -> None:
    """Run the command in this child; never returns."""
    os.environ.clear()
    os.environ.update(question["environment"])  # type: ignore[call-overload]
    os.chdir(str(question["cwd"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(str(question[name]), os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["simic", *question["arguments"]]  # type: ignore[misc]

    from simic.cli.main import main

    code = 1
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would report it at the end of a process
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    gc.disable()
    for name in PRELOADED:
        __import__(name)
    gc.freeze()  # no child visits, and so copies, what is loaded here
    gc.enable()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
