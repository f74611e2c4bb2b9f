"""A verified policy that decides for hosts of any framework.

Shapes: N states, A heads, C choices of a head.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from simic.api.explanation import Alternative, Choice, Explanation
from simic.api.home import Home, container_of, paths_of
from simic.api.wire import encode
from simic.contracts.actions import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEADS,
    OPS,
    RELEVANT_HEADS,
    TEMPOS,
    Action,
    ActionMasks,
    Head,
)
from simic.contracts.base import Contract
from simic.contracts.batches import HEAD_INDEX, Decisions, Observations, action_of, log_prob_of, masks_to_columns
from simic.contracts.consistency import find_mask_contradiction
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.faults import describe_faults
from simic.contracts.names import CHAMPION
from simic.contracts.policy_names import DIGEST_NAME, SHORTEST, is_policy_name
from simic.contracts.state import SystemState
from simic.controllers.karn import ConsultedKarn, load_karn
from simic.controllers.learned_controller import Considered, LearnedController
from simic.controllers.policy_files import LoadedPolicy
from simic.controllers.policy_files import load_policy as read_policy
from simic.controllers.sampling import greedy_after, sample, sample_op_greedy_factors
from simic.trust.keys import GivenKeys, Keyring, SignatureCheck
from simic.trust.seal import Seal, verify

__all__ = [
    "Policy",
    "TrustedKeys",
    "consulting",
    "controller_of",
    "karn_of",
    "load_policy",
    "loaded_of",
    "policy_of",
    "signature_check",
]

StateLike: TypeAlias = SystemState | Mapping[str, Any]
MasksLike: TypeAlias = ActionMasks | Mapping[str, Any]
TrustedKeys: TypeAlias = Home | str | os.PathLike[str] | Sequence[str]
"""A home, a folder of ``<key id>.pub`` files, or public keys of 64 hexadecimal characters each."""

C = TypeVar("C", bound=Contract)

_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


class Policy:
    """A policy whose seal was verified; ``load_policy`` makes it.

    Calls have no side effects and can run in several threads at once.
    """

    def __init__(self, loaded: LoadedPolicy, digest: str, karn: ConsultedKarn | None = None) -> None:
        self._loaded = loaded
        self._controller = LearnedController(loaded, policy_version=digest, is_decisive=True, karn=karn)
        self.digest: str = digest
        """SHA-256 of the sealed files: the ``policy_version`` of a field report."""
        self.blueprints: tuple[str, ...] = tuple(loaded.card.blueprints)
        """Blueprints that the policy knows; it chooses no other one."""
        self.karn: str | None = None if karn is None else karn.digest
        """SHA-256 of the sealed files of the Karn that chooses its blueprints; None if it acts alone."""
        self.controller: str = self._controller.name
        """Name for the field ``controller`` of a field report; it says which Karn was consulted."""

    @overload
    def decide(
        self,
        state: StateLike,
        available: MasksLike,
        *,
        rng: np.random.Generator | None = None,
        explore: bool = False,
    ) -> Action: ...
    @overload
    def decide(
        self,
        state: Sequence[StateLike],
        available: Sequence[MasksLike],
        *,
        rng: np.random.Generator | None = None,
        explore: bool = False,
    ) -> list[Action]: ...
    def decide(
        self,
        state: StateLike | Sequence[StateLike],
        available: MasksLike | Sequence[MasksLike],
        *,
        rng: np.random.Generator | None = None,
        explore: bool = False,
    ) -> Action | list[Action]:
        """Return a legal action for one state, or one each for several.

        The operation is drawn with the policy's probabilities, every other head is the most likely choice. This is how
        policies act where Simic judges them: an operation is a rate per epoch, and under argmax a policy that
        fossilises with probability 0.4 in each epoch would never do so.

        Args:
            state: A state as the contract, or a dictionary as in the JSON of a field report, or a sequence of them.
                A dictionary is read as strictly as a report: a text or a boolean is no number.
            available: The legal choices in wire order, likewise: ``slot[operation][slot]``.
            rng: Source of the draw. By default the draw is computed from policy, state and masks, so equal arguments
                give equal actions.
            explore: Draw every head, with the policy's share of exploration, as during collection.

        Raises:
            ContractError: if a state or masks violate the contract or each other, a slot holds a blueprint that the
                policy does not know, or the only legal operation is the germination of blueprints that the policy does
                not choose.
        """
        decided = self._decided(*_validated(state, available), rng, explore)
        actions = [] if decided is None else decided.actions()
        return actions[0] if _is_one(state) else actions

    @overload
    def explain(
        self,
        state: StateLike,
        available: MasksLike,
        *,
        rng: np.random.Generator | None = None,
        explore: bool = False,
    ) -> Explanation: ...
    @overload
    def explain(
        self,
        state: Sequence[StateLike],
        available: Sequence[MasksLike],
        *,
        rng: np.random.Generator | None = None,
        explore: bool = False,
    ) -> list[Explanation]: ...
    def explain(
        self,
        state: StateLike | Sequence[StateLike],
        available: MasksLike | Sequence[MasksLike],
        *,
        rng: np.random.Generator | None = None,
        explore: bool = False,
    ) -> Explanation | list[Explanation]:
        """Return the decision with its log-probabilities, the value, and what else could have been chosen.

        Arguments and errors are those of ``decide``, and so is the action.
        """
        decided = self._decided(*_validated(state, available), rng, explore)
        explanations = [] if decided is None else decided.explanations(self, self._controller)
        return explanations[0] if _is_one(state) else explanations

    def _decided(
        self, states: list[SystemState], masks: list[ActionMasks], rng: np.random.Generator | None, explore: bool
    ) -> _Decided | None:
        """Return the decisions for N states; None for no states."""
        if not states:
            return None
        names = tuple(dict.fromkeys([*self.blueprints, *_named(states, masks)]))
        observations = Observations.from_states(states, names)
        considered = self._controller.consider(observations, masks_to_columns(masks, names), is_decisive=not explore)
        _check_left(considered.op_masks, masks)
        pairs = zip(states, masks, strict=True)
        draws = (
            (rng.random(len(HEADS)) for _ in states) if rng is not None else (self._uniforms(*pair) for pair in pairs)
        )
        choose = sample if explore else sample_op_greedy_factors
        return _Decided(considered, choose(considered.distribution, np.stack(list(draws))), names, observations)

    def _uniforms(self, state: SystemState, masks: ActionMasks) -> NDArray[np.float64]:
        """Return numbers in [0, 1) [A] that depend on the policy and the arguments only."""
        text = f"{self.digest}\n{state.model_dump_json()}\n{masks.model_dump_json()}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest())).random(len(HEADS))


def controller_of(policy: Policy) -> LearnedController:
    """Return the controller that decides for a policy."""
    return policy._controller  # noqa: SLF001 - one module


def loaded_of(policy: Policy) -> LoadedPolicy:
    """Return network and card of a policy."""
    return policy._loaded  # noqa: SLF001 - one module


class _Decided(NamedTuple):
    """Decisions for N states, and what was chosen from."""

    considered: Considered
    chosen: Decisions
    """In the policy's blueprint indices."""
    names: tuple[str, ...]
    """Blueprints of the arguments."""
    observations: Observations

    def actions(self, chosen: Decisions | None = None) -> list[Action]:
        """Return the wire form of the decisions, or of others for the same states."""
        rows = self.considered.mapping.to_host(chosen or self.chosen).actions
        return [action_of(row, self.names) for row in rows]

    def explanations(self, policy: Policy, controller: LearnedController) -> list[Explanation]:
        """Return an explanation for each state; the controller is the policy's."""
        distribution = self.considered.distribution
        ops, slots = (self.chosen.actions[:, HEAD_INDEX[head]].astype(np.int64) for head in (Head.OP, Head.SLOT))
        shares = distribution.ops()
        tables = {Head.OP: shares, Head.SLOT: distribution.slots(ops), **distribution.factors(np.maximum(slots, 0))}
        best = [self.actions(greedy_after(distribution, np.full(len(ops), op))) for op in range(len(OPS))]
        return [
            Explanation(
                policy=policy.digest,
                karn=policy.karn,
                action=action,
                log_prob=log_prob_of(self.chosen.log_probs[row]),
                value=float(self.considered.values[row]),
                heads={
                    head: _choices(tables[head][row], _labels(head, policy.blueprints))
                    for head in RELEVANT_HEADS[action.op]
                },
                out_of_range=controller.out_of_range(self.observations.take(np.array([row]))),
                alternatives=_ranked([per_op[row] for per_op in best], shares[row], self.considered.op_masks[row]),
            )
            for row, action in enumerate(self.actions())
        ]


