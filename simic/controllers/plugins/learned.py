"""``learned``: the controller with weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simic.contracts.errors import ConfigError
from simic.controllers.protocol import Controller, ControllerContext, Verify

if TYPE_CHECKING:
    from simic.controllers.karn import ConsultedKarn

__all__ = ["NAME", "SUMMARY", "make"]

NAME = "learned"
SUMMARY = "acts with a sealed policy"


def make(context: ControllerContext) -> Controller:
    """Load a sealed policy; its digest, as the verifier found it, is the policy version.

    A Karn that the spec names is loaded in the same way, and consulted.

    Raises:
        ConfigError: if the spec has no ``policy_path`` or no ``keyring_path``.
        IntegrityError: if the seal or a file does not match.
        ContractError: if the files are not a policy of this code, or Karn does not fit the policy.
    """
    spec = context.spec
    if spec.policy_path is None:
        raise ConfigError("controller 'learned' needs policy_path: a sealed policy directory")
    # Only this controller needs torch, and help must list it without torch.
    from simic.controllers.learned_controller import LearnedController
    from simic.controllers.policy_files import load_policy

    path = Path(spec.policy_path)
    verified = context.verify(path)
    policy = load_policy(path, verified.files)
    karn = None if spec.karn_path is None else _load_karn(Path(spec.karn_path), context.verify)
    return LearnedController(policy, policy_version=verified.digest, is_decisive=spec.is_decisive, karn=karn)


def _load_karn(path: Path, verify: Verify) -> ConsultedKarn:
    from simic.controllers.karn import ConsultedKarn, load_karn  # loads torch

    verified = verify(path)
    return ConsultedKarn(load_karn(path, verified.files), verified.digest)
