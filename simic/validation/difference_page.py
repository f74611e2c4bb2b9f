"""The page about the difference of two policies: one HTML file with its pictures in it."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path

from simic.contracts.episode import AttributionRecord, EpisodeRecord
from simic.contracts.results.policy_difference import DifferenceGroup, Likeliest, PolicyDifference, Share
from simic.runtime.files import atomic_write
from simic.validation.palette import BLUE
from simic.validation.plots import new_figure, save, style_axes
from simic.validation.timeline import action_timeline

__all__ = ["draw", "share_text", "write_page"]

_GROUPED_BY = {"family": "By family", "epoch": "By epoch", "seeds": "By the seed that is furthest on"}
"""Headings of the groups."""
_SIDES = ("first", "second")
Pair = tuple[EpisodeRecord, EpisodeRecord]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1500px; margin: 2em auto; padding: 0 1.5em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25em .9em .25em 0; border-bottom: 1px solid #e4e4e4; vertical-align: top }
img { max-width: 100% } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1em }
.lead { font-size: 1.15em } .remark { color: #555 }
"""


def draw(difference: PolicyDifference, pairs: Sequence[Pair]) -> dict[str, bytes]:
    """Return the figures of the page by name, as PNG."""
    bars = {by: _bars([group for group in difference.groups if group.by == by]) for by in _GROUPED_BY}
    return bars | {
        _name(episode, of): _timeline(episode) for pair in pairs for of, episode in zip(_SIDES, pair, strict=True)
    }


def write_page(difference: PolicyDifference, pairs: Sequence[Pair], figures: Mapping[str, bytes], path: Path) -> Path:
    """Write the page with the figures of ``draw`` and return its file; equal arguments give equal bytes."""
    first, second = escape(difference.first), escape(difference.second)
    parts = (_head(difference, first, second), _groups(difference, figures), _changes(difference),
             _examples(difference), _grown(difference, pairs, figures))  # fmt: skip
    body = "\n".join(chain.from_iterable(parts))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{first} and {second}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
    atomic_write(path, text.encode())
    return path


def _head(difference: PolicyDifference, first: str, second: str) -> Iterator[str]:
    yield f"<h1>Where {first} and {second} act differently</h1>"
    yield (
        f'<p class="lead">In {difference.states:,} logged states they act differently with a probability of at least '
        f"<b>{share_text(difference.disagreement)}</b>. Their likeliest actions differ in "
        f"{difference.other_choice:.1%} of the states.</p>"
    )
    yield _table(
        ("actions told apart by", "disagreement"),
        [
            ("operation", share_text(difference.by_operation)),
            ("operation, slot and blueprint", share_text(difference.by_slot_and_blueprint)),
            ("the whole action", share_text(difference.disagreement)),
        ],
    )
    left_out = ", ".join(f"{count:,} {escape(why)}" for why, count in difference.left_out.items()) or "none"
    yield (
        f'<p class="remark">Snapshot {escape(difference.snapshot_digest[:12])}: {difference.episodes:,} episodes of '
        f"{escape(', '.join(difference.sets))} on {difference.hosts:,} hosts; left out: {left_out}. Only states in "
        "which an operation besides WAIT is legal count, each as often as it was logged. Disagreement is the mean "
        f"total variation distance, with {100 * difference.confidence:g}% intervals over hosts. It says how often the "
        "policies differ, not which one is better: <code>simic compare</code> does.</p>"
    )


def _groups(difference: PolicyDifference, figures: Mapping[str, bytes]) -> Iterator[str]:
    for by, heading in _GROUPED_BY.items():
        groups = [group for group in difference.groups if group.by == by]
        yield f"<h2>{heading}</h2>"
        yield _picture(figures[by], f"disagreement {heading.lower()}, as in the table below")
        rows = [
            (escape(group.name), f"{group.states:,}", share_text(group.disagreement), f"{group.other_choice:.1%}")
            for group in groups
        ]
        yield _table((by, "states", "disagreement", "likeliest actions differ"), rows)


def _changes(difference: PolicyDifference) -> Iterator[str]:
    yield "<h2>What they do instead</h2>"
    rows = [
        (escape(change.first), escape(change.second), f"{change.states:,}", f"{change.share:.1%}")
        for change in difference.changes
    ]
    names = (f"{escape(difference.first)} does", f"{escape(difference.second)} does", "states", "share")
    yield _table(names, rows) if rows else "<p>Their likeliest actions are the same in every state.</p>"


