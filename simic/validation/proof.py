"""The figures of the proof: trials of several trainings on the same hosts in, paired differences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.controllers import SEARCHED
from simic.contracts.names import BLIND, LEARNED, ORACLE, WAIT
from simic.contracts.results.proof import (
    ProofLeftOut,
    ProofRow,
    ProofSeed,
    ProofSet,
    ProofStatic,
    ProofTraining,
    ProofTrial,
)
from simic.contracts.results.trials import Estimate, StaticTrial
from simic.contracts.settings.run import TrialConfig
from simic.numerics.intervals import crossed_ratio
from simic.runtime.seeds import derive
from simic.validation.baselines.static_network import SAME
from simic.validation.episodes import returns_at
from simic.validation.table import RENT_FACTORS, families_in_order
from simic.validation.trials import crossed_estimate, estimate_of

__all__ = ["Tried", "compare"]

_HINDSIGHT = "hindsight"
_COSTS = (
    "extra_compute", "decisions", "decision_multiply_adds", "controller_compute", "probe_compute", "episodes_grown",
)  # fmt: skip
"""Fields of a trial whose means a row has."""
_SEED = derive(0, "proof", "bootstrap")

Table = NDArray[np.float64]


class Tried(NamedTuple):
    """One training and the trial of its policy; ``wait``'s trial if training failed."""

    training: ProofTraining
    trial: ProofTrial


def compare(
    baselines: Mapping[str, ProofTrial],
    learned: Sequence[Tried],
    left_out: Mapping[str, Sequence[Tried]],
    config: TrialConfig,
    without_book: Sequence[str],
) -> ProofSet:
    """Compare the policies of several training seeds with the baselines, paired by host.

    Args:
        baselines: Trials by name, ``wait`` among them, all on the same hosts.
        learned: One entry per training seed, on the same hosts.
        left_out: By family, one entry per training seed; the training left the family out, and the trial has the
            family's hosts alone. The seeds are those of ``learned``.
        config: Confidence and number of resamples.
        without_book: Baselines that a missing plan book leaves out or changes.
    """
    wait = baselines[WAIT]
    families, returns = wait.families, _returns(_trials(learned))
    gains = returns - np.asarray(wait.returns)
    oracle = None
    if ORACLE in baselines:
        oracle = np.asarray(baselines[ORACLE].returns) - np.asarray(wait.returns)
    means = gains.mean(axis=1)
    arms = {**{name: [trial] for name, trial in baselines.items()}, LEARNED: _trials(learned)}
    counted = Counter(families)
    return ProofSet(
        set=wait.set,
        trained_on=learned[0].training.set,
        hosts=len(wait.host_keys),
        families={name: counted[name] for name in families_in_order(wait.set, families)},
        first_key=wait.host_keys[0],
        without_book=list(without_book),
        rent_factors=list(RENT_FACTORS),
        static=[_static(same, _trials(learned), config) for same in SAME],
        rows=[_row(name, trials, baselines, config) for name, trials in arms.items()],
        over=_over(_trials(learned), baselines, config),
        share_of_oracle=None if oracle is None else _share(gains, oracle, config, families),
        spread=float(means.std(ddof=1)) if len(means) > 1 else None,
        seeds=[_seed(entry, baselines, config) for entry in learned],
        left_out=[_left_out(name, tried, learned, baselines, config) for name, tried in left_out.items()],
    )


def _returns(trials: Sequence[ProofTrial], rent_factor: float = 1.0, *, by_test: bool = False) -> Table:
    """Return the returns [S, N] at a multiple of the rent; S training seeds, N hosts."""
    names = ("test_returns" if by_test else "returns", "rents")
    returns, rents = ([getattr(trial, name) for trial in trials] for name in names)
    return returns_at(returns, rents, rent_factor)


def _over(
    trials: Sequence[ProofTrial], baselines: Mapping[str, ProofTrial], config: TrialConfig
) -> dict[str, Estimate]:
    """Return the difference to each baseline; to an arm that searches by test accuracy."""
    families = trials[0].families
    return {
        name: crossed_estimate(
            _returns(trials, by_test=name in SEARCHED) - _returns([other], by_test=name in SEARCHED), config, families
        )
        for name, other in baselines.items()
    }


def _trials(tried: Sequence[Tried]) -> list[ProofTrial]:
    return [entry.trial for entry in tried]


