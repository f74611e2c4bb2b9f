"""Host keys: which hosts a set holds and which of them may teach, tune or judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.hosts.catalogue import blueprint_names, family_names, is_modular, load_family

__all__ = ["KEY_LIMIT", "MODULES", "SETS", "STANDARD", "HostSet", "draw_keys", "host_set", "identify"]

KEY_LIMIT = 2**31
"""Keys are smaller than this."""


STANDARD = ("norm", "gate", "bottleneck", "dense", "heavy", "dropout")
"""The blueprints that the shipped sets offer."""
MODULES = "modules"
"""The kind of sets whose families bring modules of their own."""


class HostSet(NamedTuple):
    """A world of hosts."""

    families: tuple[str, ...]
    """Key k belongs to family k modulo their number."""
    seeds_max: int
    """Seeds alive or committed at a time."""
    kind: str = "mlp"
    """What the hosts are made of: a file in ``trunks``, or ``MODULES``."""
    blueprints: tuple[str, ...] = STANDARD
    """What may grow."""
    has_pictures: bool = False
    """The hosts look at images, and a user's own may take the digits' place."""


_FIVE = ("cap", "select", "gain", "noisy", "fine")
SETS: dict[str, HostSet] = {
    "benchmark": HostSet(_FIVE, seeds_max=1),
    "compound": HostSet((*_FIVE, "both"), seeds_max=3),
    "images": HostSet(
        ("match", *_FIVE[1:]),
        seeds_max=1,
        kind="cnn",
        blueprints=(*STANDARD, "conv3x3", "depthwise"),
        has_pictures=True,
    ),
}


def host_set(name: str) -> HostSet:
    """The set of that name, or that of one family, if it is a family's name; an unknown name is a ConfigError.

    Only a family's own set imports the family.
    """
    if name in SETS:
        return SETS[name]
    if name in family_names():
        return _set_of_one(name)
    raise ConfigError(
        f"unknown host set {name!r}; known are {', '.join(sorted(SETS))}, and the families {', '.join(family_names())}"
    )


def _set_of_one(name: str) -> HostSet:
    family, is_module = load_family(name), is_modular(name)
    seeds_max, blueprints = getattr(family, "seeds_max", 1), tuple(getattr(family, "blueprints", STANDARD))
    if not isinstance(seeds_max, int) or seeds_max < 1:
        raise ConfigError(f"family {name!r}: seeds_max must be a whole number from 1, found {seeds_max!r}")
    unknown = sorted(set(blueprints) - set(blueprint_names()))
    if unknown:
        raise ConfigError(
            f"family {name!r} wants unknown blueprints {unknown}; known are {', '.join(blueprint_names())}"
        )
    kind = MODULES if is_module else str(getattr(family, "kind", "mlp"))
    return HostSet((name,), seeds_max, kind, blueprints, has_pictures=kind == "cnn")


def identify(set_name: str, keys: Sequence[int]) -> tuple[HostIdentity, ...]:
    """Who the hosts of these keys are."""
    families = host_set(set_name).families
    bad = [key for key in keys if not 0 <= key < KEY_LIMIT]
    if bad:
        raise ConfigError(f"host keys must lie in [0, {KEY_LIMIT}), found {bad[:5]}")
    return tuple(HostIdentity(set=set_name, family=families[key % len(families)], key=key) for key in keys)


def draw_keys(set_name: str, split: Split, count: int, start: int = 0) -> list[int]:
    """The first ``count`` keys from ``start`` that lie in the split, ascending, families balanced to within one."""
    families = len(host_set(set_name).families)
    wanted = [count // families + (family < count % families) for family in range(families)]
    keys: list[int] = []
    key = start
    while len(keys) < count:
        if not 0 <= key < KEY_LIMIT:
            raise ConfigError(f"set {set_name!r} holds fewer than {count} {split.value} keys from {start} on")
        if wanted[key % families] and split_of(set_name, key) is split:
            wanted[key % families] -= 1
            keys.append(key)
        key += 1
    return keys
