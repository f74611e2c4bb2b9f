"""Commands that load torch: collect, train, validate, run trials, search plans."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from simic.app.container import Container
from simic.app.display.live_episode import draw_collection
from simic.app.display.timelines import check_plot
from simic.app.evidence.judging import (
    begin,
    check_growable,
    is_growable,
    judging_run,
    log_beside_trials,
    validate_by_reports,
)
from simic.app.evidence.judging_experience import reporter_of_comparison
from simic.app.monitoring.training_monitor import observer_of
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.app.names.trial_controllers import select_controllers
from simic.app.training_hosts import drawing_alone, training_keys
from simic.collection import collect as collection
from simic.collection.branching import BranchChoice
from simic.contracts.controllers import ControllerSpec, PlanBook
from simic.contracts.errors import ConfigError, HopelessError
from simic.contracts.names import CHAMPION, WAIT
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.judgements import JudgementEntry
from simic.contracts.results.receipts import CollectionReceipt, SnapshotManifest, TrainingReport
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import RunConfig, WorldConfig
from simic.contracts.splits import Split
from simic.controllers.plans import load_plans
from simic.hosts.batched.images import pictures_digest
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.hosts.world_identity import world_identity
from simic.learning import train as learning
from simic.learning.objectives import OBJECTIVES
from simic.learning.training_run import WarmStart
from simic.ledgers.collections import begin_collection
from simic.runtime.locks import exclusive
from simic.runtime.seeds import derive
from simic.trust.canonical import digest_of
from simic.validation import report as reports
from simic.validation import trials
from simic.validation.arithmetic import arithmetic
from simic.validation.baselines.plan_book import (
    PLAN_CONTROLLERS,
)
from simic.validation.criterion import REPORTS
from simic.validation.further import further_config, further_sets, further_specs
from simic.validation.further import try_further as _try_further
from simic.validation.judging_keys import KEY_STARTS
from simic.validation.report import comparison_specs

__all__ = [
    "collect",
    "collect_round",
    "collected_sets",
    "require_finished",
    "resolve_start",
    "train",
    "train_round",
    "trial_inputs",
    "try_controllers",
    "try_further",
    "validate",
]

_LOG = logging.getLogger(__name__)

DISTIL = "distil"
"""Value of ``train.start`` with which a run collects branches."""

COMPLETE = "complete"
"""Controller whose episodes are branched while there is no policy."""
NOTHING = "nothing"
"""Name for a start from random weights."""


def collect(
    container: Container, controller: str, host_keys: Sequence[int] | None = None, plot: Path | None = None
) -> CollectionReceipt:
    """Grow hosts under a named controller and report every step to the bus.

    Args:
        container: Parts of the home.
        controller: Name of a controller or policy.
        host_keys: Which hosts; by default as many training hosts as the profile says, different ones each time,
            chosen by the number of collections in this home.
        plot: File for a PNG that shows one host per family; it does not affect what is collected.

    Raises:
        TransientError: without ``host_keys``, while another collection draws its hosts in the same way.
    """
    if plot is not None:
        check_plot(plot)
    spec, world = container.policies.spec(controller, is_decisive=False), container.config.world
    if host_keys is not None:
        receipt = _collect(container, world, spec, host_keys)
    else:
        with drawing_alone(container, controller):
            earlier = container.receipts.count(CollectionReceipt)
            host_keys = training_keys(container, world, container.config.collect.episodes, controller, 0, earlier)
            receipt = _collect(container, world, spec, host_keys)
    if plot is not None:
        draw_collection(container, spec, controller, host_keys, plot)
    return receipt


def collected_sets(config: RunConfig, *, is_first: bool) -> tuple[str, ...]:
    """Return the sets whose hosts a run collects before its first training run, or in a round.

    They are its own and, with train.start = distil, those of collect.further.
    """
    further = config.further_collections
    return config.world.set, *(
        further_set.set
        for further_set in further
        if (further_set.branch_hosts if is_first else further_set.round_branch_hosts)
    )


def collect_round(
    container: Container,
    number: int,
    policy: TrainingReport | None,
    earlier_runs: int = 0,
    set_name: str | None = None,
) -> CollectionReceipt:
    """Collect the experience of one round of a run: round 0 has no policy yet, later rounds follow the newest one.

    Every round uses its own hosts. ``earlier_runs`` is the number of runs this home began before, because a run that
    begins the same way as an earlier one must draw other hosts. ``set_name`` is one of ``collected_sets``, by default
    the run's own.
    """
    config = container.config
    name = "none" if policy is None else policy.digest
    if config.train.start == DISTIL:
        drawn = _branched_hosts(config, set_name or config.world.set, is_first=policy is None)
        keys = training_keys(container, *drawn, COMPLETE if policy is None else name, number, earlier_runs)
        return _collect_branches(container, drawn.world, keys, policy)
    world, collected = config.world, config.collect
    if policy is None:
        keys = training_keys(container, world, collected.episodes, name, number, earlier_runs)
        return _collect(container, world, container.policies.spec(collected.controller, is_decisive=False), keys)
    spec = container.policies.learned(Path(policy.path), policy.digest, is_decisive=False)
    keys = training_keys(container, world, collected.round_episodes, name, number, earlier_runs)
    return _collect(container, world, spec, keys)


class _Drawn(NamedTuple):
    """How many hosts of which world a collection draws."""

    world: WorldConfig
    hosts: int


def _branched_hosts(config: RunConfig, set_name: str, *, is_first: bool) -> _Drawn:
    """Return the hosts of a set whose decisions are branched, before the first training run or in a round."""
    collected = config.collect
    named = {
        further_set.set: further_set.branch_hosts if is_first else further_set.round_branch_hosts
        for further_set in collected.further
    }
    if set_name == config.world.set:
        own = collected.branch_hosts if is_first else collected.round_branch_hosts
        return _Drawn(config.world, max(own, named.get(set_name, 0)))
    world = further_config(config, set_name).world.model_copy(update={"without": config.world.without})
    return _Drawn(world, named[set_name])


def _collect_branches(
    container: Container, world: WorldConfig, keys: Sequence[int], policy: TrainingReport | None
) -> CollectionReceipt:
    """Collect decisive episodes and the branches of some of their decisions; without a policy, one decision each.

    Decisions before the first epoch are branched in episodes of a policy only. Without one nothing grows after WAIT, so
    what waiting is worth does not show.
    """
    actions, seed = container.config.collect.branch_actions, container.seed
    if policy is None:
        spec = container.policies.spec(COMPLETE, is_decisive=True)
        return _collect(container, world, spec, keys, BranchChoice(1, actions, seed))
    spec = container.policies.learned(Path(policy.path), policy.digest, is_decisive=True)
    choice = BranchChoice(container.config.collect.branch_decisions, actions, seed, since=0)
    return _collect(container, world, spec, keys, choice)


def _collect(
    container: Container,
    world: WorldConfig,
    spec: ControllerSpec,
    host_keys: Sequence[int],
    choice: BranchChoice | None = None,
) -> CollectionReceipt:
    if spec.name in PLAN_CONTROLLERS and spec.rules is None and host_keys:
        pictures_digest(world.images)  # before the book, because a search would end with the same error
        load_plans(world.set, container.home.plans, world.images)
    policy = spec.policy_digest
    receipt = collection.collect(
        spec,
        identify(world.set, host_keys),
        world,
        container.bus_spec._replace(conversation=uuid4().hex),
        seed=container.seed,
        provenance=container.provenance,
        clock=container.clock,
        progress=container.progress,
        reward=container.config.curate.reward.basic,
        choice=choice,
        stop=container.config.collect.stop,
        on_start=None if policy is None else partial(begin_collection, container.home, policy),
    )
    return container.save_receipt(receipt)


def train(
    container: Container,
    snapshot: SnapshotManifest,
    start: WarmStart | None,
    *,
    resume: bool,
    training_seed: int | None = None,
) -> TrainingReport:
    """Train a policy on a snapshot, from random weights or from a policy; the container's seed is the default.

    With ``resume``, an equal training that was killed goes on from its newest checkpoint, with the same result.

    Only one training runs at a time, because equal trainings share a folder.
    """
    seed = container.seed if training_seed is None else training_seed
    OBJECTIVES.load(container.config.train.objective)  # an unknown one is refused although a distillation needs none
    with (
        exclusive(container.home.locks / "train", "training"),
        container.progress.task("train", 100) as advance,
        observer_of(container, snapshot, advance, seed) as observer,
    ):
        receipt = learning.train(
            snapshot,
            container.config.train,
            blueprints=vocabulary(container.config.ingest),
            start=start,
            out_root=container.home.policies,
            signer=container.signer,
            verify=container.policies.check,
            observer=observer,
            seed=seed,
            provenance=container.provenance._replace(seed=seed),
            clock=container.clock,
            on_progress=advance,
            resume=resume,
            save=container.save_receipt,
        )
    _warn_of_sets(receipt, container.config)
    return receipt


def require_finished(*trained: TrainingReport) -> None:
    """Raise HopelessError if all of these trainings ended early because they were hopeless."""
    stops = [report.stopped for report in trained if report.stopped is not None]
    if stops and len(stops) == len(trained):
        what = "the training" if len(stops) == 1 else f"all {len(stops)} trainings"
        first = stops[0]
        raise HopelessError(
            f"{what} ended early, {first.cause.value} in phase {first.phase} after {first.updates} of "
            f"{first.planned_updates} updates: {first.detail}. Its policy is not judged, and the champion stays. Train "
            "with another seed or other settings, or set train.safety.hopeless to null"
        )


def _warn_of_sets(receipt: TrainingReport, config: RunConfig) -> None:
    """Say which hosts a policy learned from that the settings do not name."""
    named = {config.world.set, *(further_set.set for further_set in config.collect.further)}
    others = ", ".join(sorted({*receipt.sets} - named))
    if config.gate.evidence == REPORTS:
        return
    if not is_growable(receipt):
        _LOG.warning(
            "policy %s learned from reports of %s, whose hosts Simic cannot grow: `simic validate` judges it from "
            "logged episodes with gate.evidence = reports, or from trials once the family is installed",
            receipt.digest[:12],
            others,
        )
    elif named.isdisjoint(receipt.sets):
        _LOG.warning(
            "policy %s learned from hosts of %s only; `simic validate` would try it on hosts of %s, which it never met",
            receipt.digest[:12],
            others,
            config.world.set,
        )
    elif others:
        _LOG.warning(
            "policy %s also learned from hosts of %s, which landed in this home before and the settings of this run do "
            "not name; a new home learns without them",
            receipt.digest[:12],
            others,
        )


def train_round(
    container: Container,
    snapshot: SnapshotManifest,
    previous: TrainingReport | None,
    champion: str | None,
    training_seed: int | None = None,
) -> TrainingReport:
    """Train in one round of a run: start from the policy of the round before, else from the champion, if any.

    A round that was killed while it trained goes on from its newest checkpoint. The default of ``training_seed`` is the
    seed of the run.
    """
    start = None
    if previous is not None:
        start = WarmStart(Path(previous.path), is_continuation=True)
    elif champion is not None:
        config = container.config
        has_rounds = config.collect.rounds > 0 and config.gate.evidence != REPORTS
        start = WarmStart(container.policies.fetch_champion(champion), is_continuation=False, has_rounds=has_rounds)
    return train(container, snapshot, start, resume=True, training_seed=training_seed)


def resolve_start(container: Container, name: str) -> WarmStart | None:
    """Return where a training run starts: ``nothing``, ``champion`` (nothing if there is none) or a policy by name.

    Raises:
        ConfigError: if no policy or several have that name.
        IntegrityError: if the policy is not as it was sealed.
    """
    if name == NOTHING or (name == CHAMPION and container.policies.champion_digest() is None):
        return None
    path = container.policies.at(name) or Path(name)
    if not path.is_dir():
        raise ConfigError(
            f"{name!r} is not a policy to start from: expected {CHAMPION}, {NOTHING}, a version such as tamiyo/2, the "
            f"first 8 or more characters of a policy's digest, or the directory of a sealed policy"
        )
    container.policies.check(path)
    return WarmStart(path, is_continuation=False)


def validate(
    container: Container, training: TrainingReport, champion: str | None, further: Sequence[TrialReport]
) -> ValidationReport:
    """Run closed-loop trials of a policy on held-out hosts against every baseline and the champion.

    With ``gate.evidence = reports`` no host is grown: logged episodes judge it. ``further`` holds its trials on the
    sets of ``further_sets``, by ``try_further``.

    Raises:
        ConfigError: if the policy learned from no set of the kind that the evidence needs, or as ``trial_inputs``.
        ContractError: as ``trial_inputs``.
        HopelessError: if its training ended early.
    """
    home, config = container.home, container.config
    require_finished(training)
    if config.gate.evidence == REPORTS:
        return validate_by_reports(container, training, champion)
    champion_path = _champion_path(container, champion)
    judgement = _begin_judgement(container, training, champion)
    planned = reports.episodes_planned(config, home.plans, has_champion=champion is not None)
    with container.progress.task("validate", planned) as advance:
        report = reports.validate(
            training,
            champion_path,
            config,
            judging_run(container, training, judgement, config.world, advance),
            champion_digest=champion,
            further=further,
            log=log_beside_trials(container, training),
        )
    return container.save_receipt(report)


def _begin_judgement(container: Container, policy: TrainingReport, champion: str | None) -> JudgementEntry:
    """Return the judgement of a policy by trials.

    Raises:
        ConfigError: if Simic can grow no set that the policy learned from, or as ``trial_inputs``.
        ContractError: as ``trial_inputs``.
    """
    check_growable(policy)
    return begin(container, container.config.world.set, policy, champion, trial_inputs(container))


def trial_inputs(container: Container) -> dict[str, Any]:
    """Return what decides the trials of a judgement on all its sets, besides settings, seed and code.

    Raises:
        ConfigError: for a plan book that is missing and required, or outdated.
        ContractError: for a plan book that is torn.
    """
    config, plans = container.config, container.home.plans
    further = {name: further_config(config, name) for name in further_sets(config)}
    return {
        **arithmetic(config.world.device),
        **_inputs_of_set(config.world, comparison_specs(config, plans)[1]),
        "further": {
            name: _inputs_of_set(set_config.world, further_specs(set_config, plans)[1])
            for name, set_config in further.items()
        },
    }


def _inputs_of_set(world: WorldConfig, book: PlanBook | None) -> dict[str, Any]:
    return {"world": world_identity(world), "plans": None if book is None else digest_of(book)}


def _champion_path(container: Container, champion: str | None) -> Path | None:
    """Return where the champion lies; to be called before a judgement begins, which spends error budget.

    Raises:
        ConfigError: if another policy is champion now, so that the judgement would compare with the wrong one.
    """
    return None if champion is None else container.policies.fetch_champion(champion)


def try_further(container: Container, policy: TrainingReport, champion: str | None, set_name: str) -> TrialReport:
    """Try the candidate of a run and the baselines on test hosts of a further set.

    ``champion`` is the digest of the policy against which the same judgement compares it, if any.

    Raises:
        ConfigError: as ``trial_inputs``.
        ContractError: as ``trial_inputs``.
        IntegrityError: if the policy is not as it was sealed.
    """
    require_finished(policy)
    home, config = container.home, further_config(container.config, set_name)
    _champion_path(container, champion)
    judgement = _begin_judgement(container, policy, champion)
    arms = len(further_specs(config, home.plans)[0]) + 1
    count = reports.held_out_count(config.world, config.trial, min_episodes=0)
    with container.progress.task(f"trials on {set_name}", arms * count) as advance:
        report = _try_further(policy, config, judging_run(container, policy, judgement, config.world, advance))
    return container.save_receipt(report)


def try_controllers(
    container: Container,
    controllers: Sequence[str] | None = None,
    host_keys: Sequence[int] | None = None,
    split: Split = Split.TEST,
    rent_factors: Sequence[float] = (),
    *,
    draw: int = 0,
    with_static: bool = False,
    may_land: bool = False,
) -> TrialReport:
    """Compare several controllers on the same hosts, paired by host.

    Args:
        container: Parts of the home.
        controllers: Names; by default those of ``TRIAL_CONTROLLERS`` that the set and the home allow.
        host_keys: Which hosts; by default hosts of ``split``, as many as the profile says.
        split: Split of the hosts if ``host_keys`` is None. Choices are to be made on validation hosts.
        draw: Which hosts of the split: the first ones with 0, others with each other number.
        rent_factors: Multiples of the rent per parameter at which the same episodes are judged too.
        with_static: Whether the final networks of all episodes are trained from the start too.
        may_land: Whether the episodes land if ``trial.land`` is set.

    Raises:
        ConfigError: if a named controller does not exist or needs a plan book that is missing or outdated, or a host
            that is to land is not of the test split.
    """
    world = container.config.world
    if host_keys is None:
        count = container.config.trial.hosts_per_family * len(host_set(world.set).families)
        start = derive(draw, "trials", world.set) % KEY_STARTS if draw else 0
        host_keys = draw_keys(world.set, split, count, start)
    chosen, hosts = select_controllers(container, controllers), identify(world.set, host_keys)
    reporter = reporter_of_comparison(container, chosen, hosts) if may_land else None
    total = len(host_keys) * len({*chosen.specs, WAIT})
    total += len(host_keys) * len(chosen.specs.keys() - {WAIT}) if with_static else 0
    with container.progress.task("trials", total) as advance:
        report = trials.run_trials(
            chosen.specs,
            hosts,
            trials.TrialSettings.of(container.config),
            provenance=container.provenance,
            clock=container.clock,
            on_done=lambda episodes: advance(len(episodes.returns)),
            book=chosen.book,
            rent_factors=rent_factors,
            on_static=advance if with_static else None,
            reporter=reporter,
        )
    return container.save_receipt(report)
