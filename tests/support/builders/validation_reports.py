"""Validation reports whose every number follows from their rows, without growing a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simic.contracts.results.gate import Probe, ValidationReport
from simic.contracts.results.receipts import Provenance, TrainingReport
from simic.contracts.results.trials import ControllerTrial, Estimate, TrialReport
from simic.contracts.settings.run import RunConfig
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys
from simic.validation.episodes import Episodes
from simic.validation.further import further_sets
from simic.validation.host_sizes import HostSizes
from simic.validation.judging_keys import first_key
from simic.validation.trials import _Rule, _trial, paired_estimate
from support.builders.judged_candidates import NOW

__all__ = ["HOSTS", "PROBES", "differences_of", "rows_of", "trials_of", "validation_of"]

HOSTS = 160
FAMILIES = ("cap", "select")
_COUNTED = (
    "artifact", "blueprint_names", "decision_latency", "determinism_mismatches", "finite_outputs", "mask_respect",
    "fault_recovery", "node_order", "policy_memory", "repeatability", "slot_counts", "staleness",
)  # fmt: skip
PROBES = {name: Probe(value=0.0, count=8) for name in _COUNTED}
"""Results of a sound policy."""
RIVALS = ("wait", "random", "heuristic", "blind", "symptom")
SPREAD = np.linspace(-5.0, 5.0, HOSTS)
"""What luck adds to the candidate's return on each host."""


def rows_of(means: Mapping[str, float], config: RunConfig, seed: int, count: int = HOSTS) -> list[ControllerTrial]:
    """A row per controller with returns around its mean; only the candidate's differ from host to host."""
    families, rule = families_of(count), _Rule(config.trial, seed, horizon=20)
    sizes = HostSizes(*(np.full(count, size) for size in (2000, 512, 450, 32)))
    episodes = {name: _episodes(mean, count, is_lucky=name == "candidate") for name, mean in means.items()}
    return [
        _trial(name, own, episodes["wait"], families, sizes, rule) for name, own in episodes.items()
    ]  # fmt: skip


def families_of(count: int) -> list[str]:
    return [FAMILIES[row % len(FAMILIES)] for row in range(count)]


def trials_of(
    means: Mapping[str, float],
    config: RunConfig,
    provenance: Provenance,
    count: int = HOSTS,
    *,
    set_name: str = "benchmark",
    policy: str | None = None,
    ordinal: int = 1,
) -> TrialReport:
    return TrialReport(
        **_receipt(provenance), set=set_name, policy_digest=policy,
        host_keys=draw_keys(set_name, Split.TEST, count, first_key(ordinal)),
        families=families_of(count), controllers=rows_of(means, config, provenance.seed, count), plans_digest="ab" * 32,
    )  # fmt: skip


def differences_of(trials: TrialReport, config: RunConfig, seed: int) -> dict[str, Estimate]:
    returns = {row.controller: row.returns for row in trials.controllers}
    return {
        name: paired_estimate(returns["candidate"], theirs, config.trial, seed, trials.families)
        for name, theirs in returns.items()
        if name != "candidate"
    }


def validation_of(
    training: TrainingReport,
    config: RunConfig,
    provenance: Provenance,
    *,
    margin: float,
    champion: str | None = None,
    ordinal: int = 1,
    count: int = HOSTS,
    figures: Mapping[str, str] | None = None,
) -> ValidationReport:
    """The candidate is better than every rival by ``margin`` points on the mean, on further sets too."""
    rivals: Sequence[str] = (*RIVALS, *(["champion"] if champion else []))
    trials = trials_of(
        {**dict.fromkeys(rivals, 5.0), "candidate": 5.0 + margin}, config, provenance, count, ordinal=ordinal
    )
    means = {"wait": 5.0, "candidate": 5.0 + margin}
    further = [
        trials_of(means, config, provenance, 20, set_name=name, policy=training.digest, ordinal=ordinal)
        for name in further_sets(config)
    ]
    return ValidationReport(
        **_receipt(provenance), further=further, ordinal=ordinal, policy_digest=training.digest,
        champion_digest=champion, snapshot_digest=training.snapshot_digest, trials=trials,
        differences=differences_of(trials, config, provenance.seed), training_metrics=training.metrics,
        figures=dict(figures or {}), probes=dict(PROBES),
    )  # fmt: skip


def _episodes(mean: float, count: int, *, is_lucky: bool) -> Episodes:
    luck = SPREAD[:count] - SPREAD[:count].mean() if is_lucky else 0.0
    return Episodes(
        returns=np.full(count, mean) + luck,
        validation_accuracy=np.full(count, 0.7),
        test_accuracy=np.full(count, 0.7),
        committed_parameters=np.full(count, 200),
        seed_epochs=np.full(count, 4000),
        rents=np.full(count, 0.3),
        panicked=np.zeros(count, dtype=bool),
        illegal_actions=np.zeros(count, dtype=np.int64),
        kept=np.full(count, None, dtype=object),
        validation_loss=np.full(count, 0.6),
        flags=np.tile([20, 1, 0], (count, 1)),
        test_returns=np.full(count, mean) + luck,
        effort=np.tile([1, 4000, 20, 0, 10, 1], (count, 1)),
    )


def _receipt(provenance: Provenance) -> dict[str, Any]:
    return {**provenance._asdict(), "started_at": NOW, "finished_at": NOW}
