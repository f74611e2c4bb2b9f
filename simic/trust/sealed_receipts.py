"""Sealed receipts: the JSON of a receipt with the id and signature of the key of the home that made it.

The signed purpose names the stage, so the seal of one kind of receipt is refused for every other kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.results.gate import Criterion, GateDecision, Verdict
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.receipts import Receipt
from simic.trust.canonical import digest_of
from simic.trust.keys import Keyring, Signer
from simic.trust.records import sign_record, verify_record

__all__ = ["check_decision", "decision_digest", "purpose_of", "read_receipt", "seal_receipt"]

R = TypeVar("R", bound=Receipt)


def purpose_of(kind: type[Receipt]) -> str:
    """Return the purpose in the seal of a receipt, such as ``receipt:gate``."""
    return f"receipt:{kind.model_fields['stage'].default}"


def seal_receipt(receipt: Receipt, signer: Signer) -> dict[str, Any]:
    """Return the receipt as a signed record."""
    return sign_record(receipt.model_dump(mode="json"), purpose_of(type(receipt)), signer)


def read_receipt(kind: type[R], record: Mapping[str, Any], keyring: Keyring, place: str) -> R:
    """Return the receipt in a signed record.

    Raises IntegrityError that names ``place`` unless a trusted key sealed exactly this receipt, and
    ContractError if it is sealed but not a ``kind``.
    """
    fields = verify_record(record, purpose_of(kind), keyring, place)
    try:
        return kind.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise ContractError(f"{place} is not a {kind.__name__}: {describe_faults(error, 'receipt')}") from error


def decision_digest(
    policy: str,
    champion: str | None,
    snapshot: str,
    judgement: Judgement,
    criteria: Sequence[Criterion],
    consulted_by: str | None = None,
) -> str:
    """Return the SHA-256 over the judged digests, the judgement and every criterion, in hex.

    ``consulted_by`` is the policy that consulted a judged Karn; without one the digest is that of earlier versions.
    """
    return digest_of(
        {
            **({} if consulted_by is None else {"consulted_by": consulted_by}),
            "policy": policy,
            "champion": champion,
            "snapshot": snapshot,
            "judgement": judgement.model_dump(mode="json"),
            "criteria": [criterion.model_dump(mode="json") for criterion in criteria],
        }
    )


def check_decision(decision: GateDecision, snapshot: str) -> None:
    """Raise IntegrityError unless the decision matches its digest.

    ``accepted`` is not covered by the digest, because it follows from the criteria; it is compared with them.
    """
    name = f"gate decision {decision.digest[:12]}"
    digest = decision_digest(
        decision.policy_digest,
        decision.champion_digest,
        snapshot,
        decision.judgement,
        decision.criteria,
        decision.consulted_by,
    )
    if digest != decision.digest:
        raise IntegrityError(f"{name}: expected digest {decision.digest}, found {digest}: it was edited")
    passed = all(criterion.verdict is Verdict.PASS for criterion in decision.criteria)
    if decision.accepted != passed:
        says, verdict = ("accepted" if value else "rejected" for value in (decision.accepted, passed))
        raise IntegrityError(f"{name}: it says {says}, but its criteria give {verdict}: it was edited")
