"""The controller of a ``Grower``, and what it does on a network unlike those that its policy learned from."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from simic.api.home import Home
from simic.api.policy import Policy, TrustedKeys, controller_of, load_policy
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.controllers import ControllerSpec, HeuristicRules
from simic.contracts.errors import ConfigError
from simic.contracts.feature_ranges import OutOfRange
from simic.contracts.names import CHAMPION
from simic.contracts.state import HostIdentity
from simic.controllers.blueprint_mapping import allow_only
from simic.controllers.factory import make
from simic.controllers.learned_controller import LearnedController
from simic.controllers.plugins import CONTROLLERS
from simic.controllers.protocol import Controller
from simic.hosts.custom import Layer
from simic.runtime.nearest_name import suggestion

__all__ = ["Decider", "OutOfRangeUse", "decider_of"]

_LOG = logging.getLogger(__name__)

OutOfRangeUse: TypeAlias = Literal["warn", "wait"]
"""What to do where a network is unlike those that the policy learned from."""
_SHOWN = 4
"""Most measurements that a warning names."""

RULES = {
    "wait": ControllerSpec(name="wait"),
    "heuristic": ControllerSpec(name="heuristic", rules=HeuristicRules()),
    "explore": ControllerSpec(name="explore"),
    "random": ControllerSpec(name="random"),
}
"""Controllers that need neither a policy nor a plan book."""


class Decider:
    """A controller with the use that a Grower makes of it; ``layers`` are those of the network, the head last."""

    def __init__(self, controller: Controller, use: OutOfRangeUse, layers: Sequence[Layer]) -> None:
        self.controller = controller
        self._use, self._has_warned = use, False
        self._names = {
            "layer": [layer.name for layer in layers],
            "slot": [layer.name for layer in layers if layer.has_slot],
        }

    def decide(
        self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]
    ) -> tuple[Decisions, tuple[OutOfRange, ...]]:
        """Return the decision for one host, and what of it is unlike the policy's training data.

        With ``wait`` a germination on an unlike network is legal, as the reports say, and has no probability.
        """
        outside = self._outside(observations)
        if outside and self._use == "wait":
            nothing = np.zeros(len(observations.blueprints), dtype=bool)
            masks = allow_only(masks, nothing, observations.slot_ptr)
        return self.controller.decide(observations, masks, uniforms), outside

    def _outside(self, observations: Observations) -> tuple[OutOfRange, ...]:
        """Return what is unlike the policy's training data; the first finding is logged."""
        if not isinstance(self.controller, LearnedController):
            return ()
        findings = tuple(self.controller.out_of_range(observations) or ())
        if findings and not self._has_warned:
            self._has_warned = True
            more = f" and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
            _LOG.warning(
                "this network is unlike those that policy %s learned from: %s%s. %s",
                str(self.controller.policy_version)[:12],
                "; ".join(map(self._said, findings[:_SHOWN])),
                more,
                "No seed begins while that is so"
                if self._use == "wait"
                else "Growing may do harm: compare with a training without it, or give out_of_range='wait'",
            )
        return findings

    def _said(self, finding: OutOfRange) -> str:
        """Return a finding with the name of its layer in the module."""
        return finding.at(
            "" if finding.node == "context" else f"{finding.node} {self._names[finding.node][finding.index]!r}"
        )


def decider_of(
    policy: Policy | str | os.PathLike[str],
    host: HostIdentity,
    layers: Sequence[Layer],
    home: Home | None,
    trusted_keys: TrustedKeys | None,
    out_of_range: OutOfRangeUse,
) -> Decider:
    """Return the controller that the arguments of a Grower name; raises ConfigError if there is none."""
    if out_of_range not in get_args(OutOfRangeUse):
        raise ConfigError(f"out_of_range: expected {' or '.join(get_args(OutOfRangeUse))}, found {out_of_range!r}")
    return Decider(_controller(policy, host, home, trusted_keys), out_of_range, layers)


def _controller(
    policy: Policy | str | os.PathLike[str], host: HostIdentity, home: Home | None, trusted_keys: TrustedKeys | None
) -> Controller:
    if isinstance(policy, Policy):
        return controller_of(policy)
    if not isinstance(policy, (str, os.PathLike)):
        raise ConfigError(
            f"policy: expected a policy, its name or directory, or {', '.join(RULES)}; found {type(policy).__name__}"
        )
    if isinstance(policy, str) and policy in RULES:
        return make(RULES[policy], [host])
    if isinstance(policy, str) and policy in CONTROLLERS.names():
        raise ConfigError(
            f"policy: {policy!r} needs what only a set of hosts has; expected a policy, or one of {', '.join(RULES)}"
        )
    try:
        return controller_of(load_policy(policy, home=home, trusted_keys=trusted_keys))
    except ConfigError as error:
        if not isinstance(policy, str) or policy == CHAMPION or not policy.isidentifier():
            raise
        hint = suggestion(policy, [*RULES, CHAMPION])
        raise ConfigError(
            f"policy: no controller is called {policy!r}, only {', '.join(RULES)}.{hint} As a policy: {error}"
        ) from error
