"""Stages take plain data, and a stored result stands only for the same work."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from prefect.task_engine import TaskRunTimeoutError
from support.builders.judged_candidates import decision

from simic.app.runs import RunKey
from simic.contracts.errors import ResourceLimitError
from simic.contracts.results.receipts import Receipt
from simic.contracts.settings.run import RunConfig
from simic.runtime.settings import load_profile
from tasks import stages

RUN = RunKey(
    profile="quick", seed=0, config=RunConfig(), token="a",  # noqa: S106 - names the run
    earlier_runs=0, champion=None,
)  # fmt: skip
STAGES = [value for value in vars(stages).values() if isinstance(value, stages.Stage)]


def test_every_stage_takes_a_run_a_round_receipts_and_names() -> None:
    assert len(STAGES) == 12
    for stage in STAGES:
        hints = get_type_hints(stage.task.fn)
        result = hints.pop("return")
        assert list(hints)[:2] == ["run", "number"]
        assert (hints.pop("run"), hints.pop("number")) == (RunKey, int)
        for hint in hints.values():
            kinds = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is list else (hint,)
            assert all(issubclass(kind, (Receipt, NoneType, str)) for kind in kinds), (stage.task.name, hint)
        assert issubclass(result, Receipt)


def test_a_stored_result_is_named_by_run_round_and_content() -> None:
    first, second = decision("1" * 64), decision("2" * 64)
    key = stages.result_key("decide", "a", 0, (RUN, 0, first))
    assert key == stages.result_key("decide", "a", 0, (first,)), "only receipts and names count as content"
    others = [
        stages.result_key("record", "a", 0, (first,)),
        stages.result_key("decide", "b", 0, (first,)),
        stages.result_key("decide", "a", 1, (first,)),
        stages.result_key("decide", "a", 0, (second,)),
        stages.result_key("decide", "a", 0, ()),
        stages.result_key("decide", "a", 0, ([first, second],)),
        stages.result_key("decide", "a", 0, (first, "varied")),
    ]
    assert len({key, *others}) == 8


def test_the_key_is_read_from_the_declared_parameters_of_a_stage() -> None:
    report = decision("1" * 64)
    bound = inspect.signature(stages.record.task.fn).bind(RUN, 0, None, report).arguments
    found = stages.record.task.cache_key_fn(None, bound)  # type: ignore[misc, arg-type]
    assert found == stages.result_key("record", "a", 0, (report,))


class Asked(Exception):
    """A stage asked for its task."""


def test_the_stage_of_a_training_outlasts_its_own_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage's timeout would end a training before ``train.max_hours`` does, without saying what to raise."""
    seconds = []

    def with_options(**options: Any) -> None:
        seconds.append(options["timeout_seconds"])
        raise Asked

    monkeypatch.setattr(stages.train.task, "with_options", with_options)
    for hours in (24.0, 100.0):
        run = RUN.model_copy(update={"config": load_profile("quick", {"train.max_hours": hours})})
        with pytest.raises(Asked):
            stages.train(run, 0, decision("1" * 64), None)  # type: ignore[arg-type]
        assert seconds[-1] > hours * 3600


@pytest.mark.parametrize(
    ("stage", "inputs", "hours", "advice"),
    [
        (stages.collect, (None, "benchmark"), "5", "Raise stages.max_hours"),
        (stages.train, (None, None), "3", "raise train.max_hours"),
        (stages.decide, (None,), "1", "No setting raises this limit"),
    ],
)
def test_a_stage_that_reached_its_limit_names_the_setting_that_raises_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, stage: Any, inputs: tuple[object, ...], hours: str, advice: str
) -> None:
    seconds = []

    def with_options(**options: Any) -> Any:
        seconds.append(options["timeout_seconds"])
        return out_of_time

    def out_of_time(*_: object) -> None:
        raise TaskRunTimeoutError("Scope timed out")

    monkeypatch.setattr(stage.task, "with_options", with_options)
    config = load_profile("quick", {"stages.max_hours": 5.0, "train.max_hours": 2.0})
    told = f"stage {stage.task.name}, number 0, of run a took longer than its limit of {hours} h .*{advice}"
    with pytest.raises(ResourceLimitError, match=told):
        stage(RUN.model_copy(update={"config": config}), 0, *inputs)
    assert seconds == [float(hours) * 3600]
