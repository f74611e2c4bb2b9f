"""Journal entries that begin a staging, a promotion or a rollback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from simic.contracts.errors import GateRejectedError, IntegrityError
from simic.contracts.names import judged_name
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers.promotions import History, Operation, Phase, PromotionEntry
from simic.registry.mlflow_run import summary_of
from simic.registry.version_numbers import Lineage, lineage_tags

__all__ = ["check_consulting", "check_gate", "check_unused", "promotion_entry", "rollback_entry", "staging_entry"]


def staging_entry(
    recorded: PolicyVersion,
    report: ValidationReport,
    gate: GateDecision,
    lineage: Lineage,
    history: History,
    moment: datetime,
) -> PromotionEntry:
    """Return the open journal entry of a staging.

    Raises:
        IntegrityError: ``report`` is not the evidence that ``gate`` judged.
    """
    for name, judged, wanted in (
        ("policy", report.policy_digest, gate.policy_digest),
        ("champion", report.champion_digest, gate.champion_digest),
        ("snapshot", report.snapshot_digest, recorded.snapshot_digest),
    ):
        if judged != wanted:
            raise IntegrityError(
                f"the validation report is not the one that was judged: expected {name} {wanted or 'none'}, found "
                f"{judged or 'none'}; run `simic validate` again"
            )
    source = None if history.champion is None else history.champion.target
    own: dict[str, object] = {
        "aliases": [],
        "previous": source,
        "gate_digest": gate.digest,
        "started_at": moment,
        "finished_at": moment,
    }
    return PromotionEntry(
        entry=history.next_number,
        phase=Phase.OPEN,
        operation=Operation.STAGE,
        source=source,
        restores=None,
        version=recorded.model_copy(update=own),
        validation=summary_of(report, gate),
        tags=_signed_tags(recorded, report, gate, lineage),
        reason="accepted by the gate",
        at=moment,
    )


def promotion_entry(staged: PromotionEntry, history: History, moment: datetime) -> PromotionEntry:
    """Return an open entry that promotes what is staged."""
    times: Mapping[str, object] = {"started_at": moment, "finished_at": moment}
    own: Mapping[str, object] = {
        "entry": history.next_number,
        "phase": Phase.OPEN,
        "operation": Operation.PROMOTE,
        "version": staged.version.model_copy(update=times),
        "at": moment,
    }
    return staged.model_copy(update=own)


def rollback_entry(
    champion: PromotionEntry, former: PromotionEntry, history: History, reason: str, moment: datetime
) -> PromotionEntry:
    """Return an open entry that restores the promotion ``former``."""
    times: Mapping[str, object] = {"previous": champion.target, "started_at": moment, "finished_at": moment}
    return PromotionEntry(
        entry=history.next_number,
        phase=Phase.OPEN,
        operation=Operation.ROLLBACK,
        source=champion.target,
        restores=former.entry,
        version=former.version.model_copy(update=times),
        validation=former.validation,
        tags=former.tags,
        reason=reason,
        at=moment,
    )


def check_gate(gate: GateDecision, digest: str, champion: PromotionEntry | None) -> None:
    """Check that a decision accepts policy ``digest`` against the present champion.

    Raises:
        IntegrityError: The gate judged another policy.
        GateRejectedError: The gate rejected it, or judged it against another champion.
    """
    if gate.policy_digest != digest:
        raise IntegrityError(
            f"the gate decision is about another policy: expected {digest}, found {gate.policy_digest}; give the "
            "receipts of one policy"
        )
    if not gate.accepted:
        failed = ", ".join(line.name for line in gate.unmet)
        raise GateRejectedError(
            f"{judged_name(gate.model, digest)} did not pass the gate: {failed}; the champion stays"
        )
    present = None if champion is None else champion.digest
    if gate.champion_digest != present:
        raise GateRejectedError(
            f"{judged_name(gate.model, digest)} was judged against {_champion(gate.champion_digest)}, but now there is "
            f"{_champion(present)}; run `simic validate` again"
        )


def check_unused(gate: GateDecision, history: History, decisions: Iterable[GateDecision]) -> None:
    """Check that the judgement of a decision has promoted nothing yet, by whichever of ``decisions``.

    The same evidence is decided on otherwise where a criterion was installed, or words it otherwise.

    Raises:
        GateRejectedError: It has, and a rollback or another promotion replaced what it promoted: that holds until a
            later judgement.
    """
    done = history.done
    judged = (gate.policy_digest, gate.judgement.ordinal)
    equal = {one.digest for one in decisions if (one.policy_digest, one.judgement.ordinal) == judged} | {gate.digest}
    used = next((entry for entry in done if entry.restores is None and entry.version.gate_digest in equal), None)
    if used is None:
        return
    end = history.end_of(used)
    how = "" if end is None else f", and {_replaced(end)}"
    raise GateRejectedError(
        f"{judged_name(gate.model, gate.policy_digest)} was promoted by this judgement before{how}; run "
        "`simic validate` for a judgement on other hosts"
    )


def _replaced(change: PromotionEntry) -> str:
    is_rollback = change.restores is not None
    return f"a rollback replaced it ({change.reason})" if is_rollback else f"version {change.target} replaced it"


def check_consulting(gate: GateDecision, policy: PromotionEntry | None) -> None:
    """Check that a decision on Karn was made with the present champion of policies.

    Raises:
        GateRejectedError: Another policy consulted it, or there is no champion now.
    """
    present = None if policy is None else policy.digest
    if gate.consulted_by is None or gate.consulted_by != present:
        raise GateRejectedError(
            f"{judged_name(gate.model, gate.policy_digest)} was judged with policy {gate.consulted_by or 'none'}, but "
            f"now there is {_champion(present)}; run `simic validate --model {gate.model}` again"
        )


def _champion(digest: str | None) -> str:
    return "no champion" if digest is None else f"champion {digest}"


def _signed_tags(
    recorded: PolicyVersion, report: ValidationReport, gate: GateDecision, lineage: Lineage
) -> dict[str, str]:
    """Return the tags that the journal signs, taken from ledgers, judgement and sealed card, never from MLflow."""
    return {
        "digest": recorded.digest,
        "semantic_version": recorded.semantic_version,
        "snapshot": recorded.snapshot_digest,
        "code_version": recorded.code_version,
        "config_digest": recorded.config_digest,
        "seed": str(recorded.seed),
        "recorded_at": gate.finished_at.isoformat(),
        **lineage_tags(lineage),
        **_judgement_tags(report, gate),
    }


def _judgement_tags(report: ValidationReport, gate: GateDecision) -> dict[str, str]:
    """Return the tags that follow from the judgement."""
    tags = {
        "gate": "accepted" if gate.accepted else "rejected",
        "gate_digest": gate.digest,
        "episodes": str(report.hosts),
    }
    for name, estimate in report.differences.items():
        tags[f"return_over_{name}"] = f"{estimate.mean:.4f}"
        tags[f"return_over_{name}_lower"] = f"{estimate.lower:.4f}"
        tags["confidence"] = str(estimate.confidence)
    return tags
