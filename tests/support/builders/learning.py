"""A tiny world for the learner: hosts whose right choice can be read off one number, in field reports by hand.

Every episode has three steps. In the first the controller germinates ``gate`` or ``norm`` or waits; the return is
fixed by that choice and by the host's kind, which shows in the state. Nothing else matters. The hosts have trained an
epoch before the first step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np

from simic.contracts.actions import HEADS, OPS, Op
from simic.contracts.field_report import FieldReport
from support.builders.reports import EPOCH_ZERO

__all__ = [
    "CHOICES",
    "KINDS",
    "RETURNS",
    "bandit_branches",
    "bandit_episodes",
    "may_fossilise",
    "untrained_at_first",
    "without_training_losses",
]

CHOICES = ("wait", "gate", "norm")
KINDS = ("linear", "curved", "healthy")
RETURNS = {
    ("linear", "wait"): 0.0,
    ("linear", "gate"): 0.10,
    ("linear", "norm"): -0.05,
    ("curved", "wait"): 0.0,
    ("curved", "gate"): -0.05,
    ("curved", "norm"): 0.10,
    ("healthy", "wait"): 0.0,
    ("healthy", "gate"): -0.10,
    ("healthy", "norm"): -0.10,
}
"""Change of validation accuracy by (kind, choice); the right choices differ from kind to kind."""
STEPS = 3
HORIZON = STEPS + 1


def bandit_episodes(keys: Iterable[int], *, seed: int = 0, noise: float = 0.02) -> list[FieldReport]:
    """One episode per key; kind by ``key % 3``, choices uniform, returns with normal noise."""
    return [report for key in keys for report in _episode(key, seed, noise)]


def bandit_branches(keys: Iterable[int], *, seed: int = 0, noise: float = 0.02) -> list[FieldReport]:
    """Per key, the episode that waits and its two branches, which germinate ``gate`` and ``norm`` in the first step."""
    reports = []
    for key in keys:
        rng, kind = np.random.default_rng([key, seed, 1]), KINDS[key % 3]
        parent = _run_id(f"parent/{key}/{seed}")
        for choice in CHOICES:
            gain = RETURNS[kind, choice] + noise * rng.normal()
            run, of = (parent, None) if choice == "wait" else (_run_id(f"branch/{key}/{seed}/{choice}"), parent)
            reports += [_report(run, key, kind, choice, step, _accuracies(gain), of) for step in range(STEPS)]
    return reports


def untrained_at_first(reports: Iterable[FieldReport]) -> list[FieldReport]:
    """The same episodes of hosts that have not trained before the first step."""
    rows = [json.loads(report.model_dump_json()) for report in reports]
    for row in rows:
        if row["step"] == 0:
            row["state"] |= {"epoch": 0, "train_loss": None, "train_accuracy": None, "train_loss_history": []}
    return [FieldReport.model_validate_json(json.dumps(row)) for row in rows]


def may_fossilise(reports: Iterable[FieldReport]) -> list[FieldReport]:
    """The same episodes, in whose second step a seed might have been fossilised."""
    rows = [json.loads(report.model_dump_json()) for report in reports]
    for row in rows:
        if row["step"] == 1:
            row["available"] |= {
                "op": [op in (Op.WAIT, Op.FOSSILIZE) for op in OPS],
                "slot": [[op is Op.FOSSILIZE] for op in OPS],
            }
    return [FieldReport.model_validate_json(json.dumps(row)) for row in rows]


def without_training_losses(reports: Iterable[FieldReport]) -> list[FieldReport]:
    """The same episodes from a framework that does not measure how training goes."""
    rows = [json.loads(report.model_dump_json()) for report in reports]
    for row in rows:
        for state in (row["state"], row["final_state"]):
            if state is not None:
                state |= {"train_loss": None, "train_accuracy": None, "train_loss_history": []}
    return [FieldReport.model_validate_json(json.dumps(row)) for row in rows]


def _episode(key: int, seed: int, noise: float) -> list[FieldReport]:
    rng = np.random.default_rng([key, seed])
    kind, choice = KINDS[key % 3], CHOICES[rng.integers(3)]
    gain = RETURNS[kind, choice] + noise * rng.normal()
    run = _run_id(f"bandit/{key}/{seed}")
    return [_report(run, key, kind, choice, step, _accuracies(gain)) for step in range(STEPS)]


def _run_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _accuracies(gain: float) -> list[float]:
    return [0.5, 0.5, 0.5 + gain / 2, 0.5 + gain]


def _report(
    run: str, key: int, kind: str, choice: str, step: int, accuracies: list[float], branch_of: str | None = None
) -> FieldReport:
    is_last = step == STEPS - 1
    raw = {
        "report_id": hashlib.sha256(f"{run}:{step}".encode()).hexdigest()[:32],
        "run_id": run,
        "command_id": hashlib.sha256(f"{run}:{step}:command".encode()).hexdigest()[:32],
        "step": step,
        "controller": "explore",
        "host": {"set": "benchmark", "family": "cap", "key": key},
        "state": _state(kind, step, accuracies[: step + 1]),
        **(_first_decision(choice) if step == 0 else _no_decision()),
        "outcome": "NEUTRAL",
        "metrics": {
            "validation_accuracy_before": accuracies[step],
            "validation_accuracy_after": accuracies[step + 1],
            "validation_loss_before": 1.0,
            "validation_loss_after": 1.0,
            "rent_parameters": 0,
            "committed_parameters": 0,
            "test_accuracy": accuracies[step + 1] if is_last else None,
        },
        "terminated": is_last,
        "truncated": False,
        "issued_at": (EPOCH_ZERO + timedelta(seconds=step)).isoformat(),
        "final_state": _state(kind, step + 1, accuracies[: step + 2]) if is_last else None,
        "branch_of": branch_of,
        "branch_step": None if branch_of is None else 0,
    }
    return FieldReport.model_validate_json(json.dumps(raw))


def _first_decision(choice: str) -> dict[str, Any]:
    third, sixth = float(np.log(1 / 3)), float(np.log(1 / 2))
    relevant = (
        {"op": third}
        if choice == "wait"
        else {"op": float(np.log(2 / 3)), "slot": 0.0, "blueprint": sixth, "tempo": third}
    )
    factors = {"op": "WAIT"} if choice == "wait" else {"op": "GERMINATE", "slot": 0, "blueprint": choice, "tempo": 3}
    return {
        "available": {
            "op": [op in (Op.WAIT, Op.GERMINATE) for op in OPS],
            "slot": [[op is Op.GERMINATE] for op in OPS],
            "blueprint": ["gate", "norm"],
        },
        "action": factors,
        "relevant": list(relevant),
        "log_prob_behaviour": {**relevant, "joint": sum(relevant.values())},
    }


def _no_decision() -> dict[str, Any]:
    return {
        "available": {"op": [op is Op.WAIT for op in OPS], "slot": [[False] for _ in OPS], "blueprint": []},
        "action": {"op": "WAIT"},
        "relevant": [HEADS[0].value],
        "log_prob_behaviour": {"op": 0.0, "joint": 0.0},
    }


def _state(kind: str, step: int, accuracies: list[float]) -> dict[str, Any]:
    hidden = {"linear": 2, "curved": 8, "healthy": 16}[kind]
    layer = {"width": 24, "is_linear": kind == "linear", "activation_spread": 0.5, "weight_norm": 1.0}
    return {
        "epoch": step + 1,
        "horizon": HORIZON,
        "seeds_alive": 0,
        "seeds_max": 1,
        "seed_parameters": 0,
        "train_loss": 1.0,
        "train_accuracy": 0.5,
        "validation_loss": 1.0,
        "validation_accuracy": accuracies[-1],
        "train_loss_history": [1.0] * step,
        "validation_loss_history": [1.0] * (step + 1),
        "validation_accuracy_history": accuracies,
        "slots": [{"stage": "DORMANT", "stage_epochs": 0}],
        "graph": {
            "layers": [
                {"kind": "STEM", **layer},
                {"kind": "BLOCK", "hidden_width": hidden, **layer},
                {"kind": "HEAD", **layer},
            ],
            "connects": [[0, 1], [1, 2]],
            "monitors": [[0, 1]],
        },
        "hardware": {"device": "cpu", "threads": 1, "dtype": "float32"},
    }
