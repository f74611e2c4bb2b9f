"""Settings of learning that goes on: what a training keeps of the policy it starts from, and what it learns first."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Positive, UnitInterval
from simic.contracts.errors import ConfigError

__all__ = ["CurriculumConfig", "CurriculumState", "EwcConfig", "LoraConfig", "StageVisit", "require_policy"]

_STAGES = 4
Shares = tuple[UnitInterval, UnitInterval, UnitInterval, UnitInterval]
Episodes = tuple[Positive, Positive, Positive, Positive]


class LoraConfig(Contract):
    """Low-rank adapters (Hu et al. 2022, section 4.1): the start policy's weights are frozen, small factors learn."""

    rank: Annotated[int, Field(ge=0, le=64)] = 0
    """Rank of the adapter of every linear layer; 0 adapts nothing and trains all weights. A training from nothing with
    another rank is refused, because random weights would be frozen."""
    alpha: Annotated[float, Field(gt=0.0, le=1024.0)] = 32.0
    """An adapter's output counts ``alpha / rank`` times."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of an adapter's inputs that an update leaves out, drawn anew each time; nothing else leaves any out.
    Importance ratios and divergences are then those of the thinned policy; 0 keeps them exact."""


class EwcConfig(Contract):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): weights on which the start policy's decisions depend
    hardly move."""

    weight: Annotated[float, Field(ge=0.0, le=1e9)] = 0.0
    """Weight of the penalty, lambda; 0 turns it off. A training with another weight seals the Fisher information with
    its policy, for the next one. A training from nothing has no penalty."""
    samples: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """Largest number of states over which the Fisher information of a policy is the mean."""
    decay: UnitInterval = 0.9
    """Share of the Fisher information of earlier policies in that of a new one; 0 remembers the last one only."""


class CurriculumConfig(Contract):
    """Passes of V-trace, PPO or AWR in four stages, from easy hosts to all (Bengio et al. 2009, "Curriculum learning").

    Tuples have one entry per stage.
    """

    enabled: bool = False
    """Whether a pass draws only episodes of hosts that its stage allows; false draws from all."""
    limits: Shares = (0.25, 0.5, 0.75, 1.0)
    """Greatest difficulty of a host in each stage: its rank by mean return among the training hosts of its set, 0 the
    easiest. They rise to 1."""
    success: Shares = (0.7, 0.6, 0.5, 0.4)
    """Share of successful episodes with which a stage is passed."""
    min_episodes: Episodes = (100, 200, 300, 500)
    """Least number of episodes before a stage is passed; an episode counts each time it is drawn."""
    max_episodes: Episodes = (500, 1000, 1500, 2000)
    """Number of episodes after which a stage that is not passed falls back to the one before, or begins anew, and the
    second time in a row is left for the next one all the same: no stage lasts for ever."""
    success_error: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0
    """An episode succeeds if the root mean square of its values' errors is at most this many advantage scales, the
    deviation of the log's returns around the values before the first pass. It says how well the values know the hosts
    of a stage, not what the policy would return there: a log cannot show that."""
    hysteresis: UnitInterval = 0.2
    """A stage falls back to the one before only if its success stayed below ``success`` by more than this, and once
    at most."""

    @model_validator(mode="after")
    def _stages_are_in_order(self) -> CurriculumConfig:
        if self.limits[-1] != 1.0 or any(one >= other for one, other in pairwise(self.limits)):
            raise ValueError(f"train.curriculum.limits must rise to 1, found {self.limits}")
        if any(least > most for least, most in zip(self.min_episodes, self.max_episodes, strict=True)):
            raise ValueError(
                f"train.curriculum.min_episodes {self.min_episodes} exceeds train.curriculum.max_episodes "
                f"{self.max_episodes} in a stage"
            )
        return self


Stage = Annotated[int, Field(ge=0, lt=_STAGES)]


class StageVisit(Contract):
    """A stage of a curriculum, from its beginning to the next one's."""

    stage: Stage
    """0 is the easiest."""
    limit: UnitInterval
    """Greatest difficulty of its hosts."""
    episodes: Count
    """Episodes drawn; one counts each time."""
    successes: Count
    outcome: Literal["passed", "held", "released", "demoted", "empty", "open"]
    """passed: the next stage follows, or the last one is mastered; held: too little success in ``max_episodes``, so the
    stage begins anew; released: held before already, so the next one follows all the same; demoted: far too little, so
    the one before follows, once per stage; empty: a pass has no episode that it allows, so the next one follows; open:
    it is the present one."""


class CurriculumState(Contract):
    """How far a curriculum has come."""

    stage: Stage = 0
    episodes: Count = 0
    """Episodes since the stage began."""
    successes: Count = 0
    visits: list[StageVisit] = Field(default_factory=list)
    """Stages that have ended, in order."""


def require_policy(lora: LoraConfig) -> None:
    """Refuse settings that need a trained policy to start from, for a training that starts from nothing.

    Raises:
        ConfigError: if adapters are on.
    """
    if lora.rank:
        raise ConfigError(
            f"train.lora.rank is {lora.rank}, but this training starts from nothing, so adapters would learn on random "
            "weights that are frozen: start from a policy (`simic train --start`, or a run with a champion), or set "
            "train.lora.rank to 0"
        )
