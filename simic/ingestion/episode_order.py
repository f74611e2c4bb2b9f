"""The order of reports within episodes: whether a valid report continues what was seen of its episode.

Ingestion lands each report by itself, and curation leaves out an episode as a whole if its reports do not join. Who
writes or checks reports finds that out here, in memory that does not grow with the number of episodes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from simic.contracts.actions import Op
from simic.contracts.consistency import PAYING_STAGES, TOLERANCE

__all__ = ["MOST_ENDED", "MOST_OPEN", "EpisodeOrder", "Link", "read_link"]

MOST_OPEN = 100_000
"""Episodes without an end that are remembered; beyond it the one without a report for longest is forgotten."""
MOST_ENDED = 100_000
"""Ended episodes that are remembered; beyond it the one that ended first is forgotten."""
_FIELD_BYTES = 8
"""Bytes of a field's digest: about 500 bytes per open episode in all."""
_SHARED = (
    "host", "controller", "policy_version", "branch_of", "branch_step", "trial_id", "judgement", "state.horizon",
    "state.seeds_max",
)  # fmt: skip
"""Fields that all reports of an episode share."""
_PAYING = frozenset(stage.value for stage in PAYING_STAGES)


class _Slot(msgspec.Struct, gc=False):
    stage: str
    parameters: int


class _Action(msgspec.Struct, gc=False):
    op: str
    slot: int | None


class _State(msgspec.Struct, gc=False):
    epoch: int
    horizon: int
    seeds_max: int
    seed_parameters: int
    validation_accuracy: float
    slots: msgspec.Raw
    """Read only after a germination."""


class _Metrics(msgspec.Struct, gc=False):
    validation_accuracy_after: float
    rent_parameters: int


class Link(msgspec.Struct, gc=False):
    """Fields of a report by which it continues, or contradicts, the report before in its episode."""

    run_id: str
    step: int
    controller: str
    policy_version: str | None
    host: msgspec.Raw
    state: _State
    action: _Action
    metrics: _Metrics
    terminated: bool
    truncated: bool
    observation_window_epochs: int
    branch_of: str | None
    branch_step: int | None
    trial_id: str | None
    judgement: int | None

    @property
    def has_ended(self) -> bool:
        """Return whether the episode ends with this report."""
        return self.terminated or self.truncated


class _Position(NamedTuple):
    """What the next report of an episode has to continue."""

    identity: bytes
    """Digests of the shared fields."""
    controller: str
    step: int
    """Number of the next step."""
    epoch: int
    """Epoch of the next state."""
    accuracy: float
    """Validation accuracy of the next state."""
    germination: tuple[int, int] | None
    """Slot and parameters, by the rent, of a seed that germinated in a window of one epoch."""
    is_whole: bool
    """Whether the episode was seen from step 0 without a fault."""


class _End(NamedTuple):
    """How an episode ended."""

    step: int
    """Its last step."""
    is_complete: bool


_ABSENT = _Position(b"", "", 0, 0, 0.0, None, is_whole=False)

read_link = msgspec.json.Decoder(Link).decode
"""Read the link of a report in canonical form, which validation returns."""
_read_slots = msgspec.json.Decoder(list[_Slot]).decode


