"""Validation of one candidate: trials on held-out hosts, paired differences, probes and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simic.contracts.controllers import COMPARISON_CONTROLLERS, ControllerSpec, PlanBook
from simic.contracts.episode import EpisodeRecord
from simic.contracts.errors import ConfigError
from simic.contracts.names import ALONE, CANDIDATE, CHAMPION, KARN, LEARNED
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.karn import KarnReport, Trained
from simic.contracts.results.log_evidence import LogEvidence
from simic.contracts.results.receipts import Provenance, TrainingReport
from simic.contracts.results.trials import Estimate, TrialReport
from simic.contracts.settings.run import RunConfig, TrialConfig, WorldConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.hosts.rollout import Step
from simic.runtime.clock import Clock
from simic.trust.keys import Keyring
from simic.trust.seal import verify
from simic.validation.baselines.plan_book import (
    NO_BOOK,
    PLAN_CONTROLLERS,
    REQUIRES_PLAN_BOOK,
    BookUse,
    book_of,
    book_use,
    spec_without_book,
    without_book,
)
from simic.validation.episodes import Episodes, Reporter, TrialJob, episode_record, score, steps_of
from simic.validation.judging_keys import first_key, require_own_keys
from simic.validation.plots import learning_curves, paired_differences
from simic.validation.probing import Subject, live_states
from simic.validation.promotion_gate import run_probes
from simic.validation.table import families_in_order
from simic.validation.timeline import action_timeline
from simic.validation.trials import TrialSettings, paired_estimate, run_trials, trial_seed

__all__ = [
    "JudgingRun",
    "comparison_specs",
    "differences_of",
    "episodes_planned",
    "held_out_count",
    "held_out_hosts",
    "learned_spec",
    "validate",
    "validate_karn",
]


def held_out_count(world: WorldConfig, config: TrialConfig, min_episodes: int) -> int:
    """Return the number of held-out hosts, enough per family to meet the gate's ``min_episodes``."""
    families = len(host_set(world.set).families)
    return families * max(config.hosts_per_family, math.ceil(min_episodes / families))


def held_out_hosts(
    ordinal: int, world: WorldConfig, config: TrialConfig, min_episodes: int
) -> tuple[HostIdentity, ...]:
    """Return the test-split hosts of a judgement, balanced over families; set and ordinal alone choose them.

    No candidate chooses the hosts on which it is judged, and no policy is judged on the hosts that selected its
    predecessor.

    Raises:
        ConfigError: if so many are wanted that they reach those of the next judgement.
    """
    count, start = held_out_count(world, config, min_episodes), first_key(ordinal)
    return identify(world.set, require_own_keys(draw_keys(world.set, Split.TEST, count, start), start))


def comparison_specs(config: RunConfig, plans: Path | None) -> tuple[dict[str, ControllerSpec], PlanBook | None]:
    """Return the controllers that a candidate is compared with, besides the champion, and their plan book.

    Without a book, a set that needs none leaves out the controllers that need plans; without a tree in the book, it is
    ``symptom`` that is left out. Raises ConfigError for a book that is missing and required, or outdated; ``plans`` is
    the home's folder of books.
    """
    world = config.world
    book = book_of(world.set, plans, is_required=config.gate.require_plan_book, images=world.images)
    folder = None if plans is None else str(plans)
    specs = {
        name: ControllerSpec(name=name, plans_path=folder if name in PLAN_CONTROLLERS else None)
        for name in COMPARISON_CONTROLLERS
    }
    left_out = REQUIRES_PLAN_BOOK & set(without_book(COMPARISON_CONTROLLERS, book))
    specs = {name: spec for name, spec in specs.items() if name not in left_out}
    if book is None:
        specs = {name: spec_without_book(spec) for name, spec in specs.items()}
    return specs, book


def episodes_planned(config: RunConfig, plans: Path | None, *, has_champion: bool) -> int:
    """Return the number of episodes of a validation's trials."""
    arms = len(comparison_specs(config, plans)[0]) + 1 + has_champion
    return arms * held_out_count(config.world, config.trial, config.gate.min_episodes)


class JudgingRun(NamedTuple):
    """Number, places and callbacks of one judgement; candidate, opponents and settings are given apart from it."""

    ordinal: int
    """Number of the judgement, which chooses the hosts."""
    keyring: Path
    """Folder of the public keys that policies may be sealed with."""
    plans: Path | None
    """The home's folder of plan books."""
    figures: Path
    """Folder of the figures."""
    provenance: Provenance
    clock: Clock
    on_done: Callable[[Episodes], None] | None = None
    """Receives every chunk of episodes."""
    reporter: Reporter | None = None
    """Takes what lands of them."""


def validate(
    training: TrainingReport,
    champion: Path | None,
    config: RunConfig,
    run: JudgingRun,
    *,
    champion_digest: str | None,
    further: Sequence[TrialReport] = (),
    log: LogEvidence | None = None,
) -> ValidationReport:
    """Try the candidate of ``training`` against every opponent and the sealed ``champion``, if there is one.

    Raises IntegrityError unless both are, byte for byte, the policies of ``training.digest`` and ``champion_digest``.
    ``further`` holds the candidate's trials on further sets and ``log`` what logged episodes say about it, which become
    part of the report.
    """
    specs, book = comparison_specs(config, run.plans)
    specs[CANDIDATE] = learned_spec(Path(training.path), training.digest, run.keyring)
    if (champion is None) != (champion_digest is None):
        raise ConfigError(f"the champion needs a path and a digest, found {champion} and {champion_digest}")
    if champion is not None and champion_digest is not None:
        specs[CHAMPION] = learned_spec(champion, champion_digest, run.keyring)
    use = book_use(COMPARISON_CONTROLLERS, book, config.world, config.curate.reward.basic)
    report = _judge(training, specs, config, run, use)
    return report.model_copy(update={"champion_digest": champion_digest, "further": list(further), "log": log})


