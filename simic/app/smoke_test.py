"""The smoke test of a champion: what its consumers do with it, before the change of champion is closed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from simic.contracts.errors import SimicError, SmokeTestError, TransientError
from simic.contracts.names import KARN, MODEL_NAME, judged_name
from simic.runtime.files import os_error_as_transient, scratch_dir
from simic.runtime.home import Home
from simic.trust.keys import SignatureCheck
from simic.trust.sealed_copy import copy_sealed

if TYPE_CHECKING:
    from simic.contracts.batches import Observations
    from simic.contracts.field_report import FieldReport

__all__ = ["smoke_test"]

_LOG = logging.getLogger(__name__)
_MOST_POLICY_BYTES = 264 * 1024 * 1024


def smoke_test(home: Home, keyring: SignatureCheck, policy: Path, digest: str, model: str = MODEL_NAME) -> None:
    """Copy, verify and load a policy as a consumer does, and let it decide on the example state of a field report.

    Karn proposes blueprints for that state. A policy of another architecture or of other features is left to consumers
    with that code, and logged: a rollback after an upgrade must not fail for it.

    Args:
        home: Its folder of unfinished files holds the copy.
        keyring: Trusted keys.
        policy: The sealed policy or Karn.
        digest: Its digest.
        model: Registered model of it.

    Raises:
        SmokeTestError: it cannot be verified, loaded or run, or what it says is not finite or not legal.
        TransientError: files cannot be read or written now.
    """
    what = judged_name(model, digest)
    with scratch_dir(home, "smoke-") as folder:
        copied = folder / "policy"
        try:
            with os_error_as_transient(f"copy {what} into {folder}"):
                copied.mkdir()
                sealed = copy_sealed(policy, copied, keyring, digest, _MOST_POLICY_BYTES)
            if not _is_of_this_code(copied, model):
                _LOG.warning("%s was made by other code, so it is not tried here", what)
                return
            files = {file.name: file.sha256 for file in sealed.files}
            _propose(copied, files, what) if model == KARN else _decide(copied, files, digest)
        except (SmokeTestError, TransientError):
            raise
        except SimicError as error:
            raise SmokeTestError(f"{what} does not load: {error}") from error
        except (RuntimeError, ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise SmokeTestError(f"{what} does not decide: {type(error).__name__}: {error}") from error


def _is_of_this_code(policy: Path, model: str) -> bool:
    from simic.controllers import karn, policy_files  # they load torch
    from simic.controllers.features import FEATURE_VERSION
    from simic.controllers.network_files import CARD_NAME

    card = json.loads((policy / CARD_NAME).read_bytes())
    declared = (card.get("architecture"), card.get("feature_version")) if isinstance(card, dict) else None
    architecture = karn.ARCHITECTURE if model == KARN else policy_files.ARCHITECTURE
    return declared is None or declared == (architecture, FEATURE_VERSION)


def _example() -> tuple[FieldReport, Observations]:
    """Return the example of a field report, and its state as a policy reads it."""
    from simic.contracts.batches import Observations
    from simic.contracts.examples import example_field_report

    report = example_field_report()
    return report, Observations.from_states([report.state], tuple(report.available.blueprint))


def _propose(folder: Path, sealed: dict[str, str], what: str) -> None:
    import torch

    from simic.controllers.blueprint_mapping import BlueprintMapping
    from simic.controllers.features import encode
    from simic.controllers.karn import load_karn

    loaded = load_karn(folder, sealed)
    _, observations = _example()
    mapping = BlueprintMapping(tuple(loaded.card.blueprints), observations.blueprints)
    with torch.inference_mode():
        logits = loaded.network(encode(mapping.to_policy(observations)))
    if not bool(torch.isfinite(logits).all()):
        raise SmokeTestError(f"{what}: expected finite logits of blueprints on the example state, found others")


def _decide(policy: Path, sealed: dict[str, str], digest: str) -> None:
    import numpy as np

    from simic.contracts.actions import HEADS, Head
    from simic.contracts.batches import HEAD_INDEX, masks_to_columns
    from simic.controllers.learned_controller import LearnedController
    from simic.controllers.policy_files import load_policy

    report, observations = _example()
    masks = masks_to_columns([report.available], observations.blueprints)
    controller = LearnedController(load_policy(policy, sealed), policy_version=digest, is_decisive=True)
    value = controller.consider(observations, masks, is_decisive=True).values
    decisions = controller.decide(observations, masks, np.full((1, len(HEADS)), 0.5))
    op = int(decisions.actions[0, HEAD_INDEX[Head.OP]])
    if not np.isfinite(value).all() or not report.available.op[op]:
        raise SmokeTestError(
            f"policy {digest[:12]}: expected a finite value and a legal operation on the example state, found value "
            f"{value.tolist()} and operation {op}"
        )
