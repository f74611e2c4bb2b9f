"""The plain way to a pool of workers: every worker is a new interpreter that imports what its job needs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from simic.collection.collect import ChunkTotals

__all__ = ["in_new_interpreters", "work"]


def work(job: int) -> int:
    """Return the job; this module imports all that a worker needs to grow hosts."""
    assert ChunkTotals.__module__ == "simic.collection.collect"
    return job


def in_new_interpreters(jobs: Sequence[int], workers: int) -> list[int]:
    """Do the jobs in a pool that ends with them."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return list(pool.map(work, jobs))
