"""Field reports made up by hand: valid, chained like a real episode, the same for the same arguments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from simic.contracts.field_report import FieldReport

__all__ = [
    "BLUEPRINTS",
    "DEFAULT_SCRIPT",
    "EPOCH_ZERO",
    "episode",
    "episodes",
    "line",
    "plain",
    "smaller",
    "varied_episode",
    "write_jsonl",
]

EPOCH_ZERO = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
BLUEPRINTS = ("attention", "bottleneck", "gate", "mlp", "norm", "relu")
_COURSES = (None, {0: "GERMINATE", 3: "PRUNE", 6: "GERMINATE", 9: "ADVANCE", 11: "FOSSILIZE"}, {})
FAMILIES = ("cap", "select", "gain", "noisy", "fine")
OPS = ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "ADVANCE", "FOSSILIZE", "PRUNE")
HEADS = ("op", "slot", "blueprint", "alpha_target", "alpha_speed", "alpha_curve", "tempo")
FACTORS: dict[str, dict[str, Any]] = {
    "WAIT": {},
    "GERMINATE": {"slot": 0, "blueprint": "mlp", "tempo": 3},
    "SET_ALPHA_TARGET": {"slot": 0, "alpha_target": 0.7, "alpha_speed": 3, "alpha_curve": "COSINE"},
    "ADVANCE": {"slot": 0, "alpha_target": 1.0, "alpha_speed": 0, "alpha_curve": "LINEAR"},
    "FOSSILIZE": {"slot": 0},
    "PRUNE": {"slot": 0},
}
DEFAULT_SCRIPT = {2: "GERMINATE", 5: "ADVANCE", 8: "SET_ALPHA_TARGET", 12: "FOSSILIZE"}
"""Step to operation; every other step waits."""
_STAGE_AFTER = {"GERMINATE": "TRAINING", "ADVANCE": "HOLDING", "FOSSILIZE": "FOSSILIZED", "PRUNE": "PRUNED"}
SEED_PARAMETERS = 820


def episode(
    key: int = 0,
    *,
    set_name: str = "benchmark",
    controller: str = "explore",
    policy_version: str | None = None,
    seed: int = 0,
    horizon: int = 20,
    script: Mapping[int, str] | None = None,
    accuracies: Sequence[float] | None = None,
    governor_at: int | None = None,
    truncate_at: int | None = None,
    issued_at: datetime = EPOCH_ZERO,
    branch_of: str | None = None,
    branch_step: int | None = None,
) -> list[FieldReport]:
    """One whole episode; ``accuracies`` [steps + 1] are those before each step and after the last."""
    rng = np.random.default_rng([key, seed])
    last = horizon - 1
    if governor_at is not None or truncate_at is not None:
        last = governor_at if governor_at is not None else truncate_at or 0
    values = _accuracies(rng, last + 2) if accuracies is None else [float(x) for x in accuracies]
    branch = "" if branch_of is None else f"/{branch_of}/{branch_step}"
    run = _hex(f"{set_name}/{key}/{controller}/{policy_version}/{seed}{branch}")
    reports, seed_stage = [], "DORMANT"
    script = DEFAULT_SCRIPT if script is None else script
    for step in range(last + 1):
        op = script.get(step, "WAIT")
        state = _state(rng, step, horizon, seed_stage, values[: step + 1])
        if op == "GERMINATE":
            state["slots"][0] = {"stage": "DORMANT", "stage_epochs": 0}  # the rest after a prune is over
        rent = SEED_PARAMETERS if op == "GERMINATE" or seed_stage not in ("DORMANT", "PRUNED") else 0
        seed_stage = _STAGE_AFTER.get(op, seed_stage)
        is_last = step == last
        raw = {
            "schema_version": 1,
            "report_id": _hex(f"{run}:{step}"),
            "run_id": run,
            "command_id": _hex(f"{run}:{step}:command"),
            "step": step,
            "controller": controller,
            "policy_version": policy_version,
            "host": {"set": set_name, "family": FAMILIES[key % 5], "key": key},
            "state": state,
            **_decision(rng, op),
            "outcome": "ABORTED" if is_last and governor_at is not None else "NEUTRAL",
            "metrics": {
                "validation_accuracy_before": values[step],
                "validation_accuracy_after": values[step + 1],
                "validation_loss_before": 1.0 - values[step],
                "validation_loss_after": 1.0 - values[step + 1],
                "rent_parameters": rent,
                "committed_parameters": SEED_PARAMETERS if seed_stage == "FOSSILIZED" else 0,
                "test_accuracy": values[step + 1] if is_last else None,
            },
            "terminated": is_last and truncate_at is None,
            "truncated": is_last and truncate_at is not None,
            "governor": {"kind": "NON_FINITE", "message": "loss is NaN"}
            if is_last and governor_at is not None
            else None,
            "seed_id": f"{run}/0/1" if op != "WAIT" else None,
            "blueprint_id": "mlp" if op != "WAIT" else None,
            "observation_window_epochs": 1,
            "mitigation": ["rolled back"] if is_last and governor_at is not None else [],
            "branch_of": branch_of,
            "branch_step": branch_step,
            "issued_at": (issued_at + timedelta(seconds=step)).isoformat(),
            "final_state": None,
        }
        if is_last:
            final = _state(rng, step + 1, horizon, seed_stage, values[: step + 2])
            raw["final_state"] = {**final, "committed_validation_accuracy": values[step + 1]}
        reports.append(FieldReport.model_validate_json(json.dumps(raw)))
    return reports


def episodes(keys: Iterable[int], **arguments: Any) -> list[FieldReport]:
    """The reports of one episode per key, one after the other."""
    return [report for key in keys for report in episode(key, **arguments)]


def varied_episode(key: int, truncated_at: int) -> list[FieldReport]:
    """By key: another course in each of three, now and then a panic, now and then cut off at ``truncated_at``."""
    return episode(
        key,
        script=_COURSES[key % 3],
        governor_at=key % 7 + 2 if key % 5 == 4 else None,
        truncate_at=truncated_at if key % 5 == 3 else None,
    )


def plain(report: FieldReport) -> dict[str, Any]:
    """The report as a JSON object that a test may spoil."""
    return json.loads(report.model_dump_json())


def smaller(raw: dict[str, Any]) -> dict[str, Any]:
    """The same report of a host with two layers and one slot: some 2 kB in normal form."""
    for state in (raw["state"], raw["final_state"]):
        if state is not None:
            graph = state["graph"]
            state["slots"] = state["slots"][:1]
            graph["layers"] = [graph["layers"][0], graph["layers"][-1]]
            graph["connects"], graph["monitors"] = [[0, 1]], [[0, 0]]
    raw["available"]["slot"] = [row[:1] for row in raw["available"]["slot"]]
    return raw


def line(report: FieldReport | Mapping[str, Any]) -> bytes:
    """One JSON line without its line end; NaN is written as NaN."""
    if isinstance(report, FieldReport):
        return report.model_dump_json().encode()
    return json.dumps(report).encode()


def write_jsonl(path: Path, reports: Iterable[FieldReport | Mapping[str, Any] | bytes]) -> Path:
    """A plain file of JSON lines, as a person would drop it into the spool."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [report if isinstance(report, bytes) else line(report) for report in reports]
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    return path


