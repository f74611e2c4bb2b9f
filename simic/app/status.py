"""The champion of a home with its training rows and its evidence, from ledgers and receipts alone."""

from __future__ import annotations

from simic.app.container import Container
from simic.bus.codec import unwrap
from simic.contracts.gate import GateDecision, ValidationReport
from simic.contracts.karn import KarnReport
from simic.contracts.names import CANDIDATE, KARN
from simic.contracts.policy_update import PolicyUpdate
from simic.contracts.receipts import PolicyVersion, SnapshotManifest, TrainingReport
from simic.contracts.splits import Split
from simic.contracts.status import ChampionStatus, GainOn, HomeStatus, NewestDecision, TrainingRows
from simic.contracts.trials import TrialReport
from simic.ledgers.policies import ancestors, champion_history, gate_decisions, trainings
from simic.ledgers.promotions import PromotionEntry
from simic.publication.publish import open_outbox

__all__ = ["home_status"]


def home_status(container: Container, model: str) -> HomeStatus:
    """Return the champion of a registered model, its training rows and evidence, and what may replace it.

    MLflow is not asked: the journal of promotions decides who is champion.

    Raises:
        IntegrityError: if the journal, the gate's decision on the champion or the receipt of its judgement is damaged.
    """
    history = champion_history(container.home, container.keyring, model)
    decisions = [one for one in gate_decisions(container.home) if one.model == model]
    return HomeStatus(
        model=model,
        champion=None if history.champion is None else _champion(container, history.champion, decisions),
        staged=None if history.staged is None else history.staged.version,
        newest=_newest(decisions[-1]) if decisions else None,
    )


def _champion(container: Container, entry: PromotionEntry, decisions: list[GateDecision]) -> ChampionStatus:
    version = entry.version
    ordinal = next(one.judgement.ordinal for one in decisions if one.digest == version.gate_digest)
    report = container.receipts.find_any(
        ValidationReport, lambda found: (found.policy_digest, found.ordinal) == (version.digest, ordinal)
    )
    return ChampionStatus(
        version=version,
        operation=entry.operation.value,
        since=entry.at,
        reason=entry.reason,
        learned=_rows(container, version),
        judged=report and GainOn(set=report.trials.set, hosts=report.hosts, over=report.differences),
        further=[gain for one in (report.further if report else ()) if (gain := _further(one)) is not None],
        published=_published(container, version),
    )


def _rows(container: Container, version: PolicyVersion) -> TrainingRows:
    receipts = container.receipts
    snapshot = receipts.find_any(SnapshotManifest, lambda found: found.digest == version.snapshot_digest)
    if version.name == KARN:
        chain: list[TrainingReport] = []
        last = receipts.find_any(KarnReport, lambda found: found.digest == version.digest)
        sets = last.sets if last else []
    else:
        chain = list(ancestors(version.digest, {one.digest: one for one in trainings(container.home)}))
        sets = chain[0].sets if chain else []
    return TrainingRows(
        snapshot=version.snapshot_digest,
        episodes=snapshot and snapshot.episodes.get(Split.TRAIN.value, 0),
        rows=snapshot and snapshot.rows_out,
        reward_family=snapshot and snapshot.reward_family,
        sets=sets,
        seed=version.seed,
        trainings=max(1, len(chain)),
    )


def _further(report: TrialReport) -> GainOn | None:
    """Return the candidate's gain over never growing on a further set."""
    ours = next(one for one in report.controllers if one.controller == CANDIDATE)
    if ours.over_wait is None:
        return None
    return GainOn(set=report.set, hosts=len(report.host_keys), over={"wait": ours.over_wait})


def _published(container: Container, version: PolicyVersion) -> PolicyUpdate | None:
    """Return the newest delivered update about the model if it names this version's policy."""
    updates = [unwrap(event, PolicyUpdate) for event in open_outbox(container.home, including_revoked=True).delivered()]
    newest = next((one for one in reversed(updates) if one.policy_name == version.name), None)
    return newest if newest is not None and newest.digest == version.digest else None


def _newest(decision: GateDecision) -> NewestDecision:
    return NewestDecision(
        policy=decision.policy_digest,
        accepted=decision.accepted,
        unmet=[line.told() for line in decision.unmet],
        decided_at=decision.finished_at,
    )
