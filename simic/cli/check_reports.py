"""``simic check-reports``: what an ingest would say about files of field reports."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from simic.cli.console import EXIT_CODES, emit_line, parse_overrides, stdout, visible
from simic.cli.options import AsJson, Overrides, ProfileName, show_progress
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.names import FIELD_REPORTS
from simic.runtime.settings import load_profile

if TYPE_CHECKING:
    from simic.ingestion.check import Fault, ReportCheck
    from simic.runtime.progress import Advance

__all__ = ["add_to"]

STDIN = "-"
SUFFIXES = (".jsonl", ".jsonl.zst")
_READABLE = "name a file of reports, a folder of them, or - for standard input"
LEAST_BYTES = 16_000_000
"""Size of a file from which on progress is shown."""
_MEGABYTE = 1_000_000
_BYTE_ORDER_MARK = {b"\xef\xbb\xbf": "a byte order mark: write UTF-8 without one"}
"""Before the first line of an otherwise good file; an ingest refuses that line alone."""


def add_to(app: typer.Typer) -> None:
    """Register `simic check-reports`, with its exit codes."""
    app.command("check-reports", epilog=EXIT_CODES)(check_reports)


def check_reports(
    file: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files *.jsonl or *.jsonl.zst with one field report per line, folders of them, or spools; - is stdin.",
        ),
    ],
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check field reports as `simic ingest` would, and whether their episodes are whole; no home is needed.

    Prints a line for each refused report: file, if there are several, line, episode, step, reason, the field with what
    was expected and found, and what to do. Then the counts of reports and episodes. With --json, each is an object on a
    line of its own.

    Several files may come in any order, as those of a Grower do, and may share episodes. In a single file the reports
    of an episode stand in the order of their steps.

    Of a spool only reports that wait for an ingest are read, from its folders tamiyo.field_reports/claimed and
    incoming, not those that have landed: they are in tamiyo.field_reports/done, which can be named too.

    An episode is complete if it was seen from step 0 to its end without a fault. Others land too, and curation leaves
    them out. Memory is bounded: the 100,000 episodes without an end that were written last are remembered, as many
    ended ones, and the 200,000 newest report ids. If that was not enough, the last lines say so.

    Checking ends at a limit of an ingest: ingest.max_file_mb, max_file_s or max_file_refusals. Standard input and pipes
    have no limit of size and time.

    Examples: [bold]simic check-reports reports.jsonl[/bold], [bold]simic check-reports reports/[/bold]

    Exit code 0 if no report is refused, 1 if one is or the file has none, 2 if a file cannot be read. docs/reports.md
    explains the form.
    """
    config = load_profile(profile, parse_overrides(override or ()))
    from simic.app.names.blueprint_vocabulary import vocabulary  # these load pyarrow
    from simic.bus.spool.lines import COMPRESSED_SUFFIX, NO_LIMITS, FileLimits, read_stream
    from simic.ingestion.check import ReportCheck
    from simic.runtime.clock import utc_now

    ingest, show = config.ingest, _printer(as_json)
    names = [name for given in file for name in _names(given)]
    has_several = len(names) > 1
    check = ReportCheck(ingest, frozenset(vocabulary(ingest)), utc_now, has_several=has_several)

    def tell(faults: Iterable[Fault]) -> None:
        for fault in faults:
            show({"event": "refused", **fault._asdict()}, _words(fault))

    misnamed = []
    for name in names:
        with _opened(name) as source:
            stream = cast("BinaryIO", source)
            is_file, is_packed = source.size is not None, name.endswith(COMPRESSED_SUFFIX)
            if not is_packed:
                source.check_format()
            limits = FileLimits(ingest.max_file_mb << 20, ingest.max_file_s) if is_file else NO_LIMITS
            lines = read_stream(stream, ingest.max_report_bytes, limits, is_packed=is_packed, size_bytes=source.size)
            tell(check.faults(lines, name if has_several else None))
        if is_file and not name.endswith(SUFFIXES):
            misnamed.append(name)
    tell(check.rest())
    counts = _counts(check)
    curate = "simic curate" if profile == "default" else f"simic curate --profile {profile}"
    notes = _notes(check, {config.world.horizon, *config.curate.also_horizons}, misnamed, curate)
    show({"event": "summary", **counts, "notes": notes}, "\n".join([*_sentences(counts), *notes]))
    if check.refused or not (check.accepted or check.duplicates):
        raise typer.Exit(ContractError.exit_code)


def _names(given: str) -> list[str]:
    """Return the files that a name stands for: those of a folder, the oldest first, or those that wait in a spool.

    In a spool those that an ingest claimed and did not finish come first, as in the next ingest.
    """
    folder = Path(given)
    try:
        if given == STDIN or not folder.is_dir():
            return [given]
        topic = folder / FIELD_REPORTS
        waiting = [path for path in (topic / "claimed", topic / "incoming") if path.is_dir()]
        names = [str(path) for within in waiting or [folder] for path in _reports_in(within)]
        if not names:
            landed = f". Reports that an ingest has read lie in {topic / 'done'}; name that folder to check them"
            raise ConfigError(
                f"cannot read {given}: expected files *.jsonl or *.jsonl.zst in "
                f"{' or '.join(map(str, waiting or [folder]))}, found none{landed if waiting else ''}"
            )
        return names
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {given}: {getattr(error, 'strerror', None) or error}; {_READABLE}") from error


def _reports_in(folder: Path) -> list[Path]:
    """Return the files of reports in a folder, the oldest first."""
    paths = [path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and not path.name.startswith(".")]
    # A file is newer than those whose reports it continues, so few reports have to wait for earlier ones.
    return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))


def _nobody(_count: int, /, note: str | None = None) -> None:
    """Show nothing."""


