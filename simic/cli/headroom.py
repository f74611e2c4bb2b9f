"""``simic plans headroom``: what single seeds gain over never growing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from simic.cli.console import LOADING_TORCH, cell, emit, working
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, SetName, open_container, whole_number
from simic.contracts.controllers import Plan
from simic.contracts.results.headroom import FEWEST_HOSTS, FamilyHeadroom, Headroom
from simic.runtime.home import HomeUse
from simic.validation.table import interval

__all__ = ["headroom", "headroom_tables"]

_ENOUGH = 16
"""Hosts of each family, the default, below which the intervals of one half tell little."""
_SHOWN = 3
"""Best plans shown per family; ``--json`` has all."""
_ONE_PLAN, _PLAN_EACH = "all, one plan", "all, a plan each"


def headroom(
    hosts: Annotated[
        int, whole_number("--hosts", least=FEWEST_HOSTS, about="Number of hosts of each family.")
    ] = _ENOUGH,
    world_set: SetName = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure what growth can gain on a set: every plan that grows one seed per host, against never growing.

    A plan is a blueprint, a slot and the epoch of germination, 1 or 4; the seed is blended and kept as soon as the
    lifecycle allows. Gains are points of return, paired by host, with 95 % intervals.

    The first table chooses the best plan of a family on one half of the hosts and measures it on the other half,
    because the gain on the hosts of the choice is biased upwards. If no plan gains on the first half, the choice is
    never to grow. The second table shows the best plans and the worst one over all hosts; --json has every plan.

    The column "best of each host" tries every plan on the host itself and keeps the one with the best return, or none.
    Its gain is measured with test accuracies, which did not select the plan.

    In a family where no plan gains, the best decision is not to grow. The row "one plan" uses the same plan in all
    families, the row "a plan each" the best plan of each family: their difference is the value of knowing the family.

    Six blueprints in three slots take 37 episodes per host. Another --seed draws other hosts. Nothing is written.

    Example: [bold]simic plans headroom --set varied --hosts 32[/bold]
    """
    container = open_container(profile, seed, override, {"world.set": world_set}, use=HomeUse.NONE)
    with working(LOADING_TORCH):
        from simic.app.evidence import plan_books

    report = plan_books.measure_headroom(container, hosts)
    emit(report, as_json, lambda console: console.print(headroom_tables(report)))


def headroom_tables(report: Headroom) -> Group:
    """Return the choice by family, best first, and each family's best plans and its worst one."""
    families = sorted(report.families.items(), key=lambda item: -item[1].over_wait.mean)
    each = len(report.host_keys) // len(families)
    chosen = _table(f"{each} hosts per family of set {report.set}: one half chooses, the other measures",
                    "family", "best plan of one half", "there", "on the other half", "best of each host")  # fmt: skip
    for name, family in (*families, (_ONE_PLAN, report.all_families)):
        there, rest, own = f"{family.when_chosen:+.1f}", interval(family.over_wait), interval(family.hindsight)
        chosen.add_row(*map(cell, (name, _named(family.chosen), there, rest, own)))
    chosen.add_row(*map(cell, (_PLAN_EACH, "", "", interval(report.plan_per_family), "")))
    plans = _table("Best plans and the worst one, over all hosts", "family", "plan", "over never growing")
    for name, family in families:
        for label, plan, gain in _extremes(name, family):
            plans.add_row(*map(cell, (label, plan, gain)))
    few = [] if each >= _ENOUGH else [Text(f"Half of {each} hosts is few: intervals are wide below {_ENOUGH}.")]
    return Group(chosen, plans, *few)


def _extremes(name: str, family: FamilyHeadroom) -> Iterator[tuple[str, str, str]]:
    """Yield family, plan and gain of the best plans and of the worst one."""
    shown = family.plans if len(family.plans) <= _SHOWN else [*family.plans[:_SHOWN], family.plans[-1]]
    for row, gain in enumerate(shown):
        yield "" if row else name, _named(gain.plan), interval(gain.over_wait)


def _named(plan: Plan) -> str:
    return ", ".join(f"{seed.blueprint} in slot {seed.slot} at {seed.epoch}" for seed in plan.seeds) or "never grow"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name in ("family", "plan") else "right")
    return table
