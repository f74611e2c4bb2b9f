"""Processes of their own that need no imports: each is forked from a server that has loaded its libraries once.

A fresh process spends seconds on imports before it does its work. Here every process still has memory, descriptors,
environment, working directory and exit code of its own. Not for tests of imports, signals or terminals.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ForkServer"]

TESTS = Path(__file__).parents[2]


class ForkServer:
    """Starts with its first process, and ends with this interpreter."""

    def __init__(self, preloaded: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """``preloaded`` names modules; ``env`` is the environment in which they are loaded, by default that of now."""
        self._preloaded = tuple(preloaded)
        self._env = dict(os.environ if env is None else env)
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, code: str, *arguments: str, name: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``code`` as the main module of a process, whose ``sys.argv`` is ``name`` and ``arguments``.

        The environment and the working directory are by default those of the test. The return code of a process that a
        signal ended is minus its number.
        """
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            question = {
                "code": code,
                "argv": [name, *arguments],
                "environment": dict(os.environ if env is None else env),
                "cwd": str(cwd or Path.cwd()),
                "out": str(out),
                "err": str(err),
            }
            server = self._started()
            assert server.stdin is not None and server.stdout is not None
            server.stdin.write(json.dumps(question) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
            assert answer, "the server of the processes ended; its reason is in the captured standard error"
            return subprocess.CompletedProcess(
                [name, *arguments], int(answer), out.read_text("utf-8"), err.read_text("utf-8")
            )

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            paths = [str(TESTS), str(TESTS.parent), *filter(None, [self._env.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.servers.fork_server", *self._preloaded],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**self._env, "PYTHONPATH": os.pathsep.join(paths)},
                cwd=TESTS.parent,
            )
            atexit.register(self._process.kill)
        return self._process


# What follows runs in the server and in its children.


def _become(question: dict[str, object]) -> None:
    """Run the code in this child; never returns."""
    os.environ.clear()
    os.environ.update(question["environment"])  # type: ignore[call-overload]
    os.chdir(str(question["cwd"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(str(question[name]), os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = list(question["argv"])  # type: ignore[call-overload]

    code = 1
    try:
        exec(compile(str(question["code"]), "<forked>", "exec"), {"__name__": "__main__"})  # noqa: S102
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would report it at the end of a process
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(preloaded: Sequence[str]) -> None:
    gc.disable()
    for name in preloaded:
        __import__(name)
    gc.freeze()  # no child visits, and so copies, what is loaded here
    gc.enable()
    assert threading.active_count() == 1, f"a child would lack these threads: {threading.enumerate()}"
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(sys.argv[1:])
