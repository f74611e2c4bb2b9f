"""The page of a judgement tells every criterion, and its pictures agree with the verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from support.builders.judged_candidates import NOW, evidence_of, sealed_policy
from support.builders.judgements import judgement
from support.builders.validation_reports import validation_of

from simic.contracts.names import KARN, MODEL_NAME
from simic.contracts.results.gate import GateDecision, ValidationReport, Verdict
from simic.contracts.results.receipts import Provenance
from simic.contracts.settings.run import RunConfig
from simic.runtime.home import Home
from simic.validation import gate_page
from simic.validation.criterion import Comparison, line
from simic.validation.gate_page import gate_text, headroom, write_gate_page
from simic.validation.off_policy import LEAST_HOSTS
from simic.validation.promotion_gate import decide

PNG = b"\x89PNG"


def judged(tmp_path: Path, margin: float) -> tuple[GateDecision, ValidationReport]:
    config, provenance = RunConfig(), Provenance("0.1.0+0", "c" * 64, 0)
    config = config.model_copy(update={"trial": config.trial.model_copy(update={"bootstrap_samples": 200})})
    home, drawn = Home(tmp_path / "home"), tmp_path / "drawn.png"
    drawn.write_bytes(PNG)
    training = evidence_of(home, *sealed_policy(home, b"one")).training
    report = validation_of(
        training, config, provenance, margin=margin, figures={"paired_differences": str(drawn)}
    )  # fmt: skip
    settings = {"judgement": judgement(), "trial": config.trial, "min_commit_rate": 0.0, "provenance": provenance}
    return decide(report, config.gate, now=NOW, **settings), report  # type: ignore[arg-type]


@pytest.mark.parametrize("margin", [2.0, -2.0])
def test_the_page_has_every_criterion_and_its_pictures(tmp_path: Path, margin: float) -> None:
    decision, report = judged(tmp_path, margin)
    folder = write_gate_page(decision, report, tmp_path / "gate")
    page = (folder / "gate.md").read_text("utf-8")
    assert page.startswith(gate_text(decision))
    for one in decision.criteria:
        assert f"| {one.name} | " in page
        assert (f"- **{one.name}** is " in page) == (one.verdict is not Verdict.PASS)
    assert all(f"| {name} | {probe.value:.4g} | {probe.count} |" in page for name, probe in report.probes.items())
    for name in ("criteria.png", "paired_differences.png"):
        assert f"({name})" in page and (folder / name).read_bytes().startswith(PNG)
    assert len({row.count("|") - row.count("\\|") for row in page.splitlines() if row.startswith("| ")}) <= 2


def test_a_judgement_without_its_pictures_still_has_a_page(tmp_path: Path) -> None:
    decision, report = judged(tmp_path, 2.0)
    lost = report.model_copy(update={"figures": {}, "probes": {}})
    text = (write_gate_page(decision, lost, tmp_path / "gate") / "gate.md").read_text("utf-8")
    assert "paired_differences.png" not in text and "## Probes" not in text


def test_a_page_without_a_log_says_what_one_takes_and_names_no_cause(tmp_path: Path) -> None:
    decision, report = judged(tmp_path, 2.0)
    assert report.log is None
    text = (write_gate_page(decision, report, tmp_path / "gate") / "gate.md").read_text("utf-8")
    assert "## Evidence of a log\n\nNo estimate from a log stands beside the trials. It takes" in text
    assert f"{LEAST_HOSTS} or more held-out hosts" in text
    assert "too few" not in text.partition("## Evidence of a log")[2].partition("## ")[0]


@pytest.mark.parametrize(("model", "name"), [(MODEL_NAME, "Policy"), (KARN, "Karn")])
def test_page_and_picture_name_what_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str
) -> None:
    titles = list[str]()

    def drawn(figure: Figure, path: Path) -> None:
        titles.extend(axes.get_title(loc="left") for axes in figure.axes)
        path.write_bytes(PNG)

    monkeypatch.setattr(gate_page, "save", drawn)
    decision, report = judged(tmp_path, 2.0)
    decision, report = (one.model_copy(update={"model": model}) for one in (decision, report))
    text = (write_gate_page(decision, report, tmp_path / "gate") / "gate.md").read_text("utf-8")
    verdict = "accepted" if decision.accepted else "rejected"
    assert titles == [f"{name} {decision.policy_digest[:8]} is {verdict}; x: missing"]
    assert f"{name} `{decision.policy_digest}` passes" in text
    assert ("## Evidence of a log" in text) is (model == MODEL_NAME), "no log is asked about a Karn"


NUMBERS = st.floats(-1e6, 1e6)
COMPARISONS: list[Comparison] = [">", ">=", "<", "<="]


@given(NUMBERS | st.none(), NUMBERS, st.sampled_from(COMPARISONS))
def test_headroom_is_on_the_side_of_the_verdict(value: float | None, bound: float, comparison: Comparison) -> None:
    found = headroom(line("one", value, comparison, bound, "by hand"))
    if value is None:
        assert found is None
        return
    assert found is not None and -1.0 <= found <= 1.0
    passes = line("one", value, comparison, bound, "by hand").verdict is Verdict.PASS
    if value == bound:
        assert found == 0.0 and passes == comparison.endswith("=")
    else:
        assert (found >= 0.0) == passes
