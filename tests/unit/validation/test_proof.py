"""The figures of a proof, against numbers computed by hand from the returns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from support.builders.proofs import FAMILIES, proof_training, proof_trial

from simic.contracts.results.proof import Proof, ProofSet, ProofStatic, ProofTrial
from simic.contracts.settings.run import TrialConfig
from simic.validation.proof import Tried, compare
from simic.validation.proof_plot import draw_gains

CONFIG = TrialConfig(bootstrap_samples=200)
WAIT = proof_trial("wait", [50, 60, 52, 62])
BLIND = proof_trial("blind", [51, 61, 55, 65])
ORACLE = proof_trial("oracle", [60, 64, 62, 66])


def learned(*returns: list[float]) -> list[Tried]:
    return [Tried(proof_training(seed), proof_trial("learned", row)) for seed, row in enumerate(returns)]


def compared(tried: list[Tried], left_out: dict[str, list[Tried]] | None = None) -> ProofSet:
    return compare({"wait": WAIT, "blind": BLIND, "oracle": ORACLE}, tried, left_out or {}, CONFIG, [])


def test_figures_are_means_over_seeds_and_hosts() -> None:
    found = compared(learned([56, 62, 58, 64], [58, 64, 60, 66]))
    assert {name: one.mean for name, one in found.over.items()} == {"wait": 5.0, "blind": 3.0, "oracle": -2.0}
    assert found.share_of_oracle is not None
    assert found.share_of_oracle.mean == pytest.approx(5 / 7)
    assert found.spread == pytest.approx(2**0.5), "gains 4 and 6 over never growing"
    assert [one.over["blind"].mean for one in found.seeds] == [2.0, 4.0]
    assert [row.controller for row in found.rows] == ["wait", "blind", "oracle", "learned"]
    last = found.rows[-1]
    assert last.mean_return == 61.0
    assert {name: one.mean for name, one in last.by_family.items() if one} == {"cap": 7.0, "gain": 3.0}
    assert last.test_accuracy == pytest.approx(0.61)
    assert (found.hosts, found.families, found.first_key) == (4, {"cap": 2, "gain": 2}, 10)


def test_costs_are_means_over_seeds_and_hosts_and_rents_shift_the_gains() -> None:
    """In the builder a quarter of the return is rent, so the gains without rent are a quarter larger."""
    found = compared(learned([56, 62, 58, 64], [58, 64, 60, 66]))
    wait, last = found.rows[0], found.rows[-1]
    assert last.test_over_wait is not None
    assert last.test_over_wait.mean == pytest.approx(0.05)
    assert last.validation_accuracy == pytest.approx(1.22)
    assert (last.host_share, last.extra_compute) == (0.25, pytest.approx(0.305))
    gains = dict(zip(found.rent_factors, [one.mean for one in last.by_rent if one], strict=True))
    assert gains == {0.0: 6.25, 0.25: 5.9375, 1.0: 5.0, 4.0: 1.25, 16.0: -13.75}
    assert last.by_rent[2] == last.over_wait
    assert (wait.test_over_wait, wait.by_rent) == (None, [None] * 5)


def test_an_arm_that_searches_is_scored_and_compared_by_test_accuracy() -> None:
    """In the builder a return by test accuracy is 10 lower; hindsight's by more, as after a choice."""
    best = proof_trial("hindsight", [70, 72, 74, 76]).model_copy(
        update={"test_returns": [51.0, 58.0, 53.0, 58.0], "episodes_grown": [37] * 4}
    )
    baselines = {"wait": WAIT, "blind": BLIND, "hindsight": best}
    found = compare(baselines, learned([56, 62, 58, 64], [58, 64, 60, 66]), {}, CONFIG, [])
    row, ours = found.rows[2], found.rows[-1]
    assert (row.scored_by, row.mean_return, row.episodes_grown) == ("test", 55.0, 37.0)
    assert row.over_wait is not None and row.over_wait == row.by_test == row.by_rent[2]
    assert row.over_wait.mean == 9.0, "of 55 by test, where never growing has 46"
    assert found.over["hindsight"].mean == -4.0, "51 by test minus 55"
    assert found.over["blind"].mean == 3.0
    assert ours.share_of_hindsight is not None
    assert ours.share_of_hindsight.mean == pytest.approx(3 / 7), "over blind, which has 48 by test"
    assert [one.over["hindsight"].mean for one in found.seeds] == [-5.0, -3.0]
    assert (ours.decision_multiply_adds, ours.controller_compute, ours.probe_compute) == (1000.0, 0.25, 0.125)


