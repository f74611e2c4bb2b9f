"""Shuffled passes over whole sequences, with a limit per sequence, because too many passes degrade a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ContractError, TrainingError
from simic.runtime.seeds import generator

__all__ = ["PassSampler", "split"]


class PassSampler:
    """Draws passes over episodes and counts them by run id.

    A pass visits every given sequence exactly once, in batches of nearly equal size. The order of a pass depends on
    the seed, the pass's number and the set of episodes, and on nothing else.
    """

    def __init__(self, *, seed: int, batch_sequences: int, max_passes: int) -> None:
        self._seed, self._batch, self._max = seed, batch_sequences, max_passes
        self._passes = 0
        self._counts: dict[str, int] = {}

    def draw_pass(self, run_ids: Sequence[str], rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Return batches of ``rows``, positions in ``run_ids``; a batch is counted when it is drawn.

        Raises:
            TrainingError: if a sequence has had ``max_passes`` already; nothing is counted then.
        """
        exhausted = [run_ids[row] for row in rows.tolist() if self._counts.get(run_ids[row], 0) >= self._max]
        if exhausted:
            raise TrainingError(
                f"{len(exhausted)} sequences, such as run {exhausted[0]}, have had {self._max} passes: "
                "collect new episodes or raise train.max_passes"
            )
        order = generator(self._seed, "pass", self._passes).permutation(np.sort(rows))
        self._passes += 1
        return self._counted(run_ids, split(order, self._batch))

    def _counted(self, run_ids: Sequence[str], batches: Sequence[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
        for batch in batches:
            self.count([run_ids[row] for row in batch.tolist()])
            yield batch

    def count(self, run_ids: Sequence[str]) -> None:
        """Count one pass more of each given episode, as often as it is given."""
        for run_id in run_ids:
            self._counts[run_id] = self._counts.get(run_id, 0) + 1

    def take_over(self, counts: Mapping[str, int]) -> None:
        """Begin with the passes that an earlier training counted, whatever was counted here."""
        self._counts = dict(counts)

    def forget_others(self, run_ids: Iterable[str]) -> None:
        """Keep the counts of the given episodes only, so that counts do not outgrow the data."""
        present = set(run_ids)
        self._counts = {run_id: count for run_id, count in self._counts.items() if run_id in present}

    def passes_of(self, run_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of passes of each given episode."""
        return np.array([self._counts.get(run_id, 0) for run_id in run_ids], dtype=np.int64)

    def passes_left(self, run_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of passes left for each given episode."""
        return np.maximum(self._max - self.passes_of(run_ids), 0)

    def get_state(self) -> dict[str, Any]:
        """Return the state as plain data for a checkpoint."""
        return {"seed": self._seed, "passes": self._passes, "counts": dict(sorted(self._counts.items()))}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``get_state``; raise ContractError if it is malformed."""
        try:
            counts = {str(run_id): int(count) for run_id, count in state["counts"].items()}
            seed, passes = int(state["seed"]), int(state["passes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"not the state of a sampler: {error!r}") from error
        self._seed, self._passes, self._counts = seed, passes, counts


def split(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Split into parts of at most ``size`` that differ in length by at most one."""
    if not len(order):
        return []
    return list(np.array_split(order, -(-len(order) // size)))
