"""The figure of the proof: gains of the learned policies over each baseline, by training seed and over all."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from simic.contracts.results.proof import Proof, ProofSet
from simic.validation.palette import BLUE, SKY
from simic.validation.plots import draw_interval, legend_mark, new_figure, save, style_rows

__all__ = ["draw_gains"]

_FIRST, _LAST, _ALL = -0.34, 0.16, 0.3
"""Places of the bars within a row: the first and the last seed, and all together."""


def draw_gains(proof: Proof, path: Path) -> Path:
    """Draw one panel per comparison, one row per baseline; bars are intervals over hosts, and over seeds too in all."""
    rows = max(len(proof_set.over) for proof_set in proof.sets)
    figure = new_figure(1.6 + 3.6 * len(proof.sets), 1.8 + 0.5 * rows)
    panels = figure.subplots(1, len(proof.sets), squeeze=False).ravel().tolist()
    for panel, proof_set in zip(panels, proof.sets, strict=True):
        _draw(panel, proof_set)
    confidence = f"{100 * proof.confidence:g} %"
    figure.legend(
        handles=[
            legend_mark(SKY, "o", f"one training seed ({confidence} interval over hosts)"),
            legend_mark(BLUE, "D", f"all {len(proof.seeds)} (over hosts and training seeds)"),
        ],
        loc="outside lower left", frameon=False, fontsize=8,
    )  # fmt: skip
    return save(figure, path)


def _draw(axes: Axes, proof_set: ProofSet) -> None:
    names = list(proof_set.over)
    for row, name in enumerate(names):
        for index, seed in enumerate(proof_set.seeds):
            place = _FIRST + (_LAST - _FIRST) * index / max(1, len(proof_set.seeds) - 1)
            draw_interval(axes, seed.over[name], row + place, SKY, "o", 3.5)
        draw_interval(axes, proof_set.over[name], row + _ALL, BLUE, "D")
    style_rows(axes, [f"over {name}" for name in names])
    axes.set_xlabel("gain of the learned policies, points", fontsize=8)
    trained = "" if proof_set.set == proof_set.trained_on else f",\ntrained on {proof_set.trained_on}"
    axes.set_title(f"{proof_set.hosts} hosts of {proof_set.set}{trained}", loc="left", fontsize=9)
