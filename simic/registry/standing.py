"""What became of each version, as the ledgers say it, and the names and texts that show it in MLflow."""

from __future__ import annotations

from enum import Enum

from simic.contracts.receipts import GateDecision, SnapshotManifest, TrainingReport, ValidationReport
from simic.registry.books import Books
from simic.registry.headline import share_of_oracle

__all__ = [
    "STANDING_TAG",
    "Standing",
    "judged_standing",
    "run_name",
    "standing_of",
    "version_description",
]

STANDING_TAG = "standing"
"""Tag of a version and of its run."""
_SHORT, _LONG = 6, 12
"""Characters of a digest in a name and in a text."""


class Standing(str, Enum):
    """Where a registered policy stands."""

    CHAMPION = "champion"
    """Live now."""
    FORMER = "former"
    """Was champion before."""
    ACCEPTED = "accepted"
    """The gate accepted it, and it was never promoted."""
    REJECTED = "rejected"
    """The gate rejected it."""


def judged_standing(is_accepted: bool) -> Standing:
    """Return the standing of a version that was never promoted."""
    return Standing.ACCEPTED if is_accepted else Standing.REJECTED


def standing_of(books: Books, number: int) -> Standing | None:
    """Return the standing of a version; None if no ledger lists it or its decision."""
    champion = books.history.champion
    if champion is not None and champion.target == number:
        return Standing.CHAMPION
    if books.history.promotion_of(number) is not None:
        return Standing.FORMER
    recorded = books.candidates.get(number)
    if recorded is None or recorded.gate_digest not in books.accepted:
        return None
    return judged_standing(books.accepted[recorded.gate_digest])


def run_name(semantic_version: str, digest: str, standing: Standing) -> str:
    """Return ``1.0.0 champion``, ``1.0.0 former`` or ``1.0.1 accepted``; a rejected policy is ``rejected 1a2b3c``."""
    if standing is Standing.REJECTED:
        return f"{standing.value} {digest[:_SHORT]}"
    return f"{semantic_version} {standing.value}"


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
