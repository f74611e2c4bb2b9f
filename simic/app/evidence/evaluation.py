"""Evaluation of a policy on the episodes of a snapshot; no host is grown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.app.artifacts import resolve_snapshot
from simic.app.container import Container
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.app.names.trial_controllers import spec_in_set
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.names import short
from simic.contracts.policy_names import SHORTEST
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.off_policy import LowerBound, OffPolicyReport
from simic.contracts.results.receipts import SnapshotManifest, TrainingReport
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.controllers.learned_controller import LearnedController
from simic.controllers.logged_states import TargetActions, actions_of_policy, actions_of_rules
from simic.learning.fitted_evaluation import fit_values
from simic.numerics.off_policy import LoggedEpisodes
from simic.replay.cut_off import CutOff, cut_off_episodes
from simic.replay.logged import EpisodeHead, Log, episode_heads, germinated_in, read_log
from simic.runtime.seeds import derive
from simic.snapshots.index import find_folder
from simic.snapshots.manifest import Verify, read_manifest
from simic.validation.baselines.plan_book import PLAN_CONTROLLERS
from simic.validation.held_out import TOO_FEW, cut_off_shares, in_groups, undrawn
from simic.validation.off_policy import CONFIDENCE, Group, is_sufficient, judge, lower_bounds, no_judgement

__all__ = ["EvaluationChoice", "actions_in_log", "evaluate", "hosts_of", "weigh"]

_SEARCHED = "its plan book was searched on training hosts; some of them may be among these"
_UNKNOWN = "it is not known here"
_BEYOND = "beyond --episodes"
"""Why an episode is left out although it could be used."""


class EvaluationChoice(NamedTuple):
    """A policy to evaluate, the logged episodes to evaluate it on, and the limits of the estimate."""

    policy: str
    """A policy by one of its names, or a controller."""
    snapshot: str | None = None
    """Directory, receipt or first characters of a digest; None for the newest."""
    log: str | None = None
    """Controller or first characters of the policy whose episodes are used; None for all."""
    is_exploring: bool = False
    """Evaluate the policy as it explores instead of as it acts in trials."""
    most_episodes: int = 10_000
    with_model: bool | None = None
    """Fit action values for the doubly robust estimators; None where the weights alone are sufficient evidence."""
    return_range: tuple[float, float] | None = None
    """Declared range of returns in points."""
    with_held_out: bool = False
    """Use the test split although the gate judges by it (``gate.evidence = reports``)."""


def evaluate(container: Container, choice: EvaluationChoice) -> OffPolicyReport:
    """Judge a policy from the episodes that others logged, and keep the receipt.

    Raises:
        ConfigError: if policy or snapshot are unknown, the controller draws its actions, the episodes have blueprints
            that are neither installed nor declared, or a return lies outside the declared range.
        IntegrityError: if policy or snapshot are not as they were sealed.
        ContractError: if rows cannot be evaluated on, such as one without a propensity, or the policy does not know a
            blueprint of the episodes.
    """
    started_at = container.clock()
    spec = spec_in_set(container, choice.policy)
    manifest = read_manifest(Path(resolve_snapshot(container, choice.snapshot).path), Verify.ALL)
    trained = _training_hosts(container, spec)
    keeps_test = container.config.gate.evidence == "reports" and not choice.with_held_out
    heads = episode_heads(manifest)
    drawn, left_out = _select(heads, trained, choice, keeps_test=keeps_test)
    used = in_groups(drawn) or drawn
    left_out |= {TOO_FEW: len(drawn) - len(used)} if len(used) < len(drawn) else {}
    _check_blueprints(container, spec, manifest, used)
    log = _read(container, manifest, used)
    judgement, bounds = no_judgement(len(used)), list[LowerBound]()
    if log is not None:
        last = drawn[-1].run_id if _BEYOND in left_out else None
        hosts, cut_off = log.hosts(), _share_cut_off(manifest, heads, used, last, trained, choice)
        behaviours = {head.run_id: head.behaviour for head in used}
        named = log.batch.sequences
        groups = [(of, behaviours[run]) for of, run in zip(named.sets, named.run_ids, strict=True)]
        episodes = _episodes(container, spec, log, choice, hosts, groups)
        judgement = judge(episodes, hosts, groups, derive(container.seed, "evaluate"), cut_off)
        bounds = _bounds(episodes, hosts, choice.return_range, cut_off)
    report = OffPolicyReport(
        **container.provenance._asdict(),
        started_at=started_at,
        finished_at=container.clock(),
        controller=container.policies.label(choice.policy, spec),
        policy_digest=spec.policy_digest,
        is_exploring=choice.is_exploring,
        snapshot_digest=manifest.digest,
        behaviours=dict(Counter(head.behaviour for head in used).most_common()),
        sets=sorted({head.set for head in used}),
        horizons=[] if log is None else log.horizons(),
        episodes=len(used),
        hosts=len({(head.set, head.host_key) for head in used}),
        left_out=left_out,
        training_hosts=trained.about,
        confidence=CONFIDENCE,
        lower_bounds=bounds,
        behaviour_return=judgement.behaviour_return,
        rows=judgement.rows,
        judged_by=judgement.judged_by,
        checks=judgement.checks,
        verdict=judgement.verdict,
    )
    return container.save_receipt(report)


class _TrainingHosts(NamedTuple):
    """The hosts that a policy learned from."""

    known: frozenset[tuple[str, int]] | None
    """Set and key of each; None if they are not known, so that no host of the training split is used."""
    about: str


def _training_hosts(container: Container, spec: ControllerSpec) -> _TrainingHosts:
    """Return the hosts of the training episodes of a policy, of those it started from, and of the Karn it consults.

    Raises:
        IntegrityError: if the receipt of a training is not as it was sealed.
    """
    if spec.policy_digest is None:
        is_searched = spec.name in PLAN_CONTROLLERS
        return _TrainingHosts(frozenset(), _SEARCHED if is_searched else "none: it does not learn")
    known, seen = set[tuple[str, int]](), set[str]()
    digest: str | None = spec.policy_digest
    while digest is not None and digest not in seen:
        seen.add(digest)
        try:
            training = container.receipts.find(TrainingReport, partial(_is_training_of, digest), _UNKNOWN)
            known |= _trained_on(container, training.snapshot_digest)
        except ConfigError as error:
            return _unknown_hosts(error)
        digest = training.start_digest
    if spec.karn_digest is not None:
        try:
            karn = container.receipts.find(KarnReport, partial(_is_training_of, spec.karn_digest), _UNKNOWN)
            known |= _trained_on(container, karn.snapshot_digest)
        except ConfigError as error:
            return _unknown_hosts(error)
    return _TrainingHosts(frozenset(known), f"{len(known)}, all left out")


def _trained_on(container: Container, snapshot_digest: str) -> set[tuple[str, int]]:
    heads = episode_heads(read_manifest(find_folder(container.home, snapshot_digest), Verify.ALL))
    return {(head.set, head.host_key) for head in heads if head.split == Split.TRAIN.value}


def _unknown_hosts(error: ConfigError) -> _TrainingHosts:
    return _TrainingHosts(None, f"unknown, so all hosts of the training split are left out: {error}")


def _is_training_of(digest: str, training: TrainingReport | KarnReport) -> bool:
    return training.digest == digest


def _select(
    heads: Sequence[EpisodeHead], trained: _TrainingHosts, choice: EvaluationChoice, *, keeps_test: bool
) -> tuple[list[EpisodeHead], dict[str, int]]:
    """Return the episodes to use and the number of others per reason.

    Of too many, those with the smallest run ids stay: run ids are digests, so this is as good as a draw.
    """
    if choice.log is not None and not any(_is_of(head, choice.log) for head in heads):
        known = ", ".join(sorted({short(head.behaviour) for head in heads})) or "none"
        raise ConfigError(f"--log: no episode of this snapshot is of {choice.log!r}; expected one of {known}")
    used, left_out = list[EpisodeHead](), Counter[str]()
    reasons = undrawn(heads)
    for head in heads:
        host = (head.set, head.host_key)
        is_trained = head.split == Split.TRAIN.value if trained.known is None else host in trained.known
        if (reason := reasons.get(head.run_id)) is not None:
            left_out[reason] += 1
        elif choice.log is not None and not _is_of(head, choice.log):
            left_out["of another controller or policy"] += 1
        elif keeps_test and head.split == Split.TEST.value:
            left_out["held out for the gate"] += 1
        elif is_trained:
            left_out["on hosts that it learned from"] += 1
        elif head.is_truncated:
            left_out["cut off before their end"] += 1
        elif len(used) == choice.most_episodes:
            left_out[_BEYOND] += 1
        else:
            used.append(head)
    return used, dict(left_out)


def _share_cut_off(
    manifest: SnapshotManifest,
    heads: Sequence[EpisodeHead],
    used: Sequence[EpisodeHead],
    last: str | None,
    trained: _TrainingHosts,
    choice: EvaluationChoice,
) -> float | None:
    """Return the largest share, over sets and groups, of episodes that were left out only because they were cut off.

    They are on hosts of the sets and splits of ``used`` that the policy did not learn from. If whole episodes are
    beyond the limit, ``last`` is the run id of the last one within it, and later ones do not count. None if nothing is
    used.
    """
    sets, splits = {head.set for head in used}, {Split(head.split) for head in used}
    truncated = (
        CutOff(head.run_id, "truncated", head.set, head.behaviour, head.host_key, head.controller)
        for head in heads
        if head.is_truncated and head.set in sets and Split(head.split) in splits
    )
    cut_off = [
        episode
        for episode in (*truncated, *cut_off_episodes(manifest, sets, splits))
        if (trained.known is None or (episode.set, episode.host_key) not in trained.known)
        and (choice.log is None or _is_of(episode, choice.log))
        and (last is None or episode.run_id <= last)
    ]
    by_set, by_group = cut_off_shares(used, cut_off)
    return max([*by_set.values(), *by_group.values()], default=None)


def _is_of(episode: EpisodeHead | CutOff, name: str) -> bool:
    """Return whether an episode is of the controller ``name``, or of the policy whose digest begins with it."""
    is_policy = episode.behaviour != episode.controller
    return name in (episode.controller, episode.behaviour) or (
        is_policy and len(name) >= SHORTEST and episode.behaviour.startswith(name)
    )


def _check_blueprints(
    container: Container, spec: ControllerSpec, manifest: SnapshotManifest, used: Sequence[EpisodeHead]
) -> None:
    """Check before the log is read that this home and the policy know every blueprint that was germinated in it.

    Raises:
        ConfigError: for one that is neither installed nor declared.
        ContractError: for one that the policy does not know.
    """
    germinated = germinated_in(manifest, [head.run_id for head in used])
    if unknown := sorted(germinated.difference(vocabulary(container.config.ingest))):
        raise ConfigError(
            f"blueprints: the episodes germinated {', '.join(unknown)}, which are unknown here; give the --profile "
            "that declares them in ingest.declared_blueprints, or install them"
        )
    policy = None if spec.policy_digest is None else make(spec, [])
    if isinstance(policy, LearnedController) and (unknown := sorted(germinated.difference(policy.blueprints))):
        raise ContractError(
            f"blueprints: the episodes germinated {', '.join(unknown)}, which the policy does not know; evaluate one "
            "that learned where they are declared, or choose other episodes with --log"
        )


def _read(container: Container, manifest: SnapshotManifest, used: list[EpisodeHead]) -> Log | None:
    if len(used) < 2:
        return None
    with container.progress.task("read", manifest.rows_out) as advance:
        return read_log(manifest, [head.run_id for head in used], vocabulary(container.config.ingest), advance)


def _episodes(
    container: Container,
    spec: ControllerSpec,
    log: Log,
    choice: EvaluationChoice,
    hosts: NDArray[np.int64],
    groups: Sequence[Group],
) -> LoggedEpisodes:
    """Return the weights of the log under the controller and, if wanted, values of a fitted model."""
    target = actions_in_log(container, spec, log, is_exploring=choice.is_exploring)
    episodes = weigh(log, target)
    if not (is_sufficient(episodes, hosts, groups) if choice.with_model is None else choice.with_model):
        return episodes
    seed = derive(container.seed, "evaluate", "values")
    with container.progress.task("fit values", 1) as advance:
        values = fit_values(log.dataset(vocabulary(container.config.ingest)), target, container.config.train, seed)
        advance(1)
    return episodes if values is None else weigh(log, target, log.time_major(values.q), log.time_major(values.v))


def weigh(
    log: Log,
    target: TargetActions,
    q_values: NDArray[np.float64] | None = None,
    state_values: NDArray[np.float64] | None = None,
) -> LoggedEpisodes:
    """Return the weights of a log under a controller, with the values [T, B] of a model if there is one."""
    return LoggedEpisodes.of(
        log_prob_target=log.time_major(target.log_probs),
        log_prob_behaviour=log.time_major(log.batch.steps.log_prob_behaviour.double().numpy()),
        rewards=log.time_major(log.points),
        valid=log.valid,
        q_values=q_values,
        state_values=state_values,
    )


def actions_in_log(
    container: Container, spec: ControllerSpec, log: Log, *, is_exploring: bool = False
) -> TargetActions:
    """Return what a controller would do in every state of a log, as in trials or as it explores.

    Raises:
        ConfigError: if the controller draws its actions and is no policy, or is to explore and does not.
    """
    batch, actions = log.batch, log.batch.steps.actions.long().numpy()
    sequences = batch.sequences
    controller = make(spec, hosts_of(log))
    if isinstance(controller, LearnedController):
        seed = derive(container.seed, "evaluate", "actions")
        return actions_of_policy(
            controller, batch.states, batch.masks, actions, is_decisive=not is_exploring, seed=seed
        )
    if is_exploring:
        raise ConfigError(f"--exploring: {controller.name} does not explore; leave the option out")
    return actions_of_rules(controller, batch.states, batch.masks, actions, sequences.starts, sequences.lengths)


def hosts_of(log: Log) -> tuple[HostIdentity, ...]:
    """Return the host of each episode of a log."""
    named = log.batch.sequences
    names = zip(named.sets, named.families, named.host_keys.tolist(), strict=True)
    return tuple(HostIdentity(set=of, family=family, key=key) for of, family, key in names)


def _bounds(
    episodes: LoggedEpisodes, hosts: NDArray[np.int64], declared: tuple[float, float] | None, cut_off: float | None
) -> list[LowerBound]:
    """Return the bounds; none without a declared range, of one host, or if nobody counted what was cut off."""
    if declared is None or cut_off is None or len(np.unique(hosts)) < 2:
        return []
    try:
        return lower_bounds(episodes, hosts, *declared, cut_off)
    except ValueError as error:
        raise ConfigError(f"--return-range: {error}; declare a range that holds for every possible return") from error
