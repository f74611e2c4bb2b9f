"""Shuffled passes over whole sequences, counted, because too many passes over one log ruin a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ContractViolation, TrainingFailure
from simic.runtime.seeds import generator

__all__ = ["PassSampler"]


class PassSampler:
    """Draws passes over episodes and remembers, by run id, in how many each has taken part.

    A pass visits every given sequence exactly once, in batches of nearly equal size. The order of a pass depends on
    the seed, the pass's number and the set of episodes, and on nothing else.
    """

    def __init__(self, *, seed: int, batch_sequences: int, max_passes: int) -> None:
        self._seed, self._batch, self._max = seed, batch_sequences, max_passes
        self._passes = 0
        self._counts: dict[str, int] = {}

    def draw_pass(self, run_ids: Sequence[str], rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Batches of ``rows``, positions in ``run_ids``; counted when the pass begins.

        Raises TrainingFailure, before anything is drawn, if a sequence has had ``max_passes`` already.
        """
        exhausted = [run_ids[row] for row in rows.tolist() if self._counts.get(run_ids[row], 0) >= self._max]
        if exhausted:
            raise TrainingFailure(
                f"{len(exhausted)} sequences, such as run {exhausted[0]}, have had {self._max} passes: "
                "collect new episodes or raise train.max_passes"
            )
        for row in rows.tolist():
            self._counts[run_ids[row]] = self._counts.get(run_ids[row], 0) + 1
        order = generator(self._seed, "pass", self._passes).permutation(np.sort(rows))
        self._passes += 1
        return iter(split(order, self._batch))

    def passes_of(self, run_ids: Sequence[str]) -> NDArray[np.int64]:
        """How many passes each of the given episodes has taken part in."""
        return np.array([self._counts.get(run_id, 0) for run_id in run_ids], dtype=np.int64)

    def passes_left(self, run_ids: Sequence[str]) -> NDArray[np.int64]:
        """How many more each may take part in."""
        return np.maximum(self._max - self.passes_of(run_ids), 0)

    def get_state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"seed": self._seed, "passes": self._passes, "counts": dict(sorted(self._counts.items()))}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``get_state`` was called."""
        try:
            counts = {str(run_id): int(count) for run_id, count in state["counts"].items()}
            seed, passes = int(state["seed"]), int(state["passes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractViolation(f"not the state of a sampler: {error!r}") from error
        self._seed, self._passes, self._counts = seed, passes, counts


def split(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Pieces of at most ``size`` that differ in length by at most one."""
    if not len(order):
        return []
    return list(np.array_split(order, -(-len(order) // size)))
