"""Search for the content of a plan book: the best plan for all hosts, one per family, rules for the heuristic, a tree.

The search uses training hosts and successive halving. Plans begin with one seed; if a set allows more, the best few are
extended by further seeds as long as that helps on hosts that did not select them. Variations of the best plans join
before the last rung. At the end each group of families chooses among the winners of all groups. The tree of ``symptom``
chooses among these plans. The differences in the book are measured on hosts that selected nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from simic.contracts.controllers import ControllerSpec, HeuristicRules, Plan, PlanBook, TunedRules
from simic.contracts.names import HEURISTIC
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.hosts.host_sets import host_set, identify
from simic.hosts.mixed_ensemble import ensemble_of
from simic.runtime.progress import NoProgress, Progress
from simic.runtime.seeds import generator
from simic.validation.baselines.candidates import (
    BY_HAND,
    extensions,
    plan_like,
    rules_at_random,
    rules_like,
    shorter,
    single_seeds,
)
from simic.validation.baselines.halving import NO_GROWTH, EpisodeRunner, Rung, Scores, halve, pairs_of
from simic.validation.baselines.plan_book import pictures_of, searched_world
from simic.validation.baselines.symptom_tree import TreeSettings, add_tree

__all__ = ["SearchSettings", "search_plans"]

_DRAWS = 8
"""Most draws for one variation."""


@dataclass(frozen=True)
class SearchSettings:
    """Effort of the search; the defaults run about 30,000 episodes for a set of five families and one seed."""

    plan_rungs: tuple[Rung, ...] = (Rung(1_000, 4), Rung(24, 8, 1), Rung(10, 16, 2), Rung(4, 60))
    rule_candidates: int = 120
    """Number of rules drawn at random, in addition to the default ones."""
    rule_rungs: tuple[Rung, ...] = (Rung(1_000, 3), Rung(12, 5, 3), Rung(10, 10, 1), Rung(6, 24), Rung(3, 60))
    extended: int = 3
    """Number of plans that are extended by a further seed, in each group."""
    extension_rungs: tuple[Rung, ...] = (Rung(1_000, 4), Rung(12, 8, 2), Rung(4, 32))
    duel_hosts: int = 48
    """Number of new hosts per family on which an extension must beat all shorter plans."""
    exchange_hosts: int = 60
    """Number of new hosts per family on which each group chooses among the winners of all groups."""
    confirm_hosts: int = 100
    """Number of new hosts per family on which the differences in the book are measured."""
    tree: TreeSettings = field(default_factory=TreeSettings)
    first_key: int = 2**30
    """First key from which training hosts are drawn."""


def search_plans(
    world: WorldConfig,
    reward: RewardConfig,
    settings: SearchSettings | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> PlanBook:
    """Return the book of ``world.set``; equal arguments give equal books on one machine.

    ``seed`` draws the rules and the variations of plans and rules.
    """
    settings, progress = settings or SearchSettings(), progress or NoProgress()
    book = _Search(world, reward, settings, seed, progress).book()
    return add_tree(world, book, settings.tree, progress=progress)


class _Search:
    """One search, which uses hosts in this order: plans, rules, confirmation."""

    def __init__(
        self, world: WorldConfig, reward: RewardConfig, settings: SearchSettings, seed: int, progress: Progress
    ) -> None:
        self._world, self._reward, self._settings, self._seed = world, reward, settings, seed
        self._runner = EpisodeRunner(world, reward, settings.first_key, progress)
        ensemble = ensemble_of(identify(world.set, range(len(self._runner.families))), world)
        seen, offered = ensemble.observe(), ensemble.masks().blueprint.T
        self._slots = int(np.diff(seen.slot_ptr).max())
        self._blueprints = [name for name, legal in zip(seen.blueprints, offered, strict=True) if legal.all()]
        everywhere = range(len(self._runner.families))
        self._everywhere = tuple(everywhere)
        self._variations = generator(seed, "search", "plans")
        self._groups = [*((family,) for family in everywhere), self._everywhere]
        """Return each family alone, and all together for the plan that does not know the family."""

    def book(self) -> PlanBook:
        """Run the search and return the plan book, without a tree."""
        runner, world = self._runner, self._world
        winners = self._plans()
        plan_count, plan_keys = len(runner.candidates), runner.reset()
        by_hand, tuned = self._rules()
        rule_count, rule_keys = len(runner.candidates) - plan_count, runner.reset()
        fields = [[winner] for winner in winners] + [[by_hand, tuned]]
        fresh = runner.run("confirm", pairs_of(fields, [*self._groups, self._everywhere]), self._settings.confirm_hosts)
        *own, blind = winners
        return PlanBook(
            set=world.set,
            horizon=world.horizon,
            reward=self._reward,
            prune_epochs=world.prune_epochs,
            blend=world.blend,
            lifecycle=world.lifecycle,
            governor=world.governor,
            world_digest=searched_world(world, self._reward),
            pictures_digest=pictures_of(world.set, world.images),
            seed=self._seed,
            host_keys=plan_keys,
            confirm_keys=runner.reset(),
            candidates=plan_count,
            blind=self._plan(blind),
            blind_over_wait=fresh.estimate(blind, self._everywhere, self._seed),
            by_family={name: self._plan(plan) for name, plan in zip(runner.families, own, strict=True)},
            family_over_wait={
                name: fresh.estimate(plan, [family], self._seed)
                for family, (name, plan) in enumerate(zip(runner.families, own, strict=True))
            },
            heuristic=TunedRules(
                rules=self._rules_of(tuned),
                over_wait=fresh.estimate(tuned, self._everywhere, self._seed),
                by_hand_over_wait=fresh.estimate(by_hand, self._everywhere, self._seed),
                candidates=rule_count,
                host_keys=rule_keys,
            ),
        )

    def _plans(self) -> list[int]:
        """Return the best plan of each group."""
        first = self._enter_plans(single_seeds(self._world.horizon, self._blueprints, self._slots))
        ranked = halve(
            self._runner,
            "plans",
            [first] * len(self._groups),
            self._groups,
            self._settings.plan_rungs,
            anchor=NO_GROWTH,
            vary=self._vary_plan,
        )
        winners = [own[0] for own in ranked]
        for seeds in range(2, host_set(self._world.set).seeds_max + 1):
            parents = [[plan for plan in own if plan != NO_GROWTH][: self._settings.extended] for own in ranked]
            parents = [[] if NO_GROWTH in own[:1] else some for own, some in zip(ranked, parents, strict=True)]
            if not any(parents):
                break
            ranked = self._extend(f"plans of {seeds}", parents)
            winners = [own[0] if own else winner for own, winner in zip(ranked, winners, strict=True)]
        return self._exchange(winners)

    def _exchange(self, winners: list[int]) -> list[int]:
        """Return for each group its own winner, or the best winner of another group that beats it on new hosts.

        It must do so by more than two standard errors of the difference, because the own one was chosen on more hosts.
        """
        fields = [winners] * len(self._groups)
        fresh = self._runner.run("plans, exchange", pairs_of(fields, self._groups), self._settings.exchange_hosts)
        return [
            next(
                winner
                for winner in fresh.best(winners, group, len(winners))
                if winner == own or _beats(fresh, winner, own, group)
            )
            for own, group in zip(winners, self._groups, strict=True)
        ]

    def _vary_plan(self, candidate: int) -> int:
        """Return a variation of a plan with seeds, one that is not known yet if a few draws find one."""
        for _ in range(_DRAWS):
            count = len(self._runner.candidates)
            (variation,) = self._enter_plans([plan_like(self._plan(candidate), self._variations, self._world.horizon)])
            if variation == count:
                break
        return variation

    def _extend(self, label: str, parents: list[list[int]]) -> list[list[int]]:
        """Return the best extensions of each group's parents, or none if the best does not beat all shorter plans.

        These are the first parent and the extension without any one of its seeds, because a variation may have
        changed any seed. It must beat them on new hosts, by more than two standard errors of the difference: in doubt
        fewer seeds are better.
        """
        fields = [
            self._enter_plans(
                longer
                for parent in own
                for longer in extensions(self._plan(parent), self._world.horizon, self._blueprints, self._slots)
            )
            for own in parents
        ]
        ranked = halve(self._runner, label, fields, self._groups, self._settings.extension_rungs, vary=self._vary_plan)
        duels = [
            [own[0], parent[0], *self._enter_plans(shorter(self._plan(own[0])))] if own else []
            for own, parent in zip(ranked, parents, strict=True)
        ]
        fresh = self._runner.run(f"{label}, duel", pairs_of(duels, self._groups), self._settings.duel_hosts)
        return [
            own if all(_beats(fresh, own[0], other, group) for other in duel[1:]) else []
            for own, duel, group in zip(ranked, duels, self._groups, strict=True)
        ]

    def _rules(self) -> tuple[int, int]:
        """Return the default rules and the best ones."""
        draw = generator(self._seed, "search", "rules")
        drawn = [rules_at_random(draw, self._blueprints) for _ in range(self._settings.rule_candidates)]
        by_hand, *others = self._enter_rules([BY_HAND, *drawn])

        def vary(candidate: int) -> int:
            return self._enter_rules([rules_like(self._rules_of(candidate), draw, self._blueprints)])[0]

        (ranked,) = halve(
            self._runner,
            HEURISTIC,
            [[by_hand, *others]],
            [self._everywhere],
            self._settings.rule_rungs,
            anchor=by_hand,
            vary=vary,
        )
        return by_hand, ranked[0]

    def _enter_plans(self, plans: Iterable[Plan]) -> list[int]:
        return self._runner.enter(ControllerSpec(name="schedule", plan=plan) for plan in plans)

    def _enter_rules(self, rules: Sequence[HeuristicRules]) -> list[int]:
        return self._runner.enter(ControllerSpec(name=HEURISTIC, rules=ruleset) for ruleset in rules)

    def _plan(self, candidate: int) -> Plan:
        """Return the plan of a candidate; ``wait`` is the plan without seeds."""
        return self._runner.candidates[candidate].plan or Plan()

    def _rules_of(self, candidate: int) -> HeuristicRules:
        """Return the rules of a heuristic candidate."""
        return self._runner.candidates[candidate].rules or BY_HAND


def _beats(scores: Scores, one: int, other: int, families: Sequence[int]) -> bool:
    """Return whether the mean difference over families of equal weight exceeds two standard errors."""
    differences = [scores.of(one, family) - scores.of(other, family) for family in families]
    mean = float(np.mean([part.mean() for part in differences]))
    error = float(np.sqrt(sum(part.var(ddof=1) / len(part) for part in differences))) / len(differences)
    return mean > 2.0 * error
