"""Everything known about one candidate: trials on hosts nobody has seen, differences, probes and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from simic.contracts.config import RunConfig, TrialConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec
from simic.contracts.episode import EpisodeRecord
from simic.contracts.receipts import Estimate, Provenance, TrainingReport, TrialReport, ValidationReport
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.hosts.keys import draw_keys, host_set, identify
from simic.runtime.clock import Clock
from simic.trust.keys import Keyring
from simic.trust.seal import verify
from simic.validation.book import book_digest
from simic.validation.episodes import Episodes, TrialJob, build, score, steps_of
from simic.validation.estimates import paired_estimate
from simic.validation.figures import learning_curves, paired_differences
from simic.validation.gate import CANDIDATE, CHAMPION, DETERMINISM
from simic.validation.records import episode_record
from simic.validation.timeline import action_timeline
from simic.validation.trials import run_trials, trial_seed

__all__ = ["OPPONENTS", "episodes_planned", "judging_hosts", "validate"]

OPPONENTS = ("wait", "random", "heuristic", "blind", "oracle")
"""Whom every candidate meets; the oracle only marks how much there is to gain."""
KEY_STARTS = 2**30
"""Judging starts drawing its hosts below this, half of all keys, so that there is room above any start."""


def judging_hosts(digest: str, world: WorldConfig, config: TrialConfig) -> tuple[HostIdentity, ...]:
    """Test-split hosts for one candidate, balanced over families.

    Drawn from a place that the candidate's own digest decides: no policy is judged on the hosts that selected
    its predecessor, and a second judgement of the same policy sees the same hosts.
    """
    count = config.hosts_per_family * len(host_set(world.set).families)
    return identify(world.set, draw_keys(world.set, Split.TEST, count, int(digest[:16], 16) % KEY_STARTS))


def episodes_planned(world: WorldConfig, config: TrialConfig, *, has_champion: bool) -> int:
    """How many episodes the trials of a validation grow."""
    arms = len(OPPONENTS) + 1 + has_champion
    return arms * config.hosts_per_family * len(host_set(world.set).families)


def validate(
    training: TrainingReport,
    champion: Path | None,
    config: RunConfig,
    *,
    keyring: Path,
    figures: Path,
    provenance: Provenance,
    clock: Clock,
    on_done: Callable[[Episodes], None] | None = None,
) -> ValidationReport:
    """Try the candidate of ``training`` against every opponent and the sealed ``champion``, if there is one.

    ``keyring`` holds the public keys that policies may be sealed with; pictures go to ``figures``. ``on_done``
    sees every chunk of episodes.
    """
    started_at = clock()
    plans_digest = book_digest(config.world.set)
    specs = {name: ControllerSpec(name=name) for name in OPPONENTS}
    specs[CANDIDATE] = _learned(Path(training.path), keyring)
    verify(Path(training.path), Keyring(keyring), training.digest)
    champion_digest = None
    if champion is not None:
        specs[CHAMPION] = _learned(champion, keyring)
        champion_digest = verify(champion, Keyring(keyring)).digest
    trials = run_trials(
        specs,
        judging_hosts(training.digest, config.world, config.trial),
        config.world,
        config.trial,
        config.curate.reward.basic,
        provenance=provenance,
        clock=clock,
        on_done=on_done,
        plans_digest=plans_digest,
    )
    mismatches, watched = _watch(specs[CANDIDATE], trials, config, provenance)
    return ValidationReport(
        code_version=provenance.code_version,
        config_digest=provenance.config_digest,
        seed=provenance.seed,
        started_at=started_at,
        finished_at=clock(),
        policy_digest=training.digest,
        champion_digest=champion_digest,
        snapshot_digest=training.snapshot_digest,
        trials=trials,
        differences=_differences(trials, config.trial, provenance.seed),
        training_metrics=training.metrics,
        figures=_draw(trials, watched, training, figures),
        probes={DETERMINISM: float(mismatches)},
    )


def _learned(policy: Path, keyring: Path) -> ControllerSpec:
    return ControllerSpec(name="learned", policy_path=str(policy), keyring_path=str(keyring), is_decisive=True)


def _differences(trials: TrialReport, config: TrialConfig, seed: int) -> dict[str, Estimate]:
    """Candidate minus each other controller."""
    returns = {trial.controller: trial.returns for trial in trials.controllers}
    return {
        name: paired_estimate(returns[CANDIDATE], theirs, config, seed, trials.families)
        for name, theirs in returns.items()
        if name != CANDIDATE
    }


def _watch(
    candidate: ControllerSpec, trials: TrialReport, config: RunConfig, provenance: Provenance
) -> tuple[int, list[EpisodeRecord]]:
    """One host of each family again, with an eye on every step.

    They grow in other company than in the trials, and must end with the same return to the last bit: how many
    did not is the first result.
    """
    rows = [trials.families.index(family) for family in dict.fromkeys(trials.families)]
    hosts = identify(trials.set, [trials.host_keys[row] for row in rows])
    job = TrialJob(CANDIDATE, candidate, hosts, config.world, config.curate.reward.basic, trial_seed(provenance))
    steps = list(steps_of(build(candidate, hosts), job))
    results = score(steps, len(hosts), job.world, job.reward)
    before = next(trial.returns for trial in trials.controllers if trial.controller == CANDIDATE)
    records = [episode_record(steps, row, host, CANDIDATE, results) for row, host in enumerate(hosts)]
    return int(np.sum(results.returns != np.asarray(before)[rows])), records


def _draw(trials: TrialReport, watched: list[EpisodeRecord], training: TrainingReport, folder: Path) -> dict[str, str]:
    """PNG paths by name."""
    title = f"What policy {training.digest[:8]} did on one held-out host of each family"
    drawn = {
        "paired_differences": paired_differences(trials, folder / "paired_differences.png"),
        "action_timeline": action_timeline(watched, folder / "action_timeline.png", title),
    }
    curves = Path(training.curves_path)
    if curves.is_file():
        drawn["learning_curves"] = learning_curves(curves, folder / "learning_curves.png")
    return {name: str(path) for name, path in drawn.items()}
