"""The verb that compares arms by pairs, on real hosts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from simic.app.comparisons import comparison
from simic.cli.compare import compare, pairs_table
from simic.contracts.errors import ConfigError
from simic.contracts.results.comparison import Comparison
from simic.contracts.settings.run import TrialConfig
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys
from simic.numerics.sequential import anytime_p
from simic.runtime.home import Home
from simic.validation.comparison import compare_pairs, looks_of
from simic.validation.episodes import Episodes
from simic.validation.trials import grow_all

HOSTS = "0:6"


@pytest.fixture(autouse=True)
def _made_home(home: Path) -> None:
    Home(home).create()


def _compared(arms: list[str], capsys: pytest.CaptureFixture[str]) -> Comparison:
    compare(arms, world_set="benchmark", host_keys=HOSTS, override=["world.horizon=4", "world.workers=1"], as_json=True)
    return Comparison.model_validate_json(capsys.readouterr().out)


def test_pairs_are_paired_by_host_and_arms_may_come_in_any_order(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, swapped = _compared(["random", "wait"], capsys), _compared(["wait", "random"], capsys)
    returns = {row.controller: row.returns for row in found.trials.controllers}
    assert returns == {row.controller: row.returns for row in swapped.trials.controllers}
    (pair,), (other,) = found.pairs, swapped.pairs
    assert (pair.controller, pair.against) == ("random", "wait")
    by_host = [ours - theirs for ours, theirs in zip(returns["random"], returns["wait"], strict=True)]
    assert pair.difference.mean == pytest.approx(sum(by_host) / len(by_host))
    assert pair.difference.mean == -other.difference.mean
    assert pair.p == other.p
    assert set(pair.by_family) == {"cap"}, "keys 0 and 5 are of one family, all others alone in theirs"
    cap = pair.by_family["cap"]
    assert cap.mean == pytest.approx((by_host[0] + by_host[5]) / 2) and cap.n == 2
    assert list((home / "data").rglob("*trials*"))


def test_equal_arms_show_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    report = _compared(["random", "wait"], capsys).trials
    row = next(row for row in report.controllers if row.controller == "random")
    report = report.model_copy(update={"controllers": [row, row.model_copy(update={"controller": "again"})]})
    (pair,) = compare_pairs(report, [("random", "again")], TrialConfig())
    assert (pair.difference.mean, pair.p, pair.adjusted_p, pair.detectable) == (0.0, 1.0, 1.0, None)
    assert (pair.verdict, pair.probability_of_improvement) == ("no difference shown", 0.5)
    assert pairs_table([pair]).rows[0][-1] == "nothing"


def test_a_shown_difference_has_its_sign_and_three_arms_are_adjusted(capsys: pytest.CaptureFixture[str]) -> None:
    report = _compared(["random", "wait"], capsys).trials
    row, keys = report.controllers[0], list(range(12))
    rows = [
        row.model_copy(update={"controller": name, "returns": [key + shift for key in keys]})
        for name, shift in (("low", 0.0), ("high", 5.0), ("same", 0.0))
    ]
    report = report.model_copy(update={"controllers": rows, "host_keys": keys, "families": ["cap"] * 12})
    pairs = compare_pairs(report, list(combinations(["low", "high", "same"], 2)), TrialConfig())
    assert [(one.controller, one.against, one.verdict) for one in pairs] == [
        ("low", "high", "worse"),
        ("low", "same", "no difference shown"),
        ("high", "same", "better"),
    ]
    assert pairs[0].p == 2 / 2**12
    assert pairs[0].adjusted_p == 3 * pairs[0].p


def test_the_interval_within_a_family_is_students(capsys: pytest.CaptureFixture[str]) -> None:
    report = _compared(["random", "wait"], capsys).trials
    row, families = report.controllers[0], ["cap", "cap", "gain", "gain", "gain", "gain", "noisy"]
    gains = [1.0, 4.0, 0.0, 2.0, 3.0, 5.0, 7.0]
    rows = [
        row.model_copy(update={"controller": name, "returns": returns})
        for name, returns in (("high", gains), ("low", [0.0] * len(gains)))
    ]
    report = report.model_copy(update={"controllers": rows, "host_keys": list(range(7)), "families": families})
    (pair,) = compare_pairs(report, [("high", "low")], TrialConfig(bootstrap_samples=200))
    assert list(pair.by_family) == ["cap", "gain"], "one host has no spread"
    for name, own in (("cap", gains[:2]), ("gain", gains[2:6])):
        expected = ttest_1samp(own, 0.0).confidence_interval(0.95)
        found = pair.by_family[name]
        assert (found.mean, found.n) == (pytest.approx(np.mean(own)), len(own))
        assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("arms", "hosts", "message"),
    [
        (["wait"], HOSTS, "2 or more arms"),
        (["wait", "wait"], HOSTS, "different arms"),
        (["wait", "nobody"], HOSTS, "nobody"),
        (["wait", "random"], "3", "2 or more hosts"),
    ],
)
def test_what_cannot_be_compared_is_refused(arms: list[str], hosts: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(arms, world_set="benchmark", host_keys=hosts)


def test_the_table_says_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, plot = ["world.horizon=4", "world.workers=1"], tmp_path / "pairs.png"
    compare(["random", "wait"], world_set="benchmark", host_keys=HOSTS, override=settings, plot=plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "detectable" in printed
    assert "wait" in printed


def test_a_comparison_that_stops_by_itself_has_the_hosts_of_a_trial_of_that_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Arms that never grow are equal, so all 40 hosts grow, in two rounds of 32 and 8."""
    settings = ["world.horizon=4", "world.workers=1", "trial.hosts_per_family=40", "trial.bootstrap_samples=200"]
    compare(["wait", "random"], world_set="fine", until_decided=True, override=settings, as_json=True)
    found = Comparison.model_validate_json(capsys.readouterr().out)
    stop, (pair,) = found.sequential, found.pairs
    assert stop is not None
    assert (stop.most_looks, stop.most_hosts) == (2, 40)
    assert stop.hosts == pair.difference.n == (32, 40)[stop.looks - 1]
    assert stop.is_decided == (pair.verdict != "no difference shown")
    assert sorted(found.trials.host_keys) == draw_keys("fine", Split.TEST, stop.hosts)
    assert (pair.difference.lower > 0 or pair.difference.upper < 0) == (pair.p < 0.05)


