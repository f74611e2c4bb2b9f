"""The proof table: results of all controllers as text; needs neither torch nor a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from simic.contracts.controllers import CONTROLLER_ORDER
from simic.contracts.names import CANDIDATE, CHAMPION
from simic.contracts.results.log_evidence import LogEvidence
from simic.contracts.results.trials import ControllerTrial, Estimate, FamilyTrial, SeedChoice, StaticTrial, TrialReport
from simic.hosts.host_sets import SETS

__all__ = [
    "COST_COLUMNS",
    "COST_NOTE",
    "INTERVALS_NOTE",
    "RENT_FACTORS",
    "SCORED_MARK",
    "SCORED_NOTE",
    "SEARCHED_COLUMNS",
    "SEARCHED_NOTE",
    "STATIC_COLUMNS",
    "STATIC_NOTE",
    "Table",
    "controller_rank",
    "escape_markdown",
    "families_in_order",
    "fenced",
    "in_percent_points",
    "interval",
    "markdown",
    "marked",
    "percent",
    "render_costs",
    "render_families",
    "render_gain",
    "render_log",
    "render_rents",
    "render_searched",
    "render_seeds",
    "render_spread",
    "render_static",
    "render_table",
    "rent_header",
    "searched_cells",
    "static_cells",
    "without_families",
]

_FIRST_POLICY = CONTROLLER_ORDER.index(CHAMPION)


def controller_rank(name: str) -> int:
    """Return the rank of a row: baselines, then policies by name, then the champion, last the candidate.

    Rows of equal rank keep their order under a stable sort.
    """
    return 2 * CONTROLLER_ORDER.index(name) if name in CONTROLLER_ORDER else 2 * _FIRST_POLICY - 1


def families_in_order(set_name: str, families: Iterable[str]) -> list[str]:
    """Return each family once, in the order of the shipped sets; other families follow alphabetically."""
    listed = SETS[set_name].families if set_name in SETS else ()
    present = set(families)
    return [*(name for name in listed if name in present), *sorted(present.difference(listed))]


COST_COLUMNS = (
    "validation",
    "test",
    "test over wait",
    "parameters",
    "of host",
    "extra compute",
    "controller",
    "probes",
)
"""Columns of a table of costs: accuracies in per cent, parameters of kept seeds and their share of the host's, the
parameters of all seeds times the epochs they were there as a share of the same of the host, and the multiply-adds of
decisions and of probes as a share of those of the host's training."""
COST_NOTE = (
    "test over wait: points of test accuracy. of host: parameters of kept seeds over those of the host. extra compute: "
    "parameters of all seeds times their epochs, over those of the host times the horizon; not measured time. "
    "controller, probes: multiply-adds of a policy's decisions, and of the contributions and gradients of seeds that "
    "observations show, over those of the host's training (3 x parameters x samples x epochs)."
)
"""What the columns mean."""
INTERVALS_NOTE = (
    "Intervals by family are Student's. Those over all hosts are a percentile bootstrap's from 30 hosts of each family "
    "on, and Student's below; so in a set of one family the two may differ."
)
"""Which kind of interval a difference of trials has."""
STATIC_COLUMNS = ("same", "epochs", "static return", "minus static", "static test", "test minus static")
STATIC_NOTE = (
    "Static: host and kept seeds as one network from epoch 0 on, at the alpha that they were kept with, for the same "
    "number of epochs, or for the same compute (parameters times epochs, pruned seeds included). It pays rent for its "
    "seeds in every epoch; test accuracy has no rent in it. minus static: controller minus static, paired by host."
)
"""What a static network is."""
RENT_FACTORS = (0.0, 0.25, 1.0, 4.0, 16.0)
"""Multiples of the rent per parameter at which a sweep judges."""
SCORED_MARK = "*"
"""Behind a return, or a difference of returns, that ends with the test accuracy."""
SCORED_NOTE = (
    f"{SCORED_MARK}: by test accuracy, in a difference that of both, because simulate and hindsight take the best of "
    "several episodes of the host by the return, whose validation accuracy the choice inflates."
)
SEARCHED_COLUMNS = ("episodes", "by test, over wait", "share of hindsight")
SEARCHED_NOTE = (
    "episodes: grown on each host, of which one was taken. by test: returns with the test accuracy in place of the "
    "validation accuracy, which chose. share of hindsight: of its gain over blind, or over wait without blind."
)
_BEFORE_FAMILIES = 3
"""Columns of ``render_table`` before those of the families."""


