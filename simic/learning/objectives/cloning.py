"""``cloning``: the most likely policy, given the log (behaviour cloning; Pomerleau 1991, section 2).

The policy learns to act as the controllers of the log did, however well they did: it learns from actions and from no
return. The negative log-likelihood is the behaviour's entropy plus KL(behaviour || policy), so at its minimum it is the
entropy of the behaviour. The value learns the log's returns beside it, without an effect on the policy's loss; a later
training by rewards begins with it.
"""

from __future__ import annotations

from simic.contracts.errors import ConfigError
from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import PolicyNetwork
from simic.learning.counted_passes import CountedPasses
from simic.learning.losses import ForwardPass, Loss, behaviour_advantages
from simic.learning.objective import LearningTask
from simic.learning.phases import CLONING_SHARE
from simic.replay.batch import SequenceBatch

__all__ = ["NAME", "SUMMARY", "CloningObjective", "begin", "imitation_loss"]

NAME = "cloning"
SUMMARY = "behaviour cloning of the log, whoever acted and whatever came of it"


class CloningObjective(CountedPasses):
    """Behaviour cloning over the planned passes, which overfits an episode like any other objective."""

    averages_rounds = False
    phase = "imitation"  # "cloning" is the phase before V-trace
    has_supervised_phases = False
    rate_share = CLONING_SHARE

    def loss(self, batch: SequenceBatch, advantage_scale: float) -> Loss:  # noqa: ARG002 - the interface
        """Return the loss of a batch."""
        return imitation_loss(self.task.learner.network, batch, self.config)


def imitation_loss(network: PolicyNetwork, batch: SequenceBatch, config: TrainConfig) -> Loss:
    """Return the mean negative log-likelihood of the logged actions in nats per step, with the value's Huber distance.

    ``cloning_gap`` is its distance from the behaviour's own negative log-likelihood of these actions, 0 in the mean for
    a policy that equals the behaviour.
    """
    forward = ForwardPass.of(network, batch, config.network.exploration)
    estimate = behaviour_advantages(batch, forward.own, forward.following, config.lambda_)
    joint = forward.log_prob.joint
    return forward.loss(
        -batch.weighted(joint.unsqueeze(1)).mean(),
        estimate.advantages,
        estimate.returns,
        entropy_bonus=None,
        metrics={"cloning_gap": batch.log_prob_heads.sum(1).mean() - joint.mean()},
    )


def begin(task: LearningTask) -> CloningObjective:
    """Return the objective for a log; the policy may begin seeds before the first epoch, as controllers of it may have.

    Raises:
        ConfigError: if the weight of the entropy is to fall, which has none here.
    """
    if task.config.entropy_bonus_last is not None:
        raise ConfigError(
            "train.entropy_bonus_last has no effect on train.objective cloning, whose loss has no entropy: leave it "
            "out, or take vtrace, ppo or awr"
        )
    task.learner.network.first_epoch_penalty.zero_()
    return CloningObjective(task)
