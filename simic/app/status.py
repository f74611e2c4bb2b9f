"""The champion of a home with its training rows and its evidence, from ledgers and receipts alone."""

from __future__ import annotations

from typing import Any, TypeVar

from simic.app.container import Container
from simic.contracts.errors import IntegrityError
from simic.contracts.names import CANDIDATE, KARN, WAIT
from simic.contracts.policy_update import PolicyUpdate
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.karn import KarnReport, Trained
from simic.contracts.results.receipts import PolicyVersion, Receipt, SnapshotManifest, TrainingReport
from simic.contracts.results.status import ChampionStatus, GainOn, HomeStatus, JudgedOn, NewestDecision, TrainingRows
from simic.contracts.results.trials import TrialReport
from simic.ledgers.policies import check_entry, newest_decision, read_history
from simic.ledgers.promotions import History, PromotionEntry
from simic.publication.publish import known_update, open_outbox

__all__ = ["home_status"]

R = TypeVar("R", bound=Receipt)
_LONGEST = 1000
"""Characters of a remark; a validator may quote all of a hostile record."""


def home_status(container: Container, model: str) -> HomeStatus:
    """Return the champion of a registered model, its training rows and evidence, and what may replace it.

    MLflow is not asked: the journal of promotions decides who is champion. Other records only add to it. A record that
    is missing or not trusted is left out and named.

    Raises:
        IntegrityError: if the journal is damaged, or the gate's decision on the champion is missing or edited.
    """
    return _Status(container, model).read()


class _Status:
    def __init__(self, container: Container, model: str) -> None:
        self._container, self._model = container, model
        self._not_shown: list[str] = []

    def read(self) -> HomeStatus:
        container = self._container
        history = read_history(container.home, container.keyring, self._model)
        champion = self._champion(history)
        return HomeStatus(
            model=self._model,
            champion=champion,
            staged=None if history.staged is None else history.staged.version,
            newest=self._newest(),
            not_shown=self._not_shown,
        )

    def _champion(self, history: History) -> ChampionStatus | None:
        entry = history.champion
        if entry is None:
            return None
        decision = check_entry(self._container.home, history.promotion(entry))
        return ChampionStatus(
            version=entry.version,
            operation=entry.operation.value,
            since=entry.at,
            reason=entry.reason,
            learned=self._rows(entry.version),
            judged=self._judged(entry, decision),
            published=self._published(entry.version),
        )

    def _published(self, version: PolicyVersion) -> PolicyUpdate | None:
        outbox = open_outbox(self._container.home)
        for is_pending in (False, True):
            for path, why in outbox.damaged(is_pending=is_pending):
                self._leave_out(f"the update {path}", why)
        return known_update(self._container.home, version)

    def _rows(self, version: PolicyVersion) -> TrainingRows:
        kind: type[Trained] = KarnReport if version.name == KARN else TrainingReport
        training = self._receipt(kind, {"digest": version.digest})
        snapshot = self._receipt(SnapshotManifest, {"digest": version.snapshot_digest})
        own = training if isinstance(training, TrainingReport) else None
        return TrainingRows(
            snapshot=version.snapshot_digest,
            rows=snapshot and snapshot.rows_out,
            reward_family=snapshot and snapshot.reward_family,
            episodes=own and own.episodes,
            sets=training and training.sets,
            start=own and own.start_digest,
            seed=version.seed,
        )

    def _judged(self, entry: PromotionEntry, decision: GateDecision) -> JudgedOn:
        wanted = {"policy_digest": entry.digest, "ordinal": decision.judgement.ordinal}
        report = self._receipt(ValidationReport, wanted)
        gain = report and GainOn(set=report.trials.set, hosts=report.hosts, over=report.differences)
        further = (
            []
            if report is None
            else [further_gain for trials in report.further if (further_gain := _further(trials)) is not None]
        )
        return JudgedOn(summary=entry.validation, ordinal=decision.judgement.ordinal, gain=gain, further=further)

    def _newest(self) -> NewestDecision | None:
        try:
            decision = newest_decision(self._container.home, self._container.keyring, self._model)
        except IntegrityError as error:
            self._leave_out("the newest decision of the gate", str(error))
            return None
        if decision is None:
            return None
        return NewestDecision(
            policy=decision.policy_digest,
            accepted=decision.accepted,
            unmet=[line.told() for line in decision.unmet],
            decided_at=decision.finished_at,
        )

    def _receipt(self, kind: type[R], fields: dict[str, Any]) -> R | None:
        """Return the last receipt with these fields; if there is none or it is not trusted, note that."""
        stage = kind.model_fields["stage"].default
        try:
            receipt = self._container.receipts.find_with(kind, fields)
        except IntegrityError as error:
            self._leave_out(f"the {stage} receipt", str(error))
            return None
        if receipt is None:
            folder = self._container.home.receipts / str(stage)
            self._leave_out(f"the {stage} receipt", f"{folder} holds no readable one of this champion")
        return receipt

    def _leave_out(self, record: str, why: str) -> None:
        """Name a record that is not shown, with the first line of the reason, cut to what a contract holds."""
        self._not_shown.append(f"{record}: {why.partition(chr(10))[0]}"[:_LONGEST])


def _further(report: TrialReport) -> GainOn | None:
    """Return the candidate's gain over never growing on a further set; None if it is not known with an interval."""
    ours = next((row for row in report.controllers if row.controller == CANDIDATE), None)
    if ours is None or ours.over_wait is None:
        return None
    return GainOn(set=report.set, hosts=len(report.host_keys), over={WAIT: ours.over_wait})
