"""Judgements: their beginning, and the evidence of a log for sets that Simic cannot grow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simic.app.artifacts import resolve_snapshot
from simic.app.container import Container
from simic.app.evidence.evaluation import actions_in_log, hosts_of, weigh
from simic.app.evidence.judging_experience import reporter_of_judgement
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.app.names.host_set_names import is_set
from simic.contracts.actions import HEADS
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.names import CANDIDATE, CHAMPION, KARN, MODEL_NAME, WAIT, judged_name
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.judgements import JudgementEntry
from simic.contracts.results.karn import KarnReport, Trained
from simic.contracts.results.log_evidence import LogEvidence
from simic.contracts.results.receipts import CollectionReceipt, SnapshotManifest, TrainingReport
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.ledgers.judgements import JudgementSubject, begin_judgement
from simic.ledgers.policies import read_history
from simic.replay.cut_off import cut_off_episodes
from simic.replay.logged import Log, episode_heads, horizons_of, read_log
from simic.snapshots.index import find_folder
from simic.snapshots.manifest import Verify, other_prices, read_manifest
from simic.snapshots.parts import REJECTED_NAME
from simic.trust.canonical import digest_of
from simic.validation.gate_bounds import judgement_text
from simic.validation.held_out import HeldOut, held_out_episodes
from simic.validation.log_evidence import LogUse, log_evidence
from simic.validation.log_report import LoggedCase, validate_from_log
from simic.validation.off_policy import LEAST_HOSTS
from simic.validation.probing import States
from simic.validation.report import JudgingRun, learned_spec

__all__ = ["begin", "check_growable", "is_growable", "judging_run", "log_beside_trials", "validate_by_reports"]

_LOG = logging.getLogger(__name__)

MOST_EPISODES = 10_000
"""Largest number of logged episodes that judge alone."""
MOST_BESIDE = 1000
"""The same beside trials, where the estimate shall take seconds."""


_OTHER_HORIZON, _UNREADABLE = "of another horizon than the trials", "that cannot be evaluated on"


def begin(
    container: Container, set_name: str, policy: Trained, champion: str | None, inputs: Mapping[str, Any]
) -> JudgementEntry:
    """Return the judgement of a policy or Karn against a champion of its kind; a repeated one keeps its ordinal.

    ``inputs`` is what else decides the evidence, besides settings, seed and code. After the policy was replaced as
    champion it is another judgement, on other hosts: what led to a rollback may lie in no trial, and the decision that
    promoted the policy promotes nothing again.
    """
    model = KARN if isinstance(policy, KarnReport) else MODEL_NAME
    replaced = read_history(container.home, container.keyring, model).times_replaced(policy.digest)
    asked = digest_of({**inputs, **({"replaced": replaced} if replaced else {})})
    subject = JudgementSubject(set_name, policy.digest, champion, container.provenance, asked, model)
    budget, signer = container.config.gate.error_budget, lambda: container.signer
    begun = begin_judgement(container.home, subject, budget, container.keyring, signer, container.clock)
    _LOG.info("%s; %s on %s", judgement_text(begun, champion), judged_name(model, policy.digest), set_name)
    return begun


def judging_run(
    container: Container, policy: Trained, judgement: JudgementEntry, world: WorldConfig, advance: Callable[[int], None]
) -> JudgingRun:
    """Return number, places and callbacks of a judgement by trials on ``world``; ``advance`` takes finished hosts."""
    home = container.home
    return JudgingRun(
        ordinal=judgement.ordinal,
        keyring=home.keys,
        plans=home.plans,
        figures=home.run_folder(policy.digest) / "figures",
        provenance=container.provenance,
        clock=container.clock,
        on_done=lambda episodes: advance(len(episodes.returns)),
        reporter=reporter_of_judgement(container, judgement, world),
    )


def is_growable(training: Trained) -> bool:
    """Return whether Simic can grow hosts of a set that a policy or Karn learned from, or its card names no set."""
    return not training.sets or any(map(is_set, training.sets))


def check_growable(training: Trained) -> None:
    """Check that Simic can grow hosts of a set that a policy or Karn learned from.

    Raises:
        ConfigError: if it knows them all by their reports only.
    """
    if not is_growable(training):
        raise ConfigError(
            f"policy {training.digest[:12]} learned from reports of {', '.join(training.sets)}, and Simic has no code "
            "of these hosts, so no trial is possible. Set gate.evidence = reports to judge it from logged episodes of "
            "held-out hosts (docs/trust.md says what that does not show), or install the family"
        )


def _last_collection(container: Container, sets: Sequence[str]) -> CollectionReceipt | None:
    """Return the receipt of the last collection on one of the sets in this home."""
    try:
        return container.receipts.find(CollectionReceipt, lambda receipt: receipt.set in sets, "none was collected")
    except ConfigError:
        return None


def validate_by_reports(container: Container, training: TrainingReport, champion: str | None) -> ValidationReport:
    """Judge a policy from the held-out episodes of the newest snapshot, for sets that Simic cannot grow.

    Raises:
        ConfigError: if Simic can grow a set that the policy learned from, or has grown it in this home, if the snapshot
            was curated at other prices, if a set has too few held-out hosts in the log, or if another policy is
            champion now.
        IntegrityError: if policy, champion or snapshot are not as they were sealed.
        ContractError: if rows cannot be evaluated on, such as one without a propensity.
    """
    if is_growable(training):
        raise ConfigError(
            f"gate.evidence = reports is for sets that Simic cannot grow; policy {training.digest[:12]} learned from "
            f"{', '.join(training.sets) or 'unknown sets'}. Set gate.evidence = trials"
        )
    if (collected := _last_collection(container, training.sets)) is not None:
        raise ConfigError(
            f"gate.evidence = reports is for sets that Simic cannot grow; this home grew hosts of {collected.set} "
            f"itself, on {collected.finished_at:%Y-%m-%d}. Install the family {collected.set} again, and set "
            "gate.evidence = trials"
        )
    started_at = container.clock()
    manifest = read_manifest(Path(resolve_snapshot(container, None).path), Verify.ALL)
    _check_prices(container, manifest)
    cut_off = cut_off_episodes(manifest, training.sets)
    held_out = held_out_episodes(episode_heads(manifest), training.sets, MOST_EPISODES, cut_off)
    if missing := sorted(set(training.sets) - {head.set for head in held_out.used}):
        reasons = ", ".join(f"{count} {reason}" for reason, count in held_out.left_out.items()) or "no other episodes"
        raise ConfigError(
            f"snapshot {manifest.digest[:12]} has too few held-out episodes on {', '.join(missing)} to judge policy "
            f"{training.digest[:12]} by; expected {LEAST_HOSTS} hosts of one controller on each set, found {reasons}. "
            f"One network in ten is held out; land reports of at least {10 * container.config.gate.min_episodes} "
            "networks under one controller, then run `simic curate`"
        )
    specs = _specs(container, training, champion)  # before a judgement begins, which spends error budget
    judgement = begin(container, "+".join(training.sets), training, champion, {"snapshot": manifest.digest})
    report = validate_from_log(
        _case(container, training, champion, specs, manifest, held_out),
        container.config,
        ordinal=judgement.ordinal,
        figures=container.home.run_folder(training.digest) / "figures",
        provenance=container.provenance,
        started_at=started_at,
        clock=container.clock,
    )
    return container.save_receipt(report)


def log_beside_trials(container: Container, training: TrainingReport) -> LogEvidence | None:
    """Return what the snapshot of a policy says about it on held-out hosts of the set of its trials.

    Episodes of another horizon than that of the trials, and those that cannot be evaluated on, are left out and
    counted. None without enough others of one controller, as in a run that collects on training hosts alone, and
    without the snapshot.
    """
    try:
        return _log_beside_trials(container, training)
    except (ConfigError, ContractError) as error:
        _LOG.warning("policy %s: no estimate from a log beside the trials: %s", training.digest[:12], error)
        return None


def _log_beside_trials(container: Container, training: TrainingReport) -> LogEvidence | None:
    world = container.config.world
    manifest = read_manifest(find_folder(container.home, training.snapshot_digest), Verify.ALL)
    _check_prices(container, manifest)
    heads, horizons = episode_heads(manifest), horizons_of(manifest, Split.TEST)
    without = {run_id: _OTHER_HORIZON for run_id, horizon in horizons.items() if horizon != world.horizon}
    # A snapshot that does not say what it left out cannot say what was cut off, and then supports no comparison.
    is_counted = any(file.name == REJECTED_NAME for file in manifest.files)
    cut_off, log = cut_off_episodes(manifest, [world.set]) if is_counted else None, None
    held_out = held_out_episodes(heads, [world.set], MOST_BESIDE, cut_off, without)
    while log is None:
        if not held_out.used:
            return None
        run_ids, unreadable = [head.run_id for head in held_out.used], dict[str, str]()
        log = read_log(manifest, run_ids, vocabulary(container.config.ingest), lambda _: None, unreadable)
        if unreadable:
            _LOG.warning("%d held-out episodes cannot be evaluated on: %s", len(unreadable), min(unreadable.values()))
            without |= dict.fromkeys(unreadable, _UNREADABLE)
            # Others take no place of theirs, so the second reading is the last.
            most = MOST_BESIDE - len(unreadable)
            held_out, log = held_out_episodes(heads, [world.set], most, cut_off, without), None
    spec = learned_spec(Path(training.path), training.digest, container.home.keys)
    return log_evidence(_use(manifest, held_out, log), {CANDIDATE: weigh(log, actions_in_log(container, spec, log))})


def _check_prices(container: Container, manifest: SnapshotManifest) -> None:
    """Check that the points of a snapshot are those of trials in this configuration.

    Raises:
        ConfigError: if the snapshot was curated at other prices.
        IntegrityError: if it does not hold them.
    """
    if differing := other_prices(manifest, container.config.curate.reward.basic):
        raise ConfigError(
            f"snapshot {manifest.digest[:12]} was curated at other prices than this configuration judges by: "
            f"{', '.join(differing)}; run `simic curate` with the settings of this command"
        )


def _specs(container: Container, training: TrainingReport, champion: str | None) -> dict[str, ControllerSpec]:
    """Return the controllers of a judgement from a log by their names in it.

    Raises:
        ConfigError: if another policy is champion now.
        IntegrityError: if policy or champion are not as they were sealed.
    """
    keys = container.home.keys
    specs = {CANDIDATE: learned_spec(Path(training.path), training.digest, keys), WAIT: ControllerSpec(name=WAIT)}
    if champion is not None:
        specs[CHAMPION] = learned_spec(container.policies.fetch_champion(champion), champion, keys)
    return specs


def _case(
    container: Container,
    training: TrainingReport,
    champion: str | None,
    specs: Mapping[str, ControllerSpec],
    manifest: SnapshotManifest,
    held_out: HeldOut,
) -> LoggedCase:
    with container.progress.task("validate", manifest.rows_out) as advance:
        blueprints = vocabulary(container.config.ingest)
        log = read_log(manifest, [head.run_id for head in held_out.used], blueprints, advance)
        episodes = {name: weigh(log, actions_in_log(container, spec, log)) for name, spec in specs.items()}
    uniforms = np.zeros((len(log.points), len(HEADS)))
    states = States(log.batch.states, log.batch.masks, uniforms)
    evidence = log_evidence(_use(manifest, held_out, log), episodes)
    set_name = "+".join(training.sets)
    return LoggedCase(training, specs[CANDIDATE], champion, set_name, evidence, hosts_of(log), states)


def _use(manifest: SnapshotManifest, held_out: HeldOut, log: Log) -> LogUse:
    behaviours = {head.run_id: head.behaviour for head in held_out.used}
    own = [behaviours[run_id] for run_id in log.batch.sequences.run_ids]
    shares = held_out.cut_off, held_out.group_cut_off
    return LogUse(manifest.digest, held_out.left_out, hosts_of(log), own, log.horizons(), *shares)