def _ranked(best: Sequence[Action], shares: NDArray[np.float64], legal: NDArray[np.bool_]) -> list[Alternative]:
    """Return the best action of each legal operation, the most probable first; equals keep the wire order."""
    alternatives = [
        Alternative(action=best[op], probability=min(float(shares[op]), 1.0)) for op in np.flatnonzero(legal).tolist()
    ]
    return sorted(alternatives, key=lambda alternative: -alternative.probability)


def _choices(table: NDArray[np.float64], labels: Sequence[str | int | float]) -> list[Choice]:
    """Return the possible choices of a head's table [C]."""
    return [
        Choice(choice=label, probability=min(share, 1.0))
        for label, share in zip(labels, table.tolist(), strict=False)  # slots are padded
        if share > 0.0
    ]


def _labels(head: Head, blueprints: tuple[str, ...]) -> Sequence[str | int | float]:
    """Return what the indices of a head stand for on the wire."""
    labels: dict[Head, Sequence[str | int | float]] = {
        Head.OP: [op.value for op in OPS],
        Head.SLOT: range(1024),
        Head.BLUEPRINT: blueprints,
        Head.ALPHA_TARGET: ALPHA_TARGETS,
        Head.ALPHA_SPEED: ALPHA_SPEEDS,
        Head.ALPHA_CURVE: [curve.value for curve in ALPHA_CURVES],
        Head.TEMPO: TEMPOS,
    }
    return labels[head]


