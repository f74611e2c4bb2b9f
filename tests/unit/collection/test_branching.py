"""Branches: the parent's episode up to one step, another action there, and the same random numbers after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from simic.bus.factory import BusSpec
from simic.bus.spool.bus import SpoolBus
from simic.collection.branching import BranchChoice
from simic.collection.collect import collect
from simic.contracts.actions import Op
from simic.contracts.controllers import ControllerSpec
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import CollectionReceipt, Provenance
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.host_sets import identify

HOSTS = identify("benchmark", [2, 5, 14])
NOW = datetime(2026, 3, 1, tzinfo=UTC)
HORIZON = 7
IDENTITY = {"report_id", "run_id", "command_id", "seed_id", "branch_of", "branch_step"}
"""Fields in which a branch differs from its parent before its step."""


def collected(
    root: Path,
    name: str = "complete",
    *,
    hosts: Sequence[HostIdentity] = HOSTS,
    chunk: int = 64,
    decisions: int = 1,
    actions: int = 100,
    since: int = 1,
) -> CollectionReceipt:
    return collect(
        ControllerSpec(name=name),
        hosts,
        WorldConfig(horizon=HORIZON, chunk=chunk, workers=1),
        BusSpec(root),
        seed=7,
        provenance=Provenance("0.1.0+test", "c" * 64, 7),
        clock=lambda: NOW,
        choice=BranchChoice(decisions, actions, seed=7, since=since),
    )


def grow(root: Path, name: str = "complete", **choice: Any) -> tuple[CollectionReceipt, dict[str, list[FieldReport]]]:
    """Return the receipt, and the reports of every episode in step order."""
    receipt = collected(root, name, **choice)
    episodes: dict[str, list[FieldReport]] = defaultdict(list)
    for delivery in SpoolBus(root).claim(FIELD_REPORTS):
        for line in delivery.open(1 << 20):
            report = FieldReport.model_validate_json(line.data)
            episodes[report.run_id].append(report)
    return receipt, episodes


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[CollectionReceipt, dict[str, list[FieldReport]]]:
    return grow(tmp_path_factory.mktemp("bus"))


def test_a_branch_repeats_its_parent_up_to_its_step_and_acts_otherwise_there(
    grown: tuple[CollectionReceipt, dict[str, list[FieldReport]]],
) -> None:
    receipt, episodes = grown
    branches = [reports for reports in episodes.values() if reports[0].branch_of is not None]
    assert (receipt.episodes, receipt.branches) == (3, len(branches))
    assert receipt.reports == sum(map(len, episodes.values()))
    for reports in branches:
        parent, at = episodes[reports[0].branch_of or ""], reports[0].branch_step or 0
        assert {(report.branch_of, report.branch_step) for report in reports} == {(parent[0].run_id, at)}
        assert at >= 1
        before = [[report.model_dump(exclude=IDENTITY) for report in one[:at]] for one in (reports, parent)]
        assert before[0] == before[1]
        assert reports[at].state == parent[at].state
        assert reports[at].action != parent[at].action
        assert reports[at].log_prob_behaviour.joint == 0.0


def test_every_legal_operation_on_every_slot_is_tried_once(
    grown: tuple[CollectionReceipt, dict[str, list[FieldReport]]],
) -> None:
    _, episodes = grown
    tried = defaultdict(list)
    for reports in episodes.values():
        if reports[0].branch_of is not None:
            tried[reports[0].branch_of].append(reports[reports[0].branch_step or 0])
    assert len(tried) == len(HOSTS)
    for decisions in tried.values():
        available, actions = decisions[0].available, [report.action for report in decisions]
        germinated = {(action.slot, action.blueprint) for action in actions if action.op is Op.GERMINATE}
        slots = [slot for slot, legal in enumerate(available.slot[1]) if legal]
        assert germinated == {(slot, blueprint) for slot in slots for blueprint in available.blueprint}
        assert len(set(map(str, actions))) == len(actions)


def test_complete_takes_a_tried_seed_to_its_end(
    grown: tuple[CollectionReceipt, dict[str, list[FieldReport]]],
) -> None:
    """Otherwise the return of a germination would be that of a seed that is thrown away."""
    _, episodes = grown
    early = [
        reports
        for reports in episodes.values()
        if reports[0].branch_step == 1
        and reports[1].action.op is Op.GERMINATE
        and reports[1].action.blueprint == "norm"
    ]
    assert early
    assert any(Op.FOSSILIZE in [report.action.op for report in reports] for reports in early)


def test_the_decision_before_the_first_epoch_is_branched_where_it_is_asked_for(tmp_path: Path) -> None:
    steps = {}
    for since in (0, 1):
        _, episodes = grow(tmp_path / str(since), decisions=HORIZON, actions=1, since=since)
        steps[since] = sorted({reports[0].branch_step for reports in episodes.values()} - {None})
    assert steps == {0: list(range(HORIZON)), 1: list(range(1, HORIZON))}


@pytest.mark.parametrize(("decisions", "further"), [(1, 0), (2, 1), (3, 2), (4, 2)])
def test_decisions_that_began_a_further_seed_come_before_others_are_drawn(
    tmp_path: Path, decisions: int, further: int
) -> None:
    """At least one is drawn, so that the first seed is learned too."""
    hosts = identify("compound", range(16))
    _, episodes = grow(tmp_path, "random", hosts=hosts, decisions=decisions, actions=1)
    branched: dict[str, list[int]] = defaultdict(list)
    for reports in episodes.values():
        if reports[0].branch_of is not None:
            branched[reports[0].branch_of].append(reports[0].branch_step or 0)
    began = {
        run_id: [one.step for one in episodes[run_id] if one.action.op is Op.GERMINATE and one.step][1:]
        for run_id in branched
    }
    assert max(map(len, began.values())) >= 2
    assert all(set(steps[:further]) <= set(branched[run_id]) for run_id, steps in began.items())
    assert {len(steps) for steps in branched.values()} == {decisions}


def test_chunks_change_neither_the_choice_nor_a_byte(tmp_path: Path) -> None:
    whole, _ = grow(tmp_path / "whole", "heuristic", decisions=2, actions=3)
    parts, _ = grow(tmp_path / "parts", "heuristic", decisions=2, actions=3, chunk=2)
    assert whole.branches > 0
    assert whole.reports_digest == parts.reports_digest
    assert whole.branches <= len(HOSTS) * 2 * 3


def test_branching_twice_is_one_delivery(tmp_path: Path) -> None:
    first, again = (collected(tmp_path, actions=2) for _ in range(2))
    assert first == again
    assert SpoolBus(tmp_path).pending(FIELD_REPORTS) == 2
