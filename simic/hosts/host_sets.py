"""Host sets by name, and the host keys of each data split."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simic.contracts.errors import ConfigError
from simic.contracts.names import KEY_LIMIT
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.hosts.blueprints import STANDARD
from simic.hosts.plugins import blueprint_names, family_names, is_modular, load_family
from simic.hosts.shipped_sets import MODULES, SETS, TRUNKS, HostSet

__all__ = [
    "MODULES",
    "SETS",
    "STANDARD",
    "TRUNKS",
    "HostSet",
    "draw_keys",
    "host_set",
    "identify",
    "kept_families",
    "layers_of",
]


def host_set(name: str) -> HostSet:
    """Return the set of that name; a family's name stands for a set of that family alone.

    Only a family's own set imports the family.

    Raises:
        ConfigError: for an unknown name or a family with invalid settings.
    """
    if name in SETS:
        return SETS[name]
    if name in family_names():
        return _set_of_one(name)
    raise ConfigError(
        f"unknown host set {name!r}; known sets: {', '.join(sorted(SETS))}, and the "
        f"families {', '.join(family_names())}"
    )


def _set_of_one(name: str) -> HostSet:
    family, is_module = load_family(name), is_modular(name)
    seeds_max, blueprints = getattr(family, "seeds_max", 1), tuple(getattr(family, "blueprints", STANDARD))
    if not isinstance(seeds_max, int) or seeds_max < 1:
        raise ConfigError(f"family {name!r}: seeds_max must be a whole number from 1, found {seeds_max!r}")
    unknown = sorted(set(blueprints) - set(blueprint_names()))
    if unknown:
        raise ConfigError(
            f"family {name!r} names unknown blueprints {unknown}; known blueprints: {', '.join(blueprint_names())}"
        )
    kind = MODULES if is_module else TRUNKS if hasattr(family, "trunk") else str(getattr(family, "kind", "mlp"))
    return HostSet((name,), seeds_max, kind, blueprints, has_pictures=kind == "cnn", needs_book=not is_module)


def identify(set_name: str, keys: Sequence[int]) -> tuple[HostIdentity, ...]:
    """Return the identities of the hosts of these keys; raise ConfigError for a key out of range."""
    families = host_set(set_name).families
    bad = [key for key in keys if not 0 <= key < KEY_LIMIT]
    if bad:
        raise ConfigError(f"host keys must lie in [0, {KEY_LIMIT}), found {bad[:5]}")
    return tuple(HostIdentity(set=set_name, family=families[key % len(families)], key=key) for key in keys)


def layers_of(host: HostIdentity) -> str:
    """Return a key that is equal for hosts of a set that have the same layers and so train as one batch."""
    return host.family if host_set(host.set).is_mixed else ""


def kept_families(set_name: str, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the families of a set but those ``without``.

    Raises:
        ConfigError: if the set lacks one of ``without``, or none is left.
    """
    families = host_set(set_name).families
    unknown = sorted(set(without) - set(families))
    kept = tuple(family for family in families if family not in without)
    if unknown or not kept:
        problem = f"it has no family {', '.join(unknown)}" if unknown else "no family is left"
        raise ConfigError(f"world.without, set {set_name!r}: {problem}; its families: {', '.join(families)}")
    return kept


def draw_keys(set_name: str, split: Split, count: int, start: int = 0, without: Collection[str] = ()) -> list[int]:
    """Return the first ``count`` keys of a split from ``start``, ascending, with families balanced to within one.

    Hosts of the families ``without`` are left out.

    Raises:
        ConfigError: if the set has fewer keys from ``start`` on, lacks one of ``without``, or has no other family.
    """
    families, kept = host_set(set_name).families, kept_families(set_name, without)
    share = {family: count // len(kept) + (turn < count % len(kept)) for turn, family in enumerate(kept)}
    wanted = [share.get(family, 0) for family in families]
    keys: list[int] = []
    key = start
    while len(keys) < count:
        if not 0 <= key < KEY_LIMIT:
            raise ConfigError(f"set {set_name!r} holds fewer than {count} {split.value} keys from {start} on")
        if wanted[key % len(families)] and split_of(set_name, key) is split:
            wanted[key % len(families)] -= 1
            keys.append(key)
        key += 1
    return keys