def test_static_networks_are_paired_by_seed_and_host_and_a_failed_training_has_none() -> None:
    tried = learned([56, 62, 58, 64], [58, 64, 60, 66])
    rival = ProofStatic(
        same="epochs", epochs=[20, 20, 20, 18], returns=[55, 61, 57, 63], test_accuracies=[0.5] * 4, governor_events=1
    )
    shorter = rival.model_copy(update={"same": "compute", "epochs": [10, 12, 14, 16]})
    tried[0] = tried[0]._replace(trial=tried[0].trial.model_copy(update={"static": [rival, shorter]}))
    same_epochs, same_compute = compared(tried).static
    assert (same_epochs.same, same_compute.same) == ("epochs", "compute")
    assert same_epochs.return_difference.mean == 0.5, "1 point for the first seed, 0 for the second"
    assert same_epochs.test_difference.mean == pytest.approx((0.60 - 0.50) / 2)
    assert (same_epochs.mean_epochs, same_compute.mean_epochs, same_epochs.governor_events) == (19.5, 13.0, 1)
    assert same_epochs.mean_return == pytest.approx((59 + 62) / 2)
    assert compared(tried[1:]).static[0].mean_epochs is None
    with pytest.raises(ValidationError, match="expected 4 entries"):
        ProofTrial.model_validate({**WAIT.model_dump(), "static": [{**rival.model_dump(), "epochs": [20]}]})


def test_intervals_cover_the_seeds_where_hosts_alone_have_no_spread() -> None:
    """Each policy gains the same on every host, so only the seed decides."""
    found = compared(learned([54, 64, 56, 66], [56, 66, 58, 68]))
    half = 12.7062  # Student's quantile of one degree of freedom, for gains 4 and 6 with a standard error of 1
    assert (found.over["wait"].lower, found.over["wait"].upper) == pytest.approx((5.0 - half, 5.0 + half), rel=1e-4)
    assert [(one.over["wait"].lower, one.over["wait"].upper) for one in found.seeds] == [(4.0, 4.0), (6.0, 6.0)]


def test_one_seed_has_no_spread_between_seeds() -> None:
    assert compared(learned([56, 62, 58, 64])).spread is None


def test_without_an_oracle_or_if_it_may_gain_nothing_there_is_no_share() -> None:
    tried = learned([56, 62, 58, 64])
    assert compare({"wait": WAIT}, tried, {}, CONFIG, []).share_of_oracle is None
    useless = proof_trial("oracle", [49, 61, 53, 61])
    assert compare({"wait": WAIT, "oracle": useless}, tried, {}, CONFIG, []).share_of_oracle is None


def test_a_family_left_out_is_compared_with_the_policies_that_met_it() -> None:
    met = learned([56, 62, 58, 64], [58, 64, 60, 66])
    unmet = [
        Tried(proof_training(seed, ["gain"]), proof_trial("stranger", row, ["gain", "gain"]))
        for seed, row in enumerate([[59, 61], [61, 65]])
    ]
    (found,) = compared(met, {"gain": unmet}).left_out
    assert (found.family, found.hosts, found.accepted, found.failures) == ("gain", 2, 2, 0)
    assert (found.left_out.mean, found.trained_with.mean, found.difference.mean) == (0.5, 3.0, -2.5)
    assert {name: one.mean for name, one in found.baselines.items()} == {"blind": 2.0, "oracle": 4.0}


def test_a_training_that_failed_counts_as_never_growing() -> None:
    failed = Tried(proof_training(1, failure="a policy that never commits"), WAIT)
    found = compared([*learned([56, 62, 58, 64]), failed])
    assert found.over["wait"].mean == 2.0
    assert (found.seeds[1].failure, found.seeds[1].policy_digest, found.seeds[1].accepted) == (
        "a policy that never commits", None, False,
    )  # fmt: skip


def test_the_figure_is_a_picture_with_a_panel_per_comparison(tmp_path: Path) -> None:
    found = compared(learned([56, 62, 58, 64], [58, 64, 60, 66]))
    proof = Proof(
        code_version="0.1.0+test", profile="quick", config_digest="c" * 64, command="simic proof", seeds=[0, 1],
        hosts_per_family=2, confidence=0.95, trainings=2, episodes=200, sets=[found, found],
    )  # fmt: skip
    path = draw_gains(proof, tmp_path / "sub" / "proof.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert len(FAMILIES) == found.hosts
