"""Reward families on rows made up by hand: their real SQL on a real DuckDB, without a lake around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from simic.contracts.rewards import DEFAULT_FLAGS, RewardConfig
from simic.curation.run import CONSTANTS
from simic.curation.statements import load_statements, set_parameters, substitute_parameters

__all__ = ["HORIZON", "WALK", "priced", "step_of"]

HORIZON = 20
_SEED = pa.struct([("stage", pa.string()), ("contribution", pa.float64()), ("health", pa.float64())])
_SCHEMA = pa.schema(
    [
        ("run_id", pa.string()), ("step", pa.int32()), ("horizon", pa.int32()),
        ("seeds_max", pa.int32()), ("op", pa.string()),
        ("has_governor", pa.bool_()), ("has_final_state", pa.bool_()), ("terminated", pa.bool_()),
        ("truncated", pa.bool_()), ("accuracy_before", pa.float64()), ("accuracy_after", pa.float64()),
        ("start_accuracy", pa.float64()), ("rent_parameters", pa.int64()), ("parameter_epochs", pa.int64()),
        ("seeds", pa.list_(_SEED)), ("next_seeds", pa.list_(_SEED)),
    ]
)  # fmt: skip

Seed = tuple[str, float | None]
WALK = ("GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED")


def step_of(number: int, before: Sequence[Seed], after: Sequence[Seed], **facts: Any) -> dict[str, Any]:
    """One row of ``usable_steps``; seeds are (stage, contribution)."""
    row: dict[str, Any] = {
        "run_id": "run", "step": number, "horizon": HORIZON, "seeds_max": 1, "op": "WAIT", "has_governor": False,
        "has_final_state": False, "terminated": False, "truncated": False, "accuracy_before": 0.5,
        "accuracy_after": 0.5, "start_accuracy": 0.5, "rent_parameters": 0, "parameter_epochs": 0,
        **facts,
    }  # fmt: skip
    for name, seeds in (("seeds", before), ("next_seeds", after)):
        row[name] = [{"stage": stage, "contribution": value, "health": None} for stage, value in seeds]
    return row


def priced(reward: Any = None, *, gamma: float = 0.99, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the terms of the family, in order."""
    reward = reward or RewardConfig()
    (statement,) = (item for item in load_statements(reward.family) if item.name == "family_terms")
    parameters = {
        **reward.model_dump(exclude={"family"}),
        **CONSTANTS,
        **DEFAULT_FLAGS.model_dump(),
        "gamma": gamma,
        "shortest_horizon": HORIZON,
    }
    connection = _connection()
    connection.register("told", pa.Table.from_pylist(list(rows), schema=_SCHEMA))
    connection.execute("CREATE OR REPLACE TABLE usable_steps AS FROM told")
    set_parameters(connection, parameters)
    return connection.sql(f"{substitute_parameters(statement.sql)} ORDER BY run_id, step").to_arrow_table().to_pylist()


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One for all: to open one takes longer than to ask it."""
    return duckdb.connect(config={"threads": 1})
