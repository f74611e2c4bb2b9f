"""A gate's decision in one sentence."""

from __future__ import annotations

from simic.contracts.receipts import GateDecision, Verdict

__all__ = ["rejection"]


def rejection(decision: GateDecision) -> str:
    """Why the candidate was rejected: every criterion that did not pass, with value and bound."""
    failed = [line for line in decision.criteria if line.verdict is not Verdict.PASS]
    reasons = "; ".join(
        f"{line.name} is {'missing' if line.value is None else f'{line.value:.4g}'}, "
        f"needs {line.comparison} {line.bound:.4g}"
        for line in failed
    )
    return f"the gate rejected policy {decision.policy_digest[:12]}: {reasons}. What was live stays live"
