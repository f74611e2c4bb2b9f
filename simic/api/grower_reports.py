"""Field reports of a Grower on their way to the bus."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable

from simic.api.grower_arguments import writer_of
from simic.api.home import Home
from simic.api.reports import FieldReportWriter
from simic.contracts.errors import TransientError
from simic.contracts.field_report import FieldReport

__all__ = ["GrowerReports"]


class GrowerReports:
    """Writes the reports of one episode in their order; what the bus cannot take now is kept and written later.

    At most one report for each epoch waits.
    """

    def __init__(self, report_to: FieldReportWriter | Home | str | os.PathLike[str] | None) -> None:
        """Take a writer, which its owner flushes, or open one; without any, nothing is written."""
        self._writer, self._is_own = writer_of(report_to)
        self._waiting: deque[FieldReport] = deque()
        self.is_behind = False
        """Whether the latest write failed, so that something waits."""

    def go_back(self, run_id: str, step: int) -> None:
        """Drop what waits of an episode from a step on, which it repeats, and let the writer take that step again.

        The Grower may have been in another episode, whose reports wait on.
        """
        self._waiting = deque(one for one in self._waiting if one.run_id != run_id or one.step < step)
        # A writer of the Grower's own may hold reports that it could not publish.
        self.is_behind &= self._is_own or bool(self._waiting)
        if self._writer is not None:
            self._writer.repeat(run_id)

    def write(self, reports: Iterable[FieldReport] = ()) -> None:
        """Write what waits, then the reports, and publish them if the writer is the Grower's own.

        Raises:
            ContractError: if ingestion would refuse a report, which is dropped.
            TransientError: if the bus cannot take them now; they wait on.
        """
        if self._writer is None:
            return
        self._waiting.extend(reports)
        self.is_behind = True
        while self._waiting:
            report = self._waiting.popleft()
            try:
                self._writer.write(report)
            except TransientError:
                self._waiting.appendleft(report)
                raise
        if self._is_own:
            self._writer.flush()
        self.is_behind = False
