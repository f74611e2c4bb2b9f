"""CartPole-v1 of Gymnasium through Simic's learner, network and objectives: a task that is not Simic's own.

Usage: python benchmarks/cartpole.py [--json] [--out FILE] [--check] [--runs ppo,vtrace-0,vtrace-10] [--seeds N]
    [--vtrace-lr RATE]
Needs ``pip install gymnasium==1.4.0``; without it, exit 4. A state is a graph of one context node whose first features
are the four numbers of the pole. Pushing left is WAIT and pushing right ADVANCE: without a slot, that is one choice of
two. Whole segments of episodes become a data set, and the objective of ``train.objective`` learns from each data set
once. ``vtrace-10`` acts with the weights of ten data sets ago. When the last 100 episodes of the training have a mean
of 475, the policy as it is then plays 100 episodes more: their mean is the result, and if it is lower, training goes
on. ``--check`` exits 1 if a run misses 475 within its limit of steps. ``--vtrace-lr`` gives V-trace another policy
learning rate: ten updates at a high one move the policy far from the weights that act, and the policy may collapse.
"""

from __future__ import annotations

import copy
import importlib
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from common.command_line import make_parser, show
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, OPS, Op
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.features import feature_names
from simic.controllers.graph import GraphBatch, build
from simic.controllers.heads import ActionDistribution, MaskTensors
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.learning.learner import Learner
from simic.learning.objective import LearningTask, PassState
from simic.learning.objectives import OBJECTIVES
from simic.replay.batch import Steps
from simic.replay.dataset import GraphDataset
from simic.replay.graph_table import GraphTable
from simic.replay.rows import Sequences
from simic.replay.sampler import PassSampler
from simic.runtime.progress import Advance, RichProgress
from simic.runtime.seeds import derive, generator

TARGET, EPISODES, GAMMA = 475.0, 100, 0.99
"""Mean return of an evaluation, its episodes, and the discount."""
BLUEPRINTS = ("none",)
LEFT, RIGHT = OPS.index(Op.WAIT), OPS.index(Op.ADVANCE)
UNITS = np.array([2.4, 2.0, 0.21, 2.0], dtype=np.float32)
"""Scales of position, velocity, angle and angular velocity."""
NETWORK = NetworkConfig(hidden=32, layers=1, exploration=0.0)
SHARED: dict[str, Any] = {
    "network": NETWORK, "lambda_": 0.95, "cloning_weight": 0.0, "min_commit_rate": 0.0, "warmup_updates": 0,
}  # fmt: skip


class Run(NamedTuple):
    """One training."""

    config: TrainConfig
    lag: int
    """Data sets between the weights that act and those that learn."""
    steps: int
    """Steps of each environment in a data set."""
    limit: int
    """Largest number of steps in all."""


PPO = TrainConfig(
    objective="ppo", batch_sequences=8, vtrace_passes=6, ppo_epochs=6, ppo_max_kl=0.03, policy_lr=2e-3, value_lr=4e-3,
    **SHARED,
)  # fmt: skip
VTRACE = TrainConfig(
    objective="vtrace",
    batch_sequences=64,
    vtrace_passes=1,
    policy_lr=5e-4,
    value_lr=4e-3,
    entropy_bonus=0.005,
    **SHARED,
)
RUNS = {
    "ppo": Run(PPO, 0, 64, 500_000),
    "vtrace-0": Run(VTRACE, 0, 20, 1_000_000),
    "vtrace-10": Run(VTRACE, 10, 20, 1_000_000),
}
ENVIRONMENTS = 32


def graphs(observations: NDArray[np.float32]) -> GraphBatch:
    """Return one-node graphs of observations [N, 4]."""
    count = len(observations)
    names = feature_names(BLUEPRINTS)
    context, none = torch.zeros(count, len(names["context"])), torch.zeros(count + 1, dtype=torch.int64)
    context[:, : len(UNITS)] = torch.from_numpy(observations / UNITS)
    edges = torch.zeros(2, 0, dtype=torch.int64)
    tables = (torch.zeros(0, len(names[node])) for node in ("slot", "layer"))
    return build(context, *tables, none, none, connects=edges, connects_ptr=none, monitors=edges, monitors_ptr=none)


def masks(count: int) -> MaskTensors:
    """Return masks under which two operations are legal."""
    op = torch.zeros(count, len(OPS), dtype=torch.bool)
    op[:, [LEFT, RIGHT]] = True
    return MaskTensors(op, torch.zeros(0, len(OPS), dtype=torch.bool), torch.zeros(count, 1, dtype=torch.bool))


