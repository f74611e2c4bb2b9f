"""The page of `simic proof`, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from simic.cli.console import visible
from simic.contracts.names import ORACLE, short
from simic.contracts.results.proof import Proof, ProofLeftOut, ProofSeed, ProofSet
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
    blocks = [f"# {_title(proof)}", _introduction(proof), fenced(proof.command)]
    if figure is not None:
        blocks.append(f"![Gains of the learned policies over the baselines, by training seed]({quote(figure)})")
    for proof_set in proof.sets:
        blocks += [f"## {heading(proof_set)}", *_section(proof, proof_set)]
    return "\n\n".join(visible(block) for block in blocks) + "\n"


def _title(proof: Proof) -> str:
    names = ", ".join(dict.fromkeys(proof_set.trained_on for proof_set in proof.sets))
    left_out = ", families left out in turn" if any(proof_set.left_out for proof_set in proof.sets) else ""
    return f"Proof of runs on {names}{left_out}"


def heading(proof_set: ProofSet) -> str:
    """Return the title of a comparison."""
    if proof_set.set == proof_set.trained_on:
        return proof_set.set
    return f"{proof_set.set}, policies of runs on {proof_set.trained_on}"


def _introduction(proof: Proof) -> str:
    confidence = f"{100 * proof.confidence:g} %"
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


def _section(proof: Proof, proof_set: ProofSet) -> Iterator[str]:
    each = ", ".join(f"{count} of `{name}`" for name, count in proof_set.families.items())
    yield f"{proof_set.hosts} hosts, the same for every controller, from key {proof_set.first_key} on: {each}."
    yield markdown(controllers_table(proof_set))
    yield f"{summary(proof_set)}{_book_note(proof_set)}"
    if (searched := searched_table(proof_set)) is not None:
        yield f"{SCORED_NOTE} All controllers by test accuracy, beside the episodes that each grows. {SEARCHED_NOTE}"
        yield markdown(searched)
    yield f"Cost and accuracy. {COST_NOTE}"
    yield markdown(costs_table(proof_set))
    yield (
        "Over never growing at other rents per parameter, from the same episodes; nothing was trained or searched at "
        "these rents:"
    )
    yield markdown(rents_table(proof_set))
    yield f"The learned policies against their final networks, trained from the start. {STATIC_NOTE}"
    yield markdown(static_table(proof_set))
    yield markdown(_seeds_table(proof_set))
    yield _gate_note(proof_set)
    yield f"Over never growing, by family; `learned` over {len(proof.seeds)} training seeds:"
    yield markdown(_families_table(proof_set))
    if proof_set.left_out:
        yield (
            "Trained without a family and tried on its hosts. The policies of `trained with it` are those above; the "
            "baselines are searched on hosts of every family."
        )
        yield markdown(left_out_table(proof_set))


def controllers_table(proof_set: ProofSet) -> Table:
    """Return one row per controller, the learned policies last, with what they gain over each."""
    header = ("controller", "return", "over never growing", "learned minus this", "test accuracy", "parameters")
    rows: list[tuple[str, ...]] = [
        (
            row.controller,
            *marked(
                row.scored_by,
                f"{row.mean_return:.1f}",
                interval(row.over_wait),
                interval(proof_set.over.get(row.controller)),
            ),
            percent(row.test_accuracy),
            f"{row.parameters:.0f}",
        )
        for row in proof_set.rows
    ]
    return Table(header, rows)


def costs_table(proof_set: ProofSet) -> Table:
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
        for row in proof_set.rows
    ]
    return Table(("controller", *COST_COLUMNS), rows)


def rents_table(proof_set: ProofSet) -> Table:
    """Return one row per controller but ``wait``: what it gains over ``wait`` at each rent, in points."""
    header = ("controller", *map(rent_header, proof_set.rent_factors))
    rows = [row for row in proof_set.rows if row.over_wait is not None]
    return Table(header, [(row.controller, *marked(row.scored_by, *map(interval, row.by_rent))) for row in rows])


def searched_table(proof_set: ProofSet) -> Table | None:
    """Return every controller by test accuracy beside the arms that search; None if none takes part."""
    if all(row.scored_by == "validation" for row in proof_set.rows):
        return None
    rows = [
        (row.controller, *searched_cells(row.episodes_grown, row.by_test, row.share_of_hindsight))
        for row in proof_set.rows
    ]
    return Table(("controller", *SEARCHED_COLUMNS), rows)


def static_table(proof_set: ProofSet) -> Table:
    """Return the final networks of the learned policies trained from the start, and the difference to them."""
    return Table(STATIC_COLUMNS, [static_cells(trial) for trial in proof_set.static])


def summary(proof_set: ProofSet) -> str:
    """Return the share of the oracle's gain, the spread over training seeds, and what limits both, as sentences."""
    sentences = []
    if (share := proof_set.share_of_oracle) is not None:
        sentences.append(
            f"The learned policies gain {100 * share.mean:.0f} % [{100 * share.lower:.0f}, {100 * share.upper:.0f}] of "
            f"what the oracle gains."
        )
    elif ORACLE in proof_set.over:
        sentences.append("No share of the oracle's gain is told, because on some resampled hosts it gains nothing.")
    learned = proof_set.rows[-1].share_of_hindsight
    if learned is not None:
        base = "`blind`" if any(row.controller == "blind" for row in proof_set.rows) else "`wait`"
        sentences.append(
            f"By test accuracy they have {100 * learned.mean:.0f} % [{100 * learned.lower:.0f}, "
            f"{100 * learned.upper:.0f}] of hindsight's gain over {base}."
        )
    if proof_set.spread is not None:
        means = [seed.over["wait"].mean for seed in proof_set.seeds]
        sentences.append(
            f"Between training seeds the gain over never growing varies from {min(means):+.1f} to {max(means):+.1f}, "
            f"with a standard deviation of {proof_set.spread:.2f}."
        )
    if len(proof_set.seeds) == 1:
        sentences.append("One training seed: the intervals are over hosts alone.")
    return " ".join(sentences)


