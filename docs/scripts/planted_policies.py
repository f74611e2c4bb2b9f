"""Policies whose true value is known: grown once on a bank of hosts, and composed from these episodes.

A composed policy follows one of the grown controllers on each host, chosen per host: hosts do not influence each other,
so its episodes are those that were grown. Only the reward hackers change numbers of an episode; no controller of Simic
can do what they stand for, such as seeing the labels of the validation data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.controllers import ControllerSpec
from simic.contracts.settings.run import RunConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.controllers.plugins.random import RandomController
from simic.controllers.protocol import Controller
from simic.hosts.host_sets import draw_keys, identify
from simic.runtime.process_pool import run_jobs, worker_count
from simic.runtime.seeds import derive
from simic.validation.baselines.plan_book import SYMPTOM
from simic.validation.episodes import Episodes, TrialJob, chunked, join, run_with
from simic.validation.further import further_config, further_specs
from simic.validation.judging_keys import KEY_STARTS
from simic.validation.report import comparison_specs

__all__ = [
    "BASE",
    "CLONE",
    "HACKER",
    "NEVER_WORSE",
    "WITH_LOSSES",
    "Bank",
    "Planted",
    "Policy",
    "empty_bank",
    "grow_bank",
    "plant",
]

BASE = SYMPTOM
"""The first champion: the tree that trained policies equal within the interval (docs/proof.md)."""
NOISE = (0.02, 0.1)
"""Shares of the decisions that the noisy clones replace by random legal ones."""
FIRST_KEY = KEY_STARTS + 2**21
"""First key of the bank; judgements of 60 nights draw others."""
_HINDSIGHT, _WORST = "hindsight", "worst"
"""Stand for the grown controller with the largest, or the smallest, return on a host."""
NEVER_WORSE, WITH_LOSSES, CLONE, HACKER = "mixture, never worse", "mixture with losses", "clone", "reward hacker"
"""Kinds of planted policies."""
ILLEGAL, PANICS = 0.05, 0.1
"""Shares of the hosts on which a policy acts illegally, or makes the governor stop the episode."""


class Policy(NamedTuple):
    """Episodes of one policy on all hosts of the bank."""

    own: Episodes
    """On the run's set."""
    further: Episodes
    """On the further set."""


class Planted(NamedTuple):
    """A candidate of known value."""

    name: str
    kind: str
    policy: Policy
    mismatches: float = 0.0
    """What the determinism probe finds."""


class Bank(NamedTuple):
    """Grown hosts: those of the run's set and those of the further set."""

    config: RunConfig
    further: RunConfig
    own_hosts: tuple[HostIdentity, ...]
    further_hosts: tuple[HostIdentity, ...]
    arms: Mapping[str, Policy]
    """Baselines and noisy clones by name."""


class NoisyClone:
    """Follows a controller, and replaces a share of its decisions by random legal ones."""

    policy_version: str | None = None

    def __init__(self, base: Controller, share: float) -> None:
        self._base, self._share, self._random = base, share, RandomController()
        self.name = f"noisy-{share:g}"

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return one legal action per host; low bits of the first number toss the coin."""
        ours = self._base.decide(observations, masks, uniforms)
        theirs = self._random.decide(observations, masks, uniforms)
        is_random = (uniforms[:, :1] * 2.0**20) % 1.0 < self._share
        return Decisions(
            np.where(is_random, theirs.actions, ours.actions), np.where(is_random, theirs.log_probs, ours.log_probs)
        )


def grow_noisy(job: TrialJob) -> Episodes:
    """Run a job whose controller's name may end in the noise of a clone."""
    base = make(job.spec, job.hosts)
    _, has_noise, share = job.controller.partition("-")
    return run_with(NoisyClone(base, float(share)) if has_noise else base, job)


def grow_bank(
    config: RunConfig, hosts: int, further_hosts: int, say: Callable[[str], None] = lambda _line: None
) -> Bank:
    """Grow baselines and noisy clones on test hosts of the run's set and of its first further set."""
    bank = empty_bank(config, hosts, further_hosts)
    own = _grow(config, bank.own_hosts, comparison_specs(config, None)[0], say)
    random = ControllerSpec(name="random")  # a further trial leaves it out; sabotaged policies follow it
    specs = {**further_specs(bank.further, None)[0], "random": random}
    further = _grow(bank.further, bank.further_hosts, specs, say)
    return bank._replace(arms={name: Policy(own[name], further[name]) for name in own})