class Segment:
    """The part of an episode that one data set holds."""

    def __init__(self) -> None:
        self.states: list[NDArray[np.float32]] = []
        self.decisions: list[tuple[NDArray[np.int16], NDArray[np.float32]]] = []
        self.terminated = False


class Actors:
    """Environments that go on from data set to data set."""

    def __init__(self, make: Callable[[], Any], seed: int) -> None:
        self._environments = [make() for _ in range(ENVIRONMENTS)]
        self._states = [env.reset(seed=derive(seed, "env", i) % 2**31)[0] for i, env in enumerate(self._environments)]
        self._random, self._lengths = generator(seed, "actions"), [0] * ENVIRONMENTS
        self.finished: list[int] = []
        """Returns of all finished episodes, in order."""

    @torch.no_grad()
    def play(self, network: PolicyNetwork, steps: int) -> list[tuple[Segment, NDArray[np.float32]]]:
        """Return the segments of ``steps`` steps of each environment, with their final states."""
        done: list[tuple[Segment, NDArray[np.float32]]] = []
        current = [Segment() for _ in self._environments]
        for _ in range(steps):
            states = np.stack(self._states).astype(np.float32)
            batch = graphs(states)
            uniforms = self._random.random((ENVIRONMENTS, len(HEADS)))
            policy = ActionDistribution(network.act(batch), batch.slot_ptr, masks(ENVIRONMENTS), exploration=0.0)
            found = policy.sample(uniforms)
            for index, env in enumerate(self._environments):
                action = int(found.actions[index, 0] == RIGHT)
                self._states[index], _, terminated, truncated, _ = env.step(action)
                segment = current[index]
                segment.states.append(states[index])
                segment.decisions.append((found.actions[index], found.log_probs[index]))
                self._lengths[index] += 1
                if terminated or truncated:
                    segment.terminated = terminated
                    done.append((segment, np.asarray(self._states[index], dtype=np.float32)))
                    self.finished.append(self._lengths[index])
                    self._states[index], self._lengths[index], current[index] = env.reset()[0], 0, Segment()
        rest = zip(current, self._states, strict=True)
        return done + [(segment, np.asarray(state, dtype=np.float32)) for segment, state in rest if segment.states]


def data_set(segments: list[tuple[Segment, NDArray[np.float32]]]) -> GraphDataset:
    """Return segments as a data set of the learner; every step is worth 1 point."""
    lengths = np.array([len(segment.states) for segment, _ in segments])
    count, ends = int(lengths.sum()), np.cumsum(lengths)
    decisions = [one for segment, _ in segments for one in segment.decisions]
    log_probs = torch.from_numpy(np.nan_to_num(np.stack([log_prob for _, log_prob in decisions])))
    discounts = np.full(count, GAMMA, dtype=np.float32)
    discounts[ends[[segment.terminated for segment, _ in segments]] - 1] = 0.0
    to_go = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    steps = Steps(
        torch.from_numpy(np.stack([action for action, _ in decisions]).astype(np.int64)),
        log_probs,
        log_probs.sum(1),
        torch.ones(count),
        torch.from_numpy(discounts),
        torch.from_numpy(((1.0 - GAMMA**to_go) / (1.0 - GAMMA)).astype(np.float32)),
    )
    names, total = tuple(str(index) for index in range(len(segments))), len(segments)
    sequences = Sequences(
        run_ids=names, policy_versions=(None,) * total, controllers=("actor",) * total, sets=("cartpole",) * total,
        families=("cartpole",) * total, host_keys=np.arange(total), starts=ends - lengths, lengths=lengths,
        branch_of=(None,) * total, branch_steps=np.full(total, -1),
    )  # fmt: skip
    states = np.stack([state for segment, _ in segments for state in segment.states] + [last for _, last in segments])
    return GraphDataset(sequences, steps, masks(count), GraphTable.of(graphs(states)), BLUEPRINTS)


def learn(
    learner: Learner, store: GraphDataset, config: TrainConfig, seed: int, share: float, scale: float
) -> list[float]:
    """Let the objective learn from one data set, at ``share`` of the peak learning rates.

    Returns the effective sample size of each update as a share of its steps, for an objective that has one.
    """
    sampler = PassSampler(seed=seed, batch_sequences=config.batch_sequences, max_passes=config.max_passes)
    state = PassState(sampler, [store.ordinary] * config.vtrace_passes, 0, share, scale)
    records = OBJECTIVES.load(config.objective).begin(LearningTask(store, learner, config, seed, False, state)).run()
    name = "effective_sample_share"
    return [record.metrics[name] for record in records if name in record.metrics]


