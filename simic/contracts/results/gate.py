"""The evidence about a candidate and the decision of the gate on it."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Finite, Text
from simic.contracts.names import MODEL_NAME
from simic.contracts.results.judgements import Judgement, Ordinal
from simic.contracts.results.log_evidence import EvidenceKind, LogEvidence
from simic.contracts.results.receipts import Receipt
from simic.contracts.results.trials import Estimate, TrialReport

__all__ = ["Criterion", "GateDecision", "Probe", "ValidationReport", "Verdict"]


class Probe(Contract):
    """A property of a candidate that was measured in addition to its trials."""

    value: Finite
    """Value for the criterion of the same name, mostly the number of cases that failed."""
    count: Count
    """Number of cases that were examined."""
    detail: Text = ""
    """The first case that failed, or what was measured besides."""


class ValidationReport(Receipt):
    """Evidence about one candidate."""

    stage: Literal["validate"] = "validate"
    model: Text = MODEL_NAME
    """Registered model of the candidate; absent in receipts of earlier versions, which judged policies alone."""
    ordinal: Ordinal
    """Number of the judgement in the home, by which the hosts were chosen."""
    policy_digest: Digest
    """The candidate: a policy or Karn."""
    champion_digest: Digest | None
    """The champion of the same model, if there is one."""
    consulted_by: Digest | None = None
    """The policy in all rows of a judgement of Karn, the champion of policies; null for a policy."""
    snapshot_digest: Digest
    evidence: EvidenceKind = "trials"
    """Source of the differences."""
    trials: TrialReport
    """Without hosts and controllers where the evidence is reports."""
    differences: dict[str, Estimate]
    """Candidate minus each other controller, paired by host key."""
    training_metrics: dict[str, Finite]
    figures: dict[str, Text]
    """Paths of PNG files by name."""
    probes: dict[str, Probe] = Field(default_factory=dict)
    """By name of the criterion."""
    further: list[TrialReport] = Field(default_factory=list)
    """Trials of the candidate on the further sets (``trial.also_sets``), in that order."""
    log: LogEvidence | None = None
    """Evidence of logged episodes; beside trials, null if there are none on held-out hosts."""

    @property
    def hosts(self) -> int:
        """Number of held-out hosts that the differences are over."""
        return len(self.trials.host_keys if self.evidence == "trials" or self.log is None else self.log.host_keys)


class Verdict(str, Enum):
    """Verdict on a criterion; anything but PASS rejects."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    MISSING = "MISSING"


class Criterion(Contract):
    """One criterion of a gate decision."""

    name: Text
    value: Finite | None
    """Null if the evidence is missing or not finite."""
    bound: Finite
    comparison: Literal[">", ">=", "<", "<="]
    verdict: Verdict
    evidence: Text
    detectable: Finite | None = None
    """Smallest true difference, in points, that would have passed with 80 % power; null where the value is no bound of
    a difference."""

    def told(self) -> str:
        """Return value and required bound in one phrase."""
        value = "missing" if self.value is None else f"{self.value:.4g}"
        return f"{self.name} is {value}, needs {self.comparison} {self.bound:.4g}"


class GateDecision(Receipt):
    """All criteria; the candidate is accepted only if each one passed."""

    stage: Literal["gate"] = "gate"
    model: Text = MODEL_NAME
    """Registered model that the judged version is of, as in the validation report."""
    policy_digest: Digest
    """Digest of the judged policy or Karn."""
    champion_digest: Digest | None
    """Digest of the champion that it was compared with; null without one."""
    consulted_by: Digest | None = None
    """Digest of the policy that consulted a judged Karn; null for a policy."""
    judgement: Judgement
    accepted: bool
    without: list[Text] = Field(default_factory=list)
    """Criteria that the settings leave out."""
    evidence: EvidenceKind = "trials"
    absent: list[Text] = Field(default_factory=list)
    """Criteria that do not apply to this kind of evidence, and those that had nothing to judge, with the reason."""
    criteria: list[Criterion]
    digest: Digest
    """Digest over the criteria, the judgement and the judged digests."""

    @property
    def unmet(self) -> list[Criterion]:
        """Criteria that did not pass."""
        return [line for line in self.criteria if line.verdict is not Verdict.PASS]
