"""The page of `simic proof`, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from simic.cli.console import short, visible
from simic.contracts.proof import Proof, ProofLeftOut, ProofSeed, ProofSet
from simic.validation.baselines.plan_book import missing_book_message
from simic.validation.table import (
    COST_COLUMNS,
    COST_NOTE,
    SCORED_MARK,
    SCORED_NOTE,
    SEARCHED_COLUMNS,
    SEARCHED_NOTE,
    STATIC_COLUMNS,
    STATIC_NOTE,
    Table,
    fenced,
    in_percent_points,
    interval,
    markdown,
    marked,
    percent,
    rent_header,
    searched_cells,
    static_cells,
)

__all__ = [
    "controllers_table",
    "costs_table",
    "heading",
    "left_out_table",
    "page",
    "rents_table",
    "searched_table",
    "static_table",
    "summary",
]


def page(proof: Proof, figure: str | None) -> str:
    """Return the page in Markdown; ``figure`` is the path of the plot, relative to the page."""
    blocks = ["# Proof", _introduction(proof), fenced(proof.command)]
    if figure is not None:
        blocks.append(f"![Gains of the learned policies over the baselines, by training seed]({quote(figure)})")
    for found in proof.sets:
        blocks += [f"## {heading(found)}", *_section(proof, found)]
    return "\n\n".join(visible(block) for block in blocks) + "\n"


def heading(found: ProofSet) -> str:
    """Return the title of a comparison."""
    return found.set if found.set == found.trained_on else f"{found.set}, policies of runs on {found.trained_on}"


def _introduction(proof: Proof) -> str:
    confidence = f"{100 * proof.confidence:.0f} %"
    also = f"Besides its own set a run learns from {', '.join(proof.further)}. " if proof.further else ""
    seeds = f"{len(proof.seeds)} training seed{'s' if len(proof.seeds) > 1 else ''}"
    return (
        f"Learned policies against all baselines on held-out hosts, as `simic proof` finds them: {proof.trainings} "
        f"trainings ({seeds}: {', '.join(map(str, proof.seeds))}), {proof.episodes:,} episodes to learn from, "
        f"{proof.hosts_per_family} hosts of each family. A training is that of `simic run` in a new home, with profile "
        f"{proof.profile} and configuration {short(proof.config_digest)}; its last policy takes part whether or not "
        f"the gate accepted it. {also}A training that fails takes part as `wait`, which never grows. Figures are "
        f"points of return; differences are paired by host, with Student's {confidence} intervals, over training seeds "
        f"and hosts where several policies are averaged; that of the share of the oracle's gain is a bootstrap (ADR "
        f"22). Code version {proof.code_version}. This makes the page again:"
    )


def _section(proof: Proof, found: ProofSet) -> Iterator[str]:
    each = ", ".join(f"{count} of `{name}`" for name, count in found.families.items())
    yield f"{found.hosts} hosts, the same for every controller, from key {found.first_key} on: {each}."
    yield markdown(controllers_table(found))
    yield f"{summary(found)}{_book_note(found)}"
    if (searched := searched_table(found)) is not None:
        yield f"{SCORED_NOTE} All controllers by test accuracy, beside the episodes that each grows. {SEARCHED_NOTE}"
        yield markdown(searched)
    yield f"Cost and accuracy. {COST_NOTE}"
    yield markdown(costs_table(found))
    yield (
        "Over never growing at other rents per parameter, from the same episodes; nothing was trained or searched at "
        "these rents:"
    )
    yield markdown(rents_table(found))
    yield f"The learned policies against their final networks, trained from the start. {STATIC_NOTE}"
    yield markdown(static_table(found))
    yield markdown(_seeds_table(found))
    yield _gate_note(found)
    yield f"Over never growing, by family; `learned` over {len(proof.seeds)} training seeds:"
    yield markdown(_families_table(found))
    if found.left_out:
        yield (
            "Trained without a family and tried on its hosts. The policies of `trained with it` are those above; the "
            "baselines are searched on hosts of every family."
        )
        yield markdown(left_out_table(found))


def controllers_table(found: ProofSet) -> Table:
    """Return one row per controller, the learned policies last, with what they gain over each."""
    header = ("controller", "return", "over never growing", "learned minus this", "test accuracy", "parameters")
    rows: list[tuple[str, ...]] = [
        (
            row.controller,
            *marked(
                row.scored_by,
                f"{row.mean_return:.1f}",
                interval(row.over_wait),
                interval(found.over.get(row.controller)),
            ),
            percent(row.test_accuracy),
            f"{row.parameters:.0f}",
        )
        for row in found.rows
    ]
    return Table(header, rows)


def costs_table(found: ProofSet) -> Table:
    """Return one row per controller: accuracies of the kept networks, and what growing them cost beside the host."""
    rows: list[tuple[str, ...]] = [
        (
            row.controller,
            percent(row.validation_accuracy),
            percent(row.test_accuracy),
            in_percent_points(row.test_over_wait),
            f"{row.parameters:.0f}",
            percent(row.host_share),
            *map(percent, (row.extra_compute, row.controller_compute, row.probe_compute)),
        )
        for row in found.rows
    ]
    return Table(("controller", *COST_COLUMNS), rows)


def rents_table(found: ProofSet) -> Table:
    """Return one row per controller but ``wait``: what it gains over ``wait`` at each rent, in points."""
    header = ("controller", *map(rent_header, found.rent_factors))
    rows = [row for row in found.rows if row.over_wait is not None]
    return Table(header, [(row.controller, *marked(row.scored_by, *map(interval, row.by_rent))) for row in rows])


def searched_table(found: ProofSet) -> Table | None:
    """Return every controller by test accuracy beside the arms that search; None if none takes part."""
    if all(row.scored_by == "validation" for row in found.rows):
        return None
    rows = [
        (row.controller, *searched_cells(row.episodes_grown, row.by_test, row.share_of_hindsight)) for row in found.rows
    ]
    return Table(("controller", *SEARCHED_COLUMNS), rows)


def static_table(found: ProofSet) -> Table:
    """Return the final networks of the learned policies trained from the start, and the difference to them."""
    return Table(STATIC_COLUMNS, [static_cells(one) for one in found.static])


def summary(found: ProofSet) -> str:
    """Return the share of the oracle's gain and the spread over training seeds as a sentence each."""
    sentences = []
    if (share := found.share_of_oracle) is not None:
        sentences.append(
            f"The learned policies gain {100 * share.mean:.0f} % [{100 * share.lower:.0f}, {100 * share.upper:.0f}] of "
            f"what the oracle gains."
        )
    learned = found.rows[-1].share_of_hindsight
    if learned is not None:
        base = "`blind`" if any(row.controller == "blind" for row in found.rows) else "`wait`"
        sentences.append(
            f"By test accuracy they have {100 * learned.mean:.0f} % [{100 * learned.lower:.0f}, "
            f"{100 * learned.upper:.0f}] of hindsight's gain over {base}."
        )
    if found.spread is not None:
        means = [one.over["wait"].mean for one in found.seeds]
        sentences.append(
            f"Between training seeds the gain over never growing varies from {min(means):+.1f} to {max(means):+.1f}, "
            f"with a standard deviation of {found.spread:.2f}."
        )
    return " ".join(sentences) or "One training seed: the intervals are over hosts alone."


