"""The metrics of a training, each declared once: name, unit, meaning, the phases that deliver it, its exported name.

``docs/metrics.md`` is generated from here. Tests train with every objective and refuse a metric without a declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from simic.contracts.actions import HEADS

__all__ = ["METRICS", "PHASES", "Metric", "Origin", "declared", "exported_name"]


class Origin(Enum):
    """Where a metric comes from, which decides where it can be read."""

    UPDATE = "update"
    """Of every update of its phases, a function of data, settings and seed: in the curves, and so in everything that is
    made from them. Two equal trainings have equal ones."""
    CLOCK = "clock"
    """Measured around an update or a training, and different each time: in no curve, only in what telemetry writes."""
    RESULT = "result"
    """Of a finished training: among the metrics of its report, beside the means of the curves."""


class Metric(NamedTuple):
    """The declaration of one metric."""

    name: str
    unit: str
    meaning: str
    phases: tuple[str, ...] = ()
    """Phases whose every update has it; of results, phases after which there is one. Empty for ``Origin.CLOCK``."""
    design: str = ""
    """Name by which the design of the factory calls it; empty if it has none there."""
    only_with: str = ""
    """What must be set or present for it to exist; empty if its phases always deliver it."""
    origin: Origin = Origin.UPDATE
    is_headline: bool = False
    """Whether the progress bar shows it."""


GRADIENT = ("vtrace", "ppo", "awr", "imitation")
"""Phases of counted passes; imitation is that of train.objective = cloning."""
LOGGED = ("cloning", *GRADIENT)
"""Phases that compare the policy with the behaviour of a log."""
POLICY = (*LOGGED, "distillation")
VALUE = ("value_fit", *GRADIENT, "distillation", "q_fit")
SEQUENCES = ("cloning", "value_fit", *GRADIENT)
GUARDED = "`simic train` or a run, which watch a training"
PHASES = ("cloning", "value_fit", *GRADIENT, "distillation", "q_fit")
"""All phases that make updates."""


def _losses() -> list[Metric]:
    return [
        Metric(
            "policy_loss",
            "1",
            "Loss of the policy, its heads scaled to equal noise; of imitation, the negative log-likelihood.",
            GRADIENT,
            "simic.trainer.policy_loss",
            is_headline=True,
        ),
        Metric(
            "value_loss",
            "1",
            "Huber distance of the value to its target, in units of the value scale.",
            (*GRADIENT, "distillation"),
            "simic.trainer.value_loss",
        ),
        Metric("entropy", "nats", "Sum of the entropies of all heads.", GRADIENT),
        Metric(
            "cloning_loss",
            "nats",
            "Negative log-likelihood of the logged actions.",
            ("cloning", "vtrace", "ppo"),
            is_headline=True,
        ),
        Metric(
            "cloning_gap",
            "nats",
            "Cloning loss above the least possible, the behaviour's entropy.",
            ("cloning", "imitation"),
        ),
        Metric("value_fit_loss", "1", "As value_loss, with the behaviour's returns.", ("value_fit",), is_headline=True),
        Metric(
            "q_loss", "1", "Huber distance of Q to the return to go, in units of its cut.", ("q_fit",), is_headline=True
        ),
        Metric("q_error", "points", "Mean absolute distance of Q to the return to go.", ("q_fit",)),
    ]


def _policy() -> list[Metric]:
    by_head = [
        Metric(
            f"entropy_{head.value}",
            "nats",
            f"Entropy of the head {head.value} over the steps whose operation uses it; 0 if there is none.",
            POLICY,
        )
        for head in HEADS
    ]
    reference = [
        Metric(f"kl_{head.value}", "nats", f"Part of kl of the head {head.value}; 0 where it did not matter.", ("ppo",))
        for head in HEADS
    ]
    behaviour = [
        Metric(
            f"behaviour_kl_{head.value}",
            "nats",
            f"Part of behaviour_kl of the head {head.value}; 0 where it did not matter.",
            LOGGED,
        )
        for head in HEADS
    ]
    return [
        *by_head,
        Metric("kl", "nats", "KL(reference || policy) per step: the sum of its parts by head.", ("ppo",)),
        *reference,
        Metric(
            "behaviour_kl",
            "nats",
            "KL(behaviour || policy) per step, estimated from the logged actions: the sum of its parts by head.",
            LOGGED,
        ),
        *behaviour,
        Metric("commit_rate", "probability", "germinate_rate times fossilize_rate.", GRADIENT),
        Metric(
            "germinate_rate",
            "probability",
            "Of germinating at least once along a logged episode, if ever legal.",
            GRADIENT,
        ),
        Metric(
            "fossilize_rate",
            "probability",
            "Of fossilising at least once along a logged episode, if ever legal.",
            GRADIENT,
        ),
        Metric("germinate_legal", "share", "Episodes in which germinating was ever legal.", GRADIENT),
        Metric("fossilize_legal", "share", "Episodes in which fossilising was ever legal.", GRADIENT),
        Metric("advance_mean", "probability", "Of advancing, where it is legal.", GRADIENT),
        Metric("advance_legal", "steps", "Steps of an episode at which advancing was legal, in the mean.", GRADIENT),
    ]


def _off_policy() -> list[Metric]:
    return [
        Metric("mean_ratio", "1", "Mean of min(1, policy / behaviour).", GRADIENT),
        Metric("mean_log_ratio", "nats", "Mean of log(policy / behaviour), clamped.", GRADIENT),
        Metric("max_log_ratio", "nats", "Largest log(policy / behaviour) of a step, clamped.", GRADIENT),
        Metric("effective_sample_share", "share", "Effective sample size of the ratios, of the steps.", GRADIENT),
        Metric("mean_weight", "1", "Mean of policy / behaviour; 1 on-policy.", GRADIENT),
        Metric("mean_square_weight", "1", "Mean of the square of policy / behaviour; 1 on-policy.", GRADIENT),
        Metric("clamp_count", "steps", "Log-ratios beyond the clamp.", GRADIENT),
        Metric(
            "rho_bar_share", "share", "Steps whose ratio exceeds train.rho_bar; of PPO's reference.", ("vtrace", "ppo")
        ),
        Metric("c_bar_share", "share", "Steps whose ratio exceeds train.c_bar.", ("vtrace",)),
        Metric("pg_rho_bar_share", "share", "Steps whose ratio exceeds train.pg_rho_bar.", ("vtrace",)),
        Metric("clip_share", "share", "Heads of steps whose ratio PPO clips.", ("ppo",)),
        Metric("weight_mean", "1", "Mean weight of a step of AWR.", ("awr",)),
        Metric("weight_capped_share", "share", "Steps with the largest weight, train.awr_max_weight.", ("awr",)),
        Metric(
            "policy_lag",
            "versions",
            "Versions by which the policies that acted are behind the newest one, mean over their episodes.",
            SEQUENCES,
            only_with="episodes of policies",
        ),
    ]


def _values() -> list[Metric]:
    return [
        Metric("explained_variance", "share", "Variance of the value's targets that the values explain.", GRADIENT),
        Metric("value_fit_explained_variance", "share", "As explained_variance, of the behaviour.", ("value_fit",)),
        Metric("advantage_mean", "points", "Mean of the advantages, before scaling.", GRADIENT),
        Metric("advantage_sd", "points", "Standard deviation of the advantages, before scaling.", GRADIENT),
        Metric("advantage_skew", "1", "Third standardised moment of the advantages; 0 if they do not vary.", GRADIENT),
        Metric(
            "advantage_kurtosis",
            "1",
            "Fourth standardised moment of the advantages minus 3; 0 if they do not vary.",
            GRADIENT,
        ),
    ]


def _decisions() -> list[Metric]:
    return [
        Metric(
            "expected_regret",
            "points",
            "Loss against the best tried action, expected over the policy's shares of the tried ones.",
            ("distillation",),
            only_with="branches",
            is_headline=True,
        ),
        Metric(
            "greedy_regret",
            "points",
            "Loss against the best tried action of the most likely one.",
            ("distillation",),
            only_with="branches",
        ),
        Metric(
            "fitted_regret",
            "points",
            "As expected_regret, against estimates of Q-functions.",
            ("distillation",),
            only_with="train.objective = fitted_q",
            is_headline=True,
        ),
        Metric(
            "fitted_greedy_regret",
            "points",
            "As greedy_regret, against estimates of Q-functions.",
            ("distillation",),
            only_with="train.objective = fitted_q",
        ),
        Metric("decision_entropy", "nats", "Entropy over the tried actions of a decision.", ("distillation",)),
        Metric("log_tried", "nats", "Log-probability of any tried action.", ("distillation",)),
        Metric(
            "following_loss",
            "nats",
            "Negative log-likelihood of what followed in the best branches.",
            ("distillation",),
            only_with="steps after branches with a choice",
        ),
    ]


def _steps() -> list[Metric]:
    def of_group(group: str, phases: tuple[str, ...], design: str = "") -> list[Metric]:
        return [
            Metric(f"grad_norm_{group}", "1", f"Norm of the gradient of the {group}, before the clip.", phases, design),
            Metric(f"clipped_grad_norm_{group}", "1", f"Norm of the gradient of the {group}, after the clip.", phases),
            Metric(f"clipped_{group}", "share", f"1 if the gradient of the {group} was clipped, else 0.", phases),
        ]

    rates = [Metric(f"lr_{group}", "1", f"Learning rate of the {group}.", PHASES) for group in ("policy", "value")]
    return [
        *of_group("policy", (*POLICY, "q_fit"), "simic.trainer.grad_norm"),
        *of_group("value", VALUE),
        *rates,
        Metric("step_count", "steps", "Steps of the batch; of a distillation, decisions.", PHASES),
        Metric("micro_batch_rows", "rows", "Most rows that the update processed at once.", PHASES),
        Metric("out_of_memory_count", "1", "How often memory ran out, and half the rows were tried.", PHASES),
        Metric("loss_scale", "1", "Factor on the loss.", PHASES, only_with="train.precision = float16"),
        Metric(
            "overflow_count",
            "1",
            "1 if gradients overflowed and the update was left out, which then says 0 for their norms.",
            PHASES,
            only_with="train.precision = float16",
        ),
        Metric("forced_share", "share", "Steps at which waiting was the only legal operation.", SEQUENCES),
    ]


def _parts() -> list[Metric]:
    """Return the metrics of parts of the learner that are off by default, or that act on all phases alike."""

    def of(part: str, name: str, unit: str, meaning: str, design: str = "") -> Metric:
        return Metric(name, unit, meaning, PHASES, design, part)

    ewc, stages, mode = "elastic weight consolidation", "a curriculum", "conservative mode"
    probed = "train.safety.anomalies.kl_updates: every so many updates"
    return [
        of(
            ewc,
            "ewc_penalty",
            "1",
            "Penalty of elastic weight consolidation, in the loss.",
            "simic.trainer.ewc_penalty",
        ),
        of(stages, "curriculum_stage", "1", "Stage of the curriculum, from 0.", "simic.trainer.curriculum_stage"),
        of(stages, "curriculum_episode_count", "episodes", "Episodes that the stage of the curriculum counts."),
        of(stages, "curriculum_success_count", "episodes", "Episodes that succeed, of those."),
        of("train.entropy_bonus_last", "entropy_bonus", "1", "Weight of the entropy in the loss."),
        of(
            GUARDED,
            "conservative_mode",
            "share",
            "1 before a conservative update, else 0.",
            "simic.trainer.conservative_mode",
        ),
        of(
            mode,
            "conservative_healthy",
            "updates",
            "Updates without a trigger since conservative mode was last triggered.",
        ),
        of(GUARDED, "anomalies", "anomalies", "Bounds of the anomaly detector that were exceeded."),
        of(GUARDED, "recoveries", "divergences", "Divergences before the update."),
        of(
            probed,
            "step_kl",
            "nats",
            "KL(policy before || after the update) per decision on states of the log, over heads.",
        ),
    ]


def _clocks() -> list[Metric]:
    def clock(name: str, unit: str, meaning: str, design: str = "", only_with: str = "") -> Metric:
        return Metric(name, unit, meaning, (), design, only_with, Origin.CLOCK)

    return [
        clock(
            "training_time_ms",
            "ms",
            "Time of an update, from asking for it to its metrics, with the assembly of its batch.",
            "simic.trainer.training_time_ms",
        ),
        clock("training_time_p50_ms", "ms", "Median of training_time_ms over a training."),
        clock("training_time_p95_ms", "ms", "95th percentile of training_time_ms over a training."),
        clock("batch_time_ms", "ms", "Time to assemble a batch.", "simic.sampling.batch_time_ms", "a live buffer"),
        clock("vtrace_time_ms", "ms", "Time of V-trace.", "simic.trainer.vtrace_time_ms", "benchmarks/vtrace.py"),
        clock("steps_per_second", "steps/s", "Throughput: step_count over training_time_ms."),
        clock("updates", "updates", "Updates so far in this process."),
        clock("buffer_size", "steps", "Steps of the data set, or of the live buffer.", "simic.buffer.size"),
        clock("buffer_memory_mb", "MiB", "Columns in memory at once.", "simic.buffer.memory_mb"),
        clock("buffer_ttl_cleanups", "1", "Clean-ups by age.", "simic.buffer.ttl_cleanups", "a live buffer"),
        clock(
            "buffer_expired_removed", "sequences", "Removed by age.", "simic.buffer.expired_removed", "a live buffer"
        ),
        clock("conservative_entries", "1", "Entries into conservative mode.", only_with="conservative mode"),
        clock("stopped", "1", "1 if a training ended early because it was hopeless, else 0; in its last packet."),
        clock("sink_failures", "1", "Writes of a sink that failed."),
        clock("sink_dropped", "updates", "Updates that a sink could not take in time."),
        clock(
            "reports_processed",
            "reports",
            "Reports read by an ingestion.",
            "simic.processor.reports_processed",
            "ingestion",
        ),
        clock("reports_failed", "reports", "Reports that it refused.", "simic.processor.reports_failed", "ingestion"),
    ]


def _results() -> list[Metric]:
    def result(name: str, unit: str, meaning: str, phases: tuple[str, ...], only_with: str = "") -> Metric:
        return Metric(name, unit, meaning, phases, "", only_with, Origin.RESULT)

    branches = "branches"
    return [
        result("advantage_scale", "points", "Deviation of returns around the values before the first pass.", GRADIENT),
        result("updates_left_out", "updates", "Planned updates that were not made.", GRADIENT),
        result(
            "q_explained_variance", "share", "Variance of returns that Q explains on hosts it left out.", ("q_fit",)
        ),
        result(
            "held_out_regret", "points", "expected_regret on 8 or more held-out hosts.", ("distillation",), branches
        ),
        result("held_out_greedy_regret", "points", "greedy_regret on these hosts.", ("distillation",), branches),
        result("regret_before_vtrace", "points", "Regret on them, or if fewer on learned ones.", ("vtrace",), branches),
        result("regret_after_vtrace", "points", "The same after V-trace on top.", ("vtrace",), branches),
        result(
            "ewc_samples",
            "states",
            "States over which the Fisher information of the policy is the mean.",
            PHASES,
            "train.ewc",
        ),
    ]


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for group in (_losses, _values, _policy, _off_policy, _decisions, _steps, _parts, _clocks, _results)
    for metric in group()
}
"""All metrics by name, in the order of the page."""


def declared(name: str) -> Metric | None:
    """Return the declaration of a metric; None for one of an objective of another package."""
    return METRICS.get(name)


def exported_name(name: str) -> str:
    """Return the name of a metric outside a training: the design's, or ``simic.trainer.<name>``."""
    metric = declared(name)
    return metric.design if metric is not None and metric.design else f"simic.trainer.{name}"