def _row(name: str, trials: Sequence[ProofTrial], baselines: Mapping[str, ProofTrial], config: TrialConfig) -> ProofRow:
    """Return the results of one controller, over one trial or over one per training seed."""
    wait, is_wait, is_searched = baselines[WAIT], name == WAIT, name in SEARCHED
    labels, returns = np.asarray(wait.families), _returns(trials, by_test=is_searched)
    gains, by_test = (
        _returns(trials, by_test=scored) - _returns([wait], by_test=scored) for scored in (is_searched, True)
    )
    tested = np.array([trial.test_accuracies for trial in trials]) - np.asarray(wait.test_accuracies)
    return ProofRow(
        controller=name,
        mean_return=float(returns.mean()),
        over_wait=None if is_wait else crossed_estimate(gains, config, wait.families),
        by_family={
            family: None if is_wait else crossed_estimate(gains[:, labels == family], config)
            for family in families_in_order(wait.set, wait.families)
        },
        test_accuracy=float(np.mean([trial.test_accuracies for trial in trials])),
        parameters=float(np.mean([trial.parameters for trial in trials])),
        validation_accuracy=float(np.mean([trial.validation_accuracies for trial in trials])),
        test_over_wait=None if is_wait else crossed_estimate(tested, config, wait.families),
        host_share=float(np.mean([trial.parameters for trial in trials]) / np.mean(wait.host_parameters)),
        **{name: float(np.mean([getattr(trial, name) for trial in trials])) for name in _COSTS},
        scored_by="test" if is_searched else "validation",
        by_test=None if is_wait else crossed_estimate(by_test, config, wait.families),
        share_of_hindsight=_share_of_hindsight(trials, baselines, config),
        by_rent=[
            None
            if is_wait
            else crossed_estimate(
                _returns(trials, factor, by_test=is_searched) - _returns([wait], factor, by_test=is_searched),
                config,
                wait.families,
            )
            for factor in RENT_FACTORS
        ],
    )


def _static(same: Literal["epochs", "compute"], trials: Sequence[ProofTrial], config: TrialConfig) -> StaticTrial:
    """Compare policies with their final networks; a failed training, which grows nothing, is its own static network."""
    rivals = [next((rival for rival in trial.static if rival.same == same), trial) for trial in trials]
    grown = [rival for rival in rivals if isinstance(rival, ProofStatic)]
    returns, tested = (np.array([getattr(rival, name) for rival in rivals]) for name in ("returns", "test_accuracies"))
    families = trials[0].families
    return StaticTrial(
        same=same,
        mean_epochs=float(np.mean([rival.epochs for rival in grown])) if grown else None,
        mean_return=float(returns.mean()),
        test_accuracy=float(tested.mean()),
        governor_events=sum(rival.governor_events for rival in grown),
        return_difference=crossed_estimate(_returns(trials) - returns, config, families),
        test_difference=crossed_estimate(
            np.array([trial.test_accuracies for trial in trials]) - tested, config, families
        ),
    )


def _share_of_hindsight(
    trials: Sequence[ProofTrial], baselines: Mapping[str, ProofTrial], config: TrialConfig
) -> Estimate | None:
    """Return the share of hindsight's gain over ``blind``, or over ``wait`` without it, by test accuracy."""
    if _HINDSIGHT not in baselines:
        return None
    base = np.asarray(baselines.get(BLIND, baselines[WAIT]).test_returns)
    best = np.asarray(baselines[_HINDSIGHT].test_returns) - base
    return _share(_returns(trials, by_test=True) - base, best, config, trials[0].families)


def _seed(tried: Tried, baselines: Mapping[str, ProofTrial], config: TrialConfig) -> ProofSeed:
    training, trial = tried
    return ProofSeed(
        seed=training.seed,
        policy_digest=training.policy_digest,
        failure=training.failure,
        accepted=training.accepted,
        failed_criteria=training.failed_criteria,
        over=_over([trial], baselines, config),
        test_accuracy=float(np.mean(trial.test_accuracies)),
        parameters=float(np.mean(trial.parameters)),
        illegal_actions=trial.illegal_actions,
        governor_events=trial.governor_events,
    )


def _left_out(
    family: str,
    tried: Sequence[Tried],
    learned: Sequence[Tried],
    baselines: Mapping[str, ProofTrial],
    config: TrialConfig,
) -> ProofLeftOut:
    rows = np.asarray(baselines[WAIT].families) == family
    wait = np.asarray(baselines[WAIT].returns)[rows]
    theirs = {
        name: (_returns([trial], by_test=scored) - _returns([baselines[WAIT]], by_test=scored))[:, rows]
        for name, trial in baselines.items()
        for scored in [name in SEARCHED]
    }
    unmet, met = _returns(_trials(tried)) - wait, _returns(_trials(learned))[:, rows] - wait
    return ProofLeftOut(
        family=family,
        hosts=int(rows.sum()),
        left_out=crossed_estimate(unmet, config),
        trained_with=crossed_estimate(met, config),
        difference=crossed_estimate(unmet - met, config),
        baselines={name: crossed_estimate(gains, config) for name, gains in theirs.items() if name != WAIT},
        accepted=sum(entry.training.accepted for entry in tried),
        failures=sum(entry.training.failure is not None for entry in tried),
    )


def _share(gains: Table, oracle: Table, config: TrialConfig, families: Sequence[str]) -> Estimate | None:
    ratio = crossed_ratio(gains, oracle, config.confidence, config.bootstrap_samples, _SEED, strata=families)
    return None if ratio is None else estimate_of(ratio, config, gains.size)