def _book_note(found: ProofSet) -> str:
    note = missing_book_message(found.set, found.without_book)
    return f" Here {note}." if note else ""


def _seeds_table(found: ProofSet) -> Table:
    others = list(found.over)
    last = ("test accuracy", "parameters", "illegal actions", "stopped episodes")
    searched = {row.controller for row in found.rows if row.scored_by == "test"}
    over = (f"over {name}{SCORED_MARK if name in searched else ''}" for name in others)
    header = ("training seed", "policy", "gate", *over, *last)
    rows = [
        (
            str(one.seed),
            "-" if one.policy_digest is None else short(one.policy_digest),
            "failed" if one.failure is not None else "accepted" if one.accepted else "rejected",
            *(interval(one.over[name]) for name in others),
            percent(one.test_accuracy),
            f"{one.parameters:.0f}",
            str(one.illegal_actions),
            str(one.governor_events),
        )
        for one in found.seeds
    ]
    return Table(header, rows)


def _gate_note(found: ProofSet) -> str:
    """Return why the gate rejected policies, and why trainings failed."""
    notes = [note for one in found.seeds if (note := _reason(one))]
    accepted = sum(one.accepted for one in found.seeds)
    judged = (
        f"The gate accepted {accepted} of {len(found.seeds)} policies, each on other hosts of `{found.trained_on}`."
    )
    return " ".join([judged, *notes])


def _reason(one: ProofSeed) -> str:
    if one.failure is not None:
        return f"Seed {one.seed} failed: {one.failure}."
    return "" if one.accepted else f"Seed {one.seed} did not pass: {', '.join(one.failed_criteria)}."


def _families_table(found: ProofSet) -> Table:
    """Return one row per family and one column per controller; ``wait`` is what they are compared with."""
    rows = [row for row in found.rows if row.over_wait is not None]
    header = ("family", "hosts", *(row.controller for row in rows))
    body = [
        (name, str(count), *(marked(row.scored_by, interval(row.by_family[name]))[0] for row in rows))
        for name, count in found.families.items()
    ]
    return Table(header, body)


def left_out_table(found: ProofSet) -> Table:
    """Return one row per family that was left out of a training."""
    others = list(found.left_out[0].baselines)
    searched = {row.controller for row in found.rows if row.scored_by == "test"}
    shown = (f"{name}{SCORED_MARK if name in searched else ''}" for name in others)
    header = ("family left out", "hosts", "without it", "trained with it", "difference", *shown, "gate")
    rows = [
        (
            one.family,
            str(one.hosts),
            interval(one.left_out),
            interval(one.trained_with),
            interval(one.difference),
            *(f"{one.baselines[name].mean:+.1f}" for name in others),
            _verdicts(one, len(found.seeds)),
        )
        for one in found.left_out
    ]
    return Table(header, rows)


def _verdicts(one: ProofLeftOut, seeds: int) -> str:
    failed = f", {one.failures} failed" if one.failures else ""
    return f"{one.accepted} of {seeds} accepted{failed}"
