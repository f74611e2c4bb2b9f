"""The promotion gate: a pure function from a validation report to a decision with all criteria.

The criteria are the modules of ``criteria``, each one file; a criterion whose evidence is missing rejects.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from simic.contracts.errors import ConfigError
from simic.contracts.names import KARN, MODEL_NAME, judged_name
from simic.contracts.results.gate import GateDecision, Probe, ValidationReport, Verdict
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.log_evidence import EvidenceKind
from simic.contracts.results.receipts import Provenance
from simic.contracts.settings.run import GateConfig, TrialConfig
from simic.trust.sealed_receipts import decision_digest
from simic.validation.criteria import CRITERIA
from simic.validation.criterion import REPORTS, Case
from simic.validation.probing import Subject, one_thread

__all__ = ["applied_criteria", "decide", "rejection_message", "run_probes"]


def applied_criteria(
    without: Sequence[str], evidence: EvidenceKind | None = None, model: str | None = None
) -> list[Any]:
    """Return the modules of all criteria but those ``without``, in the order of a decision.

    With a kind of ``evidence``, those that judge the other kind are left out; with a registered ``model``, those that
    judge no version of it.

    Raises:
        ConfigError: for a name that is no criterion, or a criterion of another package that cannot be loaded.
    """
    names = CRITERIA.names()
    if unknown := sorted(set(without) - set(names)):
        hints = "".join(_hint(name, names) for name in unknown)
        raise ConfigError(f"gate.without: expected criteria of {', '.join(names)}, found {', '.join(unknown)}{hints}")
    modules = [CRITERIA.load(name) for name in names if name not in without]
    kept = [module for module in modules if evidence is None or getattr(module, "EVIDENCE", evidence) == evidence]
    kept = [module for module in kept if model is None or model in getattr(module, "MODELS", (model,))]
    return sorted(kept, key=lambda module: (module.ORDER, module.NAME))


def _hint(name: str, criteria: Sequence[str]) -> str:
    """Say to which criterion ``name`` belongs if it is a line of a decision, such as ``return_over_wait``."""
    held = [criterion for criterion in criteria if f"_{criterion}_" in f"_{name}_"]
    return f"; {name} is a line of criterion {max(held, key=len)}, which can be left out as a whole" if held else ""


def run_probes(subject: Subject) -> dict[str, Probe]:
    """Return the results of all probes: of each criterion that applies and has a function ``measure``.

    They decide about few hosts at a time, with one thread: more would wait for each other at every product.

    Raises:
        ConfigError: for a name in ``gate.without`` that is no criterion.
    """
    model = KARN if isinstance(subject.training, KarnReport) else MODEL_NAME
    modules = applied_criteria(subject.gate.without, subject.gate.evidence, model)
    with one_thread():
        return {module.NAME: module.measure(subject) for module in modules if hasattr(module, "measure")}


def decide(
    report: ValidationReport,
    config: GateConfig,
    *,
    judgement: Judgement,
    trial: TrialConfig,
    min_commit_rate: float,
    provenance: Provenance,
    now: datetime,
) -> GateDecision:
    """Judge the candidate of ``report``; it is accepted only if every criterion passes.

    Args:
        report: All evidence.
        config: Which criteria apply, and their bounds.
        judgement: That for which the evidence was collected, with its level.
        trial: Settings of the report's intervals.
        min_commit_rate: Least ``commit_rate``, the bound at which training stops.
        provenance: Code and configuration of the gate.
        now: Time of the decision.

    Raises:
        ConfigError: for a name in ``gate.without`` that is no criterion.
    """
    case = Case(report, config, trial, judgement, min_commit_rate, provenance.config_digest)
    applied = applied_criteria(config.without, config.evidence, report.model)
    absent = [module.NAME for module in applied_criteria(config.without, model=report.model) if module not in applied]
    judged = [(module, list(module.judge(case))) for module in applied]
    criteria = [line for _, lines in judged for line in lines]
    silent = [f"{module.NAME} ({module.ABSENT})" for module, lines in judged if hasattr(module, "ABSENT") and not lines]
    return GateDecision(
        code_version=provenance.code_version,
        config_digest=provenance.config_digest,
        seed=provenance.seed,
        started_at=now,
        finished_at=now,
        model=report.model,
        policy_digest=report.policy_digest,
        champion_digest=report.champion_digest,
        consulted_by=report.consulted_by,
        judgement=judgement,
        accepted=bool(criteria) and all(criterion.verdict is Verdict.PASS for criterion in criteria),
        without=sorted(config.without),
        evidence=config.evidence,
        absent=[*(absent if config.evidence == REPORTS else []), *silent],
        criteria=criteria,
        digest=decision_digest(
            report.policy_digest,
            report.champion_digest,
            report.snapshot_digest,
            judgement,
            criteria,
            report.consulted_by,
        ),
    )


def rejection_message(decision: GateDecision) -> str:
    """Return why a candidate was rejected: every criterion that did not pass, with value and bound."""
    reasons = "; ".join(line.told() for line in decision.unmet)
    champion = f"champion of {decision.model}"
    ending = f"There is still no {champion}" if decision.champion_digest is None else f"The {champion} stays"
    return f"the gate rejected {judged_name(decision.model, decision.policy_digest)}: {reasons}. {ending}"