def train(run: Run, make: Callable[[], Any], seed: int, advance: Advance) -> dict[str, float | int | bool | None]:
    """Train until the policy is good or the limit is reached, and return the figures."""
    start = time.process_time()
    network = PolicyNetwork(NetworkShape.of(NETWORK, BLUEPRINTS), seed=derive(seed, "network"))
    network.set_value_scale(20.0, 20.0)
    learner, actors = Learner(network, run.config), Actors(make, seed)
    older: deque[PolicyNetwork] = deque(maxlen=run.lag + 1)
    per_set, mean, number, shares = ENVIRONMENTS * run.steps, 0.0, 0, list[float]()
    while (number + 1) * per_set <= run.limit:
        older.append(copy.deepcopy(network))
        store = data_set(actors.play(older[0], run.steps))
        share = max(0.1, 1.0 - number * per_set / run.limit)
        shares += learn(learner, store, run.config, derive(seed, "set", number), share, SCALE)
        number += 1
        advance(per_set)
        if len(actors.finished) >= EPISODES and statistics.mean(actors.finished[-EPISODES:]) >= TARGET:
            mean = evaluate(network, make, derive(seed, "evaluation", number))
            if mean >= TARGET:
                break
    return {
        "lag": run.lag,
        "limit": run.limit,
        "steps": number * per_set,
        "updates": learner.updates,
        "policy_lr": run.config.policy_lr,
        "effective_share": round(statistics.median(shares), 3) if shares else None,
        "training_mean": statistics.mean(actors.finished[-EPISODES:]),
        "evaluation_mean": mean,
        "is_solved": mean >= TARGET,
        "cpu_s": round(time.process_time() - start, 1),
    }


SCALE = 10.0
"""Advantages are divided by this many points."""


def evaluate(network: PolicyNetwork, make: Callable[[], Any], seed: int) -> float:
    """Return the mean return of the first 100 episodes that begin, each played to its end."""
    environments = [make() for _ in range(EPISODES)]
    states = [env.reset(seed=derive(seed, "env", i) % 2**31)[0] for i, env in enumerate(environments)]
    random, lengths, open_ones = generator(seed, "actions"), [0] * EPISODES, list(range(EPISODES))
    with torch.no_grad():
        while open_ones:
            batch = graphs(np.stack([states[index] for index in open_ones]).astype(np.float32))
            uniforms = random.random((len(open_ones), len(HEADS)))
            policy = ActionDistribution(network.act(batch), batch.slot_ptr, masks(len(open_ones)), exploration=0.0)
            found = policy.sample(uniforms)
            still = []
            for index, right in zip(open_ones, found.actions[:, 0] == RIGHT, strict=True):
                states[index], _, terminated, truncated, _ = environments[index].step(int(right))
                lengths[index] += 1
                if not (terminated or truncated):
                    still.append(index)
            open_ones = still
    return statistics.mean(lengths)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit 1 if a run misses a mean of {TARGET:g}")
    parser.add_argument("--runs", default=",".join(RUNS), help=f"comma-separated, of {', '.join(RUNS)}; default: all")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each run, with seeds from 0 on; default 1")
    parser.add_argument(
        "--vtrace-lr", type=float, help=f"policy learning rate of V-trace; default {VTRACE.policy_lr:g}"
    )
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error(f"expected --seeds of 1 or more, found {arguments.seeds}")
    if unknown := set(arguments.runs.split(",")) - set(RUNS):
        parser.error(f"unknown runs {', '.join(sorted(unknown))}; known: {', '.join(RUNS)}")
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ImportError:
        print("Gymnasium is not installed: pip install gymnasium==1.4.0")
        return 4
    torch.set_num_threads(1)
    found = []
    for name in arguments.runs.split(","):
        run = RUNS[name]
        if arguments.vtrace_lr is not None and run.config.objective == "vtrace":
            run = run._replace(config=run.config.model_copy(update={"policy_lr": arguments.vtrace_lr}))
        for seed in range(arguments.seeds):
            with RichProgress().task(f"{name}, seed {seed}", run.limit) as advance:
                figures = train(run, lambda: gymnasium.make("CartPole-v1"), seed, advance)
            found.append({"run": name, "seed": seed, **figures})
    lines = [f"{'run':12}{'seed':>5}{'steps':>10}{'mean of 100':>13}{'CPU s':>8}"]
    for one in found:
        row = f"{one['run']:12}{one['seed']:5}{one['steps']:10,}{one['evaluation_mean']:13.1f}{one['cpu_s']:8.0f}"
        lines.append(row)
    result = {"name": "cartpole", "gymnasium": gymnasium.__version__, "target": TARGET, "runs": found}
    show(arguments, result, "\n".join(lines))
    return int(arguments.check and not all(one["is_solved"] for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