def test_decided_pairs_stop_the_comparison(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def better(*arguments: Any) -> dict[str, Episodes]:
        found = grow_all(*arguments)
        return {**found, "random": replace(found["random"], returns=found["random"].returns + 50.0)}

    monkeypatch.setattr(comparison, "grow_all", better)
    settings = ["world.horizon=4", "world.workers=1", "trial.hosts_per_family=64", "trial.bootstrap_samples=200"]
    compare(["wait", "random"], world_set="fine", until_decided=True, override=settings, as_json=False)
    assert "After look 1 of at most 2, 32 of 64 hosts" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["trial.hosts_per_family=1"], "1 host at the first look.*expected 2 or more.*trial.hosts_per_family"),
        (["trial.hosts_per_family=4"], "4 hosts give no interval at trial.confidence 0.95"),
        (["trial.hosts_per_family=40", "trial.confidence=0.9999999999"], "32 hosts give no interval"),
    ],
)
def test_a_comparison_whose_first_look_has_too_few_hosts_is_refused_before_it_grows_any(
    monkeypatch: pytest.MonkeyPatch, settings: list[str], message: str
) -> None:
    def grows(*_: Any) -> dict[str, Episodes]:
        pytest.fail("a host has grown")

    monkeypatch.setattr(comparison, "grow_all", grows)
    with pytest.raises(ConfigError, match=message):
        compare(["wait", "random"], world_set="cap", until_decided=True, override=settings)


@pytest.mark.parametrize("families", [1, 2, 5, 40])
def test_the_test_of_a_comparison_that_stops_by_itself_does_not_depend_on_the_budget(families: int) -> None:
    """Else a larger budget, given after the looks of a smaller one, would make a test with another level."""
    most = [32, 33, 64, 100, 1000, 10_000]
    found = [looks_of(families, one) for one in most]
    assert len({looks for _, looks in found}) == 1
    for (counts, looks), limit in zip(found, most, strict=True):
        assert (counts[0], counts[-1]) == (looks.first, families * limit)
        assert counts == sorted(set(counts)) and found[-1][0][: len(counts) - 1] == counts[:-1]
    differences = np.random.default_rng(0).normal(0.3, 1.0, looks.first)
    assert len({float(anytime_p(differences, *looks)) for _, looks in found}) == 1


def test_a_recipe_that_nothing_was_trained_with_is_refused() -> None:
    with pytest.raises(ConfigError, match="no policy was trained with recipe quick"):
        compare(["quick", "wait"], host_keys=HOSTS)


def test_rounds_and_named_hosts_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--host-keys"):
        compare(["wait", "random"], until_decided=True, host_keys=HOSTS)


def test_a_pair_with_an_arm_that_searches_is_compared_by_test_accuracy_and_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = _compared(["random", "simulate", "wait"], capsys).trials
    rows = {row.controller: row for row in report.controllers}
    pairs = compare_pairs(report, [("random", "simulate"), ("random", "wait")], TrialConfig())
    assert [pair.scored_by for pair in pairs] == ["test", "validation"]
    for pair, name in zip(pairs, ("test_returns", "returns"), strict=True):
        by_host = np.subtract(getattr(rows[pair.controller], name), getattr(rows[pair.against], name))
        assert pair.difference.mean == pytest.approx(by_host.mean())
    compare(["random", "simulate"], world_set="benchmark", host_keys=HOSTS, override=["world.horizon=4"])
    assert "]*" in capsys.readouterr().out


def test_an_arm_that_searches_does_not_land() -> None:
    with pytest.raises(ConfigError, match="simulate cannot land"):
        compare(["random", "simulate"], world_set="benchmark", override=["trial.hosts_per_family=1"], land=True)