def _book_note(proof_set: ProofSet) -> str:
    note = missing_book_message(proof_set.set, proof_set.without_book)
    return f" Here {note}." if note else ""


def _seeds_table(proof_set: ProofSet) -> Table:
    others = list(proof_set.over)
    last = ("test accuracy", "parameters", "illegal actions", "aborted episodes")
    searched = {row.controller for row in proof_set.rows if row.scored_by == "test"}
    over = (f"over {name}{SCORED_MARK if name in searched else ''}" for name in others)
    header = ("training seed", "policy", "gate", *over, *last)
    rows = [
        (
            str(seed.seed),
            "-" if seed.policy_digest is None else short(seed.policy_digest),
            "failed" if seed.failure is not None else "accepted" if seed.accepted else "rejected",
            *(interval(seed.over[name]) for name in others),
            percent(seed.test_accuracy),
            f"{seed.parameters:.0f}",
            str(seed.illegal_actions),
            str(seed.governor_events),
        )
        for seed in proof_set.seeds
    ]
    return Table(header, rows)


def _gate_note(proof_set: ProofSet) -> str:
    """Return why the gate rejected policies, and why trainings failed."""
    notes = [note for seed in proof_set.seeds if (note := _reason(seed))]
    accepted = sum(seed.accepted for seed in proof_set.seeds)
    judged = (
        f"The gate accepted {accepted} of {len(proof_set.seeds)} policies, each on other hosts of "
        f"`{proof_set.trained_on}`."
    )
    return " ".join([judged, *notes])


def _reason(seed: ProofSeed) -> str:
    if seed.failure is not None:
        return f"Seed {seed.seed} failed: {seed.failure}."
    return "" if seed.accepted else f"Seed {seed.seed} did not pass: {', '.join(seed.failed_criteria)}."


def _families_table(proof_set: ProofSet) -> Table:
    """Return one row per family and one column per controller; ``wait`` is what they are compared with."""
    rows = [row for row in proof_set.rows if row.over_wait is not None]
    header = ("family", "hosts", *(row.controller for row in rows))
    body = [
        (name, str(count), *(marked(row.scored_by, interval(row.by_family[name]))[0] for row in rows))
        for name, count in proof_set.families.items()
    ]
    return Table(header, body)


def left_out_table(proof_set: ProofSet) -> Table:
    """Return one row per family that was left out of a training."""
    others = list(proof_set.left_out[0].baselines)
    searched = {row.controller for row in proof_set.rows if row.scored_by == "test"}
    shown = (f"{name}{SCORED_MARK if name in searched else ''}" for name in others)
    header = ("family left out", "hosts", "without it", "trained with it", "difference", *shown, "gate")
    rows = [
        (
            left_out.family,
            str(left_out.hosts),
            interval(left_out.left_out),
            interval(left_out.trained_with),
            interval(left_out.difference),
            *(f"{left_out.baselines[name].mean:+.1f}" for name in others),
            _verdicts(left_out, len(proof_set.seeds)),
        )
        for left_out in proof_set.left_out
    ]
    return Table(header, rows)


def _verdicts(left_out: ProofLeftOut, seeds: int) -> str:
    failed = f", {left_out.failures} failed" if left_out.failures else ""
    return f"{left_out.accepted} of {seeds} accepted{failed}"
