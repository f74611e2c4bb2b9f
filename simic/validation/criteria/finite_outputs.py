"""``finite_outputs``: whatever is measured, or is not, a decision is legal and its probabilities are finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from simic.contracts.batches import Columns, Observations
from simic.contracts.results.gate import Criterion, Probe
from simic.contracts.state import LayerNode, SeedState, SystemState
from simic.controllers.learned_controller import LearnedController
from simic.validation.criterion import Case
from simic.validation.probing import States, Subject, count_failures, faulty, none_fail, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "finite_outputs"
SUMMARY = "decisions on extreme and missing measurements that are illegal or not finite, values included: none"
ORDER = 530
_TABLES: Mapping[str, type[BaseModel]] = {"system": SystemState, "slots": SeedState, "layers": LayerNode}
_EXTREMES: Mapping[str, float] = {"huge": 3e38, "tiny": 1e-45, "minus zero": -0.0, "one million": 1e6}
_SIGNED = frozenset({"contribution"})
"""Measurements that may be far below 0; losses, norms and shares cannot."""


def measure(subject: Subject) -> Probe:
    """Count decisions that are illegal or not finite, and values that are not finite."""
    return count_failures(_cases(subject, states_of(subject)))


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "decisions on extreme and missing measurements that are illegal or not finite")


def _cases(subject: Subject, states: States) -> Iterator[tuple[str, int, Callable[[], NDArray[np.bool_]]]]:
    policies = [subject.policy(is_decisive=is_decisive) for is_decisive in (True, False)]
    for name, observations in _variants(states.observations):
        for policy in policies:
            yield name, len(states.uniforms), partial(_broken, policy, states._replace(observations=observations))


def _broken(policy: LearnedController, states: States) -> NDArray[np.bool_]:
    values = policy.consider(states.observations, states.masks, is_decisive=True).values
    return faulty(policy.decide(*states), states) | ~np.isfinite(values)


def _variants(states: Observations) -> Iterator[tuple[str, Observations]]:
    """Yield the states as they are, without what may be missing, and with extreme measurements in each table."""
    yield "as measured", states
    for table, model in _TABLES.items():
        columns: Columns = getattr(states, table)
        optional = {name for name in columns if type(None) in get_args(model.model_fields[name].annotation)}
        floats = {name for name, values in columns.items() if values.dtype.kind == "f"}
        yield f"{table}: nothing measured", _with(states, table, dict.fromkeys(optional & floats, np.nan))
        for name, value in _EXTREMES.items():
            yield f"{table}: {name}", _with(states, table, dict.fromkeys(floats, value))
        yield f"{table}: very negative", _with(states, table, dict.fromkeys(floats & _SIGNED, -3e38))
    for name, value in {"empty": np.nan, **_EXTREMES}.items():
        history = {column: np.full_like(values, value) for column, values in states.history.items()}
        yield f"history: {name}", replace(states, history=history)


def _with(states: Observations, table: str, values: Mapping[str, Any]) -> Observations:
    columns: Columns = getattr(states, table)
    changed = {name: np.full_like(columns[name], value) for name, value in values.items()}
    # The field is one of ``_TABLES``.
    return replace(states, **{table: {**columns, **changed}})  # type: ignore[arg-type]
