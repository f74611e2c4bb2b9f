"""Terminal output, errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from traceback import extract_tb
from types import TracebackType
from typing import IO, Any

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from simic.contracts.errors import ConfigError, SimicError
from simic.runtime.files import disk_full_as_transient, exhausted_limits_as_terminal

__all__ = [
    "DEBUG_VARIABLE",
    "EXIT_CODES",
    "LOADING_TORCH",
    "cell",
    "emit",
    "emit_line",
    "errors_become_exit_codes",
    "leave_on_interrupt",
    "megabytes",
    "parse_overrides",
    "stderr",
    "stdout",
    "stream_rows",
    "visible",
    "working",
]


def megabytes(size_bytes: int) -> str:
    """Return a size in megabytes, the only unit in which sizes are shown."""
    return f"{size_bytes / 1e6:,.2f}"


def visible(text: str) -> str:
    """Return ``text`` with control characters escaped, except line ends and tabs.

    Data come from untrusted sources: an escape sequence could rename the window, a direction mark could reverse text.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def cell(value: object) -> Text:
    """Return a table cell without markup; blank for None."""
    return Text("" if value is None else visible(str(value)))


def _visible(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


DEBUG_VARIABLE = "SIMIC_DEBUG"
"""Set to show tracebacks instead of one-line messages."""

EXIT_CODES = (
    "Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 rejected by the gate (the champion stays), "
    "4 transient (a lock, bus or store is busy: try again), 5 doctor found problems (after --repair: "
    "problems remain), 130 interrupted, 141 output pipe closed (as in: simic ... | head)."
)

LOADING_TORCH = "loading PyTorch, which takes seconds"
"""What verbs say with ``working`` while they import modules that load it."""

INTERRUPTED = 130
SHOW_CURSOR = "\x1b[?25h"
PLAIN_WIDTH = 140
_RAW_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Control characters and line ends that JSON may contain literally, but terminals and line readers interpret."""


def stdout(file: IO[str] | None = None) -> Console:
    """Return the console for results: created on demand, because streams may be redirected.

    If they are no terminal it is wide, unless the variable COLUMNS says otherwise. Brackets are text, not markup: they
    occur in paths and in reported texts. ``file`` replaces the standard output.
    """
    columns = os.environ.get("COLUMNS", "")
    is_told = sys.stdout.isatty() or (columns.isdecimal() and int(columns) > 0)
    return Console(file=file, soft_wrap=True, highlight=False, markup=False, width=None if is_told else PLAIN_WIDTH)


def stderr() -> Console:
    """Return the console for progress, remarks and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def working(message: str) -> Iterator[None]:
    """Show a spinner on stderr, or print one line if stderr is no terminal."""
    console = stderr()
    if not console.is_terminal:
        console.print(message)
        yield
        return
    with console.status(message):
        yield


def emit(
    result: BaseModel | Mapping[str, Any] | Sequence[Any], as_json: bool, human: Callable[[Console], None]
) -> None:
    """Print either the result as JSON and nothing else, or its rendering for people, to stdout."""
    if not as_json:
        human(stdout())
        return
    text = result.model_dump_json(indent=2) if isinstance(result, BaseModel) else _json(result, indent=2)
    sys.stdout.write(text.translate(_RAW_IN_JSON) + "\n")
    sys.stdout.flush()


def emit_line(value: Mapping[str, Any], file: IO[str] | None = None) -> None:
    """Print one JSON object on one line to stdout or ``file``, at once: for verbs that go on."""
    out = file or sys.stdout
    out.write(_json(value).translate(_RAW_IN_JSON) + "\n")
    out.flush()


def stream_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print one JSON array to stdout, a row per line, as rows arrive, so memory does not grow with their number.

    If the rows end with an error the array stays unfinished, so that no JSON parser accepts it as complete.
    """
    between = "[\n  "
    for row in rows:
        sys.stdout.write(between + _json(row).translate(_RAW_IN_JSON))
        between = ",\n  "
    sys.stdout.write("\n]\n" if between.startswith(",") else "[]\n")
    sys.stdout.flush()


def _json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False)


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Return ``section.key=value`` pairs as a flat mapping; values are JSON, or else text."""
    overrides: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        name = name.strip()
        if not separator or not name:
            raise ConfigError(f"--override expects section.key=value, found {pair!r}")
        try:
            overrides[name] = _json_or_text(value)
            has_nul = "\\u0000" in json.dumps(overrides[name])
        except (ValueError, RecursionError) as error:  # an integer of thousands of digits, or thousands of brackets
            raise ConfigError(f"--override {name}: the value is too long or nested too deeply: {error}") from error
        if has_nul:
            raise ConfigError(f"--override {name}: a value may not hold the character NUL")
    return overrides


def _json_or_text(value: str) -> object:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an unexpected error in one line, and how to see more."""
    if os.environ.get(DEBUG_VARIABLE):
        sys.__excepthook__(kind, error, trace)
        return
    places, packages = _places(error, trace), _own_packages()
    own = [place for place in places if _is_own(place[0], packages)]
    where = " ({}:{})".format(*(own or places)[-1]) if places else ""
    stderr().print(Text.assemble(("failed", "bold red"), f": {kind.__name__}: {visible(str(error))}{where}"))
    stderr().print("`simic --debug ...` shows the traceback.")


_PACKAGE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]([^/\\.]+)")
"""The file of an installed module, with the name of its package."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


def _places(error: BaseException, trace: TracebackType | None) -> list[tuple[str, int]]:
    """Return file and line of each frame of an error, the innermost last; those of its process if a worker raised it.

    Python passes the traceback of a worker as text, as the cause of the error.
    """
    if type(error.__cause__).__name__ == "_RemoteTraceback":
        return [(file, int(line)) for file, line in _FRAME.findall(str(error.__cause__))]
    return [(frame.filename, frame.lineno or 0) for frame in extract_tb(trace)]


def _own_packages() -> set[str]:
    """Return the names of Simic and of installed packages that register plug-ins with it, such as own hosts."""
    points, own = entry_points(), {"simic"}
    for group in points.groups:
        if group.startswith("simic."):
            own.update(point.module.partition(".")[0] for point in points.select(group=group))
    return own


def _is_own(file: str, packages: Collection[str]) -> bool:
    """Return whether a file is of one of the packages, or neither installed nor of Python."""
    if (installed := _PACKAGE.match(file)) is not None:
        return installed[1] in packages
    folders = (f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "scripts"))
    return not file.startswith(("<", *folders))


def leave_on_interrupt(message: str) -> None:
    """Make Ctrl-C end this process at once, as a kill would, with ``message`` on stderr.

    For work that survives a kill and whose libraries handle an interrupt badly: Prefect would try for minutes to reach
    a server that the same Ctrl-C has ended.
    """

    def leave(_signal: int, _frame: object) -> None:
        shown = SHOW_CURSOR if sys.stderr.isatty() else ""  # spinners and bars hide the cursor
        os.write(sys.stderr.fileno(), f"{shown}\n{message}\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)


@contextmanager
def errors_become_exit_codes() -> Iterator[None]:
    """End the process with the exit code of a raised SimicError and one message on stderr."""
    sys.excepthook = _report_bug
    try:
        with exhausted_limits_as_terminal(), disk_full_as_transient():
            yield
    except SimicError as error:
        if os.environ.get(DEBUG_VARIABLE):
            stderr().print_exception()
        stderr().print(Text.assemble((type(error).__name__, "bold red"), f": {visible(str(error))}"))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        stderr().print("interrupted")
        sys.exit(INTERRUPTED)
