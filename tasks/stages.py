"""The stages of a run as Prefect tasks; ``simic.app`` implements them.

A task takes a ``RunKey``, the number of the round, the receipts of earlier stages and names, all plain data, and
returns a receipt.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, ParamSpec, TypedDict, TypeVar, cast, get_type_hints

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.runtime import flow_run
from prefect.task_engine import TaskRunTimeoutError
from prefect.tasks import Task

from simic.app import data, promotion, training, training_seeds
from simic.app.artifacts import artifacts_are_intact, move_damaged_artifacts
from simic.app.container import Container
from simic.app.receipts import content_digest
from simic.app.runs import RunKey, describe, open_container
from simic.contracts.errors import IntegrityError, ResourceLimitError, TransientError
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import (
    CollectionReceipt,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    SnapshotManifest,
    TrainingReport,
)
from simic.contracts.results.trials import SeedChoice, TrialReport
from simic.contracts.settings.run import RunConfig
from simic.runtime.home import PREFECT_URL_VARIABLE
from simic.runtime.progress import NoProgress, Progress, Titled
from tasks.artifacts import show_decision, show_validation, show_version
from tasks.results import drop_foreign, storage_folder

__all__ = [
    "Stage",
    "choose",
    "collect",
    "curate",
    "decide",
    "ingest",
    "promote",
    "publish",
    "record",
    "result_key",
    "showing_progress",
    "stage",
    "train",
    "train_seed",
    "try_further",
    "validate",
]

HOUR_S = 3600.0
MARGIN_H = 1.0
"""Hours of the training stage beyond ``train.max_hours``, which ends a training with its checkpoints: for loading the
snapshot, the last update and sealing."""
SHORT_H = 1.0
"""Hours of a stage that takes seconds or minutes."""


class Limit(NamedTuple):
    """How long a stage may take."""

    hours: Callable[[RunConfig], float]
    """The limit under the settings of a run."""
    advice: str
    """What raises the limit, for the error of a stage that reached it."""


def _long_h(config: RunConfig) -> float:
    return config.stages.max_hours


def _training_h(config: RunConfig) -> float:
    return config.train.max_hours + MARGIN_H


def _short_h(_config: RunConfig) -> float:
    return SHORT_H


LONG = Limit(_long_h, "Raise stages.max_hours to give the stage more time")
TRAINING = Limit(
    _training_h, f"Its limit is train.max_hours and {MARGIN_H:g} h; raise train.max_hours to give it more time"
)
SHORT = Limit(
    _short_h,
    "No setting raises this limit, because the stage takes seconds or minutes; look for what it waited for, such as "
    "a lock or the bus",
)

_LOG = logging.getLogger(f"simic.{__name__}")  # Prefect shows loggers below simic
_PROGRESS: ContextVar[Progress] = ContextVar("progress", default=NoProgress())  # noqa: B039 - it has no state

P = ParamSpec("P")
R = TypeVar("R", bound=Receipt)


class StageOptions(TypedDict):
    """Arguments of a Prefect task that all stages share."""

    name: str
    task_run_name: str
    retries: int
    retry_delay_seconds: list[float]
    retry_jitter_factor: float
    retry_condition_fn: Callable[[Task[..., Any], TaskRun, State[Any]], bool]
    cache_key_fn: Callable[[TaskRunContext, dict[str, Any]], str]
    persist_result: bool
    result_serializer: str
    refresh_cache: bool


class Stage(Generic[P, R]):
    """A task whose stored result replaces the work only while the artifacts of the receipt are intact."""

    def __init__(
        self,
        work: Callable[P, R],
        options: StageOptions,
        limit: Limit,
        show: Callable[[R], None] | None,
    ) -> None:
        """Wrap a function as a task that fails at its limit; ``show`` puts its receipt into the Prefect UI."""
        self.task: Task[P, R] = Task(work, **options)
        self.kind: type[R] = get_type_hints(work)["return"]
        self._limit, self._show = limit, show
        self.__doc__ = work.__doc__

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Run the stage, or return its stored receipt if its artifacts are intact.

        Args:
            arguments: The run, the round (0 outside the rounds), receipts of earlier stages or None, and names.
            named: The same by name.

        Raises:
            IntegrityError: if the artifacts of the receipt are damaged although the stage just ran.
            ResourceLimitError: if the stage reached its limit.
        """
        parameters = inspect.signature(self.task.fn).bind(*arguments, **named).arguments
        run, number, name = cast(RunKey, parameters["run"]), cast(int, parameters["number"]), self.task.name
        container = open_container(run, _PROGRESS.get())
        drop_foreign(result_key(name, run.token, number, parameters.values()), self.kind)
        limit_s = self._limit.hours(run.config) * HOUR_S
        here = self.task.with_options(result_storage=storage_folder(), timeout_seconds=limit_s)
        with self._limited(run, number):
            receipt = here(*arguments, **named)
            if (intact := self._intact(container, receipt)) is None:
                _LOG.warning("%s: the artifacts of its stored receipt are damaged or missing; running it again", name)
                if type(receipt) is self.kind:
                    move_damaged_artifacts(container, receipt)
                receipt = here.with_options(refresh_cache=True)(*arguments, **named)
                intact = self._intact(container, receipt)
        if intact is None:
            raise IntegrityError(
                f"stage {name}, number {number}, of run {run.token} ran again, and the artifacts of its receipt are "
                f"still damaged: expected a {self.kind.__name__} that agrees with its files and its seal, found "
                f"{content_digest(receipt)[:12] if isinstance(receipt, Receipt) else type(receipt).__name__}; "
                f"`simic doctor --deep` lists what is damaged"
            )
        _LOG.info("%s: %s", _title(run, number, name), describe(intact))
        if self._show is not None:
            self._show(intact)
        return intact

    @contextmanager
    def _limited(self, run: RunKey, number: int) -> Iterator[None]:
        """Raise Prefect's error of a timeout as ResourceLimitError, which keeps the run open.

        Prefect raises an exception in the work once, at its next Python instruction. Work in native code ends when the
        code returns, and work that caught the exception would go on without a limit.
        """
        try:
            yield
        except TaskRunTimeoutError as error:
            hours = self._limit.hours(run.config)
            raise ResourceLimitError(
                f"stage {self.task.name}, number {number}, of run {run.token} took longer than its limit of "
                f"{hours:g} h and was ended. The run stays open: the same command continues it at this stage. "
                f"{self._limit.advice}"
            ) from error

    def _intact(self, container: Container, receipt: R) -> R | None:
        """Return the receipt with the paths of this home; None if it is of another kind or an artifact is damaged."""
        if type(receipt) is not self.kind:
            return None
        placed = container.placed(receipt)
        return placed if artifacts_are_intact(container, placed) else None