class Table(NamedTuple):
    """A table as text; every row has the length of the header."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    rows = [table.header, tuple("---" for _ in table.header), *table.rows]
    return "\n".join(f"| {' | '.join(map(escape_markdown, row))} |" for row in rows)


def escape_markdown(text: str) -> str:
    """Return ``text`` as one line of Markdown that ends no cell and holds no tag, picture or link behind other words.

    Data come from untrusted sources: they could hide a row, or have a viewer load an address.
    """
    line = " ".join(text.splitlines()).replace("\\", "\\\\").replace("|", "\\|").replace("](", "]\\(")
    return line.replace("&", "&amp;").replace("<", "&lt;")


def fenced(code: str) -> str:
    """Return a block of code in Markdown, with a fence that no run of backticks in it ends."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}\n{code}\n{fence}"


def render_table(report: TrialReport) -> Table:
    """Return one row per controller; returns in points, families as differences to ``wait``."""
    families = families_in_order(report.set, report.families)
    header = ("controller", "return", "over wait", *families, "test accuracy", "parameters")
    rows = [
        (
            trial.controller,
            *marked(
                trial.scored_by,
                f"{trial.mean_return:.1f}",
                interval(trial.over_wait),
                *(_difference(trial.by_family.get(family)) for family in families),
            ),
            *_kept(trial),
        )
        for trial in _in_order(report)
    ]
    return Table(header, rows)


def without_families(table: Table, report: TrialReport) -> Table:
    """Return the table without the columns of single families, for a narrow screen."""
    first = _BEFORE_FAMILIES
    rest = first + len(set(report.families))
    return Table(table.header[:first] + table.header[rest:], [row[:first] + row[rest:] for row in table.rows])


def render_families(report: TrialReport) -> Table:
    """Return one row per family and controller, with the numbers over the hosts of that family."""
    header = ("family", "controller", "hosts", "return", "over wait", "test accuracy", "parameters")
    rows: list[tuple[str, ...]] = [
        (
            family,
            trial.controller,
            str(own.episodes),
            *marked(trial.scored_by, f"{own.mean_return:.1f}", interval(own.over_wait)),
            *_kept(own),
        )
        for family in families_in_order(report.set, report.families)
        for trial in _in_order(report)
        if (own := trial.by_family.get(family)) is not None
    ]
    return Table(header, rows)


def render_costs(report: TrialReport) -> Table:
    """Return one row per controller: accuracies of the kept networks, and what growing them cost beside the host."""
    header = ("controller", *COST_COLUMNS)
    rows: list[tuple[str, ...]] = [
        (
            trial.controller,
            percent(trial.validation_accuracy),
            percent(trial.test_accuracy),
            in_percent_points(trial.test_over_wait),
            f"{trial.committed_parameters:.0f}",
            _of_host(trial),
            *map(_share, (trial.extra_compute, trial.controller_compute, trial.probe_compute)),
        )
        for trial in _in_order(report)
    ]
    return Table(header, rows)


def render_searched(report: TrialReport) -> Table:
    """Return one row per controller: episodes grown on a host, and the gain by test accuracy."""
    rows = [
        (row.controller, *searched_cells(row.episodes_grown, row.by_test, row.share_of_hindsight))
        for row in _in_order(report)
    ]
    return Table(("controller", *SEARCHED_COLUMNS), rows)


def searched_cells(episodes: float, by_test: Estimate | None, share: Estimate | None) -> tuple[str, ...]:
    """Return the cells below ``SEARCHED_COLUMNS``."""
    of = "-" if share is None else f"{share.mean:.0%} [{100 * share.lower:.0f}, {100 * share.upper:.0f}]"
    return f"{episodes:.1f}".removesuffix(".0"), interval(by_test), of


def render_log(log: LogEvidence, differences: Mapping[str, Estimate]) -> Table:
    """Return one row per policy: what the candidate gains over it by estimate, and how much of the log is like it."""
    header = (
        "controller", "candidate minus it", "hosts", "effective", "largest share", "largest weight", "in common",
        "mean weight",
    )  # fmt: skip
    rows = list[tuple[str, ...]]()
    for name in dict.fromkeys([*differences, *log.support]):
        gain, support = differences.get(name), log.support.get(name)
        cells: tuple[str, ...] = ("-",) * 6
        if support is not None:
            weight = "-" if support.mean_weight is None else f"{support.mean_weight:.3f}"
            shares = f"{support.largest_share:.3f}", f"{support.largest_weight:.3g}", f"{support.overlap:.0%}"
            cells = (str(support.hosts), f"{support.effective_hosts:.0f}", *shares, weight)
        rows.append((name, "-" if gain is None else interval(gain), *cells))
    return Table(header, rows)


