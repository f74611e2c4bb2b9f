"""The proof: trains with several seeds, tries every policy and baseline on the same held-out hosts, compares.

Every training has a home of its own, and every part (a training, or the trial of one controller on one set) ends with
one receipt that is written atomically. A killed proof continues after its last receipt, and receipts alone are enough
to compare, so several machines may make parts of one proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from simic.app import promotion, training
from simic.app.comparisons.inner_runs import InnerStages, open_inner
from simic.app.comparisons.parts import load_or_make
from simic.app.container import Container
from simic.app.names.host_set_names import check_set
from simic.app.runs import open_run_in
from simic.contracts.controllers import COMPARISON_CONTROLLERS, ControllerSpec
from simic.contracts.errors import ConfigError, TrainingError
from simic.contracts.names import WAIT
from simic.contracts.results.proof import Proof, ProofStatic, ProofTraining, ProofTrial
from simic.contracts.results.receipts import Receipt
from simic.contracts.settings.run import RunConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.hosts.host_sets import draw_keys, host_set, identify, kept_families
from simic.hosts.world_identity import world_identity
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.progress import Advance, no_advance
from simic.runtime.seeds import derive
from simic.runtime.settings import config_digest
from simic.trust.canonical import digest_of
from simic.validation.arithmetic import processor
from simic.validation.baselines.plan_book import BookUse, book_use
from simic.validation.baselines.static_network import SAME, grow_rivals
from simic.validation.compute import compute_shares
from simic.validation.episodes import Effort, Episodes
from simic.validation.host_sizes import host_sizes
from simic.validation.judging_keys import KEY_STARTS
from simic.validation.proof import Tried, compare
from simic.validation.report import comparison_specs, learned_spec
from simic.validation.trials import grow_all

__all__ = ["ProofRequest", "prove"]

R = TypeVar("R", bound=Receipt)


class ProofRequest(NamedTuple):
    """A proof's arguments: which policies are trained, and on which held-out hosts all controllers are tried."""

    sets: tuple[str, ...]
    """A policy per training seed is trained on each."""
    also: tuple[str, ...]
    """Sets on whose hosts the policies of the other sets are tried too."""
    seeds: tuple[int, ...]
    """Training seeds."""
    hosts: int
    """Held-out hosts of each family."""
    searched: tuple[str, ...]
    """Arms of ``SEARCHED`` that are tried beside the baselines."""
    left_out: tuple[str, ...] | None
    """Families that are left out of a training, one at a time; None means every family of every set."""
    profile: str
    command: str
    """The command that makes this proof, for the report."""
    is_fresh: bool
    """Whether parts of another code version or configuration are made again; otherwise they are refused."""


class _TrialSetup(NamedTuple):
    """What the trials on the hosts of a set need."""

    config: RunConfig
    hosts: tuple[HostIdentity, ...]
    world_digest: str
    """Digest of the world: code version and settings do not cover installed families, nor data that hosts read."""
    specs: dict[str, ControllerSpec]
    """Baselines."""
    book: BookUse


def prove(container: Container, request: ProofRequest) -> Proof:
    """Make all parts of a proof that are not there yet, and compare.

    Raises:
        ConfigError: for an unknown set or family, a plan book that is missing or out of date, or a part that another
            code version or configuration made, unless the request says to make it again.
        TransientError: if another proof is being made in this home.
    """
    with exclusive(container.home.locks / "proof", "a proof"):
        return _Proof(container, request).make()


