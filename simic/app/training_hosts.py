"""Chooses the training hosts of a collection, and keeps two collections from drawing the same ones."""

from __future__ import annotations

from contextlib import AbstractContextManager

from simic.app.container import Container
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys, host_set
from simic.runtime.locks import exclusive
from simic.runtime.seeds import derive
from simic.trust.canonical import digest_of
from simic.validation.judging_keys import KEY_STARTS, KEY_STRIDE, require_own_keys

__all__ = ["drawing_alone", "training_keys"]


def training_keys(
    container: Container, world: WorldConfig, count: int, start_name: str, number: int, earlier: int
) -> list[int]:
    """Draw training hosts; another policy or round, or a repetition of one of these, draws others.

    ``world.without`` may name families of other sets of the run; ``check_run`` has refused unknown ones.

    Raises:
        ConfigError: if so many are wanted that they reach those of the next collection.
    """
    start = (derive(container.seed, "collect", start_name, number) + earlier * KEY_STRIDE) % KEY_STARTS
    without = set(world.without).intersection(host_set(world.set).families)
    return require_own_keys(draw_keys(world.set, Split.TRAIN, count, start, without), start)


def drawing_alone(container: Container, start_name: str) -> AbstractContextManager[None]:
    """Hold a lock until the receipt of a collection is kept, because the number of receipts chooses its hosts.

    Collections of another set, seed or name draw other hosts anyway, so they do not exclude each other.
    """
    name, seed = container.config.world.set, container.seed
    lock = container.home.locks / f"collect-{digest_of([name, seed, start_name])[:16]}"
    return exclusive(lock, f"the collection of training hosts of {name} under {start_name} with seed {seed}")
