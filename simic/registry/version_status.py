"""Status of each version according to the ledgers, and the tags, run name and description that show it in MLflow."""

from __future__ import annotations

from collections.abc import Collection

from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.karn import KarnReport, Trained
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.snapshots import PolicyStatus
from simic.ledgers.promotions import History, Operation
from simic.registry.headline import share_of_oracle
from simic.registry.ledger_records import LedgerRecords

__all__ = [
    "SHOWN_TAGS",
    "STATUS_TAG",
    "judged_status",
    "run_name",
    "status_of",
    "version_description",
    "wanted_tags",
]

STATUS_TAG = "standing"
"""Tag of a version and of its run that holds the status."""
_MOVE_TAGS = ("promoted_at", "previous", "rolled_back_at", "rolled_back_because")
"""Tags that record promotions and rollbacks of a version."""
SHOWN_TAGS = (
    STATUS_TAG, "semantic_version", "digest", "gate", "gate_digest", "snapshot", "promoted_at", "rolled_back_because",
)  # fmt: skip
"""Tags that every version has. A tag with another name was added by somebody else; if the ledgers know it, it is
verified too."""
_SHORT, _LONG = 6, 12
"""Characters of a digest in a name and in a text."""


def judged_status(is_accepted: bool) -> PolicyStatus:
    """Return the status of a version that was never promoted."""
    return PolicyStatus.ACCEPTED if is_accepted else PolicyStatus.REJECTED


def status_of(records: LedgerRecords, number: int) -> PolicyStatus | None:
    """Return the status of a version; None if no ledger lists it or its decision."""
    champion = records.history.champion
    if champion is not None and champion.target == number:
        return PolicyStatus.CHAMPION
    if records.history.promotion_of(number) is not None:
        return PolicyStatus.FORMER
    recorded = records.candidates.get(number)
    if recorded is None or recorded.gate_digest not in records.accepted:
        return None
    return judged_status(records.accepted[recorded.gate_digest])


def wanted_tags(records: LedgerRecords, number: int, present: Collection[str]) -> dict[str, str | None]:
    """Return the expected tags of a version according to the ledgers; None for a tag that must be absent.

    These are ``SHOWN_TAGS`` and every other tag in ``present``, the names of its tags, whose value the ledgers know.
    """
    known = _facts(records, number)
    return {key: value for key, value in known.items() if key in SHOWN_TAGS or key in present}


def _facts(records: LedgerRecords, number: int) -> dict[str, str | None]:
    """Return everything that the ledgers know of a version, by name of the tag."""
    moves = _move_tags(records.history, number)
    if (status := status_of(records, number)) is not None:
        moves[STATUS_TAG] = status.value
    if (promotion := records.history.promotion_of(number)) is not None:
        return {**promotion.tags, **moves}
    if (recorded := records.candidates.get(number)) is None:
        return moves
    tags = {
        "digest": recorded.digest,
        "semantic_version": recorded.semantic_version,
        "snapshot": recorded.snapshot_digest,
        "code_version": recorded.code_version,
        "config_digest": recorded.config_digest,
        "seed": str(recorded.seed),
        "gate_digest": recorded.gate_digest,
    }
    if recorded.gate_digest in records.accepted:
        tags["gate"] = "accepted" if records.accepted[recorded.gate_digest] else "rejected"
    return {**tags, **moves}


def _move_tags(history: History, number: int) -> dict[str, str | None]:
    tags: dict[str, str | None] = dict.fromkeys(_MOVE_TAGS)
    for entry in history.done:
        moment = entry.at.isoformat()
        if entry.operation is Operation.PROMOTE and entry.target == number:
            previous = "none" if entry.source is None else str(entry.source)
            tags |= {"promoted_at": moment, "previous": previous}
        elif entry.operation is Operation.ROLLBACK and entry.source == number:
            tags |= {"rolled_back_at": moment, "rolled_back_because": entry.reason}
    return tags


def run_name(semantic_version: str, digest: str, status: PolicyStatus) -> str:
    """Return ``1.0.0 champion``, ``1.0.0 former`` or ``1.0.1 accepted``; a rejected policy is ``rejected 1a2b3c``."""
    if status is PolicyStatus.REJECTED:
        return f"{status.value} {digest[:_SHORT]}"
    return f"{semantic_version} {status.value}"


def version_description(
    training: Trained, report: ValidationReport, gate: GateDecision, snapshot: SnapshotManifest
) -> str:
    """Return Markdown for the page of a version: verdict, figures, experience and start."""
    failed = ", ".join(criterion.name for criterion in gate.criteria if criterion.verdict.value != "PASS")
    verdict = f"{'Accepted' if gate.accepted else 'Rejected'} by the gate on {gate.finished_at:%Y-%m-%d}"
    share = share_of_oracle(report.trials)
    hosts = f"{report.hosts} held-out hosts of set {report.trials.set}"
    kind = "Paired differences of returns" if report.evidence == "trials" else "Estimates from a log, no trial,"
    lines = [
        verdict + (f": {failed} failed." if failed else ": every criterion passed."),  # plain: lists show it as text
        "",
        f"{kind} on {hosts}:",
        "",
        "| candidate minus | mean | lower | upper |",
        "| --- | --- | --- | --- |",
        *(f"| {name} | {e.mean:.3g} | {e.lower:.3g} | {e.upper:.3g} |" for name, e in report.differences.items()),
        "",
    ]
    if share is not None:
        lines += [f"Share of the oracle's gain over `wait`: {share:.0%}.", ""]
    experience = f"snapshot `{snapshot.digest[:_LONG]}` with {sum(snapshot.episodes.values())} episodes and "
    experience += f"{snapshot.rows_out} steps"
    return "\n".join([*lines, *_training_lines(training, report, experience)])


def _training_lines(training: Trained, report: ValidationReport, experience: str) -> list[str]:
    if isinstance(training, KarnReport):
        return [
            f"Experience: {experience}; {training.comparisons} comparisons of blueprints and {training.germinations} "
            f"single germinations, {training.updates} updates.",
            f"Consulted by: policy `{(report.consulted_by or 'none')[:_LONG]}`, in all rows of the judgement.",
        ]
    start = "no policy" if training.start_digest is None else f"policy `{training.start_digest[:_LONG]}`"
    return [
        f"Experience: {experience}; {training.passes:.3g} passes over {training.episodes} training episodes, "
        f"{training.updates} updates.",
        f"Start: {start}.",
    ]
