"""The choice among policies that were trained with several seeds: trials on validation hosts, and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime

from simic.contracts.errors import ContractError
from simic.contracts.results.receipts import Provenance, TrainingReport
from simic.contracts.results.trials import SeedChoice, SeedTrial, StoppedSeed, TrialReport
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.runtime.seeds import derive
from simic.validation.judging_keys import KEY_STARTS

__all__ = ["choose", "row_of", "validation_hosts"]


def validation_hosts(snapshot_digest: str, world: WorldConfig, config: TrialConfig) -> tuple[HostIdentity, ...]:
    """Return validation hosts, ``trial.hosts_per_family`` of each family; another snapshot has others.

    No judgement uses hosts of this split, and no training learns from them.
    """
    count = config.hosts_per_family * len(host_set(world.set).families)
    start = derive(0, "training seeds", world.set, snapshot_digest) % KEY_STARTS
    return identify(world.set, draw_keys(world.set, Split.VALIDATION, count, start))


def row_of(training: TrainingReport) -> str:
    """Return the name of a training's policy in the trials; ``seed`` of its receipt is the training seed."""
    return f"seed {training.seed} ({training.digest[:8]})"


def choose(
    trained: Sequence[TrainingReport], report: TrialReport, trials: str, started_at: datetime, provenance: Provenance
) -> SeedChoice:
    """Return the training whose policy has the greatest mean difference to never growing; the first one in a tie.

    Trainings that ended early are counted and never chosen.

    Args:
        trained: trainings on one snapshot from one start, in the order of their seeds.
        report: trials of the policies of those that finished, under the names of ``row_of``.
        trials: name of the receipt of ``report``.
        started_at: time before the first trial.
        provenance: that of the run.

    Raises:
        ContractError: if the trainings differ in snapshot or start, none has finished, or the trials lack one that has.
    """
    finished = [training for training in trained if training.stopped is None]
    if not finished:
        raise ContractError("expected a training that finished, found none; there is nothing to choose")
    first = trained[0]
    if any(
        (training.snapshot_digest, training.start_digest) != (first.snapshot_digest, first.start_digest)
        for training in trained
    ):
        raise ContractError("expected trainings on one snapshot from one start, found several; choose among equals")
    seeds = [_seed_trial(training, report) for training in finished]
    gains = [seed.over_wait.mean for seed in seeds]
    best = seeds[gains.index(max(gains))]
    return SeedChoice(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=report.finished_at,
        policy_digest=best.policy_digest,
        training_seed=best.training_seed,
        set=report.set,
        hosts=len(report.host_keys),
        snapshot_digest=first.snapshot_digest,
        start_digest=first.start_digest,
        mean=statistics.fmean(gains),
        spread=statistics.stdev(gains) if len(gains) > 1 else None,
        least=min(gains),
        greatest=max(gains),
        seeds=seeds,
        stopped=[
            StoppedSeed(training_seed=training.seed, policy_digest=training.digest, cause=training.stopped.cause)
            for training in trained
            if training.stopped is not None
        ],
        trials=trials,
    )


def _seed_trial(training: TrainingReport, report: TrialReport) -> SeedTrial:
    name = row_of(training)
    row = next((trial for trial in report.controllers if trial.controller == name), None)
    if row is None or row.over_wait is None:
        names = ", ".join(trial.controller for trial in report.controllers)
        raise ContractError(f"the trials of training seeds lack {name}: found {names}")
    return SeedTrial(
        training_seed=training.seed,
        policy_digest=training.digest,
        controller=name,
        mean_return=row.mean_return,
        over_wait=row.over_wait,
    )
