"""A curriculum of four stages: counted passes draw from easy hosts first, and from all in the last stage.

``record_episode`` and ``decide_stage`` are the state machine, pure functions of a state. A stage changes between passes
only, because a pass draws from one stage. Enough success in enough episodes leads to the next stage. A stage that has
had its most episodes without that falls back to the one before if it was far from success, once, and else begins anew;
the log says so. The second time in a row it is left for the next stage all the same, so no stage locks: the last one,
with all hosts, is reached after a bounded number of episodes. Falling back takes the most episodes of a stage, and
coming up again the least of the one below, so two stages do not take turns at every pass.

Shapes: T time, B sequences of a batch, E sequences of the data set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ContractError
from simic.contracts.settings.continual import CurriculumConfig, CurriculumState, StageVisit

__all__ = ["Curriculum", "decide_stage", "record_episode", "skip_stage"]

_LOG = logging.getLogger(__name__)
_STAGE, _EPISODES, _SUCCESSES = "curriculum_stage", "curriculum_episode_count", "curriculum_success_count"

Outcome = Literal["passed", "held", "released", "demoted", "empty", "open"]


def record_episode(state: CurriculumState, *, is_success: bool) -> CurriculumState:
    """Return the state after an episode of the present stage."""
    counted = {"episodes": state.episodes + 1, "successes": state.successes + is_success}
    return state.model_copy(update=counted)


def decide_stage(state: CurriculumState, config: CurriculumConfig) -> CurriculumState:
    """Return the state after a pass, in the same stage or one up or down."""
    stage, episodes = state.stage, state.episodes
    needed, is_last = config.success[stage], stage == len(config.limits) - 1
    if episodes < config.min_episodes[stage]:
        return state
    share = state.successes / episodes
    if share >= needed and not is_last:
        return _end_stage(state, config, "passed", stage + 1)
    if episodes < config.max_episodes[stage]:
        return state
    if share >= needed:
        return _end_stage(state, config, "passed", stage)
    before = [visit.outcome for visit in state.visits if visit.stage == stage]
    if stage and share < needed - config.hysteresis and "demoted" not in before:
        return _end_stage(state, config, "demoted", stage - 1)
    if not is_last and state.visits and (state.visits[-1].stage, state.visits[-1].outcome) == (stage, "held"):
        return _end_stage(state, config, "released", stage + 1)
    return _end_stage(state, config, "held", stage)


def skip_stage(state: CurriculumState, config: CurriculumConfig) -> CurriculumState:
    """Return the state after a stage that no episode at hand belongs to; the last stage allows all."""
    return _end_stage(state, config, "empty", state.stage + 1)


class Curriculum:
    """The curriculum of the counted passes of one training."""

    def __init__(self, config: CurriculumConfig, difficulty: NDArray[np.float64]) -> None:
        """Begin with the easiest stage; ``difficulty`` [E] is NaN where it is unknown."""
        self._config, self._difficulty = config, difficulty
        self.state = CurriculumState()
        """Replaced with every batch, never changed."""

    @property
    def visits(self) -> list[StageVisit]:
        """Return all stages so far, the present one included."""
        return [*self.state.visits, _visit(self.state, self._config, "open")]

    def allowed(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the sequences ``rows`` of a pass that its stage allows; stages without any are passed over.

        Raises:
            ContractError: if the difficulty of a sequence is unknown.
        """
        difficulty = self._difficulty[rows]
        if len(unknown := np.flatnonzero(np.isnan(difficulty))):
            raise ContractError(
                f"the snapshot does not say how hard the hosts of {len(unknown)} of {len(rows)} episodes are: curate "
                "again, or set train.curriculum.enabled to false"
            )
        while not len(allowed := rows[difficulty <= self._config.limits[self.state.stage]]) and len(rows):
            self._move(skip_stage(self.state, self._config))
        return allowed

    def metrics(self, errors: Tensor, valid: Tensor, scale: float) -> dict[str, Tensor]:
        """Return the metrics of a batch, from the errors [T, B] of its values in points; ``record`` reads them."""
        squares = (errors.double() / scale).square().where(valid, 0.0).sum(0) / valid.sum(0)
        is_success = squares.sqrt() <= self._config.success_error
        return {
            _STAGE: errors.new_full((), float(self.state.stage)),
            _EPISODES: errors.new_full((), float(valid.shape[1])),
            _SUCCESSES: is_success.sum().to(errors.dtype),
        }

    def record(self, metrics: Mapping[str, float]) -> None:
        """Count the episodes of an update, made or repeated from a checkpoint."""
        for index in range(round(metrics[_EPISODES])):
            self.state = record_episode(self.state, is_success=index < round(metrics[_SUCCESSES]))

    def end_pass(self) -> None:
        """Decide about the stage after a pass."""
        self._move(decide_stage(self.state, self._config))

    def _move(self, after: CurriculumState) -> None:
        before, self.state = self.state, after
        if len(after.visits) == len(before.visits):
            return
        visit = after.visits[-1]
        level = logging.WARNING if visit.outcome in ("held", "released", "demoted") else logging.INFO
        _LOG.log(
            level,
            "curriculum stage %d (difficulty up to %g) %s: %d of %d episodes succeeded, needed %g; stage %d follows",
            visit.stage,
            visit.limit,
            visit.outcome,
            visit.successes,
            visit.episodes,
            self._config.success[visit.stage],
            after.stage,
        )


def _end_stage(state: CurriculumState, config: CurriculumConfig, outcome: Outcome, following: int) -> CurriculumState:
    return CurriculumState(stage=following, visits=[*state.visits, _visit(state, config, outcome)])


def _visit(state: CurriculumState, config: CurriculumConfig, outcome: Outcome) -> StageVisit:
    return StageVisit(
        stage=state.stage,
        limit=config.limits[state.stage],
        episodes=state.episodes,
        successes=state.successes,
        outcome=outcome,
    )