def result_key(stage_name: str, token: str, number: int, inputs: Iterable[object]) -> str:
    """Return the key under which Prefect stores the result of a stage.

    The key names the run (a killed run resumes under its token), the round and the content of the receipts and names
    among ``inputs``, so a stored result is used only for the same work.
    """
    flat = [item for value in inputs for item in (value if isinstance(value, list) else [value])]
    contents = [
        content_digest(value) if isinstance(value, Receipt) else value
        for value in flat
        if isinstance(value, Receipt | str)
    ]
    return f"{stage_name}-{token}-{number}-{hashlib.sha256(':'.join(contents).encode()).hexdigest()[:16]}"


def stage(
    limit: Limit, *, is_repeated: bool = False, show: Callable[[Any], None] | None = None
) -> Callable[[Callable[P, R]], Stage[P, R]]:
    """Return a decorator that makes a stage of a function, under the function's name.

    Args:
        limit: How long the stage may take.
        is_repeated: Whether the stage runs again although a result is stored.
        show: Puts the receipt into the Prefect UI.
    """

    def wrap(work: Callable[P, R]) -> Stage[P, R]:
        return Stage(work, _options(work, is_repeated=is_repeated), limit, show)

    return wrap


def _options(work: Callable[..., object], *, is_repeated: bool) -> StageOptions:
    """Results are stored as JSON, because Prefect's default is a pickle; ``tasks.results`` checks stored ones."""
    name = work.__name__
    names = (parameter for parameter in ("set_name", "seed") if parameter in inspect.signature(work).parameters)
    of_name = "".join(f"-{{{parameter}}}" for parameter in names)

    def key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
        run: RunKey = parameters["run"]
        return result_key(name, run.token, parameters["number"], parameters.values())

    return StageOptions(
        name=name,
        task_run_name=f"{name}-{{number}}{of_name}",
        retries=2,
        retry_delay_seconds=[2.0, 20.0],
        retry_jitter_factor=0.3,
        retry_condition_fn=_is_transient,
        cache_key_fn=key,
        persist_result=True,
        result_serializer="json",
        refresh_cache=is_repeated,
    )


def _is_transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Return whether a failed stage is retried; a terminal error is final."""
    return isinstance(state.result(raise_on_failure=False), TransientError)


@contextmanager
def showing_progress(progress: Progress) -> Iterator[None]:
    """Show the progress of stages that run within this context; a flow's own parameters must be plain data."""
    before = _PROGRESS.set(progress)
    try:
        yield
    finally:
        _PROGRESS.reset(before)


def _begin(name: str, run: RunKey, number: int, *inputs: Receipt | None) -> Container:
    """Log the inputs of a stage, and return the live parts for it; progress is titled with the round."""
    sources = [
        f"{receipt.model_dump()['stage']} {content_digest(receipt)[:12]}" for receipt in inputs if receipt is not None
    ]
    _LOG.info("%s: begins%s", _title(run, number, name), f" with {', '.join(sources)}" if sources else "")
    title = _round(run, number)
    progress = _PROGRESS.get()
    return open_container(run, Titled(progress, title) if title else progress)


