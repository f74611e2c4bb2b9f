"""Record a judged candidate: its MLflow run, its version, and its lines in the ledgers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from simic.contracts.errors import IntegrityError
from simic.contracts.names import CANDIDATE, REFERENCE_PREFIX
from simic.contracts.results.gate import GateDecision
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import CANDIDATES_LEDGER, GATES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.policies import check_candidates, is_candidate_trusted, seal_candidate
from simic.registry.differences import check_listed, registered_as
from simic.registry.labels import Labels
from simic.registry.ledger_records import LedgerRecords
from simic.registry.mlflow_run import (
    CandidateRecord,
    RunLabel,
    ensure_run,
    label_run,
    lineage_of,
    log_run,
    log_scores,
    version_tags,
)
from simic.registry.promotion import OnStep
from simic.registry.reader import RegistryReader
from simic.registry.version_numbers import Lineage, highest, next_number, recorded_lineage
from simic.registry.version_status import judged_status, run_name, version_description
from simic.trust.keys import Signer
from simic.trust.sealed_receipts import seal_receipt

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Recorder"]

_LOG = logging.getLogger(__name__)


class Recorder:
    """Records candidates; the caller holds the registry's lock."""

    def __init__(
        self,
        client: MlflowClient,
        experiment: str,
        reader: RegistryReader,
        labels: Labels,
        signer: Callable[[], Signer],
        on_step: OnStep,
    ) -> None:
        self._client, self._experiment, self._reader, self._labels = client, experiment, reader, labels
        self._models, self._signer, self._on_step = reader.models, signer, on_step
        self._gates = Ledger(reader.home.ledger / GATES_LEDGER)
        self._candidates = Ledger(reader.home.ledger / CANDIDATES_LEDGER)

    def record(self, candidate: CandidateRecord) -> PolicyVersion:
        """Log the run, register the version, point the alias ``candidate`` at it, and append to the ledgers."""
        digest, policy = candidate.training.digest, Path(candidate.training.path)
        check_candidates(self._reader.home, self._reader.keyring)
        records = self._reader.records()
        check_listed(records, self._models.look(), digest, version_tags(candidate))
        self._labels.require_experiment()
        self._labels.show_experiment(records.history)
        listed = next(
            (recorded.mlflow_run_id for recorded in records.candidates.values() if recorded.digest == digest), None
        )
        run_id = ensure_run(self._client, self._experiment, candidate, listed)
        log_run(self._client, run_id, candidate)
        self._on_step("logged")
        trained_at = candidate.training.finished_at
        model_id = self._models.logged_model(self._experiment, run_id, policy, digest, trained_at)
        self._on_step("stored")
        log_scores(self._client, run_id, model_id, candidate)
        number, given = self._register(candidate, records, run_id, model_id)
        self._on_step("registered")
        self._models.set_alias(CANDIDATE, number)
        receipt = self._receipt(number, given, candidate)
        self._list(run_id, candidate.gate, receipt)
        return receipt

    def _register(
        self, candidate: CandidateRecord, records: LedgerRecords, run_id: str, model_id: str
    ) -> tuple[int, str]:
        """Register a candidate or label its version with this judgement; return number and semantic version.

        A version that was champion keeps its tags, its description and the name of its run. A version that a killed
        process left unlisted is labelled again.
        """
        digest, gate = candidate.training.digest, candidate.gate
        version = registered_as(digest, records, self._models.look_at(digest=digest), run_id)
        promotion = None if version is None else records.history.promotion_of(version.number)
        if version is not None and promotion is not None:
            return version.number, promotion.version.semantic_version
        listed = None if version is None else records.candidates.get(version.number)
        if listed is None:
            given = self._next_number(records, lineage_of(Path(candidate.training.path)))
        else:
            given = listed.semantic_version
        tags = {**version_tags(candidate), "semantic_version": given}
        if version is None:
            number = self._models.register(model_id, run_id, tags).number
        else:
            number = version.number
            self._models.tag(number, tags)
        self._models.describe(
            number, version_description(candidate.training, candidate.validation, gate, candidate.snapshot)
        )
        status = judged_status(gate.accepted)
        label = RunLabel(run_name(given, digest, status), status.value)
        if version is not None and version.run_id != run_id:  # its run was purged, and no ledger lists the new one
            label = RunLabel(f"{given} judged again", None)
        label_run(self._client, run_id, label)
        return number, given

    def _next_number(self, records: LedgerRecords, lineage: Lineage) -> str:
        """Return the semantic version of a policy that is recorded now."""
        previous = highest(records)
        before = None if previous is None else recorded_lineage(records, previous.number)
        if previous is not None and before is None:
            try:
                before = self._reader.stored_lineage(previous.number, previous.digest)
            except IntegrityError as error:
                _LOG.warning("cannot verify the lineage of version %d: %s", previous.number, error)
        return next_number(previous, before, lineage)

    def _receipt(self, number: int, given: str, candidate: CandidateRecord) -> PolicyVersion:
        """Return the receipt of recording; for a version that was champion, with the decision that accepted it."""
        registered = self._models.look_at(number).version(number)
        promotion = self._reader.records().history.promotion_of(number)
        training, moment = candidate.training, candidate.gate.finished_at
        return PolicyVersion(
            code_version=training.code_version,
            config_digest=training.config_digest,
            seed=training.seed,
            started_at=moment,
            finished_at=moment,
            name=registered.name,
            number=number,
            semantic_version=given,
            digest=training.digest,
            reference=f"{REFERENCE_PREFIX}{registered.name}/{number}",
            aliases=registered.aliases,
            previous=None if promotion is None else promotion.source,
            snapshot_digest=candidate.snapshot.digest,
            gate_digest=candidate.gate.digest if promotion is None else promotion.version.gate_digest,
            mlflow_run_id=registered.run_id,
        )

    def _list(self, run_id: str, gate: GateDecision, version: PolicyVersion) -> None:
        """Append the decision once, and the version unless the last line already holds it with this decision.

        A line whose key was revoked since is appended again. The receipt of a former champion names an earlier
        decision; the ledger line names this one.
        """
        if not any(record["digest"] == gate.digest for record in self._gates.read()):
            self._gates.append(
                seal_receipt(gate, self._signer())
            )  # the decision comes first, so that every listed candidate has its decision
        own = [record for record in self._candidates.read() if record["name"] == version.name]
        listed = [(record["number"], record["gate_digest"]) for record in own]
        is_trusted = is_candidate_trusted(self._reader.home, self._reader.keyring, version.name, version.number)
        if listed[-1:] != [(version.number, gate.digest)] or not is_trusted:
            judged = {"gate_digest": gate.digest, "started_at": gate.finished_at, "finished_at": gate.finished_at}
            self._candidates.append(seal_candidate(version.model_copy(update=judged), self._signer()))
        self._client.set_terminated(run_id, "FINISHED", int(gate.finished_at.timestamp() * 1000))
        self._on_step("recorded")
