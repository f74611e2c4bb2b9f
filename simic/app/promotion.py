"""Commands on the registry: decide, record, stage, promote, publish, roll back, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simic.app.container import Container
from simic.app.names.policy_names import locate, require_path
from simic.app.receipts import ReceiptStore
from simic.bus.codec import unwrap
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.names import (
    CHAMPION,
    CHAMPION_REFERENCE,
    KARN,
    MODEL_NAME,
    REFERENCE_PREFIX,
    judged_name,
    maker_of,
)
from simic.contracts.policy_update import PolicyUpdate, RolloutPlan
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.karn import KarnReport, Trained
from simic.contracts.results.receipts import PolicyVersion, PublicationReceipt, SnapshotManifest, TrainingReport
from simic.contracts.results.trials import SeedChoice
from simic.ledgers.judgements import judgement_of
from simic.ledgers.policies import read_history
from simic.ledgers.promotions import Operation, PromotionEntry
from simic.publication import publish as publication
from simic.publication.rollout import first_plan
from simic.registry.mlflow_run import CandidateRecord
from simic.registry.mlflow_store import initialise
from simic.runtime.files import scratch_dir
from simic.trust.seal import Seal

__all__ = [
    "champion_by",
    "decide",
    "initialise_home",
    "promote",
    "publish",
    "publish_champion",
    "record",
    "resolve_validation",
    "roll_back",
    "stage",
    "verify",
]


def initialise_home(container: Container) -> dict[str, Any]:
    """Create the directories, the signing key and the registry's database; safe to repeat and to run concurrently."""
    experiment = initialise(container.home)
    return {
        "home": str(container.home.root),
        "key_id": container.signer.key_id,
        "tracking_uri": container.home.tracking_uri,
        "experiment": experiment,
    }


def resolve_validation(container: Container, path: Path | None, model: str = MODEL_NAME) -> ValidationReport:
    """Return a validation report about a version of a registered model by its receipt file; else the latest.

    Raises:
        ConfigError: if there is none, or the file is about another model.
    """
    if path is None:
        hint = f"run `simic validate{'' if model == MODEL_NAME else f' --model {model}'}` first"
        newest = container.receipts.latest(ValidationReport, hint)
        if newest.model == model:
            return newest
        return container.receipts.find(ValidationReport, lambda validation: validation.model == model, hint)
    report = container.receipts.read(ValidationReport, path)
    if report.model != model:
        raise ConfigError(f"{path} judges {report.model}, expected {model}: give --model {report.model}")
    return report


def decide(container: Container, report: ValidationReport) -> GateDecision:
    """Apply the gate to a validation report; missing evidence rejects.

    Raises:
        IntegrityError: if the ledger of judgements does not know the report's, or is damaged.
    """
    return container.save_receipt(_judge(container, report))


def champion_by(container: Container, decision: GateDecision) -> PolicyVersion | None:
    """Return the champion if this decision made it champion, else None."""
    champion = read_history(container.home, container.keyring, decision.model).champion
    return champion.version if champion is not None and champion.version.gate_digest == decision.digest else None


def _judge(container: Container, report: ValidationReport) -> GateDecision:
    # The gate loads torch, which publishing, rolling back and verifying do not need.
    from simic.validation.promotion_gate import decide

    return decide(
        report,
        container.config.gate,
        judgement=judgement_of(container.home, report, container.keyring),
        trial=container.config.trial,
        min_commit_rate=container.config.train.min_commit_rate,
        provenance=container.provenance,
        now=container.clock(),
    )


def record(
    container: Container, report: ValidationReport, decision: GateDecision, flow_run: str | None = None
) -> PolicyVersion:
    """Register a judged candidate with all its evidence, accepted or not.

    ``flow_run`` is the page or id of the Prefect flow run that does so, for a tag on the MLflow run.

    Raises:
        ConfigError: if this home has no receipts of its training, or the settings differ from those of the training,
            because the settings are recorded as the parameters of the policy.
    """
    receipts, own = container.receipts, container.provenance
    policy = judged_name(report.model, report.policy_digest)
    training = _training_of(receipts, report)
    snapshot = receipts.find(
        SnapshotManifest,
        lambda manifest: manifest.digest == report.snapshot_digest,
        f"the snapshot of {policy} has none. Restore it to data/receipts/curate, or run `simic curate` again",
    )
    if training.config_digest != own.config_digest:
        raise ConfigError(
            f"{policy} was trained under configuration {training.config_digest[:12]}, but "
            f"this is {own.config_digest[:12]}: pass the profile and overrides that it was trained with"
        )
    # The page is drawn, which publishing, rolling back and verifying do not need.
    from simic.validation.gate_page import write_gate_page

    page = write_gate_page(decision, report, container.home.run_folder(report.policy_digest) / "gate")
    choice = _choice_of(container, training)
    registry = container.registry_of(report.model)
    version = registry.record(CandidateRecord(training, report, decision, snapshot, container.config, page, choice))
    if flow_run is not None:
        registry.link_flow_run(version, flow_run)
    return version


def _training_of(receipts: ReceiptStore, report: ValidationReport) -> Trained:
    """Return the training of what a report judges."""
    hint = f"{judged_name(report.model, report.policy_digest)} has none. Restore it to data/receipts, or train again"
    if report.model == KARN:
        return receipts.find(KarnReport, lambda training: training.digest == report.policy_digest, hint)
    return receipts.find(TrainingReport, lambda training: training.digest == report.policy_digest, hint)


def _choice_of(container: Container, training: Trained) -> SeedChoice | None:
    """Return the choice among training seeds that made this policy the candidate; None if there was none."""
    if container.config.train.seeds == 1 or isinstance(training, KarnReport):
        return None
    return container.receipts.find_any(SeedChoice, lambda choice: choice.policy_digest == training.digest)