class _Proof:
    def __init__(self, container: Container, request: ProofRequest) -> None:
        if container.config.world.without:
            raise ConfigError("world.without is set: leave it out, because `simic proof --without` sets it")
        self._container, self._request = container, request
        home: Home = container.home
        self._root = home.proof
        names = dict.fromkeys([*request.sets, *request.also])
        for name in names:
            check_set(name)
        if idle := [name for name in request.also if request.sets == (name,)]:
            raise ConfigError(f"--also {idle[0]}: the policies are tried on their own set anyway; name another set")
        self._left_out = {name: _left_out(name, request.left_out) for name in request.sets}
        known = "its families: " + ", ".join(
            dict.fromkeys(family for name in request.sets for family in kept_families(name))
        )
        if unknown := set(request.left_out or ()).difference(*self._left_out.values()):
            raise ConfigError(f"--without: no set of this proof has a family {', '.join(sorted(unknown))}; {known}")
        self._setups = {name: self._setup_of(name) for name in names}
        self._advance: Advance = no_advance

    def make(self) -> Proof:
        """Make the parts one after the other, because each uses all cores (``world.workers``)."""
        request, config = self._request, self._container.config
        jobs = [(name, family) for name in request.sets for family in (None, *self._left_out[name])]
        also = [(on, name) for name in request.also for on in request.sets if on != name]
        policies = len(request.seeds) * (len(jobs) + len(also))
        total = policies + len(request.seeds) * len(jobs) + sum(len(setup.specs) for setup in self._setups.values())
        with self._container.progress.task("proof", total) as self._advance:
            baselines = {name: self._try_baselines(setup) for name, setup in self._setups.items()}
            trained = {job: [self._train(*job, seed) for seed in request.seeds] for job in jobs}
            sets = [
                compare(
                    baselines[name],
                    self._try_policies(trained[on, None], self._setups[name], baselines[name][WAIT]),
                    self._try_on_left_out(trained, self._setups[name], baselines[name][WAIT]) if on == name else {},
                    config.trial,
                    self._setups[name].book.without_book,
                )
                for on, name in [*((name, name) for name in request.sets), *also]
            ]
        every = [receipt for receipts in trained.values() for receipt in receipts]
        return Proof(
            code_version=self._container.provenance.code_version,
            profile=request.profile,
            config_digest=self._container.provenance.config_digest,
            command=request.command,
            seeds=list(request.seeds),
            hosts_per_family=request.hosts,
            confidence=config.trial.confidence,
            trainings=len(every),
            further=list(
                dict.fromkeys(
                    collection.set for name in request.sets for collection in self._config(name).further_collections
                )
            ),
            episodes=sum(receipt.episodes for receipt in every),
            sets=sets,
        )

    def _config(self, set_name: str, family: str | None = None) -> RunConfig:
        """Return the settings of `simic run` on a set, without a family; parts land in the home of the training."""
        config = self._container.config
        world = config.world.model_copy(update={"set": set_name, "without": () if family is None else (family,)})
        return config.model_copy(update={"world": world, "lake": config.lake.model_copy(update={"url": None})})

    def _setup_of(self, set_name: str) -> _TrialSetup:
        config = self._config(set_name)
        specs, book = comparison_specs(config, self._container.home.plans)
        specs = {**specs, **{name: ControllerSpec(name=name) for name in self._request.searched}}
        count = self._request.hosts * len(host_set(set_name).families)
        # Elsewhere than the hosts of `simic trials`, whose results guided the development of what is tried here.
        keys = draw_keys(set_name, Split.TEST, count, derive(0, "proof", set_name) % KEY_STARTS)
        return _TrialSetup(
            config,
            identify(set_name, keys),
            digest_of(world_identity(config.world)),
            specs,
            book_use(COMPARISON_CONTROLLERS, book, config.world, config.curate.reward.basic),
        )

    def _try_baselines(self, setup: _TrialSetup) -> dict[str, ProofTrial]:
        return {name: self._try(setup, name, setup.hosts, None) for name in setup.specs}

    def _try_policies(self, trained: Sequence[ProofTraining], setup: _TrialSetup, wait: ProofTrial) -> list[Tried]:
        """Try the policy of each training on the hosts of ``wait``, which stands for a training that failed."""
        kept = set(wait.host_keys)
        hosts = tuple(host for host in setup.hosts if host.key in kept)
        tried = []
        for receipt in trained:
            if receipt.policy_digest is None:
                self._advance(1)
                tried.append(Tried(receipt, wait))
                continue
            label = _label(receipt.set, receipt.seed, receipt.without)
            tried.append(Tried(receipt, self._try(setup, label, hosts, receipt.policy_digest)))
        return tried

    def _try_on_left_out(
        self, trained: Mapping[tuple[str, str | None], Sequence[ProofTraining]], setup: _TrialSetup, wait: ProofTrial
    ) -> dict[str, list[Tried]]:
        """Try the policies of trainings without a family on the hosts of that family, for every family left out."""
        name = setup.config.world.set
        return {
            family: self._try_policies(trained[name, family], setup, _of_family(wait, family))
            for family in self._left_out[name]
        }

    def _try(
        self, setup: _TrialSetup, label: str, hosts: Sequence[HostIdentity], policy_digest: str | None
    ) -> ProofTrial:
        """Return the trial of a baseline, or of the policy of a training, from its receipt if there is one."""
        world, container = setup.config.world, self._container
        identity = {
            "code_version": container.provenance.code_version,
            "torch_version": str(torch.__version__),
            "config_digest": config_digest(setup.config),
            "processor": processor(setup.config.world.device),
            "seed": 0,
            "set": world.set,
            "world_digest": setup.world_digest,
            "controller": label,
            "policy_digest": policy_digest,
            "plans_digest": setup.book.plans_digest if policy_digest is None else None,
            "host_keys": [host.key for host in hosts],
        }

        def make() -> ProofTrial:
            started_at = container.clock()
            spec = setup.specs[label] if policy_digest is None else self._verified(label, policy_digest)
            with container.progress.task(f"{label} on {world.set}", len(hosts)) as advance:
                (episodes,) = grow_all(
                    {label: spec}, hosts, world, setup.config.curate.reward.basic, derive(0, "trials"),
                    lambda done: advance(len(done.returns)),
                ).values()  # fmt: skip
            static = [] if policy_digest is None else self._static(label, setup, hosts, episodes)
            sizes = host_sizes(hosts, world)
            shares = compute_shares(episodes, sizes, world.horizon)
            return ProofTrial(
                **identity,
                started_at=started_at,
                finished_at=container.clock(),
                families=[host.family for host in hosts],
                returns=episodes.returns.tolist(),
                test_accuracies=episodes.test_accuracy.tolist(),
                validation_accuracies=episodes.validation_accuracy.tolist(),
                parameters=episodes.committed_parameters.tolist(),
                host_parameters=sizes.parameters.tolist(),
                **{name: share.tolist() for name, share in shares.items()},
                test_returns=episodes.test_returns.tolist(),
                episodes_grown=Effort(*episodes.effort.T).episodes.tolist(),
                rents=episodes.rents.tolist(),
                illegal_actions=int(episodes.illegal_actions.sum()),
                governor_events=int(episodes.panicked.sum()),
                static=static,
            )

        folder = self._root / "trials" / f"{world.set}-{self._request.hosts}"
        return self._part(folder / f"{label}.json", ProofTrial, identity, make)

    def _verified(self, label: str, digest: str) -> ControllerSpec:
        home = self._home(label)
        if not (home.policies / digest).exists():
            raise ConfigError(
                f"a trial of the training {label} is missing, and its policy is not in {home.root}: copy that folder "
                "from the machine of the training, or make the trial there and copy its receipt"
            )
        return learned_spec(home.policies / digest, digest, home.keys)

    def _static(
        self, label: str, setup: _TrialSetup, hosts: Sequence[HostIdentity], episodes: Episodes
    ) -> list[ProofStatic]:
        """Train the final networks of a policy's episodes from the start."""
        world, reward = setup.config.world, setup.config.curate.reward.basic
        with self._container.progress.task(f"{label} static on {world.set}", len(hosts)) as advance:
            rivals = grow_rivals(hosts, episodes, world, reward, advance)
        return [
            ProofStatic(
                same=same,
                epochs=rival.epochs.tolist(),
                returns=rival.returns.tolist(),
                test_accuracies=rival.test_accuracy.tolist(),
                governor_events=int(rival.panicked.sum()),
            )
            for same, rival in zip(SAME, rivals, strict=True)
        ]

    def _train(self, set_name: str, family: str | None, seed: int) -> ProofTraining:
        """Return one training, from its receipt if there is one; what a killed one left behind is removed."""
        config, without = self._config(set_name, family), [] if family is None else [family]
        label = _label(set_name, seed, without)
        identity = {
            "code_version": self._container.provenance.code_version,
            "torch_version": str(torch.__version__),
            "config_digest": config_digest(config),
            "seed": seed,
            "set": set_name,
            "without": without,
            "world_digest": self._setups[set_name].world_digest,
            "plans_digest": self._setups[set_name].book.plans_digest,
        }

        def make() -> ProofTraining:
            container = open_inner(self._container, self._home(label), label, config, seed)
            started_at = container.clock()
            outcome = _train_and_judge(container, self._request.profile)
            return ProofTraining(**identity, started_at=started_at, finished_at=container.clock(), **outcome)

        return self._part(self._root / "trainings" / f"{label}.json", ProofTraining, identity, make)

    def _home(self, label: str) -> Home:
        return Home(self._root / "trainings" / label)

    def _part(self, path: Path, kind: type[R], identity: Mapping[str, Any], make: Callable[[], R]) -> R:
        """Return the part in ``path``, which is made if it is not there."""
        part = load_or_make(path, kind, identity, make, is_fresh=self._request.is_fresh)
        self._advance(1)
        return part