def _is_one(state: StateLike | Sequence[StateLike]) -> TypeGuard[StateLike]:
    return isinstance(state, (SystemState, Mapping))


def _validated(
    state: StateLike | Sequence[StateLike], available: MasksLike | Sequence[MasksLike]
) -> tuple[list[SystemState], list[ActionMasks]]:
    """Return states and masks as contracts that fit each other; raise ContractError."""
    if _is_one(state) != isinstance(available, (ActionMasks, Mapping)):
        raise ContractError("expected one state with one set of masks, or a sequence of each; found one of both kinds")
    states = [_contract(SystemState, given, "state") for given in (state if not _is_one(state) else [state])]
    masks = [_contract(ActionMasks, given, "available") for given in (available if not _is_one(state) else [available])]
    if len(states) != len(masks):
        raise ContractError(f"expected masks for each of {len(states)} states, found {len(masks)}")
    for system_state, legal in zip(states, masks, strict=True):
        _check_masks(system_state, legal)
    return states, masks


def _contract(kind: type[C], value: Any, name: str) -> C:
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate_json(encode(value, name), strict=True)
    except ValidationError as error:
        raise ContractError(describe_faults(error, name, within=name)) from error


def _check_masks(state: SystemState, masks: ActionMasks) -> None:
    """Raise ContractError unless the masks allow an action on this state, and each operation allowed has a target."""
    counts = sorted(set(map(len, masks.slot)))
    if counts != [len(state.slots)]:
        raise ContractError(
            f"available.slot: expected a list of the state's {len(state.slots)} slots for each operation, found lists "
            f"of {counts}; the order on the wire is slot[operation][slot]"
        )
    if not any(masks.op):
        raise ContractError("available.op: expected a legal operation, found none; WAIT is always legal on a host")
    if (contradiction := find_mask_contradiction(masks)) is not None:
        raise ContractError(contradiction)


def _check_left(op_masks: NDArray[np.bool_], masks: Sequence[ActionMasks]) -> None:
    """Raise ContractError unless each of N states has an operation [N, ops] that the policy may choose."""
    for row in np.flatnonzero(~op_masks.any(axis=1))[:1].tolist():
        offered = ", ".join(op.value for op, is_legal in zip(OPS, masks[row].op, strict=True) if is_legal)
        raise ContractError(
            f"available.op of state {row}: expected an operation that the policy may choose, found only {offered} with "
            f"the blueprints {masks[row].blueprint}, which the policy does not know or never germinated in training; "
            "offer WAIT too, which is always legal on a host"
        )


def _named(states: Iterable[SystemState], masks: Iterable[ActionMasks]) -> Iterator[str]:
    """Yield the blueprints in the arguments."""
    yield from (slot.blueprint for state in states for slot in state.slots if slot.blueprint is not None)
    yield from (name for legal in masks for name in legal.blueprint)


