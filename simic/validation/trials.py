"""Closed-loop trials: every controller grows the same hosts through the same code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.contracts.controllers import SEARCHED, ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.names import BLIND, CANDIDATE, WAIT
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import ControllerTrial, Estimate, FamilyTrial, RentTrial, StaticTrial, TrialReport
from simic.contracts.rewards import DEFAULT_FLAGS, FlagConfig, RewardConfig
from simic.contracts.settings.run import RunConfig, TrialConfig, WorldConfig
from simic.contracts.state import HostIdentity
from simic.numerics.intervals import Interval, crossed_ratio, crossed_student, groups_of, paired_bootstrap
from simic.runtime.clock import Clock
from simic.runtime.process_pool import run_jobs, worker_count
from simic.runtime.seeds import derive
from simic.validation.baselines.plan_book import NO_BOOK, BookUse
from simic.validation.baselines.static_network import SAME, Rival, grow_rivals
from simic.validation.compute import compute_shares
from simic.validation.episodes import Effort, Episodes, Reporter, TrialJob, chunked, join, returns_at
from simic.validation.host_sizes import HostSizes, host_sizes
from simic.validation.searched import grow
from simic.validation.table import Table, controller_rank, render_families, render_table

__all__ = [
    "FEW",
    "Table",
    "TrialSettings",
    "crossed_estimate",
    "estimate_of",
    "grow_all",
    "paired_estimate",
    "render_families",
    "render_table",
    "run_trials",
    "trial_report",
    "trial_seed",
    "with_wait",
]


FEW = 30
"""Hosts of each family from which on a percentile bootstrap covers a mean nearly as often as it says."""


def paired_estimate(
    ours: ArrayLike, theirs: ArrayLike, config: TrialConfig, seed: int, families: Sequence[str] | None = None
) -> Estimate:
    """Return the mean of ``ours - theirs`` [n], paired by host, with its interval.

    From ``FEW`` hosts of each family on it is that of the percentile bootstrap: with ``families`` [n] every resample
    keeps the mix of families, as in the draw of the hosts. For fewer it is Student's within the families
    (``crossed_student``): a bootstrap interval of two normal differences contains their mean in half of the cases
    instead of 95 %.
    """
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    if min(map(len, groups_of(len(differences), families))) < FEW:
        return crossed_estimate(differences[np.newaxis], config, families)
    interval = paired_bootstrap(
        differences, config.confidence, config.bootstrap_samples, derive(seed, "bootstrap"), strata=families
    )
    return estimate_of(interval, config, len(differences))


def crossed_estimate(differences: ArrayLike, config: TrialConfig, families: Sequence[str] | None = None) -> Estimate:
    """Return the mean of ``differences`` [S, N] with Student's interval over S training seeds and N hosts.

    With ``families`` [N] the spread of hosts is that within them.
    """
    values = np.asarray(differences, dtype=np.float64)
    return estimate_of(crossed_student(values, config.confidence, strata=families), config, values.size)


def estimate_of(interval: Interval, config: TrialConfig, pairs: int) -> Estimate:
    """Return an interval as a contract."""
    # Resampled means of equal differences may differ from their mean in the last bit.
    lower, upper = min(interval.lower, interval.mean), max(interval.upper, interval.mean)
    return Estimate(mean=interval.mean, lower=lower, upper=upper, confidence=config.confidence, n=pairs)


OnDone = Callable[[Episodes], None]
OnStatic = Callable[[int], None]


class TrialSettings(NamedTuple):
    """The settings of a run that decide how hosts are grown in trials, and how their episodes are scored."""

    world: WorldConfig
    """Hosts, and the horizon of an episode in epochs."""
    trial: TrialConfig
    """Confidence and resampling of the intervals. Episodes land on the bus only where a reporter is given."""
    reward: RewardConfig
    """Prices of the returns, in points."""
    flags: FlagConfig = DEFAULT_FLAGS
    """Thresholds of the flags of a step."""

    @classmethod
    def of(cls, config: RunConfig) -> TrialSettings:
        """Return those of a run; its family of rewards is judged by the basic prices."""
        return cls(config.world, config.trial, config.curate.reward.basic, config.curate.flags)


def run_trials(
    specs: Mapping[str, ControllerSpec],
    hosts: Sequence[HostIdentity],
    settings: TrialSettings,
    *,
    provenance: Provenance,
    clock: Clock,
    on_done: OnDone | None = None,
    book: BookUse = NO_BOOK,
    rent_factors: Sequence[float] = (),
    on_static: OnStatic | None = None,
    reporter: Reporter | None = None,
) -> TrialReport:
    """Grow ``hosts`` under every controller of ``specs`` (row name -> spec) and under ``wait``, paired by host.

    ``on_done`` receives each finished chunk. ``book`` is what the report says about the plan book. The same episodes
    are also judged at ``rent_factors`` times the rent. With ``on_static`` the final networks of every controller but
    ``wait`` and the arms that search are also trained from the start; it receives the number of hosts of each finished
    chunk. ``reporter`` takes the episodes of every controller, if they are to land.
    """
    started_at = clock()
    world, config, reward, flags = settings
    keys = [host.key for host in hosts]
    if len(hosts) < 2 or len(set(keys)) != len(keys):
        raise ConfigError(
            f"trials need at least 2 hosts with distinct keys, found {len(hosts)} ({len(set(keys))} distinct); "
            "give at least two, such as --host-keys 0:2"
        )
    specs = with_wait(specs)
    results = grow_all(specs, hosts, world, reward, trial_seed(provenance), on_done, reporter, flags)
    rivals: dict[str, tuple[Rival, ...]] = {}
    if on_static is not None:
        for name in results.keys() - {WAIT, *SEARCHED}:
            rivals[name] = tuple(grow_rivals(hosts, results[name], world, reward, on_static))
    return trial_report(
        results,
        hosts,
        world,
        config,
        provenance=provenance,
        started_at=started_at,
        finished_at=clock(),
        policy_digest=specs[CANDIDATE].policy_digest if CANDIDATE in specs else None,
        book=book,
        rent_factors=rent_factors,
        rivals=rivals,
    )


def trial_report(
    results: Mapping[str, Episodes],
    hosts: Sequence[HostIdentity],
    world: WorldConfig,
    config: TrialConfig,
    *,
    provenance: Provenance,
    started_at: datetime,
    finished_at: datetime,
    policy_digest: str | None,
    book: BookUse = NO_BOOK,
    rent_factors: Sequence[float] = (),
    rivals: Mapping[str, Sequence[Rival]] | None = None,
) -> TrialReport:
    """Return the report of episodes that were grown on ``hosts``, by controller and with ``wait`` among them.

    ``policy_digest`` is that of the candidate; the other fields are as for ``run_trials``. ``rivals`` holds the static
    networks of controllers, in the order of ``SAME``.
    """
    families = [host.family for host in hosts]
    sizes, rule = host_sizes(hosts, world), _Rule(config, provenance.seed, world.horizon, tuple(rent_factors))
    shares = _shares_of_hindsight(results, families, rule)
    rows = []
    for name, episodes in results.items():
        static = zip(SAME, (rivals or {}).get(name, ()), strict=False)
        row = _trial(name, episodes, results[WAIT], families, sizes, rule)
        compared = [_static(same, episodes, rival, families, rule) for same, rival in static]
        rows.append(row.model_copy(update={"static": compared, "share_of_hindsight": shares.get(name)}))
    return TrialReport(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=finished_at,
        set=world.set,
        host_keys=[host.key for host in hosts],
        families=families,
        controllers=rows,
        plans_digest=book.plans_digest,
        without_book=list(book.without_book),
        policy_digest=policy_digest,
        book_differences=list(book.book_differences),
    )


def with_wait(specs: Mapping[str, ControllerSpec]) -> dict[str, ControllerSpec]:
    """Return the controllers of a trial with ``wait`` among them, in the order of its rows."""
    named = {WAIT: ControllerSpec(name=WAIT), **specs}
    return {name: named[name] for name in sorted(named, key=controller_rank)}


def trial_seed(provenance: Provenance) -> int:
    """Return the seed of the controllers' random numbers."""
    return derive(provenance.seed, "trials")


