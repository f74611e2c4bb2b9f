"""The smoke test of a champion: what its consumers do with it, before the change of champion is closed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from simic.contracts.errors import SimicError, SmokeTestError, TransientError
from simic.runtime.files import os_error_as_transient, scratch_dir
from simic.runtime.home import Home
from simic.trust.keys import SignatureCheck
from simic.trust.sealed_copy import copy_sealed

__all__ = ["smoke_test"]

_LOG = logging.getLogger(__name__)
_MOST_POLICY_BYTES = 264 * 1024 * 1024


def smoke_test(home: Home, keyring: SignatureCheck, policy: Path, digest: str) -> None:
    """Copy, verify and load a policy as a consumer does, and let it decide on the example state of a field report.

    A policy of another architecture or of other features is left to consumers with that code, and logged: a rollback
    after an upgrade must not fail for it.

    Raises:
        SmokeTestError: it cannot be verified, loaded or run, or what it says is not finite or not legal.
        TransientError: files cannot be read or written now.
    """
    with scratch_dir(home, "smoke-") as folder:
        copied = folder / "policy"
        try:
            with os_error_as_transient(f"copy policy {digest[:12]} into {folder}"):
                copied.mkdir()
                sealed = copy_sealed(policy, copied, keyring, digest, _MOST_POLICY_BYTES)
            if not _is_of_this_code(copied):
                _LOG.warning("policy %s was made by other code, so it is not tried here", digest[:12])
                return
            _decide(copied, {file.name: file.sha256 for file in sealed.files}, digest)
        except (SmokeTestError, TransientError):
            raise
        except SimicError as error:
            raise SmokeTestError(f"policy {digest[:12]} does not load: {error}") from error
        except (RuntimeError, ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise SmokeTestError(f"policy {digest[:12]} does not decide: {type(error).__name__}: {error}") from error


def _is_of_this_code(policy: Path) -> bool:
    from simic.controllers.features import FEATURE_VERSION  # it loads torch
    from simic.controllers.policy_files import ARCHITECTURE, CARD_NAME

    card = json.loads((policy / CARD_NAME).read_bytes())
    found = (card.get("architecture"), card.get("feature_version")) if isinstance(card, dict) else None
    return found is None or found == (ARCHITECTURE, FEATURE_VERSION)


def _decide(policy: Path, sealed: dict[str, str], digest: str) -> None:
    import numpy as np

    from simic.contracts.actions import HEADS, Head
    from simic.contracts.batches import HEAD_INDEX, Observations, masks_to_columns
    from simic.contracts.examples import EXAMPLES
    from simic.contracts.field_report import FieldReport
    from simic.controllers.learned_controller import LearnedController
    from simic.controllers.policy_files import load_policy

    report = EXAMPLES["FieldReport"]()
    if not isinstance(report, FieldReport):
        raise AssertionError("the example of a field report is none")
    names = tuple(report.available.blueprint)
    observations = Observations.from_states([report.state], names)
    masks = masks_to_columns([report.available], names)
    controller = LearnedController(load_policy(policy, sealed), policy_version=digest, is_decisive=True)
    value = controller.consider(observations, masks, is_decisive=True).values
    decisions = controller.decide(observations, masks, np.full((1, len(HEADS)), 0.5))
    op = int(decisions.actions[0, HEAD_INDEX[Head.OP]])
    if not np.isfinite(value).all() or not report.available.op[op]:
        raise SmokeTestError(
            f"policy {digest[:12]}: expected a finite value and a legal operation on the example state, found value "
            f"{value.tolist()} and operation {op}"
        )
