"""Status of each version according to the ledgers, and the run name and description that show it in MLflow."""

from __future__ import annotations

from simic.contracts.receipts import GateDecision, SnapshotManifest, TrainingReport, ValidationReport
from simic.contracts.snapshots import PolicyStatus
from simic.registry.headline import share_of_oracle
from simic.registry.ledger_records import LedgerRecords

__all__ = [
    "STATUS_TAG",
    "judged_status",
    "run_name",
    "status_of",
    "version_description",
]

STATUS_TAG = "standing"
"""Tag of a version and of its run that holds the status."""
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


def run_name(semantic_version: str, digest: str, status: PolicyStatus) -> str:
    """Return ``1.0.0 champion``, ``1.0.0 former`` or ``1.0.1 accepted``; a rejected policy is ``rejected 1a2b3c``."""
    if status is PolicyStatus.REJECTED:
        return f"{status.value} {digest[:_SHORT]}"
    return f"{semantic_version} {status.value}"


def version_description(
    training: TrainingReport, report: ValidationReport, gate: GateDecision, snapshot: SnapshotManifest
) -> str:
    """Return Markdown for the page of a version: verdict, figures, experience and start."""
    failed = ", ".join(criterion.name for criterion in gate.criteria if criterion.verdict.value != "PASS")
    verdict = f"{'Accepted' if gate.accepted else 'Rejected'} by the gate on {gate.finished_at:%Y-%m-%d}"
    share = share_of_oracle(report.trials)
    hosts = f"{len(report.trials.host_keys)} held-out hosts of set {report.trials.set}"
    lines = [
        verdict + (f": {failed} failed." if failed else ": every criterion passed."),  # plain: lists show it as text
        "",
        f"Paired differences of returns on {hosts}:",
        "",
        "| candidate minus | mean | lower | upper |",
        "| --- | --- | --- | --- |",
        *(f"| {name} | {e.mean:.3g} | {e.lower:.3g} | {e.upper:.3g} |" for name, e in report.differences.items()),
        "",
    ]
    if share is not None:
        lines += [f"Share of the oracle's gain over `wait`: {share:.0%}.", ""]
    start = "no policy" if training.start_digest is None else f"policy `{training.start_digest[:_LONG]}`"
    episodes = sum(snapshot.episodes.values())
    lines += [
        f"Experience: snapshot `{snapshot.digest[:_LONG]}` with {episodes} episodes and {snapshot.rows_out} steps; "
        f"{training.passes:.3g} passes over {training.episodes} training episodes, {training.updates} updates.",
        f"Start: {start}.",
    ]
    return "\n".join(lines)