def grow_all(
    specs: Mapping[str, ControllerSpec],
    hosts: Sequence[HostIdentity],
    world: WorldConfig,
    reward: RewardConfig,
    seed: int,
    on_done: OnDone | None,
    reporter: Reporter | None = None,
    flags: FlagConfig = DEFAULT_FLAGS,
) -> dict[str, Episodes]:
    """Return the episodes of every controller; chunks of all take turns, and results do not depend on the order."""
    chunks = list(chunked(hosts, world.chunk))
    jobs = [
        TrialJob(name, spec, tuple(hosts[row] for row in rows.tolist()), world, reward, seed, reporter, flags)
        for rows in chunks
        for name, spec in specs.items()
    ]
    done = run_jobs(grow, jobs, worker_count(world.processes), on_done)
    order = np.argsort(np.concatenate(chunks))
    return {
        name: join([part for job, part in zip(jobs, done, strict=True) if job.controller == name]).take(order)
        for name in specs
    }


class _Rule(NamedTuple):
    """How episodes are summarised."""

    config: TrialConfig
    seed: int
    """Root seed of the intervals."""
    horizon: int
    """Epochs of an episode that nothing stops."""
    rent_factors: tuple[float, ...] = ()


def _trial(
    name: str,
    ours: Episodes,
    wait: Episodes,
    families: Sequence[str],
    sizes: HostSizes,
    rule: _Rule,
) -> ControllerTrial:
    is_searched, by_test = name in SEARCHED, None
    if name != WAIT:
        by_test = paired_estimate(ours.test_returns, wait.test_returns, rule.config, rule.seed, families)
    if is_searched:
        ours, wait = (replace(episodes, returns=episodes.test_returns) for episodes in (ours, wait))
    compared = None if name == WAIT else wait
    measured, hacking, ransomware = ours.flags.sum(axis=0).tolist()
    return ControllerTrial(
        **_summary(ours, compared, slice(None), sizes, rule, families),
        controller=name,
        illegal_actions=int(ours.illegal_actions.sum()),
        governor_events=int(ours.panicked.sum()),
        by_family=_by_family(ours, compared, families, sizes, rule),
        returns=ours.returns.tolist(),
        test_accuracies=ours.test_accuracy.tolist(),
        validation_accuracies=ours.validation_accuracy.tolist(),
        validation_losses=ours.validation_loss.tolist() if np.isfinite(ours.validation_loss).all() else [],
        measured_steps=measured,
        hacking_steps=hacking,
        ransomware_steps=ransomware,
        rents=ours.rents.tolist(),
        by_rent=[_at_rent(factor, ours, compared, families, rule) for factor in rule.rent_factors],
        scored_by="test" if is_searched else "validation",
        test_returns=ours.test_returns.tolist(),
        by_test=by_test,
        episodes_grown=float(Effort(*ours.effort.T).episodes.mean()),
    )


