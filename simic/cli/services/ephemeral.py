"""A Prefect server for one command, behind the same guard as the server of `simic up`."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import time

from simic.cli.services.environment import guarded, prefect_environment
from simic.cli.services.http import answers
from simic.cli.services.login import new_login
from simic.cli.services.processes import open_log
from simic.cli.services.stack import HOST, SERVER, guarded_command, listen, run_directory
from simic.contracts.errors import TransientError
from simic.runtime.home import Home
from simic.runtime.private_files import private_directory

__all__ = ["EphemeralServer"]

START_TIMEOUT_S = 90.0
"""A loaded machine takes several times as long as an idle one."""
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1


class EphemeralServer:
    """A server that starts at once and becomes ready later, so the caller can load its libraries meanwhile.

    The server inherits a listening socket on a port that the kernel chose, so no other process can take the port in
    between. Its login is new each time and never written to a file. The server ends with this process, even after
    SIGKILL, because its standard input ends then.
    """

    def __init__(self, home: Home) -> None:
        self.login = new_login()
        self._log = run_directory(home) / "run-server.log"
        for directory in (self._log.parent, home.prefect):
            private_directory(directory)
        with listen(0) as listener, open_log(self._log) as sink:
            origin = f"http://{HOST}:{listener.getsockname()[1]}"
            self.api_url = f"{origin}/api"
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*guarded_command(SERVER, listener), "--ephemeral"],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=guarded(prefect_environment(home, self.api_url, self.login), origin, self.login),
                cwd=home.root,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        atexit.register(self.stop)

    def await_ready(self) -> None:
        """Return once the API answers.

        Raises:
            TransientError: if the server ended or took longer than ``START_TIMEOUT_S``.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(f"{self.api_url}/health"):
            if (code := self._process.poll()) is not None:
                raise TransientError(f"Prefect's server ended with exit status {code}; see {self._log}")
            if time.monotonic() > deadline:
                raise TransientError(f"Prefect's server did not answer within {START_TIMEOUT_S:.0f} s; see {self._log}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop the server and wait until it has stored everything."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        atexit.unregister(self.stop)