def empty_bank(config: RunConfig, hosts: int, further_hosts: int) -> Bank:
    """Return the hosts of a bank without episodes."""
    trial = config.trial.model_copy(update={"also_sets": config.trial.also_sets[:1]})
    config = config.model_copy(update={"trial": trial})
    other = further_config(config, trial.also_sets[0])
    own, further = (
        identify(one.world.set, draw_keys(one.world.set, Split.TEST, count, FIRST_KEY))
        for one, count in ((config, hosts), (other, further_hosts))
    )
    return Bank(config, other, own, further, {})


def _grow(
    config: RunConfig, hosts: Sequence[HostIdentity], specs: Mapping[str, ControllerSpec], say: Callable[[str], None]
) -> dict[str, Episodes]:
    world, reward, seed = config.world, config.curate.reward.basic, derive(0, "planted")
    found = {}
    for name, spec in {**specs, **{f"noisy-{share:g}": specs[BASE] for share in NOISE}}.items():
        jobs = [TrialJob(name, spec, chunk, world, reward, seed) for chunk in chunked(hosts, world.chunk)]
        found[name] = join(run_jobs(grow_noisy, jobs, worker_count(world.processes)))
        say(f"{name} on {len(hosts):,} hosts of {world.set}: {found[name].returns.mean():.2f} points")
    return found


def plant(bank: Bank) -> list[Planted]:
    """Return forty candidates, the same ones for the same bank."""
    return [*_mixtures(bank), *_sabotaged(bank), *_clones(bank), *_specialists(bank), *_hackers(bank)]


def _mixtures(bank: Bank) -> list[Planted]:
    """Return policies that follow better episodes on some hosts, and the champion or a noisy clone on the others."""
    found = []
    for share in (0.1, 0.3, 0.5, 0.7, 1.0):
        found.append(Planted(f"hindsight on {share:.0%}", NEVER_WORSE, _mixed(bank, _HINDSIGHT, share)))
    noisy = f"noisy-{NOISE[-1]:g}"
    for share in (0.6, 0.65, 0.7, 0.8, 0.9):
        policy = _mixed(bank, _HINDSIGHT, share, noisy)
        found.append(Planted(f"hindsight on {share:.0%}, else {noisy}", WITH_LOSSES, policy))
    for share in (0.25, 0.5, 1.0):
        found.append(Planted(f"oracle on {share:.0%}", WITH_LOSSES, _mixed(bank, "oracle", share)))
    return found


def _sabotaged(bank: Bank) -> list[Planted]:
    """Return policies that act worse than the champion on a share of the hosts."""
    shares = [("random", one) for one in (0.02, 0.05, 0.1, 0.25, 1.0)]
    shares += [(_WORST, one) for one in (0.01, 0.02, 0.05, 0.1, 0.2)]
    return [Planted(f"{what} on {share:.0%}", "sabotaged", _mixed(bank, what, share)) for what, share in shares]


def _clones(bank: Bank) -> list[Planted]:
    """Return the champion itself, noisy clones, and clones that gain on some hosts what noise loses on others."""
    noisy = {f"noisy-{share:g}": bank.arms[f"noisy-{share:g}"] for share in NOISE}
    found = [Planted("the champion itself", CLONE, bank.arms[BASE])]
    found += [Planted(name, CLONE, policy) for name, policy in noisy.items()]
    losers = {**noisy, "random on 20%": _mixed(bank, "random", 0.2), "worst on 5%": _mixed(bank, _WORST, 0.05)}
    return found + [Planted(f"{name}, made level", CLONE, _level(bank, one)) for name, one in losers.items()]