def _shares_of_hindsight(
    results: Mapping[str, Episodes], families: Sequence[str], rule: _Rule
) -> dict[str, Estimate | None]:
    """Return the share of hindsight's gain over ``blind`` by controller; over ``wait`` if ``blind`` takes no part."""
    if "hindsight" not in results:
        return {}
    base = results.get(BLIND, results[WAIT]).test_returns
    gains = {name: episodes.test_returns - base for name, episodes in results.items()}
    best, config, seed = gains["hindsight"], rule.config, derive(rule.seed, "hindsight")
    ratios = {
        name: crossed_ratio(gain[None], best, config.confidence, config.bootstrap_samples, seed, strata=families)
        for name, gain in gains.items()
    }
    return {name: None if ratio is None else estimate_of(ratio, config, len(best)) for name, ratio in ratios.items()}


def _static(
    same: Literal["epochs", "compute"], ours: Episodes, rival: Rival, families: Sequence[str], rule: _Rule
) -> StaticTrial:
    return StaticTrial(
        same=same,
        mean_epochs=float(rival.epochs.mean()),
        mean_return=float(rival.returns.mean()),
        test_accuracy=float(rival.test_accuracy.mean()),
        governor_events=int(rival.panicked.sum()),
        return_difference=paired_estimate(ours.returns, rival.returns, rule.config, rule.seed, families),
        test_difference=paired_estimate(ours.test_accuracy, rival.test_accuracy, rule.config, rule.seed, families),
    )


def _at_rent(factor: float, ours: Episodes, wait: Episodes | None, families: Sequence[str], rule: _Rule) -> RentTrial:
    returns = returns_at(ours.returns, ours.rents, factor)
    over = None
    if wait is not None:
        theirs = returns_at(wait.returns, wait.rents, factor)
        over = paired_estimate(returns, theirs, rule.config, rule.seed, families)
    return RentTrial(factor=factor, mean_return=float(returns.mean()), over_wait=over)


def _by_family(
    ours: Episodes, wait: Episodes | None, families: Sequence[str], sizes: HostSizes, rule: _Rule
) -> dict[str, FamilyTrial]:
    """Return the results within each family, in the order of the hosts; without ``wait`` no differences."""
    labels = np.asarray(families)
    rows = {family: np.flatnonzero(labels == family) for family in dict.fromkeys(families)}
    return {
        family: FamilyTrial(**_summary(ours, wait if mine.size >= 2 else None, mine, sizes, rule, None))
        for family, mine in rows.items()
    }


def _difference(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], rule: _Rule, families: Sequence[str] | None
) -> Estimate:
    """Return the mean of ``ours - theirs`` [n]; within one family, ``families`` None, with Student's interval.

    A family may have few hosts. The bootstrap interval of four normal differences contains their mean in 80 % of the
    cases instead of 95 %, Student's in 95 %.
    """
    if families is None:
        return crossed_estimate((ours - theirs)[np.newaxis], rule.config)
    return paired_estimate(ours, theirs, rule.config, rule.seed, families)


def _summary(
    ours: Episodes,
    wait: Episodes | None,
    rows: NDArray[np.int64] | slice,
    sizes: HostSizes,
    rule: _Rule,
    families: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the fields of a ``FamilyTrial`` over the given hosts; several families are the interval's strata."""
    returns, tested = ours.returns[rows], ours.test_accuracy[rows]
    over = tested_over = None
    if wait is not None:
        over = _difference(returns, wait.returns[rows], rule, families)
        tested_over = _difference(tested, wait.test_accuracy[rows], rule, families)
    return {
        "episodes": returns.size,
        "mean_return": float(returns.mean()),
        "over_wait": over,
        "test_accuracy": float(tested.mean()),
        "test_over_wait": tested_over,
        "validation_accuracy": float(ours.validation_accuracy[rows].mean()),
        "committed_parameters": float(ours.committed_parameters[rows].mean()),
        "host_parameters": float(sizes.parameters[rows].mean()),
        **{name: float(value[rows].mean()) for name, value in compute_shares(ours, sizes, rule.horizon).items()},
    }
