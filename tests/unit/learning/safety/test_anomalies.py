"""The anomaly detector: what it reports, when a warning becomes critical, and that it refuses to be blind."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from simic.contracts.actions import HEADS
from simic.contracts.errors import ContractError
from simic.contracts.settings.safety import AnomalyBounds, AnomalyConfig, AnomalyKind, Severity
from simic.learning.safety.anomalies import DELIVERED, STEP_KL, AnomalyDetector, Sight, escalate

CLIP = 0.5
BOUNDS = AnomalyBounds(min_entropy_share=0.1, max_step_kl=0.1, max_gradient_clips=200.0, min_explained_variance=-0.5)
CONFIG = AnomalyConfig(supervised=BOUNDS, objective=BOUNDS, grace_updates=0, escalate_after=3, far_factor=5.0)
HEALTHY = {
    **{f"entropy_{head.value}": 1.0 for head in HEADS},
    "explained_variance": 0.8,
    "value_fit_explained_variance": 0.8,
    "max_log_ratio": math.log(10.0),
    "mean_ratio": 0.9,
    "mean_log_ratio": -0.1,
    "commit_rate": 0.4,
    "fossilize_legal": 0.8,
    "grad_norm_policy": 0.5,
    "grad_norm_value": 0.5,
    STEP_KL: 0.01,
}
COLLAPSED = [
    pytest.param("entropy_slot", 0.09, AnomalyKind.ENTROPY_COLLAPSE, id="h1"),
    pytest.param(STEP_KL, 0.2, AnomalyKind.KL_JUMP, id="h2"),
    pytest.param("max_log_ratio", math.log(2e6), AnomalyKind.RATIO_EXPLOSION, id="ratio explodes"),
    pytest.param("mean_ratio", 0.005, AnomalyKind.RATIO_COLLAPSE, id="ratio collapses"),
    pytest.param("grad_norm_policy", 101.0, AnomalyKind.GRADIENT_EXPLOSION, id="h14 policy"),
    pytest.param("grad_norm_value", 101.0, AnomalyKind.GRADIENT_EXPLOSION, id="h14 value"),
    pytest.param("explained_variance", -0.6, AnomalyKind.VALUE_COLLAPSE, id="value"),
    pytest.param("commit_rate", 0.0, AnomalyKind.COMMIT_COLLAPSE, id="commit"),
    pytest.param("mean_log_ratio", -2.5, AnomalyKind.STALENESS, id="stale"),
]
Found = list[tuple[AnomalyKind, Severity, bool]]


def detector(clip: float = CLIP, **changes: Any) -> AnomalyDetector:
    return AnomalyDetector(CONFIG.model_copy(update=changes), clip)


def see(one: AnomalyDetector, phase: str = "vtrace", **changes: float) -> Found:
    found = one.observe(phase=phase, metrics={**HEALTHY, **changes}, has_step_kl=True)
    return [(anomaly.kind, anomaly.severity, anomaly.is_new) for anomaly in found]


@pytest.mark.parametrize(("name", "value", "kind"), COLLAPSED)
def test_a_metric_beyond_its_bound_is_a_warning_then_critical_and_ends_with_a_healthy_update(
    name: str, value: float, kind: AnomalyKind
) -> None:
    """H1, H2, H14: the third update in a row escalates; each severity is new once."""
    one = detector()
    assert see(one) == []
    seen = [[each for each in see(one, **{name: value}) if each[0] is kind] for _ in range(4)]
    assert seen == [
        [(kind, Severity.WARNING, True)],
        [(kind, Severity.WARNING, False)],
        [(kind, Severity.CRITICAL, True)],
        [(kind, Severity.CRITICAL, False)],
    ]
    assert [each for each in see(one) if each[0] is kind] == []
    assert [each for each in see(one, **{name: value}) if each[0] is kind] == [(kind, Severity.WARNING, True)]


def test_h2_a_jump_far_beyond_the_bound_is_critical_at_once() -> None:
    one = detector()
    see(one)
    assert see(one, step_kl=0.6) == [(AnomalyKind.KL_JUMP, Severity.CRITICAL, True)]
    assert see(one, step_kl=0.4) == [(AnomalyKind.KL_JUMP, Severity.CRITICAL, False)]


@pytest.mark.parametrize("head", [head.value for head in HEADS])
def test_h1_one_collapsed_head_among_healthy_ones_is_seen(head: str) -> None:
    one = detector()
    see(one)
    found = one.observe(phase="ppo", metrics={**HEALTHY, f"entropy_{head}": 1.0}, has_step_kl=True)
    assert found == []
    (found_one,) = one.observe(phase="ppo", metrics={**HEALTHY, f"entropy_{head}": 0.05}, has_step_kl=True)
    assert (found_one.kind, found_one.metric) == (AnomalyKind.ENTROPY_COLLAPSE, f"entropy_{head}")


@pytest.mark.parametrize("head", [head.value for head in HEADS])
def test_a_distillation_is_meant_to_become_certain(head: str) -> None:
    """Its temperature falls, and of some heads a single choice is tried: low entropy there is no collapse."""
    one = detector()
    assert see(one, "distillation") == []
    assert see(one, "distillation", **{f"entropy_{head}": 1e-4}) == []
    assert [kind for kind, *_ in see(one, "distillation", grad_norm_policy=101.0)] == [AnomalyKind.GRADIENT_EXPLOSION]


def test_a_head_that_no_step_used_says_nothing() -> None:
    """Its entropy reads exactly 0: neither a collapse, nor the end of one."""
    one = detector()
    see(one)
    see(one, entropy_tempo=0.05)
    assert see(one, entropy_tempo=0.0) == []
    assert see(one, entropy_tempo=0.05) == [(AnomalyKind.ENTROPY_COLLAPSE, Severity.WARNING, False)]


@pytest.mark.parametrize(("phase", "name"), [(phase, name) for phase, names in DELIVERED.items() for name in names])
def test_l9_h1_a_metric_that_the_phase_declares_must_be_there(phase: str, name: str) -> None:
    metrics = {key: value for key, value in HEALTHY.items() if key != name}
    with pytest.raises(ContractError, match=rf"phase {phase} declares .* expected \['{name}'\]"):
        detector().observe(phase=phase, metrics=metrics, has_step_kl=True)


def test_l9_h2_the_divergence_of_a_measured_update_must_be_there() -> None:
    metrics = {key: value for key, value in HEALTHY.items() if key != STEP_KL}
    assert detector().observe(phase="vtrace", metrics=metrics, has_step_kl=False) == []
    with pytest.raises(ContractError, match="step_kl"):
        detector().observe(phase="vtrace", metrics=metrics, has_step_kl=True)
    with pytest.raises(TypeError):
        detector().observe(phase="vtrace", metrics=metrics)  # type: ignore[call-arg]


def test_a_phase_of_another_package_is_checked_by_what_it_has() -> None:
    one = detector()
    assert one.observe(phase="theirs", metrics={"x": 1.0}, has_step_kl=False) == []
    (found,) = one.observe(phase="theirs", metrics={"grad_norm_policy": 1e3}, has_step_kl=False)
    assert found.kind is AnomalyKind.GRADIENT_EXPLOSION


@pytest.mark.parametrize("clip", [0.1, 0.5, 2.0])
def test_h14_bounds_on_gradients_move_with_the_clip(clip: float) -> None:
    one = detector(clip)
    assert see(one, grad_norm_policy=200.0 * clip) == []
    assert (AnomalyKind.GRADIENT_EXPLOSION, Severity.WARNING, True) in see(one, grad_norm_policy=200.1 * clip)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_h14_a_gradient_that_grows_and_stays_large_drifts(clip: float) -> None:
    """The fast average 0.9^n leaves the slow one 0.99^n behind; a norm that was always large does not drift."""
    one, kinds = detector(clip), []
    see(one, grad_norm_value=10.0 * clip)
    for _ in range(20):
        kinds += [kind for kind, _, _ in see(one, grad_norm_value=190.0 * clip)]
    assert set(kinds) == {AnomalyKind.GRADIENT_DRIFT}
    still = detector(clip)
    assert [see(still, grad_norm_value=190.0 * clip) for _ in range(20)] == [[]] * 20


def test_m11_m21_every_bound_is_a_setting_that_takes_effect() -> None:
    """Thresholds on collapse and on ratios are configured, so another setting is another verdict."""
    for name, field, loose in (
        ("mean_ratio", "min_mean_ratio", 0.001),
        ("max_log_ratio", "max_ratio", 1e8),
        ("mean_log_ratio", "max_behaviour_kl", 50.0),
        ("entropy_op", "min_entropy_share", 0.0),
        ("explained_variance", "min_explained_variance", -9.0),
        ("step_kl", "max_step_kl", 9.0),
    ):
        bad = {"mean_ratio": 0.002, "max_log_ratio": math.log(1e7), "mean_log_ratio": -9.0, "entropy_op": 0.01}
        value = bad.get(name, -1.0 if name == "explained_variance" else 1.0)
        strict, lenient = detector(), detector(objective=BOUNDS.model_copy(update={field: loose}))
        see(strict), see(lenient)
        assert see(strict, **{name: value}), name
        assert see(lenient, **{name: value}) == [], name


def test_bounds_depend_on_the_kind_of_phase_and_a_new_phase_begins_anew() -> None:
    loose = BOUNDS.model_copy(update={"max_step_kl": 2.0})
    one = detector(supervised=loose, escalate_after=2)
    assert see(one, "cloning", step_kl=0.2) == []
    assert see(one, "vtrace", step_kl=0.2) == [(AnomalyKind.KL_JUMP, Severity.WARNING, True)]
    assert see(one, "cloning", step_kl=3.0) == [(AnomalyKind.KL_JUMP, Severity.WARNING, True)]
    assert see(one, "vtrace", step_kl=0.2) == [(AnomalyKind.KL_JUMP, Severity.WARNING, True)]


def test_the_first_updates_of_a_phase_may_be_anything_but_not_finite() -> None:
    one = detector(grace_updates=2)
    assert see(one, step_kl=9.0, entropy_op=0.01) == []
    assert see(one, step_kl=9.0) == []
    assert see(one, step_kl=9.0) == [(AnomalyKind.KL_JUMP, Severity.CRITICAL, True)]
    assert see(detector(grace_updates=9), mean_ratio=math.nan) == [(AnomalyKind.NOT_FINITE, Severity.CRITICAL, True)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_no_healthy_one(value: float) -> None:
    """A comparison with NaN is false, whichever way it is written."""
    assert see(detector(), explained_variance=value) == [(AnomalyKind.NOT_FINITE, Severity.CRITICAL, True)]


def test_a_log_ratio_that_nobody_clamped_is_an_explosion_and_no_error() -> None:
    assert see(detector(), "theirs", max_log_ratio=1000.0) == [(AnomalyKind.RATIO_EXPLOSION, Severity.CRITICAL, True)]


def test_a_batch_in_which_fossilising_was_never_legal_shows_no_commit_rate() -> None:
    assert see(detector(), commit_rate=0.0, fossilize_legal=0.0) == []


AFTER = 3


@pytest.mark.parametrize(("repeats", "sight"), list(itertools.product(range(AFTER + 1), Sight)))
def test_every_step_of_the_escalation(repeats: int, sight: Sight) -> None:
    """All states x all events, against the rule in words."""
    following, severity = escalate(repeats, sight, AFTER)
    assert 0 <= following <= AFTER
    if sight is Sight.ABSENT:
        assert (following, severity) == (repeats, None)
    elif sight is Sight.WITHIN:
        assert (following, severity) == (0, None)
    else:
        is_critical = sight is Sight.FAR or repeats + 1 >= AFTER
        assert severity is (Severity.CRITICAL if is_critical else Severity.WARNING)
        assert following == (AFTER if is_critical else repeats + 1)
