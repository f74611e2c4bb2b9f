"""Field reports of a growth framework that is not Simic; only the standard library is needed.

Usage: python graftnet.py [--networks 240] [--epochs 8] [--first-key 0] [--issued-at TIME] > reports.jsonl

The framework *graftnet* grafts a part behind a hidden layer at once, without isolation or blending, measures what it
brings, and keeps or removes it. Its networks are simulated: curves in place of trainings, so that the log takes a
second. Every other line is what a framework of your own writes; docs/reports.md says how to measure each field.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
from datetime import UTC, datetime, timedelta

BLUEPRINTS = ("split_unit", "stack_layer")
CURES = {"narrow": "split_unit", "shallow": "stack_layer"}
SIZES = {"split_unit": 272, "stack_layer": 528}
OPS = ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "ADVANCE", "FOSSILIZE", "PRUNE")
VALIDATION_SAMPLES = 1000
SEEDS_MAX = 2


def hex_id(*parts: object) -> str:
    """Return 32 hex characters that are the same for the same parts."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]


def rounded(value: float) -> float:
    """Return a measurement with six decimals, which is as precise as reports are compared."""
    return round(value, 6) + 0.0  # no negative zero


class Network:
    """A simulated network with two hidden layers, a slot behind each, and one cause of a low accuracy."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.draw = random.Random(key)  # noqa: S311 - a simulation
        self.family = self.draw.choice(sorted(CURES))
        self.ceiling = self.draw.uniform(0.6, 0.75)
        self.place = self.draw.randrange(2)
        self.epoch = 0
        self.slots: list[dict] = [self.empty(), self.empty()]
        self.history: dict[str, list[float]] = {"validation_accuracy": [], "validation_loss": [], "train_loss": []}
        self.measure()

    def empty(self) -> dict:
        """Return a slot without a seed."""
        return {"stage": "DORMANT", "stage_epochs": 0}

    def gain(self, slot: int) -> float:
        """Return how much accuracy the seed of a slot brings in the end."""
        name = self.slots[slot].get("blueprint")
        if name is None:
            return 0.0
        return 0.12 if name == CURES[self.family] and slot == self.place else -0.01

    def accuracy(self, without: int | None = None) -> float:
        """Return the accuracy at the present epoch, of the network without the seed of one slot."""
        gains = sum(self.gain(slot) for slot in range(2) if slot != without)
        return (self.ceiling + gains) * (1.0 - 0.8 * math.exp(-(self.epoch + 1) / 3.0))

    def measure(self) -> None:
        """Measure the network after an epoch; before the first there is no training loss."""
        noise = self.draw.gauss(0.0, 0.004)
        accuracy = self.accuracy() + noise
        for slot, seed in enumerate(self.slots):
            if seed["stage"] == "DORMANT":
                continue
            newest = accuracy - (self.accuracy(without=slot) + noise + self.draw.gauss(0.0, 0.004))
            before, weight = seed.pop("_sum", 0.0), seed.pop("_weight", 0.0)
            seed["_sum"], seed["_weight"] = 0.5 * before + 0.5 * newest, 0.5 * weight + 0.5
            seed |= {
                "contribution": rounded(seed["_sum"] / seed["_weight"]),
                "contribution_error": rounded(math.sqrt(0.05 / VALIDATION_SAMPLES)),
                "contribution_epochs": 0,
                "gradient_norm": rounded(0.3 * math.exp(-self.epoch / 5.0)),
                "gradient_health": 1.0,
                "risk": 0.2,
            }
        self.history["validation_accuracy"].append(rounded(accuracy))
        self.history["validation_loss"].append(rounded(-math.log(accuracy)))
        if self.epoch:
            self.history["train_loss"].append(rounded(-math.log(accuracy + 0.03)))

    def act(self, action: dict) -> None:
        """Place, keep or remove a seed."""
        slot = action.get("slot")
        if action["op"] == "GERMINATE":
            self.slots[slot] = {
                "stage": "HOLDING", "blueprint": action["blueprint"], "alpha": 1.0, "alpha_target": 1.0,
                "stage_epochs": 0, "age_epochs": 0, "tempo": action["tempo"], "parameters": SIZES[action["blueprint"]],
            }  # fmt: skip
        elif action["op"] == "FOSSILIZE":
            self.slots[slot] |= {"stage": "FOSSILIZED", "stage_epochs": 0}
        elif action["op"] == "PRUNE":
            self.slots[slot] = self.empty()

    def train(self) -> None:
        """Train one epoch and measure."""
        self.epoch += 1
        for seed in self.slots:
            seed["stage_epochs"] += 1
            if "age_epochs" in seed:
                seed["age_epochs"] += 1
        self.measure()

    def paying(self) -> list[dict]:
        """Return the seeds that count against the budget."""
        return [seed for seed in self.slots if seed["stage"] != "DORMANT"]

    def state(self, horizon: int) -> dict:
        """Return the `state` of a report."""
        history = {f"{name}_history": values[-5:] for name, values in self.history.items()}
        losses = history["train_loss_history"]
        return {
            "epoch": self.epoch,
            "horizon": horizon,
            "seeds_alive": len(self.paying()),
            "seeds_max": SEEDS_MAX,
            "seed_parameters": sum(seed["parameters"] for seed in self.paying()),
            "train_loss": losses[-1] if losses else None,
            "train_accuracy": rounded(math.exp(-losses[-1])) if losses else None,
            "validation_loss": history["validation_loss_history"][-1],
            "validation_accuracy": history["validation_accuracy_history"][-1],
            **history,
            "slots": [{name: seed[name] for name in seed if name[0] != "_"} for seed in self.slots],
            "graph": {
                "layers": [self.layer("STEM", 0), self.layer("BLOCK", 1), self.layer("HEAD", 2)],
                "connects": [[0, 1], [1, 2]],
                "monitors": [[0, 0], [1, 1]],
            },
            "hardware": {"device": "cpu", "threads": 1, "dtype": "float32"},
        }

    def layer(self, kind: str, index: int) -> dict:
        """Return one layer of the graph; the layer with the fault has a small spread and a large gradient."""
        is_faulty = index == self.place
        return {
            "kind": kind,
            "width": 10 if kind == "HEAD" else 8 if is_faulty and self.family == "narrow" else 16,
            "is_linear": kind == "HEAD",
            "activation_spread": 0.1 if is_faulty else 0.4,
            "weight_norm": rounded(3.0 + 0.1 * self.epoch),
            "gradient_norm": rounded((0.9 if is_faulty else 0.3) * math.exp(-self.epoch / 5.0)) if self.epoch else None,
        }


def choices(network: Network) -> dict:
    """Return the legal choices: a seed is kept or removed once it was measured."""
    dormant = [seed["stage"] == "DORMANT" for seed in network.slots]
    holding = [seed["stage"] == "HOLDING" and seed["stage_epochs"] >= 1 for seed in network.slots]
    has_room = len(network.paying()) < SEEDS_MAX
    by_op = {"GERMINATE": [has_room and free for free in dormant], "FOSSILIZE": holding, "PRUNE": holding}
    slot = [by_op.get(op, [False, False]) for op in OPS]
    return {
        "op": [op == "WAIT" or any(row) for op, row in zip(OPS, slot, strict=True)],
        "slot": slot,
        "blueprint": list(BLUEPRINTS),
    }


def decide(legal: dict, draw: random.Random) -> tuple[dict, dict]:
    """Return a random action and the logarithm of the probability of each of its factors."""
    ops = [op for op, is_legal in zip(OPS, legal["op"], strict=True) if is_legal]
    weights = [2.0 if op == "WAIT" else 1.0 for op in ops]
    op = draw.choices(ops, weights)[0]
    action, probabilities = {"op": op}, {"op": weights[ops.index(op)] / sum(weights)}
    if op != "WAIT":
        free = [slot for slot, is_legal in enumerate(legal["slot"][OPS.index(op)]) if is_legal]
        action["slot"], probabilities["slot"] = draw.choice(free), 1.0 / len(free)
    if op == "GERMINATE":
        action["blueprint"], probabilities["blueprint"] = draw.choice(BLUEPRINTS), 1.0 / len(BLUEPRINTS)
        action["tempo"], probabilities["tempo"] = 3, 1.0  # graftnet has no tempo: one choice, probability 1
    logs = {name: rounded(math.log(probability)) for name, probability in probabilities.items()}
    return action, {**logs, "joint": rounded(sum(logs.values()))}


def episode(key: int, horizon: int, issued_at: datetime) -> list[dict]:
    """Return the reports of one network, from its first decision to its end."""
    network, run_id = Network(key), hex_id("graftnet", key)
    draw = random.Random(key + 1)  # noqa: S311 - a simulation
    reports, germinated = [], [0, 0]
    for step in range(horizon):
        state, legal = network.state(horizon), choices(network)
        action, log_prob = decide(legal, draw)
        slot, before = action.get("slot"), network.slots
        if action["op"] == "GERMINATE":
            germinated[slot] += 1
        blueprint = None if slot is None else action.get("blueprint", before[slot].get("blueprint"))
        network.act(action)
        rent = sum(seed["parameters"] for seed in network.paying())
        network.train()
        is_last = step == horizon - 1
        kept = [seed for seed in network.slots if seed["stage"] == "FOSSILIZED"]
        if is_last:  # what is kept is judged: seeds that were not fossilised are switched off
            uncommitted = [slot for slot in range(2) if network.slots[slot]["stage"] == "HOLDING"]
            lost = sum(network.accuracy() - network.accuracy(slot) for slot in uncommitted)
            after = rounded(network.history["validation_accuracy"][-1] - lost)
        else:
            after = network.history["validation_accuracy"][-1]
        change = after - state["validation_accuracy"]
        reports.append(
            {
                "schema_version": 1,
                "report_id": hex_id(run_id, step),
                "run_id": run_id,
                "command_id": hex_id(run_id, step, "command"),
                "step": step,
                "controller": "graftnet-random",
                "policy_version": None,
                "host": {"set": "graftnet", "family": network.family, "key": key},
                "state": state,
                "available": legal,
                "action": action,
                "relevant": [name for name in log_prob if name != "joint"],
                "log_prob_behaviour": log_prob,
                "outcome": "SUCCESS" if change >= 0.005 else "REGRESSION" if change <= -0.005 else "NEUTRAL",
                "metrics": {
                    "validation_accuracy_before": state["validation_accuracy"],
                    "validation_accuracy_after": after,
                    "validation_loss_before": state["validation_loss"],
                    "validation_loss_after": rounded(-math.log(after))
                    if is_last
                    else network.history["validation_loss"][-1],
                    "rent_parameters": rent,
                    "committed_parameters": sum(seed["parameters"] for seed in kept),
                    "test_accuracy": after if is_last else None,
                },
                "terminated": is_last,
                "truncated": False,
                "seed_id": None if slot is None else f"{run_id}/{slot}/{germinated[slot]}",
                "blueprint_id": blueprint,
                "observation_window_epochs": 1,
                "issued_at": (issued_at + timedelta(seconds=step)).isoformat(),
                "final_state": {**network.state(horizon), "committed_validation_accuracy": after} if is_last else None,
            }
        )
    return reports


def main() -> None:
    """Write the reports of all networks to standard output, one per line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--first-key", type=int, default=0)
    parser.add_argument("--issued-at", type=datetime.fromisoformat, default=datetime.now(UTC))
    options = parser.parse_args()
    for key in range(options.first_key, options.first_key + options.networks):
        for report in episode(key, options.epochs, options.issued_at):
            sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
