"""Metric sinks and logs that leave the work alone."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from simic.contracts.errors import ConfigError
from simic.runtime.telemetry import JsonLinesSink, append_line, configure_logging, read_metrics


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The ``simic`` logger by itself, whatever other tests hung on to it."""
    logger = logging.getLogger("simic")
    before = list(logger.handlers), logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [], False
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


def test_lines_are_there_at_once_and_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "curves.jsonl"
    sink = JsonLinesSink(path)
    sink.log(1, {"train/loss": 0.5})
    sink.log(2, {"train/loss": np.float32(0.25), "train/lr": 1})
    assert list(read_metrics(path)) == [(1, {"train/loss": 0.5}), (2, {"train/loss": 0.25, "train/lr": 1.0})]
    sink.close()


def test_what_is_not_finite_stays_valid_json_and_comes_back_as_nan(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    with JsonLinesSink(path) as sink:
        sink.log(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    assert json.loads(path.read_text()) == {"step": 1, "metrics": {"a": None, "b": None, "c": 1.0}}
    ((_, metrics),) = read_metrics(path)
    assert math.isnan(metrics["a"])
    assert math.isnan(metrics["b"])


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    with JsonLinesSink(path) as sink:
        sink.log(1, {"a": 1.0})
    with path.open("a") as file:
        file.write('{"step": 2, "met')
    assert list(read_metrics(path)) == [(1, {"a": 1.0})]


def test_an_existing_file_goes_on(tmp_path: Path) -> None:
    for step in (1, 2):
        with JsonLinesSink(tmp_path / "curves.jsonl") as sink:
            sink.log(step, {"a": float(step)})
    assert [step for step, _ in read_metrics(tmp_path / "curves.jsonl")] == [1, 2]


def test_what_another_process_wrote_before_the_first_record_stays(tmp_path: Path) -> None:
    """An ingest opens the counts of the day, then waits for another one that is writing them."""
    path = tmp_path / "counts.jsonl"
    with JsonLinesSink(path) as waits:
        with JsonLinesSink(path) as holds:
            holds.log(1, {"landed": 1.0})
        waits.log(2, {"landed": 2.0})
    assert [step for step, _ in read_metrics(path)] == [1, 2]


def test_what_comes_after_a_torn_line_is_a_line_of_its_own(tmp_path: Path) -> None:
    """One process was killed in the midst of a line; the next one appends to the same file."""
    path = tmp_path / "curves.jsonl"
    with JsonLinesSink(path) as sink:
        sink.log(1, {"loss": 1.0})
    with path.open("a") as file:
        file.write('{"step": 2, "metr')
    with JsonLinesSink(path) as sink:
        sink.log(3, {"loss": 3.0})
    assert list(read_metrics(path)) == [(1, {"loss": 1.0}), (3, {"loss": 3.0})]


def test_an_appended_line_stands_alone_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    append_line(path, '{"a": 1}')
    with path.open("a") as file:
        file.write('{"torn')
    append_line(path, '{"b": 2}')
    assert path.read_text().splitlines() == ['{"a": 1}', '{"torn', '{"b": 2}']


def test_logs_go_to_stderr_in_utc_and_once(capsys: pytest.CaptureFixture[str], logger: logging.Logger) -> None:
    configure_logging("warning")
    configure_logging("INFO")
    logging.getLogger("simic.learning").info("hello %s", "there")
    logging.getLogger("simic.learning").debug("unheard")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("Z INFO simic.learning: hello there\n")
    assert logger.level == logging.INFO


def test_an_unknown_level_is_refused(logger: logging.Logger) -> None:
    with pytest.raises(ConfigError, match="log level 'LOUD' is not known; use one of DEBUG"):
        configure_logging("LOUD")
