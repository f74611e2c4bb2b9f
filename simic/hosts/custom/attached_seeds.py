"""Seeds in the slots of a module that its owner trains: they are its parameters, and its optimiser's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["SEED_PREFIX", "AttachedSeed", "AttachedSeeds"]

SEED_PREFIX = "grown_seed_"
"""Names of the seeds' parameters, which the module itself holds, are this and the slot's number. A submodule could not
hold them: ``torch.nn.Sequential`` would call it."""


NAMES = "param_names"
"""Key of a parameter group with the names of its parameters, if the optimiser was made from ``named_parameters``."""


class AttachedSeed(NamedTuple):
    """A seed in a slot."""

    blueprint: int
    number: int
    parameters: nn.Parameter
    """[1, P]; P may be 0."""

    @property
    def learns(self) -> bool:
        """Return whether the seed has parameters."""
        return self.parameters.shape[1] > 0


class AttachedSeeds:
    """The seeds of a module; each is in the parameter group of its slot."""

    def __init__(self, module: nn.Module, optimiser: Optimizer, groups: Sequence[int]) -> None:
        """Begin without seeds; ``groups`` has the index of the parameter group of each slot."""
        self.by_slot: dict[int, AttachedSeed] = {}
        """In the order of germination."""
        self._module, self._optimiser, self._groups = module, optimiser, groups
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._handles: dict[int, list[Any]] = {}

    def put(self, slot: int, seed: AttachedSeed) -> None:
        """Put a seed into an empty slot."""
        self.by_slot[slot] = seed
        if seed.learns:
            self._module.register_parameter(f"{SEED_PREFIX}{slot}", seed.parameters)
            self._insert(slot, seed.parameters, len(self._group(slot)["params"]))

    def watch(self, slot: int, see: Callable[[Tensor], None]) -> None:
        """Call a function with the seed's parameters after each change of their gradient, while it is in its slot."""
        handle = self.by_slot[slot].parameters.register_post_accumulate_grad_hook(see)  # type: ignore[no-untyped-call]
        self._handles.setdefault(slot, []).append(handle)

    def remove(self, slot: int) -> None:
        """Remove the seed of a slot, if there is one, with its state in the optimiser.

        The owner may have taken its parameters out of the optimiser, as those of a frozen seed.
        """
        seed = self.by_slot.get(slot)
        if seed is not None and seed.learns:
            self._leave(slot)
            if (place := self._place(slot)) is not None:
                self._take_out(slot, place)
            self._optimiser.state.pop(seed.parameters, None)
        self.by_slot.pop(slot, None)

    def detach(self) -> None:
        """Take the seeds out of the module and remove their hooks; the optimiser trains them on."""
        for slot, seed in self.by_slot.items():
            if seed.learns:
                self._leave(slot)

    def put_in_order(self) -> None:
        """Let each seed follow, in its parameter group, the parameter that comes before it in the module.

        So an optimiser that is made from the grown module, as the owner's was, can load the state. What the module does
        not hold, and an order of the owner's own, stay. Names in the groups become those that the module has now.
        """
        rank = {parameter: number for number, parameter in enumerate(self._module.parameters())}
        seeds = [(rank[seed.parameters], slot) for slot, seed in self.by_slot.items() if seed.parameters in rank]
        for mine, slot in sorted(seeds):
            if (place := self._place(slot)) is None:
                continue
            seed, members = self.by_slot[slot].parameters, self._group(slot)["params"]
            ranks = [rank.get(parameter, -1) for parameter in members if parameter is not seed]
            before = max((number for number in ranks if number < mine), default=-1)
            first = next((place for place, number in enumerate(ranks) if number >= 0), len(ranks))
            self._take_out(slot, place)
            self._insert(slot, seed, first if before < 0 else ranks.index(before) + 1)
        self._rename()

    def _insert(self, slot: int, parameters: nn.Parameter, place: int) -> None:
        group = self._group(slot)
        if (names := _names(group)) is not None:
            names.insert(place, f"{SEED_PREFIX}{slot}")
        group["params"].insert(place, parameters)

    def _take_out(self, slot: int, place: int) -> None:
        group = self._group(slot)
        if (names := _names(group)) is not None:
            del names[place]
        del group["params"][place]

    def _place(self, slot: int) -> int | None:
        """Return the index of a slot's seed in its parameter group, or None if it is not there."""
        seed, members = self.by_slot[slot].parameters, self._group(slot)["params"]
        return next((place for place, one in enumerate(members) if one is seed), None)

    def _rename(self) -> None:
        """Give parameters in groups with names the names of the module, unless their owner named them otherwise."""
        now = {parameter: name for name, parameter in self._module.named_parameters()}
        for group in self._optimiser.param_groups:
            names = _names(group) or []
            for place, (parameter, given) in enumerate(zip(group["params"], names, strict=False)):
                if parameter in now and (given.startswith(SEED_PREFIX) or given == self._names.get(parameter)):
                    names[place] = now[parameter]

    def _leave(self, slot: int) -> None:
        delattr(self._module, f"{SEED_PREFIX}{slot}")
        for handle in self._handles.pop(slot, []):
            handle.remove()

    def _group(self, slot: int) -> dict[str, Any]:
        # By index, because an optimiser that loads a state makes new groups.
        return self._optimiser.param_groups[self._groups[slot]]


def _names(group: dict[str, Any]) -> list[str] | None:
    """Return the names of a group's parameters, in their order; None without, or if the owner changed them alone."""
    names = group.get(NAMES)
    return names if names is not None and len(names) == len(group["params"]) else None