def _accuracies(rng: np.random.Generator, count: int) -> list[float]:
    steps = np.abs(rng.normal(0.02, 0.01, count))
    return [float(np.float32(min(x, 0.99))) for x in 0.3 + np.cumsum(steps)]


def _decision(rng: np.random.Generator, op: str) -> dict[str, Any]:
    factors = FACTORS[op]
    relevant = [head for head in HEADS if head == "op" or head in factors]
    log_probs = {head: float(np.float32(np.log(rng.uniform(0.05, 1.0)))) for head in relevant}
    return {
        "available": {
            "op": [name in ("WAIT", op) for name in OPS],
            "slot": [[name == op and name != "WAIT" and slot == 0 for slot in range(3)] for name in OPS],
            "blueprint": list(BLUEPRINTS),
        },
        "action": {"op": op, **{head: factors.get(head) for head in HEADS[1:]}},
        "relevant": relevant,
        "log_prob_behaviour": {**log_probs, "joint": sum(log_probs.values())},
    }


def _state(
    rng: np.random.Generator, epoch: int, horizon: int, stage: str, accuracies: Sequence[float]
) -> dict[str, Any]:
    history = [float(x) for x in accuracies[-5:]]
    alive = stage not in ("DORMANT", "PRUNED")
    state = {
        "epoch": epoch,
        "horizon": horizon,
        "seeds_alive": int(alive),
        "seeds_max": 1,
        "seed_parameters": SEED_PARAMETERS if alive else 0,
        "host_parameters": 2000,
        "train_samples": None if epoch == 0 else 512,
        "train_loss": None if epoch == 0 else float(np.float32(rng.uniform(0.1, 2.0))),
        "train_accuracy": None if epoch == 0 else float(np.float32(rng.uniform(0.1, 1.0))),
        "validation_loss": 1.0 - history[-1],
        "validation_accuracy": history[-1],
        "train_loss_history": [float(np.float32(x)) for x in rng.uniform(0.1, 2.0, max(0, len(history) - 1))],
        "validation_loss_history": [1.0 - x for x in history],
        "validation_accuracy_history": history,
        "slots": [_slot(rng, stage), _slot(rng, "DORMANT"), _slot(rng, "DORMANT")],
        "graph": {
            "layers": [_layer(rng, kind, epoch) for kind in ("STEM", "BLOCK", "BLOCK", "HEAD")],
            "connects": [[0, 1], [1, 2], [2, 3]],
            "monitors": [[0, 0], [1, 1], [2, 2]],
        },
        "hardware": {"device": "cpu", "threads": 1, "dtype": "float32"},
    }
    state["train_loss_history"][-1:] = [state["train_loss"]] if epoch else []
    return state


