"""How a stage is retried, timed and cached: the same for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypedDict

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.tasks import Task

from simic.app.lineage import content_of
from simic.contracts.errors import TransientError
from simic.contracts.receipts import Receipt

__all__ = ["StageOptions", "stage_options"]

HOUR_S = 3600.0


class StageOptions(TypedDict):
    """Arguments of ``@task`` that all stages share."""

    name: str
    task_run_name: str
    retries: int
    retry_delay_seconds: list[float]
    retry_jitter_factor: float
    retry_condition_fn: Callable[[Task[..., Any], TaskRun, State[Any]], bool]
    timeout_seconds: float
    cache_key_fn: Callable[[TaskRunContext, dict[str, Any]], str]
    persist_result: bool
    result_serializer: str


def stage_options(stage: str, timeout_h: float) -> StageOptions:
    """Options of one stage.

    The key names the run (a killed one goes on under its token), the round and the content that comes in, so
    a stage is skipped only where it has nothing new to say. Results are JSON: Prefect's default is a pickle.
    """

    def key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
        inputs = [content_of(value) for value in parameters.values() if isinstance(value, Receipt)]
        content = hashlib.sha256(":".join(inputs).encode()).hexdigest()[:16]
        return f"{stage}-{parameters['token']}-{parameters['number']}-{content}"

    return StageOptions(
        name=stage,
        task_run_name=f"{stage}-{{number}}",
        retries=2,
        retry_delay_seconds=[2.0, 20.0],
        retry_jitter_factor=0.3,
        retry_condition_fn=_is_transient,
        timeout_seconds=timeout_h * HOUR_S,
        cache_key_fn=key,
        persist_result=True,
        result_serializer="json",
    )


def _is_transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Only what may go better the next time is tried again; a verdict is final."""
    return isinstance(state.result(raise_on_failure=False), TransientError)