class _Source:
    """An open file that says how far it was read; only ``read`` is used of it."""

    def __init__(self, name: str, file: BinaryIO, size: int | None) -> None:
        self._name, self._file, self.size = name, file, size
        self.advance: Advance = _nobody
        self._first = b""
        self._rest = 0

    def check_format(self) -> None:
        """Raise ConfigError if the first bytes show that this is no text in UTF-8; nothing was read before."""
        from simic.bus.spool.lines import FORMATS  # it loads zstandard

        formats = FORMATS | _BYTE_ORDER_MARK
        self._first = self._read(max(map(len, formats)))
        for start, what in formats.items():
            if self._first.startswith(start):
                raise ConfigError(f"{self._name}: expected lines of JSON in UTF-8, found {what}")

    def read(self, count: int) -> bytes:
        """Return up to ``count`` bytes; raise ConfigError if the system cannot read them."""
        first, self._first = self._first[:count], self._first[count:]
        data = first + self._read(count - len(first))
        self._rest += len(data)
        self.advance(self._rest // _MEGABYTE)
        self._rest %= _MEGABYTE
        return data

    def _read(self, count: int) -> bytes:
        try:
            return self._file.read(count)
        except OSError as error:
            raise ConfigError(f"cannot read {self._name}: {error.strerror}") from error


@contextmanager
def _opened(name: str) -> Iterator[_Source]:
    """Open a file or standard input, and show progress if it is long."""
    if name == STDIN:
        yield _Source("standard input", sys.stdin.buffer, None)
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - closed below; the block's own errors are no errors of opening
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {name}: {getattr(error, 'strerror', error)}; {_READABLE}") from error
    with file:
        status = os.fstat(file.fileno())
        source = _Source(name, file, status.st_size if stat.S_ISREG(status.st_mode) else None)
        if status.st_size < LEAST_BYTES:
            yield source
            return
        with show_progress().task("check, MB", status.st_size // _MEGABYTE) as source.advance:
            yield source


def _printer(as_json: bool) -> Callable[[Mapping[str, Any], str], None]:
    """Return what prints an object or its words to the standard output of now.

    A bar on a terminal takes over the standard output, also one that leads into a file.
    """
    file = None if sys.stdout.isatty() else sys.stdout
    console = stdout(file)
    if as_json:
        return lambda value, _words: emit_line(value, file)
    return lambda _value, words: console.print(visible(words))


def _words(fault: Fault) -> str:
    place = f"line {fault.line}" if fault.line else "file"
    if fault.file is not None:
        place = f"{fault.file}, {place}" if fault.line else fault.file
    if fault.run_id is not None:
        place += f", episode {fault.run_id}"
    if fault.step is not None:
        place += f", step {fault.step}"
    return f"{place}: {fault.sentence}"


def _counts(check: ReportCheck) -> dict[str, Any]:
    return {
        "accepted": check.accepted,
        "duplicates": check.duplicates,
        "refused": check.refused,
        "reasons": dict(sorted(check.reasons.items())),
        "complete_episodes": check.complete,
        "incomplete_episodes": check.incomplete,
        "without_end": [{"run_id": run_id, "last_step": step} for run_id, step in check.without_end],
        "forgotten": check.forgotten,
    }


def _sentences(counts: Mapping[str, Any]) -> Iterator[str]:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts["reasons"].items())
    yield (
        f"reports: {counts['accepted']:,} accepted, {counts['duplicates']:,} duplicate, {counts['refused']:,} refused"
        f"{f' ({reasons})' if reasons else ''}"
    )
    yield f"episodes: {counts['complete_episodes']:,} complete, {counts['incomplete_episodes']:,} incomplete"


def _notes(check: ReportCheck, used: Set[int], misnamed: Sequence[str], curate: str) -> list[str]:
    """Return what else curation, which ``curate`` begins, or ingestion would do with these reports."""
    notes = []
    if not (check.accepted or check.duplicates or check.refused):
        notes.append("expected at least one report, found none")
    malformed = check.reasons["malformed_json"]
    if malformed > 1 and 2 * malformed > check.refused and not check.accepted:  # one alone has this remedy already
        notes.append("no line is a report: write each report on a line of its own, as `jq -c .` does")
    if check.without_end:
        unended = ", ".join(f"{run_id} (last step {step})" for run_id, step in check.without_end)
        notes.append(f"no report ends episode {unended}{', ...' if check.has_more_without_end else ''}")
    if check.incomplete:
        notes.append(
            "curation leaves out an incomplete episode as a whole; if its other reports are in other files, check all "
            "at once: simic check-reports FILE FILE ..., or their folder"
        )
    if others := sorted(set(check.horizons) - used):
        shown = ", ".join(map(str, others[:5])) + (", ..." if len(others) > 5 else "")
        known = ", ".join(map(str, sorted(used)))
        notes.append(
            f"curation leaves out episodes of a horizon (state.horizon) other than {known}, found "
            f"{shown}: {curate} -o 'curate.also_horizons={others[:5]}'"
        )
    if misnamed:
        named = ", ".join(misnamed[:5]) + (", ..." if len(misnamed) > 5 else "")
        notes.append(
            f"an ingest reads files named *.jsonl or *.jsonl.zst: rename {named} for the spool; gzip is not read"
        )
    lost = check.forgotten
    if lost["open_episodes"]:
        notes.append(
            f"{lost['open_episodes']:,} episodes without an end were forgotten to bound the memory; if one went on "
            "later, it counts as several incomplete ones: write the reports of an episode closer together"
        )
    if lost["ended_episodes"] or lost["report_ids"]:
        notes.append(
            f"{lost['ended_episodes']:,} ended episodes and {lost['report_ids']:,} report ids were forgotten to bound "
            "the memory; that one of them came again was not noticed"
        )
    return notes
