"""Trials of one candidate on a further set."""

from __future__ import annotations

from pathlib import Path

from simic.contracts.controllers import COMPARISON_CONTROLLERS, ControllerSpec, PlanBook
from simic.contracts.names import CANDIDATE, RANDOM
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import RunConfig
from simic.hosts.host_sets import host_set
from simic.validation.baselines.plan_book import book_use
from simic.validation.criterion import REPORTS
from simic.validation.report import JudgingRun, comparison_specs, held_out_hosts, learned_spec
from simic.validation.trials import TrialSettings, run_trials

__all__ = ["further_config", "further_sets", "further_specs", "try_further"]

_LEFT_OUT = RANDOM
"""Controller of a judgement that says nothing about a further set."""


def further_sets(config: RunConfig) -> tuple[str, ...]:
    """Return the sets of ``trial.also_sets``, each once, without the run's own set; none where reports judge."""
    if config.gate.evidence == REPORTS:
        return ()
    return tuple(name for name in dict.fromkeys(config.trial.also_sets) if name != config.world.set)


def further_config(config: RunConfig, set_name: str) -> RunConfig:
    """Return the settings of a run for trials on all families of a further set; images are for hosts that read them."""
    images = config.world.images if host_set(set_name).has_pictures else None
    world = config.world.model_copy(update={"set": set_name, "without": (), "images": images})
    trial = config.trial.model_copy(update={"hosts_per_family": config.trial.also_hosts_per_family})
    return config.model_copy(update={"world": world, "trial": trial})


def further_specs(config: RunConfig, plans: Path | None) -> tuple[dict[str, ControllerSpec], PlanBook | None]:
    """Return the baselines of a judgement on the set of ``config``, except random, and their plan book.

    Raises:
        ConfigError: as ``comparison_specs`` does.
    """
    specs, book = comparison_specs(config, plans)
    return {name: spec for name, spec in specs.items() if name != _LEFT_OUT}, book


def try_further(training: TrainingReport, config: RunConfig, run: JudgingRun) -> TrialReport:
    """Try the candidate of ``training`` and the baselines on test hosts of the set of ``config``, paired by host.

    Args:
        training: Names the candidate.
        config: Settings of ``further_config``.
        run: The judgement; it draws no figures of these trials.

    Raises:
        ConfigError: for a plan book that is missing and required, or out of date.
        IntegrityError: if the candidate is not as it was sealed.
    """
    specs, book = further_specs(config, run.plans)
    specs[CANDIDATE] = learned_spec(Path(training.path), training.digest, run.keyring)
    return run_trials(
        specs,
        held_out_hosts(run.ordinal, config.world, config.trial, min_episodes=0),
        TrialSettings.of(config),
        provenance=run.provenance,
        clock=run.clock,
        on_done=run.on_done,
        book=book_use(COMPARISON_CONTROLLERS, book, config.world, config.curate.reward.basic),
        reporter=run.reporter,
    )
