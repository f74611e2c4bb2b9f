"""The logged episodes on held-out hosts that judge a policy, and the share of others that were cut off."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from simic.contracts.splits import Split
from simic.replay.cut_off import CutOff
from simic.replay.logged import EpisodeHead
from simic.validation.log_evidence import CUT_OFF
from simic.validation.off_policy import LEAST_HOSTS, Group

__all__ = ["TOO_FEW", "HeldOut", "cut_off_shares", "held_out_episodes", "in_groups", "undrawn"]

TOO_FEW = f"of a set and controller with fewer than {LEAST_HOSTS} hosts"
"""Why an episode is left out although it is whole."""


class HeldOut(NamedTuple):
    """Episodes to judge by."""

    used: Sequence[EpisodeHead]
    left_out: Mapping[str, int]
    """Number of others per reason."""
    cut_off: float | None
    """Largest share in [0, 1] over the sets of episodes that were cut off, whoever logged them; None if nothing is used
    or nobody counted."""
    group_cut_off: Mapping[Group, float]
    """The same share in each set and behaviour; empty if nobody counted."""


def held_out_episodes(
    heads: Sequence[EpisodeHead],
    sets: Sequence[str],
    most: int,
    cut_off: Sequence[CutOff] | None = None,
    without: Mapping[str, str] = MappingProxyType({}),
) -> HeldOut:
    """Return the whole episodes on test hosts of ``sets``, of set and behaviour with ``LEAST_HOSTS`` hosts or more.

    No training and no choice between trainings reads the test split. Whether a log has the actions of a policy is
    judged in each set and behaviour, which takes that many hosts. Of too many, those with the smallest run ids stay.

    Args:
        heads: Episodes of a snapshot in the order of their run ids.
        sets: Sets that judge.
        most: Largest number of episodes.
        cut_off: Episodes on test hosts of these sets that the snapshot lacks because they are not whole; None if nobody
            looked.
        without: Run ids of held-out episodes that cannot judge, with the reason.
    """
    used, left_out, truncated = list[EpisodeHead](), Counter[str](), list[CutOff]()
    reasons, beyond = undrawn(heads), f"beyond the first {most}"
    for head in heads:
        if (reason := reasons.get(head.run_id)) is not None:
            left_out[reason] += 1
        elif head.set not in sets:
            left_out["of another set"] += 1
        elif head.split != Split.TEST.value:
            left_out["not held out"] += 1
        elif (unfit := without.get(head.run_id)) is not None:
            left_out[unfit] += 1
        elif head.is_truncated:
            named = head.set, head.behaviour, head.host_key, head.controller
            truncated.append(CutOff(head.run_id, "truncated", *named))
        elif len(used) == most:
            left_out[beyond] += 1
        else:
            used.append(head)
    # Both sides of a share are of the same episodes: all whose run ids are not beyond the last one that is used.
    last = used[-1].run_id if left_out[beyond] else None
    cut = [episode for episode in (*truncated, *(cut_off or ())) if last is None or episode.run_id <= last]
    for reason, count in sorted(
        Counter(reason for _, reason in {(episode.run_id, episode.reason) for episode in cut}).items()
    ):
        left_out[f"{CUT_OFF}{reason}"] = count
    kept = in_groups(used)
    left_out[TOO_FEW] = len(used) - len(kept)
    by_set, by_group = cut_off_shares(kept, cut) if cut_off is not None else ({}, {})
    return HeldOut(kept, {why: n for why, n in left_out.items() if n}, max(by_set.values(), default=None), by_group)


def undrawn(heads: Sequence[EpisodeHead]) -> dict[str, str]:
    """Return the run ids of episodes whose actions were not drawn from their logged probabilities, with the reason."""
    repeated = {(head.branch_of, head.set, head.host_key) for head in heads if head.branch_of is not None}
    reasons = dict[str, str]()
    for head in heads:
        if head.branch_of is not None:
            reasons[head.run_id] = "branches, whose action was not drawn"
        elif (head.run_id, head.set, head.host_key) in repeated:
            reasons[head.run_id] = "repeated by branches, without exploration"
    return reasons


def in_groups(heads: Sequence[EpisodeHead]) -> list[EpisodeHead]:
    """Return the episodes of sets and behaviours with ``LEAST_HOSTS`` hosts or more."""
    hosts: dict[Group, set[int]] = defaultdict(set)
    for head in heads:
        hosts[head.set, head.behaviour].add(head.host_key)
    return [head for head in heads if len(hosts[head.set, head.behaviour]) >= LEAST_HOSTS]


def cut_off_shares(used: Sequence[EpisodeHead], cut: Sequence[CutOff]) -> tuple[dict[str, float], dict[Group, float]]:
    """Return the share of episodes that were cut off, by set and by set and behaviour, where episodes are used.

    That of a set counts all that were cut off, also those of behaviours without a used episode.
    """
    of_set, of_group = Counter(head.set for head in used), Counter((head.set, head.behaviour) for head in used)
    set_runs: dict[str, set[str]] = defaultdict(set)
    group_runs: dict[Group, set[str]] = defaultdict(set)
    for episode in cut:
        set_runs[episode.set].add(episode.run_id)
        group_runs[episode.set, episode.behaviour].add(episode.run_id)
    return (
        {name: len(set_runs[name]) / (whole + len(set_runs[name])) for name, whole in of_set.items()},
        {group: len(group_runs[group]) / (whole + len(group_runs[group])) for group, whole in of_group.items()},
    )
