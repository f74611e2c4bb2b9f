"""Trainings of several recipes with the same seeds, and one trial of all their policies on the same hosts.

Every training has a home of its own and ends with one receipt, so a killed comparison continues after the last one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from simic.app.comparisons.inner_runs import open_inner
from simic.app.comparisons.parts import load_or_make
from simic.app.comparisons.recipe_training import Trained, learn, require_own_karn, spec_of, without_karn
from simic.app.comparisons.recipes import Recipe, differing_settings
from simic.app.container import Container
from simic.app.evidence.judging_experience import reporter_of_comparison
from simic.app.names.trial_controllers import SelectedControllers
from simic.collection.judging import require_test_hosts
from simic.contracts.errors import ConfigError
from simic.contracts.names import WAIT
from simic.contracts.results.comparison import LEVEL
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.recipes import RecipeArm, RecipeComparison, RecipePolicy, RecipeTraining
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.continual import require_policy
from simic.contracts.settings.run import RunConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.hosts.world_identity import world_identity
from simic.learning.objectives import OBJECTIVES
from simic.learning.training_run import WarmStart
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.progress import Advance, no_advance
from simic.runtime.seeds import derive
from simic.runtime.settings import config_digest
from simic.trust.canonical import digest_of
from simic.validation.comparison import compare_pairs
from simic.validation.further import further_config, further_sets, further_specs
from simic.validation.judging_keys import KEY_STARTS
from simic.validation.recipes import Judging, compare_recipes, least_p, pairs_of
from simic.validation.report import comparison_specs
from simic.validation.trials import TrialSettings, run_trials

__all__ = ["RecipeRequest", "compare"]

_LOG = logging.getLogger(__name__)
_SHORT = 12
"""Characters of digests in the names of folders."""
_DATA_SECTIONS = frozenset({"world", "collect", "ingest", "curate"})
"""Sections that decide what a recipe learns from, and so have no effect on a given snapshot."""


class RecipeRequest(NamedTuple):
    """What is trained and tried."""

    recipes: tuple[Recipe, ...]
    """Two or more with different names; equal configurations are trained one by one all the same."""
    seeds: tuple[int, ...]
    hosts: int
    """Judging hosts of each family."""
    split: Split
    snapshot: SnapshotManifest | None
    """All recipes train on it; None if each collects its own experience."""
    is_against_first: bool
    """Whether each recipe is compared with the first one only, instead of with every other."""
    is_fresh: bool
    """Whether trainings of another version of the code or PyTorch are made again; otherwise they are refused."""
    start: WarmStart | None = None
    """All recipes train from this policy, on the given snapshot; None starts from nothing."""


def compare(container: Container, request: RecipeRequest) -> RecipeComparison:
    """Make all trainings that are not there yet, try their policies on the same hosts, and compare the recipes.

    ``container`` has the settings of ``judging_config``.

    Raises:
        ConfigError: for a plan book that is missing or out of date, recipes that differ in their data although a
            snapshot is given, or a training of another version of the code or PyTorch, unless the request says to
            make it again.
        TransientError: if another comparison of recipes is made in this home.
    """
    with exclusive(container.home.locks / "ab", "a comparison of recipes"):
        return _RecipeTrial(container, request).make()


class _RecipeTrial:
    def __init__(self, container: Container, request: RecipeRequest) -> None:
        self._container, self._request, self._started_at = container, request, container.clock()
        home: Home = container.home
        self._root = home.ab
        self._hosts = _judging_hosts(container.config, request)
        self._start = None if request.start is None else container.policies.seal(request.start.path)
        names = [recipe.name for recipe in request.recipes]
        self._settings = dict(zip(names, differing_settings(request.recipes), strict=True))
        self._plans = {recipe.name: self._check(recipe) for recipe in request.recipes}
        digests = [config_digest(recipe.config) for recipe in request.recipes]
        self._digests = dict(zip(names, digests, strict=True))
        self._repeats = {recipe.name: digests[:at].count(digests[at]) for at, recipe in enumerate(request.recipes)}
        """How many recipes before it have the same configuration."""
        self._advance: Advance = no_advance

    def make(self) -> RecipeComparison:
        request = self._request
        _warn_of_few_seeds(request)
        total = len(request.recipes) * len(request.seeds)
        trained: dict[str, list[Trained]] = {recipe.name: [] for recipe in request.recipes}
        with self._container.progress.task("ab", total) as self._advance:
            for turn, seed in enumerate(request.seeds):
                # The order alternates: a drift of the machine, or of what is shared, meets every recipe alike.
                for recipe in request.recipes if turn % 2 == 0 else request.recipes[::-1]:
                    trained[recipe.name].append(self._train(recipe, seed))
        return self._compare(trained)

    def _check(self, recipe: Recipe) -> str | None:
        """Refuse what would fail after hours; return the digest of the recipe's plan book."""
        OBJECTIVES.load(recipe.config.train.objective)
        require_own_karn(recipe)
        if self._start is None:
            require_policy(recipe.config.train.lora)
        if self._request.snapshot is not None:
            if "train.seeds" in self._settings[recipe.name]:
                raise ConfigError(
                    "the recipes differ in train.seeds, which has no effect on a given snapshot; leave --snapshot out"
                )
            wrong = [name for name in self._settings[recipe.name] if name.partition(".")[0] in _DATA_SECTIONS]
            if wrong:
                raise ConfigError(
                    f"the recipes differ in {wrong[0]}, which has no effect on a given snapshot; leave --snapshot out, "
                    "so that each recipe collects its own experience"
                )
            return None
        home, config = self._container.home, recipe.config
        for name in further_sets(config):
            further_specs(further_config(config, name), home.plans)
        book = comparison_specs(config, home.plans)[1]
        return None if book is None else digest_of(book)

    def _train(self, recipe: Recipe, seed: int) -> Trained:
        """Return one training, from its receipt if there is one."""
        container, snapshot = self._container, self._request.snapshot
        digest, given = self._digests[recipe.name], None if snapshot is None else snapshot.digest
        repeat = self._repeats[recipe.name]
        start = None if self._start is None else self._start.digest
        words = [digest[:_SHORT], str(seed), *(source[:_SHORT] for source in (given, start) if source is not None)]
        home = Home(self._root / "-".join([*words, *([f"again{repeat}"] if repeat else [])]))
        identity = {
            "code_version": container.provenance.code_version,
            "config_digest": digest,
            "seed": seed,
            "world_digest": digest_of(world_identity(recipe.config.world)),
            "plans_digest": self._plans[recipe.name],
            "torch_version": str(torch.__version__),
            "given_snapshot": given,
            "given_start": start,
        }

        def make() -> RecipeTraining:
            lake = recipe.config.lake.model_copy(update={"url": None})
            config = recipe.config.model_copy(update={"lake": lake})
            inner = open_inner(container, home, f"{recipe.name} seed {seed}", without_karn(config), seed)
            if self._start is not None:  # the new home has a key of its own
                inner.keyring.trust(container.keyring.public_bytes(self._start.key_id))
            started_at, outcome = container.clock(), learn(inner, recipe, snapshot, self._request.start)
            return RecipeTraining(**identity, started_at=started_at, finished_at=container.clock(), **outcome)

        path = home.root.with_name(f"{home.root.name}.json")
        training = load_or_make(path, RecipeTraining, identity, make, is_fresh=self._request.is_fresh)
        self._advance(1)
        policy = training.policy_digest
        return Trained(training, home, WAIT if policy is None else f"{recipe.name} seed {seed} ({policy[:8]})")

    def _compare(self, trained: Mapping[str, Sequence[Trained]]) -> RecipeComparison:
        request, container, started_at = self._request, self._container, self._started_at
        report = self._try([policy for row in trained.values() for policy in row])
        path = container.receipts.save(report)
        rows = {row.controller: np.asarray(row.returns) for row in report.controllers}
        returns = {recipe: np.array([rows[policy.row] for policy in own]) for recipe, own in trained.items()}
        is_one, judging = len(request.seeds) == 1, Judging(report.set, report.families, container.config.trial)
        policies = list(dict.fromkeys(own[0].row for own in trained.values()))
        is_against_first = request.is_against_first
        tried = pairs_of(policies, is_against_first=is_against_first)
        count = len(pairs_of(list(trained), is_against_first=is_against_first))
        comparison = RecipeComparison(
            **container.provenance._asdict(),
            started_at=started_at,
            finished_at=container.clock(),
            set=report.set,
            seeds=list(request.seeds),
            hosts_per_family=request.hosts,
            is_against_first=is_against_first,
            first_key=report.host_keys[0],
            snapshot_digest=None if request.snapshot is None else request.snapshot.digest,
            start_digest=None if self._start is None else self._start.digest,
            recipes=[self._arm(recipe, trained[recipe.name], report) for recipe in request.recipes],
            pairs=[] if is_one else compare_recipes(returns, judging, is_against_first=is_against_first),
            least_p=least_p(len(request.seeds), count),
            policies=compare_pairs(report, tried, container.config.trial) if is_one else [],
            trials=f"{path.parent.name}/{path.name}",
        )
        return container.save_receipt(comparison)

    def _try(self, trained: Sequence[Trained]) -> TrialReport:
        """Grow the judging hosts under all policies and never growing."""
        container, config = self._container, self._container.config
        specs = {policy.row: spec_of(policy) for policy in trained if policy.training.policy_digest is not None}
        reporter = reporter_of_comparison(container, SelectedControllers(specs), self._hosts)
        with container.progress.task("trials", len(self._hosts) * (len(specs) + 1)) as advance:
            return run_trials(
                specs,
                self._hosts,
                TrialSettings.of(config),
                provenance=container.provenance,
                clock=container.clock,
                on_done=lambda episodes: advance(len(episodes.returns)),
                reporter=reporter,
            )

    def _arm(self, recipe: Recipe, trained: Sequence[Trained], report: TrialReport) -> RecipeArm:
        rows = {row.controller: row for row in report.controllers}
        own = [rows[policy.row] for policy in trained]
        returns = [row.mean_return for row in own]
        extra = [row.extra_compute for row in own if row.extra_compute is not None]
        seconds = [(policy.training.finished_at - policy.training.started_at).total_seconds() for policy in trained]
        return RecipeArm(
            name=recipe.name,
            profile=recipe.profile,
            overrides=list(recipe.overrides),
            config_digest=self._digests[recipe.name],
            settings=self._settings[recipe.name],
            mean_return=float(np.mean(returns)),
            over_wait=float(np.mean(returns)) - rows[WAIT].mean_return,
            spread=float(np.std(returns, ddof=1)) if len(own) > 1 else None,
            test_accuracy=float(np.mean([row.test_accuracy for row in own])),
            parameters=float(np.mean([row.committed_parameters for row in own])),
            extra_compute=float(np.mean(extra)),
            train_s=float(np.mean(seconds)),
            policies=[
                RecipePolicy(
                    seed=policy.training.seed,
                    controller=policy.row,
                    policy_digest=policy.training.policy_digest,
                    karn_digest=policy.training.karn_digest,
                    failure=policy.training.failure,
                    mean_return=mean_return,
                    train_s=train_s,
                    episodes=policy.training.episodes,
                )
                for policy, mean_return, train_s in zip(trained, returns, seconds, strict=True)
            ],
        )


def _warn_of_few_seeds(request: RecipeRequest) -> None:
    """Say before hours of training that no verdict can come of them; one seed compares policies, not recipes."""
    seeds = len(request.seeds)
    names = [recipe.name for recipe in request.recipes]
    pairs = len(pairs_of(names, is_against_first=request.is_against_first))
    if seeds == 1 or (least := least_p(seeds, pairs)) <= LEVEL:
        return
    needed = next(number for number in itertools.count(seeds) if least_p(number, pairs) <= LEVEL)
    _LOG.warning(
        "%d training seeds cannot show a difference between %d recipes: the least adjusted p is %.2f. --seeds %d can",
        seeds,
        len(names),
        least,
        needed,
    )


def _judging_hosts(config: RunConfig, request: RecipeRequest) -> tuple[HostIdentity, ...]:
    """Return the hosts that judge, elsewhere than those of `simic compare`, on which recipes may have been chosen."""
    name = config.world.set
    count = request.hosts * len(host_set(name).families)
    hosts = identify(name, draw_keys(name, request.split, count, derive(0, "ab", name) % KEY_STARTS))
    if config.trial.land:
        require_test_hosts(hosts)
    return hosts
