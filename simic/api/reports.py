"""Field reports of episodes that grow elsewhere, checked as ingestion checks them and put on the bus."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from simic.api.home import Home, container_of, folder_of
from simic.api.wire import encode
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.bus.factory import BusSpec, open_bus
from simic.bus.protocol import Line
from simic.bus.spool.place import refuse_topic_folder
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.check import fault_of
from simic.ingestion.episode_order import MOST_ENDED, MOST_OPEN, EpisodeOrder, read_link
from simic.ingestion.validate import Refused, Validator
from simic.runtime.clock import utc_now
from simic.runtime.home import Home as HomePaths
from simic.runtime.home import HomeUse

__all__ = ["FieldReportWriter"]

MOST_WAITING = 1000
"""Reports in memory after which they are published."""
_RUN_ID = re.compile("[0-9a-f]{32}")


class FieldReportWriter:
    """Publishes field reports; use it in a ``with`` block. One thread at a time may use a writer.

    A report that ingestion would quarantine is refused at once, with the reason. So is one that does not continue its
    episode, because curation would leave out the whole episode; the last 100,000 open and 100,000 ended episodes are
    remembered for that. A file on the bus appears complete or not at all.
    """

    def __init__(
        self,
        home: Home | None = None,
        *,
        spool: str | os.PathLike[str] | None = None,
        blueprints: Sequence[str] = (),
    ) -> None:
        """Open the bus of a home, or a spool folder.

        Args:
            home: By default the home that the command line would use. ``REDIS_URL`` replaces its spool.
            spool: A folder instead, which is created; its content can be moved to ``data/spool`` of a home later.
            blueprints: Further names of blueprints, without code here, that reports may have; the ingest needs the
                same in ``ingest.declared_blueprints``.

        Raises:
            ConfigError: if home and spool are both given, the home does not exist or cannot be written, the spool is
                a home, a file or in the folder of a topic, or a blueprint has a name that no report may have.
        """
        if home is not None and spool is not None:
            raise ConfigError("give home or spool, not both: reports are published in one place")
        if spool is not None:
            config = IngestConfig()
            self._bus = open_bus(BusSpec(_spool(spool), ingest=config))
        else:
            container = container_of(home, HomeUse.CHANGE)
            config, self._bus = container.config.ingest, container.open_bus()
        self._validator = Validator(config, frozenset(vocabulary(_declaring(config, blueprints))))
        self._most_bytes = config.max_report_bytes
        self._waiting: list[bytes] = []
        self._order = EpisodeOrder(MOST_OPEN, MOST_ENDED)
        self._is_closed = False

    def write(self, report: FieldReport | Mapping[str, Any]) -> None:
        """Check the next report of an episode and keep it for publication.

        The first report of an episode that this writer sees may have any step, so that a restarted program can go on.
        A refused report changes nothing: it can be corrected and written again.

        Raises:
            ConfigError: after the end of the writer's ``with`` block, because nothing would publish the report.
            ContractError: if ingestion would refuse the report, or it does not continue its episode; the message names
                the field, what was expected and what was found.
            TransientError: if the reports before have to be published first and the bus cannot take them now; they wait
                on, this one is not kept, and the same call can be repeated.
        """
        if self._is_closed:
            raise ConfigError(
                "the `with` block of this writer is over, and nothing would publish the report; make a new one"
            )
        data = report.model_dump_json().encode() if isinstance(report, FieldReport) else encode(report, "report")
        if len(data) > self._most_bytes:
            raise ContractError(f"report: expected at most {self._most_bytes} bytes as JSON, found {len(data)}")
        now = utc_now()
        self._validator.begin(now, now)
        line = Line(1, data, None)
        result = self._validator.validate_with_contract(line)
        if isinstance(result, Refused):
            raise ContractError(fault_of(line, result).sentence)
        link = read_link(result.data)
        if (fault := self._order.check(link)) is not None:
            raise ContractError(f"run {link.run_id}: {fault}")
        if len(self._waiting) >= MOST_WAITING:
            self.flush()
        self._order.record(link)
        self._waiting.append(result.data)

    def repeat(self, run_id: str) -> None:
        """Let the next report of an episode have any step: its program went back to an earlier one.

        Reports that it wrote before stay. An ingest drops a repeated one that is equal; of others it keeps the first
        ones, and curation leaves the episode out where later reports do not continue these.

        Raises:
            ContractError: if ``run_id`` cannot be that of a report.
        """
        if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None:
            raise ContractError(f"run_id: expected 32 lower-case hexadecimal digits, found {run_id!r:.100}")
        self._order.forget(run_id)

    def flush(self) -> None:
        """Publish the reports that wait, durably.

        Raises:
            TransientError: if the bus cannot take them now; they wait on.
        """
        if self._waiting:
            self._bus.put(FIELD_REPORTS, f"reports-{uuid4().hex}", self._waiting)
            self._waiting = []

    def __enter__(self) -> FieldReportWriter:
        self._is_closed = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish what was written, also if the block failed: every report that was accepted is true."""
        self._is_closed = True
        self.flush()


def _declaring(config: IngestConfig, blueprints: Sequence[str]) -> IngestConfig:
    try:
        return IngestConfig(**{**config.model_dump(), "declared_blueprints": tuple(blueprints)})
    except ValidationError as error:
        raise ConfigError(
            f"blueprints: expected at most 128 names of up to 32 lower-case letters, digits and _, a letter first, "
            f"found {blueprints!r}"
        ) from error


def _spool(folder: str | os.PathLike[str]) -> Path:
    """Return the folder of a spool; reports in the root of a home would be read by nobody."""
    path = folder_of(folder, "spool")
    if HomePaths(path).is_home():
        raise ConfigError(f"spool: {path} is a home; give simic.Home({str(path)!r}), or the spool in it, data/spool")
    if path.is_file():
        raise ConfigError(f"spool: expected a folder, found the file {path}")
    refuse_topic_folder(path, "spool")
    return path