def _specialists(bank: Bank) -> list[Planted]:
    """Return policies that know one family, and never grow on the others."""
    found = []
    for family in dict.fromkeys(host.family for host in bank.own_hosts):
        own, further = (
            np.array([_HINDSIGHT if host.family == family else "wait" for host in hosts])
            for hosts in (bank.own_hosts, bank.further_hosts)
        )
        found.append(Planted(f"hindsight on {family} only", "specialist", _follow(bank, own, further)))
    return found


def _hackers(bank: Bank) -> list[Planted]:
    """Return policies with large returns that another criterion must reject."""
    best = _mixed(bank, _HINDSIGHT, 1.0)
    illegal = (_coins(len(bank.own_hosts), 3) < ILLEGAL).astype(np.int64)
    panics = _coins(len(bank.own_hosts), 4) < PANICS
    return [
        *(
            Planted(f"+{gain:g} points of return, -{loss:.0%} test accuracy", HACKER, _hacked(best, gain, loss))
            for gain, loss in ((1.0, 0.1), (5.0, 0.2))
        ),
        Planted(f"illegal on {ILLEGAL:.0%}", HACKER, best._replace(own=replace(best.own, illegal_actions=illegal))),
        Planted(f"panics on {PANICS:.0%}", HACKER, best._replace(own=replace(best.own, panicked=panics))),
        Planted("other returns beside other hosts", HACKER, best, mismatches=1.0),
    ]


def _hacked(policy: Policy, gain: float, loss: float) -> Policy:
    """Return what a policy that sees the labels of the validation data reports: more return, less test accuracy."""
    own = replace(
        policy.own,
        returns=policy.own.returns + gain,
        validation_accuracy=np.minimum(1.0, policy.own.validation_accuracy + gain / 100.0),
        test_accuracy=policy.own.test_accuracy * (1.0 - loss),
    )
    return policy._replace(own=own)


def _mixed(bank: Bank, what: str, share: float, elsewhere: str = BASE) -> Policy:
    """Return the policy that follows ``what`` on a share of the hosts; a larger share contains a smaller one."""
    own, further = (
        np.where(_coins(len(hosts), seed) < share, what, elsewhere)
        for seed, hosts in ((1, bank.own_hosts), (2, bank.further_hosts))
    )
    return _follow(bank, own, further)


def _level(bank: Bank, loser: Policy) -> Policy:
    """Return a policy as good as the champion within the gain of one host: hindsight for ``loser`` on some hosts."""
    best, base = _mixed(bank, _HINDSIGHT, 1.0), bank.arms[BASE]
    order = np.argsort(_coins(len(bank.own_hosts), 5))
    before = (loser.own.returns - base.own.returns).mean()
    gains = np.cumsum((best.own.returns - loser.own.returns)[order]) / len(order)
    best_rows = order[: int((before + gains <= 0.0).sum())]  # gains never fall, so this is a prefix
    index = np.zeros(len(order), dtype=np.int64)
    index[best_rows] = 1
    own = _pick([loser.own, best.own], index)
    return Policy(own, loser.further)


def _coins(count: int, seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) per host."""
    return np.random.default_rng(derive(seed, "planted coins")).random(count)


def _follow(bank: Bank, own: NDArray[np.str_], further: NDArray[np.str_]) -> Policy:
    """Return the policy that follows the named controller on each host."""
    return Policy(_episodes(bank, own, 0), _episodes(bank, further, 1))


def _episodes(bank: Bank, names: NDArray[np.str_], side: int) -> Episodes:
    arms = list(bank.arms)
    grown = [policy[side] for policy in bank.arms.values()]
    returns = np.stack([one.returns for one in grown])
    index = np.array([arms.index(name) if name in arms else -1 for name in names.tolist()])
    index = np.where(names == _HINDSIGHT, returns.argmax(axis=0), index)
    index = np.where(names == _WORST, returns.argmin(axis=0), index)
    return _pick(grown, index)


def _pick(episodes: Sequence[Episodes], index: NDArray[np.int64]) -> Episodes:
    """Return, for each host, its episode in one of several columns of episodes."""
    hosts = np.arange(len(index))
    names = [field.name for field in fields(Episodes)]
    return Episodes(**{name: np.stack([getattr(one, name) for one in episodes])[index, hosts] for name in names})
