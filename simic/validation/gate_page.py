"""The page of a judgement: every criterion with value, bound and evidence, in Markdown with pictures."""

from __future__ import annotations

import shutil
from pathlib import Path

from simic.contracts.names import MODEL_NAME, MODELS, short
from simic.contracts.results.gate import Criterion, GateDecision, ValidationReport, Verdict
from simic.contracts.results.log_evidence import LogEvidence
from simic.runtime.files import atomic_write
from simic.validation.criterion import REPORTS
from simic.validation.gate_bounds import page_text
from simic.validation.off_policy import LEAST_HOSTS
from simic.validation.palette import GREEN, GREY, RED
from simic.validation.plots import new_figure, save, style_rows
from simic.validation.table import escape_markdown, markdown, render_log

__all__ = ["PAGE_NAME", "gate_text", "headroom", "write_gate_page"]

PAGE_NAME = "gate.md"
_CRITERIA = "criteria.png"
_DIFFERENCES = "paired_differences"
_COLOURS = {Verdict.PASS: GREEN, Verdict.FAIL: RED, Verdict.MISSING: GREY}
_NO_LOG = (
    "No estimate from a log stands beside the trials. It takes the snapshot that the policy learned from, with whole "
    f"episodes of one controller, of the set and horizon of the trials, on {LEAST_HOSTS} or more held-out hosts."
)
_CELLS = 5
"""Characters on either side of the bound."""


def headroom(criterion: Criterion) -> float | None:
    """Return how far a value is from its bound, as a share of the larger of both, in [-1, 1].

    It is positive on the side that passes. None for a missing value.
    """
    if criterion.value is None:
        return None
    value, bound = criterion.value, criterion.bound
    better = value - bound if criterion.comparison in {">", ">="} else bound - value
    return max(-1.0, min(1.0, better / max(abs(value), abs(bound)))) if better else 0.0


def gate_text(decision: GateDecision) -> str:
    """Return the page without pictures: verdict, reasons, what the judgement may spend, and a table of all criteria.

    A bar per criterion shows its headroom: to the right of ``:`` it passes, a full side is the whole value or bound.
    """
    failed = decision.unmet
    verdict = "accepted" if decision.accepted else "rejected"
    lines = [f"# Gate: {verdict}", "", page_text(decision), ""]
    what, passed = MODELS[decision.model].capitalize(), len(decision.criteria) - len(failed)
    lines += [f"{what} `{decision.policy_digest}` passes {passed} of "
              f"{len(decision.criteria)} criteria; each must pass, and a missing value does not.", ""]  # fmt: skip
    lines += [
        f"- **{criterion.name}** is {_value(criterion)}, needs {_bound(criterion)}: "
        f"{escape_markdown(criterion.evidence)}"
        for criterion in failed
    ]
    lines += ["", "| criterion | value | bound | fails : passes | verdict | evidence |", "| --- " * 6 + "|"]
    lines += [
        f"| {criterion.name} | {_value(criterion)} | {_bound(criterion)} | {_bar(headroom(criterion))} "
        f"| {criterion.verdict.value} | {escape_markdown(criterion.evidence)} |"
        for criterion in decision.criteria
    ]
    return "\n".join(lines) + "\n"


def write_gate_page(decision: GateDecision, report: ValidationReport, folder: Path) -> Path:
    """Write the page and its pictures to ``folder``, replacing those of an earlier decision, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _draw(decision, folder / _CRITERIA)
    parts = [gate_text(decision), "## Headroom of each criterion", f"![Criteria]({_CRITERIA})"]
    drawn = Path(report.figures.get(_DIFFERENCES, ""))
    if drawn.is_file():
        shutil.copyfile(drawn, folder / f"{_DIFFERENCES}.png")
        parts += ["## Paired differences", f"![Paired differences]({_DIFFERENCES}.png)"]
    if report.log is not None:
        parts += ["## Evidence of the log", _log_text(report, report.log)]
    elif report.model == MODEL_NAME:
        parts += ["## Evidence of a log", _NO_LOG]
    measured = [
        f"| {name} | {probe.value:.4g} | {probe.count} | {escape_markdown(probe.detail)} |"
        for name, probe in report.probes.items()
    ]
    if measured:
        parts += ["## Probes", "\n".join(["| probe | value | cases | detail |", "| --- " * 4 + "|", *measured])]
    atomic_write(folder / PAGE_NAME, ("\n\n".join(parts) + "\n").encode())
    return folder


def _log_text(report: ValidationReport, log: LogEvidence) -> str:
    """Return what a log says: the episodes, the estimate and a table of the policies."""
    used = ", ".join(f"{count} by {short(name)}" for name, count in log.behaviours.items())
    used += f"; horizons in epochs: {', '.join(map(str, log.horizons)) or 'unknown'}"
    others = ", ".join(f"{count} {reason}" for reason, count in log.left_out.items()) or "none"
    value = f" The expected return is {sum(log.returns) / len(log.returns):.2f} points." if log.returns else ""
    table = render_log(log, report.differences if report.evidence == REPORTS else {})
    text = f"{log.episodes} episodes of {len(log.host_keys)} held-out hosts in snapshot `{log.snapshot_digest[:12]}`: "
    text += f"{used}; left out: {others}. Estimator: {log.estimator}.{value}"
    return "\n\n".join([text, markdown(table)])


def _draw(decision: GateDecision, path: Path) -> None:
    """Draw the headroom of every criterion as a bar."""
    rows = decision.criteria
    figure = new_figure(9.0, 1.2 + 0.22 * max(len(rows), 1))
    axes = figure.subplots()
    for row, criterion in enumerate(rows):
        share, colour = headroom(criterion), _COLOURS[criterion.verdict]
        if share is None:
            axes.plot(0.0, row, marker="x", color=colour, markersize=7)
        else:
            axes.barh(row, share, color=colour, height=0.7)
            axes.plot(share, row, marker="o", color=colour, markersize=4)
        axes.text(1.03, row, f"{_value(criterion)} {_bound(criterion)}", va="center", fontsize=7)
    style_rows(axes, [criterion.name for criterion in rows])
    axes.set_xlim(-1.02, 1.02)
    axes.set_xlabel("distance of the value from its bound, as a share of the larger of both; right of 0 passes")
    verdict = "accepted" if decision.accepted else "rejected"
    axes.set_title(
        f"{MODELS[decision.model].capitalize()} {decision.policy_digest[:8]} is {verdict}; x: missing", loc="left"
    )
    save(figure, path)


def _bar(share: float | None) -> str:
    if share is None:
        return "`" + " missing ".center(2 * _CELLS + 1) + "`"
    filled = "#" * round(abs(share) * _CELLS)
    left, right = ("", filled) if share >= 0 else (filled, "")
    return f"`{left:>{_CELLS}}:{right:<{_CELLS}}`"


def _value(criterion: Criterion) -> str:
    return "missing" if criterion.value is None else f"{criterion.value:.4g}"


def _bound(criterion: Criterion) -> str:
    return f"{criterion.comparison} {criterion.bound:.4g}"