def render_rents(report: TrialReport) -> Table:
    """Return one row per controller but ``wait``: the difference to it at each rent of ``by_rent``, in points."""
    rows = [row for row in _in_order(report) if row.over_wait is not None]
    header = ("controller", *(rent_header(rent.factor) for rent in report.controllers[0].by_rent))
    cells = ((row, (interval(rent.over_wait) for rent in row.by_rent)) for row in rows)
    return Table(header, [(row.controller, *marked(row.scored_by, *own)) for row, own in cells])


def render_static(report: TrialReport) -> Table:
    """Return two rows per controller: its final networks trained from the start, and what it is ahead of them."""
    rows = [(trial.controller, *static_cells(static)) for trial in _in_order(report) for static in trial.static]
    return Table(("controller", *STATIC_COLUMNS), rows)


def static_cells(one: StaticTrial) -> tuple[str, ...]:
    """Return the cells below ``STATIC_COLUMNS``."""
    return (
        one.same,
        "-" if one.mean_epochs is None else f"{one.mean_epochs:.1f}",
        f"{one.mean_return:.1f}",
        interval(one.return_difference),
        percent(one.test_accuracy),
        in_percent_points(one.test_difference),
    )


def rent_header(factor: float) -> str:
    """Return the header of a column with the rent multiplied by a factor."""
    return f"rent x {factor:g}"


def render_gain(report: TrialReport) -> str:
    """Return one line: the candidate's mean paired differences in points, with the interval of that to ``wait``."""
    trials = _in_order(report)
    ours = next(trial for trial in trials if trial.controller == CANDIDATE)
    gains = [f"{interval(ours.over_wait)} points over wait"]
    gains += [
        f"{ours.mean_return - trial.mean_return:+.1f} over {trial.controller}"
        for trial in trials
        if trial.over_wait is not None and trial is not ours
    ]
    return f"candidate on {report.set}, {len(report.host_keys)} held-out hosts: {', '.join(gains)}"


def render_spread(choice: SeedChoice) -> str:
    """Return one line: how far apart the policies of several training seeds are on validation hosts."""
    count = len(choice.seeds)
    stopped = f", {len(choice.stopped)} more ended early as hopeless" if choice.stopped else ""
    spread = "" if choice.spread is None else f", standard deviation {choice.spread:.2f}"
    return (
        f"{count} training seed{'s' if count > 1 else ''}{stopped} on {choice.set}, {choice.hosts} validation hosts: "
        f"{choice.mean:+.1f} points over wait in the mean{spread}, from {choice.least:+.1f} to {choice.greatest:+.1f}"
    )


def render_seeds(choice: SeedChoice) -> Table:
    """Return a table of the policies of several training seeds; the chosen one is marked."""
    rows: list[tuple[str, ...]] = [
        (
            f"{seed.training_seed}{' (candidate)' if seed.training_seed == choice.training_seed else ''}",
            seed.policy_digest[:8],
            f"{seed.mean_return:.1f}",
            interval(seed.over_wait),
        )
        for seed in choice.seeds
    ]
    rows += [
        (f"{seed.training_seed} (hopeless: {seed.cause.value})", seed.policy_digest[:8], "-", "-")
        for seed in choice.stopped
    ]
    return Table(("training seed", "policy", "return", "over wait"), rows)


def _in_order(report: TrialReport) -> list[ControllerTrial]:
    return sorted(report.controllers, key=lambda trial: controller_rank(trial.controller))


def in_percent_points(estimate: Estimate | None) -> str:
    """Return a difference of shares with its interval, in hundredths."""
    if estimate is None:
        return "-"
    return f"{100 * estimate.mean:+.1f} [{100 * estimate.lower:+.1f}, {100 * estimate.upper:+.1f}]"


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)


def marked(scored_by: Literal["validation", "test"], *cells: str) -> tuple[str, ...]:
    """Return cells of returns, marked if they end with the test accuracy."""
    return cells if scored_by == "validation" else tuple(f"{cell}{SCORED_MARK}" for cell in cells)


def _of_host(trial: FamilyTrial) -> str:
    return "-" if trial.host_parameters is None else percent(trial.committed_parameters / trial.host_parameters)


def percent(share: float) -> str:
    """Return a share in per cent."""
    return f"{100 * share:.1f} %"


def _kept(trial: ControllerTrial | FamilyTrial) -> tuple[str, str]:
    return percent(trial.test_accuracy), f"{trial.committed_parameters:.0f}"


def _difference(trial: FamilyTrial | None) -> str:
    return "-" if trial is None or trial.over_wait is None else f"{trial.over_wait.mean:+.1f}"


def interval(estimate: Estimate | None) -> str:
    """Return a difference in points with its interval."""
    return "-" if estimate is None else f"{estimate.mean:+.1f} [{estimate.lower:+.1f}, {estimate.upper:+.1f}]"