def _slot(rng: np.random.Generator, stage: str) -> dict[str, Any]:
    if stage == "DORMANT":
        return {"stage": "DORMANT", "stage_epochs": 0}
    return {
        "stage": stage,
        "blueprint": "mlp",
        "alpha": 1.0 if stage in ("HOLDING", "FOSSILIZED") else 0.0,
        "alpha_target": 1.0,
        "stage_epochs": 2,
        "age_epochs": 4,
        "tempo": 3,
        "gradient_norm": float(np.float32(rng.uniform(0.1, 3.0))),
        "gradient_health": 1.0,
        "contribution": float(np.float32(rng.normal(0.02, 0.02))) if stage in ("HOLDING", "FOSSILIZED") else None,
        "contribution_error": 0.01 if stage in ("HOLDING", "FOSSILIZED") else None,
        "contribution_epochs": 0 if stage in ("HOLDING", "FOSSILIZED") else None,
        "parameters": SEED_PARAMETERS,
        "risk": float(np.float32(rng.uniform(0.0, 0.5))),
    }


def _layer(rng: np.random.Generator, kind: str, epoch: int) -> dict[str, Any]:
    return {
        "kind": kind,
        "width": 16,
        "hidden_width": 24 if kind == "BLOCK" else None,
        "is_linear": kind == "HEAD",
        "activation_spread": None if epoch == 0 else float(np.float32(rng.uniform(0.1, 2.0))),
        "effective_dimension": None if epoch == 0 else 5.5,
        "weight_norm": float(np.float32(rng.uniform(1.0, 4.0))),
        "gradient_norm": None if epoch == 0 else float(np.float32(rng.uniform(0.1, 2.0))),
    }


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