def validate_karn(
    karn: KarnReport,
    policy: ControllerSpec,
    champion: ControllerSpec | None,
    config: RunConfig,
    run: JudgingRun,
) -> ValidationReport:
    """Try the champion of policies as it consults a Karn, without Karn, and with the present champion of Karn.

    Args:
        karn: training of the Karn that is judged.
        policy: the champion of policies, acting alone.
        champion: the same consulting the champion of Karn, if there is one.
        config: settings of the trials.
        run: the judgement.

    Raises:
        IntegrityError: if policy or Karn are not, byte for byte, those of their digests.
        ContractError: if Karn does not know exactly the blueprints of the policy.
    """
    specs = {ALONE: policy, CANDIDATE: policy.consulting(karn.path, karn.digest)}
    if champion is not None:
        specs[CHAMPION] = champion
    own = {
        "model": KARN,
        "consulted_by": policy.policy_digest,
        "champion_digest": None if champion is None else champion.karn_digest,
    }
    return _judge(karn, specs, config, run, NO_BOOK).model_copy(update=own)


def _judge(
    training: Trained,
    specs: Mapping[str, ControllerSpec],
    config: RunConfig,
    run: JudgingRun,
    book: BookUse,
) -> ValidationReport:
    """Return the trials of ``specs`` on the hosts of a judgement, and the probes of the candidate among them."""
    started_at, provenance = run.clock(), run.provenance
    trials = run_trials(
        specs,
        held_out_hosts(run.ordinal, config.world, config.trial, config.gate.min_episodes),
        TrialSettings.of(config),
        provenance=provenance,
        clock=run.clock,
        on_done=run.on_done,
        book=book,
        reporter=run.reporter,
    )
    grown = _replay_episodes(specs[CANDIDATE], trials, config, provenance)
    states = live_states(grown.steps)
    subject = Subject(specs[CANDIDATE], grown.hosts, states, grown.mismatches, training, config.gate, started_at)
    return ValidationReport(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=run.clock(),
        ordinal=run.ordinal,
        policy_digest=training.digest,
        champion_digest=None,
        snapshot_digest=training.snapshot_digest,
        trials=trials,
        differences=differences_of(trials, config.trial, provenance.seed),
        training_metrics=training.metrics,
        figures=_draw(trials, grown.records, training, run.figures),
        probes=run_probes(subject),
    )


def learned_spec(policy: Path, digest: str, keyring: Path) -> ControllerSpec:
    """Return the spec of a sealed policy, verified now and again wherever it is loaded."""
    verify(policy, Keyring(keyring), digest)
    return ControllerSpec(
        name=LEARNED, policy_path=str(policy), policy_digest=digest, keyring_path=str(keyring), is_decisive=True
    )


def differences_of(trials: TrialReport, config: TrialConfig, seed: int) -> dict[str, Estimate]:
    """Return the paired differences of the candidate to each other controller."""
    returns = {trial.controller: trial.returns for trial in trials.controllers}
    return {
        name: paired_estimate(returns[CANDIDATE], theirs, config, seed, trials.families)
        for name, theirs in returns.items()
        if name != CANDIDATE
    }


class _Grown(NamedTuple):
    """One host of each family, grown again."""

    hosts: tuple[HostIdentity, ...]
    steps: list[Step]
    records: list[EpisodeRecord]
    mismatches: int
    """Number of hosts that did not end with the same return."""


def _replay_episodes(
    candidate: ControllerSpec, trials: TrialReport, config: RunConfig, provenance: Provenance
) -> _Grown:
    """Run one host of each family again, recording every step.

    These hosts run beside other hosts than in the trials and must end with the same return, bit for bit.
    """
    rows = [trials.families.index(family) for family in families_in_order(trials.set, trials.families)]
    hosts = identify(trials.set, [trials.host_keys[row] for row in rows])
    job = TrialJob(CANDIDATE, candidate, hosts, config.world, config.curate.reward.basic, trial_seed(provenance))
    steps = list(steps_of(make(candidate, hosts), job))
    results = score(steps, len(hosts), job.world, job.reward)
    before = next(trial.returns for trial in trials.controllers if trial.controller == CANDIDATE)
    records = [episode_record(steps, row, host, CANDIDATE, results) for row, host in enumerate(hosts)]
    return _Grown(hosts, steps, records, int(np.sum(results.returns != np.asarray(before)[rows])))


def _draw(trials: TrialReport, watched: list[EpisodeRecord], training: Trained, folder: Path) -> dict[str, str]:
    """Draw the figures; returns PNG paths by name."""
    is_karn = isinstance(training, KarnReport)
    who = f"the champion with Karn {training.digest[:8]}" if is_karn else f"policy {training.digest[:8]}"
    title = f"What {who} did on one held-out host of each family"
    drawn = {
        "paired_differences": paired_differences(trials, folder / "paired_differences.png"),
        "action_timeline": action_timeline(watched, folder / "action_timeline.png", title),
    }
    curves = None if isinstance(training, KarnReport) else Path(training.curves_path)
    if curves is not None and curves.is_file():
        drawn["learning_curves"] = learning_curves(curves, folder / "learning_curves.png")
    return {name: str(path) for name, path in drawn.items()}
