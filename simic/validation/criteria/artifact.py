"""``artifact``: the sealed folder holds weights and learner as safetensors and JSON, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simic.contracts.errors import SimicError
from simic.contracts.names import KARN, MODEL_NAME, MODELS
from simic.contracts.results.gate import Criterion, Probe
from simic.contracts.results.karn import KarnReport
from simic.controllers.karn import load_karn
from simic.controllers.policy_files import CARD_NAME, LEARNER_NAMES, WEIGHTS_NAME, load_policy
from simic.trust.keys import Keyring, SignatureCheck
from simic.trust.seal import MANIFEST_NAME, verify
from simic.validation.criterion import Case
from simic.validation.probing import Subject, none_fail

__all__ = ["NAME", "ORDER", "SUMMARY", "faults", "judge", "measure"]

NAME = "artifact"
SUMMARY = "files outside the allow-list, and faults of digest, signature, shapes, types, sizes and weights: none"
ORDER = 590
_NETWORK = frozenset({WEIGHTS_NAME, CARD_NAME, MANIFEST_NAME})
_ALLOWED = {MODEL_NAME: _NETWORK | {*LEARNER_NAMES}, KARN: _NETWORK}


def faults(folder: Path, keyring: SignatureCheck, digest: str | None, model: str = MODEL_NAME) -> list[str]:
    """Return what is wrong with the folder of a policy or Karn; nothing of it is executed.

    Args:
        folder: The sealed folder.
        keyring: Checks signatures.
        digest: The digest that it must have; None takes any.
        model: Registered model of what it is to hold.
    """
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    allowed = ", ".join(sorted(_ALLOWED[model]))
    problems = [f"{name!r} is not in the allow-list {allowed}" for name in names if name not in _ALLOWED[model]]
    try:
        seal = verify(folder, keyring, digest)
        (load_karn if model == KARN else load_policy)(folder, {file.name: file.sha256 for file in seal.files})
    except SimicError as error:
        problems.append(f"{type(error).__name__}: {error}")
    return problems


def measure(subject: Subject) -> Probe:
    """Check the folder of the candidate, file by file."""
    model = KARN if isinstance(subject.training, KarnReport) else MODEL_NAME
    problems = faults(subject.folder, Keyring(subject.keyring), subject.training.digest, model)
    return Probe(value=float(len(problems)), count=len(_ALLOWED[model]), detail="; ".join(problems)[:1000])


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, f"faults of the sealed files of the {MODELS[case.report.model]}")