def _flow_run() -> str | None:
    """Return the page of the running flow run in the Prefect UI of `simic up`, or its id if that does not run."""
    run_id, url = flow_run.id, os.environ.get(PREFECT_URL_VARIABLE)
    return f"{url}/runs/flow-run/{run_id}" if run_id and url else run_id


def _title(run: RunKey, number: int, name: str) -> str:
    title = _round(run, number)
    return f"{title}: {name}" if title else name


def _round(run: RunKey, number: int) -> str:
    """Return the name of a round; what comes before the first round and after the last has none."""
    return f"round {number} of {run.config.collect.rounds}" if number else ""


@stage(LONG)
def collect(run: RunKey, number: int, policy: TrainingReport | None, set_name: str) -> CollectionReceipt:
    """Grow hosts of a set of which a run learns: under the newest policy, or, without one, as train.start says."""
    container = _begin(f"collect {set_name}", run, number, policy)
    return training.collect_round(container, number, policy, run.earlier_runs, set_name)


@stage(LONG)
def ingest(run: RunKey, number: int, collected: list[CollectionReceipt]) -> IngestReceipt:
    """Land the reports that wait on the bus; runs again after each round's collections."""
    return data.ingest(_begin("ingest", run, number, *collected))


@stage(LONG)
def curate(run: RunKey, number: int, landed: IngestReceipt) -> SnapshotManifest:
    """Make a snapshot of all landed experience."""
    container = _begin("curate", run, number, landed)
    return container.portable(data.curate(container))


@stage(TRAINING)
def train(run: RunKey, number: int, snapshot: SnapshotManifest, previous: TrainingReport | None) -> TrainingReport:
    """Train from the policy of the round before, from the champion, or from random weights."""
    container = _begin("train", run, number, snapshot, previous)
    return container.portable(training.train_round(container, snapshot, previous, run.champion))


@stage(TRAINING)
def train_seed(
    run: RunKey, number: int, snapshot: SnapshotManifest, previous: TrainingReport | None, seed: str
) -> TrainingReport:
    """Train as the last training of the run did, with another training seed, a number."""
    container = _begin(f"train seed {seed}", run, number, snapshot, previous)
    container.progress = Titled(container.progress, f"seed {int(seed) - run.seed + 1} of {run.config.train.seeds}")
    return container.portable(training.train_round(container, snapshot, previous, run.champion, int(seed)))


@stage(LONG)
def choose(run: RunKey, number: int, trained: list[TrainingReport]) -> SeedChoice:
    """Choose among the policies of several training seeds, on validation hosts."""
    return training_seeds.choose_seed(_begin("choose", run, number, *trained), trained)


@stage(LONG, show=show_validation)
def validate(run: RunKey, number: int, policy: TrainingReport, further: list[TrialReport]) -> ValidationReport:
    """Run closed-loop trials on held-out hosts of the run's set; the report includes those on further sets."""
    container = _begin("validate", run, number, policy, *further)
    return container.portable(training.validate(container, policy, run.champion, further))


@stage(SHORT, show=show_decision)
def decide(run: RunKey, number: int, report: ValidationReport) -> GateDecision:
    """Apply the gate to the evidence."""
    return promotion.decide(_begin("decide", run, number, report), report)


@stage(SHORT)
def record(run: RunKey, number: int, report: ValidationReport, decision: GateDecision) -> PolicyVersion:
    """Register the candidate with all its evidence."""
    container = _begin("record", run, number, report, decision)
    return promotion.record(container, report, decision, _flow_run())


@stage(SHORT, show=show_version)
def promote(
    run: RunKey, number: int, candidate: PolicyVersion, report: ValidationReport, decision: GateDecision
) -> PolicyVersion:
    """Make the candidate the champion."""
    container = _begin("promote", run, number, candidate, report, decision)
    return promotion.promote(container, candidate, report, decision)


@stage(SHORT, is_repeated=True)
def publish(run: RunKey, number: int, version: PolicyVersion) -> PublicationReceipt:
    """Put the update on the bus. Runs always: only journal and outbox know whether it was put before."""
    return promotion.publish(_begin("publish", run, number, version), version)


@stage(LONG)
def try_further(
    run: RunKey,
    number: int,
    policy: TrainingReport,
    set_name: str,
    judged_with: str,  # noqa: ARG001 - it is part of the key of the stored result
) -> TrialReport:
    """Try the candidate on held-out hosts of a further set.

    ``judged_with`` is that of the run: a stored result of an earlier judgement does not stand for trials of this one.
    """
    return training.try_further(_begin("try_further", run, number, policy), policy, run.champion, set_name)
