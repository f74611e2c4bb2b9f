"""Controllers by name: the modules of ``plugins``, then the entry points of group ``simic.controllers``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.state import HostIdentity
from simic.controllers.plans import plans_from
from simic.controllers.plugins import CONTROLLERS
from simic.controllers.protocol import Controller, ControllerContext, Verified, Verify
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["make"]


def make(spec: ControllerSpec, hosts: Sequence[HostIdentity]) -> Controller:
    """Build the controller that a spec names; a policy is read only after its seal is verified with the spec's keyring.

    Args:
        spec: name and parameters.
        hosts: the hosts to act on, in the order of the observations.

    Raises:
        ConfigError: for an unknown name or a parameter that is missing, such as the keyring of a policy.
        IntegrityError: if the policy is not the one of ``policy_digest``, or Karn not that of ``karn_digest``.
    """
    module = CONTROLLERS.load(spec.name)
    with plans_from(None if spec.plans_path is None else Path(spec.plans_path)):
        controller: Controller = module.make(ControllerContext(spec, hosts, _verifier(spec)))
    return controller


def _verifier(spec: ControllerSpec) -> Verify:
    """Return what verifies sealed directories with the spec's keyring and digests."""

    def check(directory: Path) -> Verified:
        if spec.keyring_path is None:
            raise ConfigError(f"controller {spec.name!r} needs keyring_path: the keys its policy may be sealed with")
        sealed = verify(directory, Keyring(Path(spec.keyring_path)), spec.expected_digest(directory))
        return Verified(sealed.digest, {file.name: file.sha256 for file in sealed.files})

    return check
