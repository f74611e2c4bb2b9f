"""Every number of a report that does not follow from its rows is found, with what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.builders.judged_candidates import evidence_of, sealed_policy
from support.builders.validation_reports import RIVALS, validation_of

from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import Estimate
from simic.contracts.settings.run import RunConfig, TrialConfig
from simic.runtime.home import Home
from simic.validation.report_checks import disagreements
from simic.validation.trials import paired_estimate

CONFIG = RunConfig(trial=TrialConfig(bootstrap_samples=200))
PROVENANCE = Provenance("0.1.0+0", "c" * 64, 3)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ValidationReport:
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    training = evidence_of(home, *sealed_policy(home, b"one")).training
    return validation_of(training, CONFIG, PROVENANCE, margin=3.0, champion="e" * 64)


def found(report: ValidationReport) -> list[str]:
    return disagreements(report, CONFIG.trial, "candidate")


def test_a_report_as_it_was_made_agrees_with_its_rows(report: ValidationReport) -> None:
    assert found(report) == []
    assert found(ValidationReport.model_validate_json(report.model_dump_json())) == []


@pytest.mark.parametrize("name", ["mean", "lower", "upper", "confidence", "n"])
@pytest.mark.parametrize("rival", [*RIVALS, "champion"])
def test_each_number_of_each_difference_is_held_against_the_rows(
    report: ValidationReport, rival: str, name: str
) -> None:
    true = report.differences[rival]
    step = 1 if name == "n" else 1e-6
    edited = true.model_copy(update={name: getattr(true, name) + step})
    lines = found(report.model_copy(update={"differences": {**report.differences, rival: edited}}))
    assert len(lines) == 1
    assert lines[0].startswith(f"difference to {rival}: expected {name} ")


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[ValidationReport], ValidationReport]:
    def apply(report: ValidationReport) -> ValidationReport:
        record = report.model_dump(mode="json")
        change(record)
        return ValidationReport.model_validate(record)

    return apply


def candidate(record: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in record["trials"]["controllers"] if row["controller"] == "candidate")


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "mean return": (lambda r: candidate(r).update(mean_return=9.0), "candidate: expected mean return 8, found 9"),
    "episodes": (lambda r: candidate(r).update(episodes=999), "candidate: expected episodes 160, found 999"),
    "accuracy": (lambda r: candidate(r).update(test_accuracy=0.9), "candidate: expected mean test accuracy 0.7"),
    "one return": (lambda r: candidate(r)["returns"].__setitem__(0, 99.0), "candidate: expected mean return 8.6"),
    "a return is missing": (lambda r: candidate(r)["returns"].pop(), "candidate: expected 160 returns, found 159"),
    "a family is missing": (lambda r: r["trials"]["families"].pop(), "expected the families of 160 hosts, found 159"),
    "other strata": (lambda r: r["trials"].update(families=["cap"] * 160), "over wait: expected lower"),
    "no candidate": (lambda r: r["trials"]["controllers"].remove(candidate(r)), "there is no row of candidate"),
    "two candidates": (lambda r: r["trials"]["controllers"].append(candidate(r)), "expected one row per controller"),
    "another seed": (lambda r: r.update(seed=4), "expected lower"),
    "over wait": (lambda r: candidate(r)["over_wait"].update(lower=2.99), "candidate over wait: expected lower"),
    "one family": (lambda r: candidate(r)["by_family"]["cap"].update(mean_return=0.0), "candidate on cap: expected"),
    "a family's difference": (
        lambda r: candidate(r)["by_family"]["cap"]["over_wait"].update(upper=9.0, mean=8.0),
        "candidate on cap over wait: expected mean",
    ),
    "an unknown family": (
        lambda r: candidate(r)["by_family"].update(none=candidate(r)["by_family"]["cap"]),
        "candidate on none: no host is of this family",
    ),
    "an unknown rival": (
        lambda r: r["differences"].update(nobody=r["differences"]["wait"]),
        "difference to nobody: there is no row of nobody",
    ),
}


@pytest.mark.parametrize(("change", "told"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_number_is_found_and_said(
    report: ValidationReport, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    lines = found(edited(change)(report))
    assert any(told in line for line in lines), lines


@pytest.mark.parametrize(
    "values", [(5.0, 6.0, 7.0), (5.0, 3.0, 4.0), (float("nan"), 1.0, 2.0), (1.0, 0.0, float("inf"))]
)
def test_an_estimate_outside_its_own_interval_is_none(values: tuple[float, float, float]) -> None:
    mean, lower, upper = values
    with pytest.raises(ValidationError):
        Estimate(mean=mean, lower=lower, upper=upper, confidence=0.95, n=160)


@pytest.mark.parametrize("n", [0, 1])
def test_an_estimate_needs_two_pairs(n: int) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        Estimate(mean=0.0, lower=0.0, upper=0.0, confidence=0.95, n=n)


@given(
    differences=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40),
    confidence=st.floats(0.51, 0.99),
    seed=st.integers(0, 2**32),
)
def test_law_the_mean_lies_within_whatever_the_differences(
    differences: list[float], confidence: float, seed: int
) -> None:
    config = TrialConfig(confidence=confidence, bootstrap_samples=200)
    made = paired_estimate(differences, [0.0] * len(differences), config, seed)
    assert made.lower <= made.mean <= made.upper
    constant = paired_estimate([differences[0]] * len(differences), [0.0] * len(differences), config, seed)
    assert constant.lower <= constant.mean <= constant.upper