def stage(
    container: Container, candidate: PolicyVersion, report: ValidationReport, decision: GateDecision
) -> PolicyVersion:
    """Let the accepted candidate wait to be promoted; the champion stays.

    Raises:
        IntegrityError: if the gate now decides differently about ``report``.
    """
    _judge_again(container, report, decision)
    return container.registry_of(report.model).stage(candidate, report, decision)


def promote(
    container: Container, candidate: PolicyVersion, report: ValidationReport, decision: GateDecision
) -> PolicyVersion:
    """Make the candidate the champion, after it is staged unless it was; the alias in MLflow moves last.

    Raises:
        IntegrityError: if the gate now decides differently about ``report``.
    """
    _judge_again(container, report, decision)
    return container.save_receipt(container.registry_of(report.model).promote(candidate, report, decision))


def _judge_again(container: Container, report: ValidationReport, decision: GateDecision) -> None:
    again = _judge(container, report)
    if again.digest != decision.digest:
        raise IntegrityError(
            f"{judged_name(report.model, report.policy_digest)}: judging again gives another decision (now: "
            f"{again.digest}, recorded: {decision.digest}). Use the original profile, or run `simic validate` again"
        )


def publish(container: Container, version: PolicyVersion) -> PublicationReceipt:
    """Put a signed update about ``version`` on the bus, once per version and target.

    Raises:
        ConfigError: if ``version`` is no longer the champion.
        IntegrityError: as ``publish_champion`` does.
    """
    return _publish(container, version.name, version)


def publish_champion(
    container: Container,
    *,
    model: str = MODEL_NAME,
    is_for_all: bool = False,
    expected: PolicyVersion | None = None,
) -> PublicationReceipt:
    """Put a signed update about the present champion of a model on the bus, once per version and target.

    With ``is_for_all`` its rollout ends: an update without a plan follows, once. All content comes from the journal of
    promotions, after journal, registry and every byte of the policy were found to agree.

    Raises:
        ConfigError: if there is no champion.
        TransientError: if the champion is not the ``expected`` one; then nothing is signed or put.
        IntegrityError: if journal, registry and policy disagree; then nothing is signed or put.
    """
    return _publish(container, model, None, is_for_all=is_for_all, decided_on=expected)


def _publish(
    container: Container,
    model: str,
    expected: PolicyVersion | None,
    *,
    is_for_all: bool = False,
    decided_on: PolicyVersion | None = None,
) -> PublicationReceipt:
    if container.policies.is_empty():
        raise ConfigError(f"there is no champion to publish: {maker_of(model)} makes one")
    outbox = publication.open_outbox(container.home)
    with container.registry_of(model).certified(publication.digests_in_updates(outbox, model), decided_on) as entry:
        if expected is not None and (expected.number, expected.digest) != (entry.target, entry.digest):
            raise ConfigError(
                f"version {expected.number} with digest {expected.digest} is not published: the champion now is "
                f"version {entry.target} with digest {entry.digest}; `simic publish` publishes that one"
            )
        receipt = publication.publish(
            entry.version,
            entry.validation,
            (model,),  # the controllers in production that use its versions have its name
            bus=container.open_bus(has_fallback=False),  # an update in a spool is not delivered; the outbox keeps it
            signer=container.signer,
            home=container.home,
            provenance=container.provenance,
            clock=container.clock,
            plan=_plan(container, entry),
            is_for_all=is_for_all,
            actor=container.actor,
        )
    return container.save_receipt(receipt)


def _plan(container: Container, entry: PromotionEntry) -> RolloutPlan | None:
    """Return the plan of an update about the champion of the journal, should one be sent now.

    Where the newest update about the champion has a plan, it is that one: its signature is no longer believed if its
    key was revoked, and its rollout goes on. Karn has none: whether a rollout succeeds is judged by reports of one
    policy, which do not tell its Karn.
    """
    if entry.version.name != MODEL_NAME:
        return None
    outbox = publication.open_outbox(container.home, including_revoked=True)
    updates = [unwrap(event, PolicyUpdate) for event in outbox.delivered()]
    named = [update for update in updates if update.policy_name == entry.version.name]
    if named and named[-1].digest == entry.digest and named[-1].rollout is not None:
        return named[-1].rollout
    former = read_history(container.home, container.keyring).before_champion()
    return first_plan(
        entry.version,
        None if former is None else former.version,
        named,
        container.config.rollout,
        is_rollback=entry.operation is Operation.ROLLBACK,
    )


def roll_back(
    container: Container, reason: str, expected: PolicyVersion | None = None, model: str = MODEL_NAME
) -> PolicyVersion:
    """Make the previous champion of a model the champion again; ``publish_champion`` then tells production.

    Raises:
        TransientError: if the champion is not the ``expected`` one.
    """
    return container.save_receipt(container.registry_of(model).rollback(reason, expected))


def verify(container: Container, reference: str) -> Seal:
    """Check every byte of a policy by reference, version, digest or directory, and return its seal.

    Raises:
        ConfigError: if no policy or several have that name.
        IntegrityError: if a byte differs.
    """
    digest: str | None = None
    if reference == CHAMPION:
        reference = CHAMPION_REFERENCE
    if (named := locate(container.home, reference)) is not None:
        digest = named.digest
        reference = named.reference or str(container.home.policies / digest)
    if not reference.startswith(REFERENCE_PREFIX):
        return container.policies.seal(require_path(reference), digest)
    registry = container.registry_of(KARN if reference.startswith(f"{REFERENCE_PREFIX}{KARN}") else MODEL_NAME)
    version = registry.find(reference)
    with scratch_dir(container.home, "verify-") as folder:
        path = registry.load(version.reference, folder / "policy")
        return container.policies.seal(path, digest or version.digest)
