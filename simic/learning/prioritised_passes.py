"""Passes that draw sequences by the error of their values (Schaul et al. 2016), in place of visiting each once.

A pass makes as many updates as a uniform one. Every draw counts against ``train.max_passes``, and a sequence without
passes left is not drawn. Draws depend on weights, so a resumed training takes the sampler's state from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from simic.contracts.settings.training import ReplayConfig
from simic.learning.history import History
from simic.replay.live.prioritised import Draw, Prioritisation, PrioritisedSampler
from simic.replay.sampler import PassSampler, split

__all__ = ["PrioritisedPasses"]

Rows = NDArray[np.int64]


class PrioritisedPasses:
    """Draws batches of whole sequences of one training; priorities begin equal and follow the errors."""

    def __init__(
        self,
        run_ids: Sequence[str],
        counts: PassSampler,
        config: ReplayConfig,
        *,
        batch: int,
        updates: int,
        seed: int,
        history: History,
    ) -> None:
        """Prepare for ``updates`` updates, over which beta rises to 1 unless ``config.anneal_draws`` says otherwise."""
        self._run_ids, self._counts, self._batch, self._history = run_ids, counts, batch, history
        self._sampler = PrioritisedSampler(
            len(run_ids),
            seed=seed,
            settings=Prioritisation(
                config.alpha,
                config.beta,
                config.eps,
                updates if config.anneal_draws is None else config.anneal_draws,
                config.max_decay,
            ),
        )
        history.add_sampler("priorities", self._sampler)
        history.add_sampler("passes", counts)

    def draw_pass(self, number: int, rows: Rows) -> Iterator[Draw]:
        """Yield the batches of pass ``number`` over the sequences ``rows``; empty ones while updates are repeated.

        Batches of a training in conservative mode are drawn uniformly.
        """
        sizes = [len(part) for part in split(rows, self._batch)]
        left = self._history.value(f"passes left {number}", lambda: {"passes": float(self._left(rows).sum())})
        before: Rows | None = None
        for size in np.array(sizes)[np.cumsum(sizes) <= left["passes"]].tolist():
            if self._history.is_repeating:
                yield Draw(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
                continue
            if before is None:
                self._admit(rows)
            else:
                self._remove_spent(before)
            is_uniform = not self._history.guard.allowance.is_prioritised
            draw = self._within_bound(self._sampler.draw(size, is_uniform=is_uniform))
            self._counts.count([self._run_ids[row] for row in draw.rows.tolist()])
            before = draw.rows
            yield draw

    def update(self, rows: Rows, magnitudes: NDArray[np.float64]) -> None:
        """Set the priorities of drawn ``rows`` [B] from their errors in deviations."""
        self._sampler.update(rows, magnitudes)

    def _left(self, rows: Rows) -> NDArray[np.int64]:
        return self._counts.passes_left([self._run_ids[row] for row in rows.tolist()])

    def _admit(self, rows: Rows) -> None:
        """Make exactly the sequences of ``rows`` with passes left drawable."""
        wanted = np.zeros(len(self._run_ids), dtype=bool)
        wanted[rows[self._left(rows) > 0]] = True
        present = self._sampler.probabilities() > 0.0
        self._sampler.remove(np.flatnonzero(present & ~wanted))
        self._sampler.add(np.flatnonzero(wanted & ~present))

    def _remove_spent(self, drawn: Rows) -> None:
        """Remove the sequences of the draw before without passes left; their priorities are set by now."""
        distinct = np.unique(drawn)
        self._sampler.remove(distinct[self._left(distinct) == 0])

    def _within_bound(self, draw: Draw) -> Draw:
        """Leave out repetitions of a sequence beyond its passes left."""
        left, seen = dict(zip(draw.rows.tolist(), self._left(draw.rows).tolist(), strict=True)), dict[int, int]()
        kept = []
        for row in draw.rows.tolist():
            seen[row] = seen.get(row, 0) + 1
            kept.append(seen[row] <= left[row])
        return Draw(draw.rows[kept], draw.weights[kept])