def _examples(difference: PolicyDifference) -> Iterator[str]:
    yield "<h2>States in which they disagree most, one of each host</h2>"
    rows = [
        (
            escape(example.family),
            f"{example.host_key}",
            f"{example.step}",
            f"{example.disagreement:.1%}",
            _likeliest(example.first),
            _likeliest(example.second),
            f"<code>{escape(example.run_id)}</code>",
        )
        for example in difference.examples
    ]
    names = ("family", "host", "step", "disagreement", escape(difference.first), escape(difference.second), "run_id")
    yield _table(names, rows) if rows else "<p>There is none.</p>"


def _grown(difference: PolicyDifference, pairs: Sequence[Pair], figures: Mapping[str, bytes]) -> Iterator[str]:
    if not pairs:
        return
    yield "<h2>Test hosts grown under both</h2>"
    yield (
        '<p class="remark">Examples, too few for a judgement. Equal decisions give equal episodes. Contributions are '
        "points of validation accuracy at the end of the episode, measured with every set of the active seeds. "
        "<i>Leave one out</i>: accuracy with all seeds minus accuracy without this one. <i>Shapley value</i>: mean "
        "gain over all orders in which the seeds can be added. <i>Together minus alone</i>: gain of two seeds minus "
        "the sum of their gains alone.</p>"
    )
    for pair, told in zip(pairs, difference.grown, strict=True):
        ours, theirs = pair
        yield (
            f"<h3>{escape(ours.host.family)}, host {ours.host.key}: {ours.return_points:.1f} and "
            f"{theirs.return_points:.1f} points</h3>"
        )
        sides = [
            _picture(figures[_name(episode, of)], f"timeline of {escape(episode.controller)}")
            + "".join(_attribution(account))
            for episode, of, account in zip(
                pair, _SIDES, (told.first_attribution, told.second_attribution), strict=True
            )
        ]
        yield '<div class="pair">' + "".join(f"<div>{side}</div>" for side in sides) + "</div>"


def _attribution(account: AttributionRecord | None) -> Iterator[str]:
    if account is None:
        yield '<p class="remark">More seeds are active than can be measured exactly.</p>'
        return
    if not account.seeds:
        yield '<p class="remark">No seed is active at the end.</p>'
        return
    seeds = [
        (f"slot {seed.slot}, {escape(seed.blueprint)}", _points(seed.leave_one_out), _points(seed.shapley))
        for seed in account.seeds
    ]
    seeds.append(("all seeds", "", _points(account.everything - account.nothing)))
    yield _table(("active seed", "leave one out", "Shapley value"), seeds)
    if account.pairs:
        rows = [(f"{pair.slots[0]} and {pair.slots[1]}", _points(pair.interaction)) for pair in account.pairs]
        yield _table(("slots", "together minus alone"), rows)


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _name(episode: EpisodeRecord, side: str) -> str:
    """Return the name of a timeline among the figures."""
    return f"{episode.host.family}-{episode.host.key}-{side}"


def _timeline(episode: EpisodeRecord) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return action_timeline([episode], Path(folder) / "timeline.png", episode.controller).read_bytes()


def _bars(groups: Sequence[DifferenceGroup]) -> bytes:
    figure = new_figure(8.0, 0.9 + 0.3 * len(groups))
    axes = figure.subplots()
    shares = [group.disagreement for group in groups]
    below = [0.0 if share.lower is None else max(0.0, share.value - share.lower) for share in shares]
    above = [0.0 if share.upper is None else max(0.0, share.upper - share.value) for share in shares]
    values = [share.value for share in shares]
    axes.barh(range(len(groups)), values, xerr=[below, above], color=BLUE, height=0.6, ecolor="#333333")
    axes.set_yticks(range(len(groups)), [group.name for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("probability of acting differently, at least", fontsize=9)
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    with tempfile.TemporaryDirectory() as folder:
        return save(figure, Path(folder) / "bars.png").read_bytes()


def _picture(png: bytes, words: str) -> str:
    return f'<img alt="{words}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; texts are HTML already."""
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table>"


def _likeliest(likeliest: Likeliest) -> str:
    return f"{escape(likeliest.action)}, {likeliest.probability:.0%}"


def share_text(share: Share) -> str:
    """Return a share in per cent, with its interval if there is one."""
    if share.lower is None or share.upper is None:
        return f"{share.value:.1%}"
    return f"{share.value:.1%} [{share.lower:.1%}, {share.upper:.1%}]"
