"""Where two policies act differently: in the states of a snapshot, and on a few hosts grown under both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.app.artifacts import resolve_snapshot
from simic.app.container import Container
from simic.app.evidence.evaluation import actions_in_log
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.app.names.trial_controllers import select_controllers
from simic.contracts.controllers import ControllerSpec
from simic.contracts.episode import AttributionRecord, EpisodeRecord
from simic.contracts.errors import ConfigError
from simic.contracts.results.policy_difference import GrownPair, PolicyDifference
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.controllers.logged_states import TargetActions
from simic.hosts.counterfactual import PLAYERS_MAX
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.registry.instrument_runs import InstrumentResult, log_instrument
from simic.replay.logged import EpisodeHead, Log, episode_heads, read_log
from simic.runtime.seeds import derive
from simic.snapshots.manifest import Verify, read_manifest
from simic.validation.attribution import attribution_record
from simic.validation.difference_page import draw, write_page
from simic.validation.episodes import TrialJob, episode_record, score, steps_of
from simic.validation.policy_difference import CONFIDENCE, Places, summarise
from simic.validation.trials import trial_seed

__all__ = ["Compared", "DifferenceChoice", "compare_policies", "log_difference"]


class DifferenceChoice(NamedTuple):
    """Two policies or controllers to compare, and the states and hosts to compare them on."""

    first: str
    second: str
    snapshot: str | None = None
    """Directory, receipt or first characters of a digest; None for the newest."""
    most_episodes: int = 2_000
    grown: int = 4
    """Largest number of test hosts of the set to grow under both, one of each family."""
    out: Path | None = None
    """File of the page; None for one in the home."""


class Compared(NamedTuple):
    """The receipt of a comparison of two policies, with its page and figures."""

    report: PolicyDifference
    page: Path
    figures: Mapping[str, bytes]
    """Pictures of the page as PNG, by name."""


def compare_policies(container: Container, choice: DifferenceChoice) -> Compared:
    """Compare two policies or controllers state by state, write the page and keep the receipt.

    Raises:
        ConfigError: if a name or the snapshot is unknown, both names mean the same, a controller draws its actions, or
            the snapshot has no state that leaves a choice.
        IntegrityError: if a policy or the snapshot is not as it was sealed.
        ContractError: if rows of the snapshot cannot be read as episodes.
    """
    started_at = container.clock()
    specs = select_controllers(container, (choice.first, choice.second)).specs
    if len(specs) != 2:
        raise ConfigError(f"expected two different policies, found {choice.first} and {choice.second}, which are one")
    manifest = read_manifest(Path(resolve_snapshot(container, choice.snapshot).path), Verify.ALL)
    used, left_out = _select(episode_heads(manifest), choice.most_episodes)
    log = _read(container, manifest, used)
    rows = np.flatnonzero(log.batch.masks.op[:, 1:].any(axis=1))
    if not len(rows):
        raise ConfigError(
            f"snapshot {manifest.digest[:12]} has no state in which an operation besides WAIT is legal; choose another"
        )
    acting = [_take(actions_in_log(container, spec, log), rows) for spec in specs.values()]
    seed = derive(container.seed, "diff-policies")
    summary = summarise(acting[0], acting[1], log.batch.states.take(rows), _places(log).take(rows), seed)
    pairs = _grow(container, specs, choice.grown)
    report = PolicyDifference(
        **container.provenance._asdict(),
        started_at=started_at,
        finished_at=container.clock(),
        **dict(zip(("first", "second"), specs, strict=True)),
        **dict(zip(("first_digest", "second_digest"), (spec.policy_digest for spec in specs.values()), strict=True)),
        snapshot_digest=manifest.digest,
        sets=sorted({head.set for head in used}),
        episodes=len(used),
        hosts=len({(head.set, head.host_key) for head in used}),
        left_out=left_out,
        states=len(rows),
        confidence=CONFIDENCE,
        **summary._asdict(),
        grown=[_pair(ours, theirs) for ours, theirs in pairs],
    )
    names = [(spec.policy_digest or spec.name)[:12] for spec in specs.values()]
    page = choice.out or container.home.runs / "differences" / f"{names[0]}-{names[1]}.html"
    records = [(ours.episode, theirs.episode) for ours, theirs in pairs]
    figures = draw(report, records)
    write_page(report, records, figures, page)
    return Compared(container.save_receipt(report), page, figures)


def log_difference(container: Container, compared: Compared) -> str | None:
    """Log a comparison with its page; None and errors are those of ``log_instrument``."""
    report, page, figures = compared
    name = f"{report.first} and {report.second}"
    return log_instrument(container.home, InstrumentResult(name, report.stage, report, _metrics(report), page, figures))


def _metrics(report: PolicyDifference) -> dict[str, float]:
    return {
        "disagreement": report.disagreement.value,
        "disagreement_by_operation": report.by_operation.value,
        "disagreement_by_slot_and_blueprint": report.by_slot_and_blueprint.value,
        "other_choice": report.other_choice,
        "states": report.states,
    }


def _select(heads: Sequence[EpisodeHead], most: int) -> tuple[list[EpisodeHead], dict[str, int]]:
    """Return the episodes to use and the number of others per reason.

    A branch repeats the states of its parent. Of too many episodes those with the smallest run ids stay: run ids are
    digests, so this is as good as a draw.
    """
    used, left_out = list[EpisodeHead](), Counter[str]()
    for head in heads:
        if head.branch_of is not None:
            left_out["branches, which repeat states"] += 1
        elif len(used) == most:
            left_out["beyond --episodes"] += 1
        else:
            used.append(head)
    return used, dict(left_out)


def _read(container: Container, manifest: SnapshotManifest, used: Sequence[EpisodeHead]) -> Log:
    if not used:
        raise ConfigError(f"snapshot {manifest.digest[:12]} has no episode besides branches; choose another")
    with container.progress.task("read", manifest.rows_out) as advance:
        return read_log(manifest, [head.run_id for head in used], vocabulary(container.config.ingest), advance)


def _take(actions: TargetActions, rows: NDArray[np.int64]) -> TargetActions:
    return TargetActions(actions.log_probs[rows], actions.candidates[rows], actions.shares[rows])


def _places(log: Log) -> Places:
    sequences = log.batch.sequences
    episode = np.repeat(np.arange(len(sequences.run_ids)), sequences.lengths)
    step = np.arange(len(episode)) - sequences.starts[episode]
    return Places(sequences.run_ids, sequences.sets, sequences.families, sequences.host_keys, episode, step)


class _Grown(NamedTuple):
    """One host grown under one of the policies."""

    episode: EpisodeRecord
    attribution: AttributionRecord | None


def _grow(container: Container, specs: dict[str, ControllerSpec], count: int) -> list[tuple[_Grown, _Grown]]:
    """Grow the first test hosts of the set, one of each family, under both controllers."""
    world = container.config.world
    keys = draw_keys(world.set, Split.TEST, min(count, len(host_set(world.set).families)))
    hosts = identify(world.set, keys)
    with container.progress.task("grow examples", len(hosts) * len(specs)) as advance:
        records = []
        for name, spec in specs.items():
            records.append([_grown(container, name, spec, host) for host in hosts])
            advance(len(hosts))
    return list(zip(*records, strict=True))


def _grown(container: Container, name: str, spec: ControllerSpec, host: HostIdentity) -> _Grown:
    """Grow one host as in trials, and attribute its accuracy at the end to its active seeds."""
    config, seed = container.config, trial_seed(container.provenance)
    job = TrialJob(name, spec, (host,), config.world, config.curate.reward.basic, seed)
    ensemble = Ensemble([host], config.world)
    steps = list(steps_of(make(spec, [host]), job, ensemble))
    episode = episode_record(steps, 0, host, name, score(steps, 1, job.world, job.reward))
    slots = episode.epochs[-1].slots
    if sum(slot.alpha > 0.0 for slot in slots) > PLAYERS_MAX:
        return _Grown(episode, None)
    return _Grown(episode, attribution_record(ensemble.attribute(), 0, slots))


def _pair(ours: _Grown, theirs: _Grown) -> GrownPair:
    return GrownPair(
        family=ours.episode.host.family,
        host_key=ours.episode.host.key,
        first_return=ours.episode.return_points,
        second_return=theirs.episode.return_points,
        first_attribution=ours.attribution,
        second_attribution=theirs.attribution,
    )
