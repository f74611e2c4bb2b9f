"""The rules of the lifecycle and the bounds of the governor are settings, and each changes what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from support.builders.ensembles import action, ensemble, prove, stage_of, step_with
from support.builders.grown_loops import make_loop, train_epoch

import simic
from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.field_report import GovernorKind
from simic.contracts.lifecycle import SeedStage
from simic.contracts.settings.lifecycle import GovernorConfig, LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.hosts import lifecycle_gates
from simic.hosts.ensemble import Ensemble
from simic.hosts.governor import Evidence, judge
from simic.hosts.world_identity import world_identity
from simic.runtime.settings import config_digest, load_profile

S = SeedStage
RULES = [("lifecycle", name) for name in LifecycleConfig.model_fields] + [
    ("governor", name) for name in GovernorConfig.model_fields
]
OTHER = {
    "contribution_weight": 0.9, "birth_tolerance": 1e-4, "min_gradient_health": 0.5, "min_contribution": 0.01,
    "max_contribution_age": 3, "training_epochs": 2, "holding_epochs": 3, "embargo_epochs": 1,
    "automatic_ramp_epochs": 5, "divergence_factor": 5.0, "collapsed_share": 0.9, "lost_accuracy": 0.2,
}  # fmt: skip


def grown_with(**lifecycle: Any) -> Ensemble:
    return ensemble([1], lifecycle=LifecycleConfig(**lifecycle))


def can(grown: Ensemble, op: Op) -> bool:
    return bool(grown.masks().op[0, OP_INDEX[op]])


def slot(grown: Ensemble, name: str) -> float:
    return float(grown.observe().slots[name][0])


@pytest.mark.parametrize(("section", "name"), RULES)
def test_cr09_each_rule_is_part_of_the_identity_of_an_episode_and_of_a_configuration(section: str, name: str) -> None:
    other = load_profile("default", {f"world.{section}.{name}": OTHER[name]})
    assert world_identity(other.world) == world_identity(WorldConfig()) | {f"{section}.{name}": OTHER[name]}
    assert config_digest(other) != config_digest(load_profile("default"))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("lifecycle.contribution_weight", 0, "greater than 0, found 0"),
        ("lifecycle.contribution_weight", 1.5, "less than or equal to 1, found 1.5"),
        ("lifecycle.birth_tolerance", float("inf"), "a finite number"),
        ("lifecycle.min_gradient_health", float("nan"), "a finite number"),
        ("lifecycle.min_contribution", -2, "greater than or equal to -1, found -2"),
        ("lifecycle.max_contribution_age", 1.5, "a whole number, found 1.5"),
        ("lifecycle.training_epochs", 0, "greater than or equal to 1, found 0"),
        ("lifecycle.embargo_epochs", 10**12, "less than or equal to 1000"),
        ("lifecycle.automatic_ramp_epochs", "fast", "a whole number, found 'fast'"),
        ("lifecycle.embargo_epoch", 2, "did you mean world.lifecycle.embargo_epochs?"),
        ("governor.divergence_factor", 0.5, "greater than or equal to 1, found 0.5"),
        ("governor.collapsed_share", 0, "greater than 0, found 0"),
        ("governor.lost_accuracy", "", "a number, found ''"),
    ],
)
def test_cr09_a_rule_that_makes_no_sense_is_refused_by_name(setting: str, value: Any, message: str) -> None:
    with pytest.raises(simic.ConfigError) as caught:
        load_profile("default", {f"world.{setting}": value})
    assert f"world.{setting}" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_seed_trains_as_long_as_the_rule_says(epochs: int) -> None:
    grown = grown_with(training_epochs=epochs)
    step_with(grown, action(Op.GERMINATE, tempo=2))
    for done in range(1, epochs):
        assert not can(grown, Op.ADVANCE), f"after {done} of {epochs} epochs"
        step_with(grown)
    assert can(grown, Op.ADVANCE)


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_seed_is_held_as_long_as_the_rule_says(epochs: int) -> None:
    grown = grown_with(holding_epochs=epochs, min_contribution=-1.0)
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE, alpha_speed=0))
    for done in range(epochs):
        assert (stage_of(grown), can(grown, Op.FOSSILIZE)) == (S.HOLDING, False)
        with pytest.raises(simic.SimicError, match=f"held for {done} epochs, expected at least {epochs}"):
            step_with(grown, action(Op.FOSSILIZE))
        step_with(grown)
    assert can(grown, Op.FOSSILIZE)


@pytest.mark.parametrize("epochs", [1, 4])
def test_a_slot_rests_as_long_as_the_rule_says(epochs: int) -> None:
    grown = grown_with(embargo_epochs=epochs)
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.PRUNE))
    rested = 0
    while stage_of(grown) is S.EMBARGOED:
        step_with(grown)
        rested += 1
    assert (stage_of(grown), rested) == (S.RESETTING, epochs)


@pytest.mark.parametrize("epochs", [0, 1, 4])
def test_the_automatic_ramp_is_as_long_as_the_rule_says(epochs: int) -> None:
    grown = grown_with(automatic_ramp_epochs=epochs)
    step_with(grown, action(Op.GERMINATE, tempo=0))
    while stage_of(grown) is S.TRAINING:
        step_with(grown)
    blended = 0
    while stage_of(grown) is S.BLENDING:
        step_with(grown)
        blended += 1
    assert (stage_of(grown), slot(grown, "alpha"), blended) == (S.HOLDING, 1.0, max(1, epochs))


def test_the_least_contribution_and_its_age_are_the_rules() -> None:
    for least, is_kept in ((0.05, True), (0.2, False)):
        grown = grown_with(min_contribution=least)
        step_with(grown, action(Op.GERMINATE))
        step_with(grown, action(Op.ADVANCE, alpha_speed=0))
        step_with(grown)
        prove(grown)
        assert can(grown, Op.FOSSILIZE) is is_kept
    with pytest.raises(simic.SimicError, match=r"G4: contribution is below 0\.2"):
        step_with(grown, action(Op.FOSSILIZE))
    for oldest, age, is_fresh in ((0, 1, False), (4, 4, True), (4, 5, False)):
        rules = LifecycleConfig(max_contribution_age=oldest)
        found = lifecycle_gates.has_impact(rules, contribution=0.1, contribution_epochs=age)
        assert bool(found.passed) is is_fresh


def test_the_newest_measurement_counts_as_much_as_the_rule_says() -> None:
    """With weight 1 the running contribution is the newest measurement; otherwise it lags behind."""
    found = {}
    for weight in (1.0, 0.5):
        grown = grown_with(contribution_weight=weight)
        step_with(grown, action(Op.GERMINATE))
        step_with(grown, action(Op.ADVANCE, alpha_speed=0))
        first = slot(grown, "contribution")
        step_with(grown)
        found[weight] = first, slot(grown, "contribution")
    assert found[1.0][0] == found[0.5][0], "the first measurement stands alone"
    first, newest = found[1.0]
    assert newest != first
    assert found[0.5][1] == pytest.approx((0.25 * first + 0.5 * newest) / 0.75, abs=1e-6)


def test_the_bounds_of_identity_and_gradient_health_are_the_rules() -> None:
    for tolerance, is_kept in ((1e-3, True), (1e-5, False)):
        rules = LifecycleConfig(birth_tolerance=tolerance)
        assert bool(lifecycle_gates.is_sane(rules, is_known=True, keeps_shape=True, birth_deviation=1e-4).passed) is (
            is_kept
        )
    for least, is_kept in ((0.3, True), (0.7, False)):
        rules = LifecycleConfig(min_gradient_health=least)
        evidence = {"stage_epochs": 1, "parameters": 9, "is_finite": True, "gradient_health": 0.5}
        assert bool(lifecycle_gates.is_stable(rules, **evidence).passed) is is_kept


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        ({}, GovernorKind.COLLAPSE),
        ({"collapsed_share": 1.0}, None),
        ({"lost_accuracy": 0.5}, None),
        ({"divergence_factor": 1.0}, GovernorKind.DIVERGENCE),
    ],
)
def test_the_governor_has_the_bounds_that_it_was_given(bounds: dict[str, float], kind: GovernorKind | None) -> None:
    evidence = {
        "train_loss": 3.0, "validation_loss": 3.0, "is_finite": True, "birth_loss": 2.5, "accuracy": 0.1,
        "best_accuracy": 0.4, "largest_share": 0.9995,
    }  # fmt: skip
    (event,) = judge(
        Evidence(**{name: np.array([value]) for name, value in evidence.items()}, classes=10), GovernorConfig(**bounds)
    )
    assert (None if event is None else event.kind) is kind


def test_the_governor_of_an_ensemble_has_the_bounds_of_its_world() -> None:
    """A constant output counts from a share of a single sample on, and any loss of accuracy is a collapse."""
    strict = GovernorConfig(collapsed_share=1e-6, lost_accuracy=0.0)
    assert step_with(ensemble([1])).governor == [None]
    (event,) = step_with(ensemble([1], governor=strict)).governor
    assert event is not None
    assert event.kind is GovernorKind.COLLAPSE


def test_cr09_a_network_of_ones_own_obeys_the_rules_of_its_grower() -> None:
    settings = {"policy": "wait", "lifecycle": {"training_epochs": 3}, "governor": {"collapsed_share": 0.5}}
    loop = make_loop("residual", **settings)
    assert loop.grower is not None
    world = loop.grower._ensemble.world
    assert (world.lifecycle, world.governor) == (
        LifecycleConfig(training_epochs=3),
        GovernorConfig(collapsed_share=0.5),
    )
    train_epoch(loop)
    state = loop.grower.state_dict()
    other = make_loop("residual", policy="wait")
    assert other.grower is not None
    with pytest.raises(simic.ContractError, match=r"expected rules .*found"):
        other.grower.load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lifecycle": {"training_epochs": 0}}, r"lifecycle\.training_epochs: .*greater than or equal to 1"),
        ({"lifecycle": {"dwell": 2}}, r"lifecycle\.dwell: .*settings of lifecycle: contribution_weight"),
        ({"governor": {"divergence_factor": float("nan")}}, r"governor\.divergence_factor: .*finite"),
        ({"governor": 3}, r"governor: .*found 3; settings of governor: divergence_factor"),
    ],
)
def test_cr09_a_grower_refuses_rules_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(simic.ConfigError, match=message):
        make_loop("residual", policy="wait", **settings)


def test_cr09_thresholds_of_flags_are_checked() -> None:
    config = load_profile("default", {"curate.flags.hacking_ratio": 9})
    assert config.curate.flags.hacking_ratio == 9.0
    assert config_digest(config) != config_digest(load_profile("default"))
    for wrong in ({"hacking_ratio": 0.5}, {"ransom_loss": -0.1}, {"ransom_contribution": float("inf")}):
        with pytest.raises(ValidationError):
            type(config.curate.flags)(**wrong)