def _train_and_judge(container: Container, profile: str) -> dict[str, Any]:
    """Return the fields of a ``ProofTraining`` that a run in a new home results in."""
    stages = InnerStages(container)
    try:
        with open_run_in(container, profile) as run:
            policy = run.learn(stages)
            further = [training.try_further(container, policy, run.key.champion, name) for name in run.further_sets]
            decision = promotion.decide(container, training.validate(container, policy, run.key.champion, further))
    except TrainingError as error:
        return {
            "policy_digest": None, "failure": str(error), "snapshot_digest": None, "episodes": stages.episodes,
            "accepted": False, "failed_criteria": [],
        }  # fmt: skip
    return {
        "policy_digest": policy.digest,
        "failure": None,
        "snapshot_digest": policy.snapshot_digest,
        "episodes": stages.episodes,
        "accepted": decision.accepted,
        "failed_criteria": [line.name for line in decision.unmet],
    }


def _left_out(set_name: str, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the families of a set that are left out of a training each; a set of one family has none to leave out."""
    families = host_set(set_name).families
    if wanted is None:
        return families if len(families) > 1 else ()
    mine = tuple(family for family in families if family in wanted)
    for family in mine:
        kept_families(set_name, (family,))
    return mine


def _label(set_name: str, seed: int, without: Sequence[str]) -> str:
    """Return the name of a training: of its folder, its receipt and its row in trials."""
    return "-".join([set_name, str(seed), *(f"without-{family}" for family in without)])


def _of_family(trial: ProofTrial, family: str) -> ProofTrial:
    """Return the part of a trial on the hosts of one family."""
    rows = [row for row, name in enumerate(trial.families) if name == family]
    return trial.model_copy(update={name: [value[row] for row in rows] for name, value in trial.per_host.items()})