class EpisodeOrder:
    """Remembers where episodes are, by run id: at most ``most_open`` open ones and ``most_ended`` ended ones.

    The first report of an episode may have any step, so that a restarted program can go on. Memory is about 500 bytes
    per open episode and 200 per ended one.
    """

    def __init__(self, most_open: int, most_ended: int) -> None:
        self._most_open, self._most_ended = most_open, most_ended
        self._open: OrderedDict[bytes, _Position | None] = OrderedDict()
        """None after a report that could not be read: the next may have any step."""
        self._ended: OrderedDict[bytes, _End] = OrderedDict()
        self.complete = 0
        """Episodes that were recorded from step 0 to their end without a fault, and without a report after it."""
        self._incomplete = 0
        self.forgotten_open = 0
        """Open episodes forgotten for the bound; a later report of one counts as that of another episode."""
        self.forgotten_ended = 0
        """Ended episodes forgotten for the bound; a later report of one is not noticed as such."""

    @property
    def incomplete(self) -> int:
        """Return the number of episodes that lack a beginning, an end or a report between, or had a fault."""
        return self._incomplete + len(self._open)

    def without_end(self) -> Iterator[tuple[str, int]]:
        """Yield run id and last step of open episodes; a report that cannot be read may be the end of its episode."""
        return ((run.hex(), position.step - 1) for run, position in self._open.items() if position is not None)

    def next_step(self, run_id: str) -> int | None:
        """Return the step that the episode continues with, 0 for an unknown one; None after its end."""
        run = bytes.fromhex(run_id)
        if run in self._ended:
            return None
        return 0 if (before := self._open.get(run)) is None else before.step

    def is_unread(self, run_id: str) -> bool:
        """Return whether the last report of an open episode could not be read."""
        return self._open.get(bytes.fromhex(run_id), _ABSENT) is None

    def check(self, link: Link) -> str | None:
        """Return why a report does not continue its episode, as ``field: expected X, found Y``; None if it does."""
        run = bytes.fromhex(link.run_id)
        if (end := self._ended.get(run)) is not None:
            return f"step: expected none after step {end.step}, which ended the episode, found {link.step}"
        return None if (before := self._open.get(run)) is None else _break(before, link)

    def record(self, link: Link, *, is_faulty: bool = False) -> None:
        """Make a report the last one of its episode, whether or not it continues it; its first report identifies it."""
        run = bytes.fromhex(link.run_id)
        if (end := self._ended.get(run)) is not None:
            if end.is_complete:  # a report after the end makes steps overlap, for which curation leaves out the episode
                self._ended[run] = end._replace(is_complete=False)
                self.complete -= 1
                self._incomplete += 1
            return
        is_known, before = run in self._open, self._open.pop(run, None)
        is_whole = not is_faulty and (link.step == 0 and not is_known if before is None else before.is_whole)
        if not link.has_ended:
            after = _after(link, is_whole=is_whole)
            if before is not None:
                after = after._replace(identity=before.identity, controller=before.controller)
            self._keep_open(run, after)
            return
        self.complete += is_whole
        self._incomplete += not is_whole
        self._ended[run] = _End(link.step, is_whole)
        if len(self._ended) > self._most_ended:
            self._ended.popitem(last=False)
            self.forgotten_ended += 1

    def record_unread(self, run_id: str) -> None:
        """Note a report of an episode that cannot be read: the next may have any step, and the episode has a gap."""
        run = bytes.fromhex(run_id)
        if run not in self._ended:
            self._open.pop(run, None)
            self._keep_open(run, None)

    def forget(self, run_id: str) -> None:
        """Forget an episode, so that its next report may have any step."""
        run = bytes.fromhex(run_id)
        self._open.pop(run, None)
        self._ended.pop(run, None)

    def _keep_open(self, run: bytes, position: _Position | None) -> None:
        self._open[run] = position
        if len(self._open) > self._most_open:
            self._open.popitem(last=False)
            self._incomplete += 1
            self.forgotten_open += 1


def _after(link: Link, *, is_whole: bool) -> _Position:
    return _Position(
        b"".join(map(_digest, _shared(link))),
        sys.intern(link.controller),  # the same in most episodes
        link.step + 1,
        link.state.epoch + link.observation_window_epochs,
        link.metrics.validation_accuracy_after,
        _germination(link),
        is_whole,
    )


def _germination(link: Link) -> tuple[int, int] | None:
    """Return slot and parameters of a germinated seed; None without one and in a longer window, which may end seeds."""
    slot = link.action.slot
    if slot is None or link.action.op != Op.GERMINATE.value or link.observation_window_epochs > 1:
        return None
    return slot, link.metrics.rent_parameters - link.state.seed_parameters


def _shared(link: Link) -> tuple[object, ...]:
    """Return the values of ``_SHARED``."""
    return (
        bytes(link.host), link.controller, link.policy_version, link.branch_of, link.branch_step, link.trial_id,
        link.judgement, link.state.horizon, link.state.seeds_max,
    )  # fmt: skip


def _digest(value: object) -> bytes:
    return blake2b(value if isinstance(value, bytes) else str(value).encode(), digest_size=_FIELD_BYTES).digest()


def _break(before: _Position, link: Link) -> str | None:
    """Return why a report does not continue its episode; None if it does."""
    state = link.state
    if link.step != before.step:
        return f"step: expected {before.step}, the next one, found {link.step}"
    for index, (name, value) in enumerate(zip(_SHARED, _shared(link), strict=True)):
        if _digest(value) != before.identity[index * _FIELD_BYTES : (index + 1) * _FIELD_BYTES]:
            found = value.decode() if isinstance(value, bytes) else "null" if value is None else value
            expected = f"{before.controller}, " if name == "controller" else ""
            return f"{name}: expected {expected}that of the episode's report before, found {found}"
    if state.epoch != before.epoch:
        return f"state.epoch: expected {before.epoch}, the end of the window before, found {state.epoch}"
    if abs(state.validation_accuracy - before.accuracy) > TOLERANCE:
        return (
            f"state.validation_accuracy: expected {before.accuracy:.9g}, metrics.validation_accuracy_after of the "
            f"report before, found {state.validation_accuracy:.9g}"
        )
    return None if before.germination is None else _other_seed(*before.germination, state)


def _other_seed(index: int, parameters: int, state: _State) -> str | None:
    """Return that a seed has other parameters than it paid rent for; None if not, or if it did not live on."""
    for slot in _read_slots(state.slots)[index : index + 1]:
        if slot.stage in _PAYING and slot.parameters != parameters:
            return (
                f"state.slots.{index}.parameters: expected {parameters}, metrics.rent_parameters - "
                f"state.seed_parameters of the report before, which germinated the seed, found {slot.parameters}"
            )
    return None