def load_policy(
    ref_or_path: str | os.PathLike[str],
    *,
    home: Home | None = None,
    trusted_keys: TrustedKeys | None = None,
    karn: str | os.PathLike[str] | None = None,
) -> Policy:
    """Load a policy after its seal was verified: digest of every file and signature of a trusted key.

    Args:
        ref_or_path: A name in a home (``champion``, ``models:/tamiyo@champion``, ``tamiyo/2``, ``2``, the first 8 or
            more characters of a digest), or the directory of a sealed policy: a path object, or a text with a ``/``.
        home: Home of a name, by default the one that the command line would use. Its keys are trusted.
        trusted_keys: Keys of which one must have sealed the policy: a home, a folder of ``<key id>.pub`` files, or
            public keys of 64 hexadecimal characters each. A directory needs them. A name does not; given, they are
            required besides the keys of its home.
        karn: Karn that chooses the blueprints: a name in the home (``champion``, the first 8 or more characters of a
            digest), or the directory of a sealed Karn: a path object, or a text with a ``/``. The same keys must have
            sealed it.

    Raises:
        ConfigError: if there is no such policy or Karn, a directory was given without keys, or ``trusted_keys`` is
            empty.
        ContractError: if the files are no policy or Karn of this version of Simic, or Karn does not know exactly the
            blueprints of the policy.
        IntegrityError: if a byte is not as sealed, or no trusted key signed the seal.
    """
    text = os.fspath(ref_or_path)
    folder = None if karn is None else _karn_folder(karn, home)
    if isinstance(ref_or_path, str) and (is_policy_name(text) or "/" not in text):
        path = _named_policy(text, home)
        own = Home() if home is None else home
        keys = signature_check(own if trusted_keys is None else trusted_keys)
    elif trusted_keys is None:
        raise ConfigError(
            f"the policy directory {text!r} needs trusted_keys: a home, a folder of <key id>.pub files, or public "
            f"keys. Only a name, such as {CHAMPION!r}, is checked with the keys of its home"
        )
    elif home is not None:
        raise ConfigError(f"home is for the name of a policy; {text!r} is a directory: give trusted_keys only")
    else:
        path, keys = Path(text).expanduser(), signature_check(trusted_keys)
    policy = policy_of(path, verify(path, keys))
    return policy if folder is None else consulting(policy, karn_of(folder, verify(folder, keys)))


def policy_of(path: Path, seal: Seal) -> Policy:
    """Load the policy in a directory that was found to be as ``seal`` says; raises as ``load_policy`` does."""
    return Policy(read_policy(path, {file.name: file.sha256 for file in seal.files}), seal.digest)


def karn_of(path: Path, seal: Seal) -> ConsultedKarn:
    """Load the Karn in a directory that was found to be as ``seal`` says; raises as ``load_policy`` does."""
    return ConsultedKarn(load_karn(path, {file.name: file.sha256 for file in seal.files}), seal.digest)


def consulting(policy: Policy, karn: ConsultedKarn) -> Policy:
    """Return the policy as it consults Karn; raise ContractError if Karn does not know exactly its blueprints."""
    return Policy(loaded_of(policy), policy.digest, karn)


def _karn_folder(karn: str | os.PathLike[str], home: Home | None) -> Path:
    """Return the folder of a Karn by its name in a home, or the path that was given."""
    text = os.fspath(karn)
    if not isinstance(karn, str) or "/" in text:
        return Path(text).expanduser()
    if text != CHAMPION and not DIGEST_NAME.fullmatch(text):
        raise ConfigError(
            f"karn: expected {CHAMPION}, {SHORTEST} or more characters of a digest, or the path of a directory with a "
            f"/ in it, found {text!r}"
        )
    return container_of(home).karns.named(text).path


def _named_policy(name: str, home: Home | None) -> Path:
    """Return the directory of a policy of a home, whose keys have verified it."""
    path = container_of(home).policies.at(name)
    if path is None:
        raise ConfigError(
            f"{name!r} is not a policy: expected {CHAMPION}, tamiyo/2, 2, 8 or more characters of a digest, or the "
            "path of a directory with a / in it"
        )
    return path


def signature_check(trusted: TrustedKeys) -> SignatureCheck:
    """Return the check of signatures by trusted keys; raises ConfigError if none are given."""
    if isinstance(trusted, Home):
        return Keyring(paths_of(trusted).keys)
    if isinstance(trusted, (str, os.PathLike)):
        if not os.fspath(trusted):
            raise ConfigError("trusted_keys: expected a folder of <key id>.pub files, found an empty text")
        folder = Path(trusted).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"trusted_keys: expected a folder of <key id>.pub files, found no folder at {folder}")
        return Keyring(folder)
    keys = [_public_key(text) for text in trusted]
    if not keys:
        raise ConfigError(
            "trusted_keys: expected at least one public key, found none; simic.Home(path).public_keys() lists a home's"
        )
    return GivenKeys(keys)


def _public_key(text: str) -> bytes:
    if not (isinstance(text, str) and _PUBLIC_KEY.fullmatch(text)):
        raise ConfigError(f"trusted_keys: expected a public key of 64 hexadecimal characters, found {text!r}")
    return bytes.fromhex(text)
