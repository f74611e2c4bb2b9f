"""Measure the errors and the power of the gate on logs of a small known world, and write them into ``docs/trust.md``.

Run ``make trust``, some minutes on one core. In that world a controller first waits, or plants seed A or B; a planted
seed is kept or removed at each of seven further steps. Rewards are drawn so that true gains are known.
Evidence and criteria are those of the gate, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from marked_part import replace_part
from numpy.typing import NDArray

from simic.app.evidence.judging import MOST_EPISODES
from simic.contracts.names import CANDIDATE, WAIT
from simic.contracts.results.gate import ValidationReport, Verdict
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.log_evidence import LogEvidence
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import GateConfig, TrialConfig
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.numerics.off_policy import LoggedEpisodes
from simic.numerics.spending import level
from simic.replay.cut_off import CutOff
from simic.replay.logged import EpisodeHead
from simic.validation.criteria import CRITERIA
from simic.validation.criterion import REPORTS, Case
from simic.validation.held_out import HeldOut, held_out_episodes
from simic.validation.log_evidence import LogUse, log_differences, log_evidence
from simic.validation.off_policy import LEAST_HOSTS

PAGE = Path(__file__).parents[1] / "trust.md"
BEGIN, END = "<!-- measured by docs/scripts/measure_log_gate.py -->", "<!-- end of the measurements on logs -->"

Floats = NDArray[np.float64]
SET, HOSTS, STEPS = "graftnet", 1000, 8
LOGS, POWER_LOGS, HOMES, NIGHTS = 2000, 400, 400, 60
SPREAD = 4.0
"""Standard deviation of returns over hosts, in points."""
GATE, TRIAL = GateConfig(evidence="reports"), TrialConfig()
BUDGET = GATE.error_budget
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUPPORT = ("log_cut_off", "log_effective_hosts", "log_largest_share", "log_mean_weight")
BOUNDS = ("log_return_over",)
TEST_KEYS = [key for key in range(80 * HOSTS) if split_of(SET, key) is Split.TEST][: 4 * HOSTS]
IDENTITIES = [HostIdentity(set=SET, family="narrow", key=key) for key in TEST_KEYS[:HOSTS]]


class Policy(NamedTuple):
    """Probabilities of what a controller does."""

    first: tuple[float, float, float]
    """Wait, plant A, plant B."""
    keep: float
    """Keep a planted seed at a later step."""
    unlogged: float = 0.0
    """Share of its episodes in which it does what the log never shows."""


LOGGER = Policy((0.4, 0.3, 0.3), 0.95)
WAITING = Policy((1.0, 0.0, 0.0), LOGGER.keep)


class Other(NamedTuple):
    """A second logging controller."""

    policy: Policy
    hosts: int
    loss: float = 0.0
    """Points that its hosts earn less, whoever acts."""


GUESTS = [
    EpisodeHead(f"guest {row:05}", SET, key, Split.TEST.value, f"guest {row // (LEAST_HOSTS - 1)}", None, None, False)
    for row, key in enumerate(TEST_KEYS[HOSTS : 4 * HOSTS])
]
"""Whole episodes of controllers with too few hosts to judge by."""


class Log(NamedTuple):
    """Episodes of the logging controllers."""

    first: NDArray[np.int64]
    """[B]: 0 waits, 1 planted A, 2 planted B."""
    kept: NDArray[np.bool_]
    """[T, B]: the seed was kept, or there is none."""
    rewards: Floats
    """[T, B]"""
    log_probs: Floats
    """[T, B]: of the actions under the controller that logged them."""
    behaviours: list[str]
    """[B]: the controller that logged each episode."""
    held_out: HeldOut
    """Which episodes the gate uses, and the shares of those that were cut off; they are not among these."""


Pay = Callable[[np.random.Generator, NDArray[np.int64]], Floats]
"""Returns what each episode earns beyond its host's own return, given what was planted."""


def rare(share: float, loss: float) -> Pay:
    """Seed A loses much on a share of the hosts, and gains as much in the mean on all others."""

    def pay(random: np.random.Generator, first: NDArray[np.int64]) -> Floats:
        found: Floats = np.where(first == 1, loss * (share - (random.random(len(first)) < share)), 0.0)
        return found

    return pay


def mixed(random: np.random.Generator, first: NDArray[np.int64]) -> Floats:
    """Seed A gains 8 points on half of the hosts and loses 8 on the others."""
    return np.where(first == 1, 8.0 * random.choice([-1.0, 1.0], len(first)), 0.0)


def flat(gain: float) -> Pay:
    """Both seeds gain equally."""
    return lambda _, first: gain * (first > 0)


def skewed(random: np.random.Generator, first: NDArray[np.int64]) -> Floats:
    """A seed gains a little mostly and loses more the more seldom."""
    return np.where(first > 0, 3.0 * (1.0 - random.exponential(size=len(first))), 0.0)


def log_of(
    random: np.random.Generator,
    pay: Pay,
    crashes: float = 0.0,
    other: Other | None = None,
    guests: bool = False,
    loggers: int = 1,
) -> Log:
    """Draw a log; trainings with seed A break down with probability ``crashes``.

    With ``guests`` the snapshot holds three times as many whole episodes besides, of controllers with too few hosts.
    The episodes of the log are of ``loggers`` controllers that act alike.
    """
    others = 0 if other is None else other.hosts
    first = random.choice(3, HOSTS, p=LOGGER.first)
    kept = random.random((STEPS, HOSTS)) < LOGGER.keep
    rewards = random.normal(0.0, 0.3, (STEPS, HOSTS))
    if other is not None:
        first[:others] = random.choice(3, others, p=other.policy.first)
        kept[:, :others] = random.random((STEPS, others)) < other.policy.keep
        rewards[-1, :others] -= other.loss
    kept |= first == 0
    kept[0] = True
    rewards[-1] += 40.0 + random.normal(0.0, SPREAD, HOSTS) + pay(random, first)
    log_probs = _log_probs(first, kept, LOGGER)
    if other is not None:
        log_probs[:, :others] = _log_probs(first[:others], kept[:, :others], other.policy)
    whole = np.ones(HOSTS, dtype=bool)
    if crashes:
        whole = (first != 1) | (random.random(HOSTS) >= crashes)
    behaviours = ["other" if row < others else f"logger {row * loggers // HOSTS}" for row in range(HOSTS)]
    used = [one for one, is_whole in zip(behaviours, whole.tolist(), strict=True) if is_whole]
    chosen = _chosen(whole, behaviours, guests)
    return Log(first[whole], kept[:, whole], rewards[:, whole], log_probs[:, whole], used, chosen)


def _chosen(whole: NDArray[np.bool_], behaviours: list[str], guests: bool) -> HeldOut:
    """Return what the gate uses of a snapshot with these episodes, [B] each."""
    cut_off, heads = list[CutOff](), GUESTS.copy() if guests else list[EpisodeHead]()
    for row, (is_whole, behaviour) in enumerate(zip(whole.tolist(), behaviours, strict=True)):
        run_id = f"log {row:05}"
        if is_whole:
            heads.append(EpisodeHead(run_id, SET, TEST_KEYS[row], Split.TEST.value, behaviour, None, None, False))
        else:
            cut_off.append(CutOff(run_id, "unfinished", SET, behaviour, TEST_KEYS[row], behaviour))
    return held_out_episodes(heads, [SET], MOST_EPISODES, cut_off)


def weighted(log: Log, policy: Policy) -> LoggedEpisodes:
    """Return the weights of a log under a policy."""
    return LoggedEpisodes.of(
        log_prob_target=_log_probs(log.first, log.kept, policy)
        + np.log1p(-policy.unlogged) * (np.arange(STEPS) == 0)[:, None],
        log_prob_behaviour=log.log_probs,
        rewards=log.rewards,
        valid=np.ones(log.kept.shape, dtype=bool),
    )


def _log_probs(first: NDArray[np.int64], kept: NDArray[np.bool_], policy: Policy) -> Floats:
    with np.errstate(divide="ignore"):
        found = np.where(first == 0, 0.0, np.log(np.where(kept, policy.keep, 1.0 - policy.keep)))
        found[0] = np.log(np.array(policy.first))[first]
    return found


def judged(log: Log, policy: Policy, alpha: float) -> tuple[bool, bool]:
    """Return whether the evidence suffices for the criteria of support, and whether all bounds pass."""
    shares, hosts = (log.held_out.cut_off, log.held_out.group_cut_off), IDENTITIES[: len(log.first)]
    use = LogUse("0" * 64, log.held_out.left_out, hosts, log.behaviours, [STEPS], *shares)
    case = case_of(log_evidence(use, {CANDIDATE: weighted(log, policy), WAIT: weighted(log, WAITING)}), alpha)
    return _pass(case, SUPPORT), _pass(case, BOUNDS)


def case_of(evidence: LogEvidence, alpha: float) -> Case:
    """Return what the gate judges: a candidate without a champion, at a level."""
    own = Provenance("0", "0" * 64, 0)._asdict() | {"started_at": NOW, "finished_at": NOW}
    trials = TrialReport(**own, set=SET, host_keys=[], families=[], controllers=[], plans_digest=None)
    report = ValidationReport(
        **own, ordinal=1, policy_digest="1" * 64, champion_digest=None, snapshot_digest="0" * 64, evidence=REPORTS,
        trials=trials, differences=log_differences(evidence, TRIAL.confidence), training_metrics={}, figures={},
        log=evidence,
    )  # fmt: skip
    judgement = Judgement(ordinal=1, attempts=1, budget=BUDGET, alpha=alpha, spent=alpha)
    return Case(report, GATE, TRIAL, judgement, 0.0, "0" * 64)


def _pass(case: Case, names: tuple[str, ...]) -> bool:
    lines = [line for name in names for line in CRITERIA.load(name).judge(case)]
    return all(line.verdict is Verdict.PASS for line in lines)


GROWS = Policy((0.15, 0.5, 0.35), 0.97)
ELSEWHERE = Other(Policy((1.0, 0.0, 0.0), 0.95), 50, 20.0)
ALIKE = Other(Policy((0.5, 0.25, 0.25), 0.95), 400, 20.0)


class Scene(NamedTuple):
    """A world, what else the log is, and a candidate."""

    pay: Pay
    policy: Policy
    crashes: float = 0.0
    other: Other | None = None
    guests: bool = False


NULLS: Mapping[str, Scene] = {
    "seeds change nothing": Scene(flat(0.0), GROWS),
    "a seed gains 8 points on half of the hosts and loses 8 on the others": Scene(mixed, GROWS),
    "skewed to the left (exponential)": Scene(skewed, GROWS),
    "a loss of 20 points on 5 % of the hosts with seed A": Scene(rare(0.05, 20.0), GROWS),
    "a loss of 40 points on 1 % of the hosts with seed A": Scene(rare(0.01, 40.0), GROWS),
    "a loss of 400 points on 0.2 % of the hosts with seed A": Scene(rare(0.002, 400.0), GROWS),
    "seeds lose 0.5 points": Scene(flat(-0.5), GROWS),
    "the candidate acts as the log": Scene(mixed, LOGGER),
    "the candidate waits, seeds lose 2 points": Scene(flat(-2.0), WAITING),
    "seeds gain 2 points; in 3 % of its episodes the candidate does what the log lacks, and loses all":
        Scene(flat(2.0), GROWS._replace(unlogged=0.03)),
    "the same in 10 % of its episodes": Scene(flat(2.0), GROWS._replace(unlogged=0.1)),
    "seeds gain 2 points; 10 % of the trainings with seed A break down and would lose 40 points":
        Scene(flat(2.0), GROWS, crashes=0.1),
    "the same, and 3,000 whole episodes of controllers with fewer than 50 hosts each":
        Scene(flat(2.0), GROWS, crashes=0.1, guests=True),
    "seeds gain 0.7 points; 3 % of the trainings with seed A break down and would lose 40 points":
        Scene(flat(0.7), GROWS, crashes=0.03),
    "seeds change nothing; 5 % of the hosts earn 20 points less, and another controller, which only waits, logged them":
        Scene(flat(0.0), GROWS, other=ELSEWHERE),
    "the same for 40 % of the hosts and a controller that plants, too": Scene(flat(0.0), GROWS, other=ALIKE),
}  # fmt: skip
"""Worlds in which a candidate must not be accepted."""
GAINS = (0.5, 1.0, 2.0, 4.0)
"""Points that a seed gains in the measurement of power."""


def random_policy(random: np.random.Generator) -> Policy:
    """Return a candidate of a home: some other probabilities than those of the log, near enough for an estimate."""
    waits, of_a = float(random.uniform(0.12, 0.5)), float(random.uniform(0.3, 0.7))
    return Policy((waits, (1.0 - waits) * of_a, (1.0 - waits) * (1.0 - of_a)), float(random.uniform(0.94, 0.97)))


def home_of(seed: int) -> NDArray[np.bool_]:
    """Return bool [60, 2]: what ``judged`` says of each candidate of a home on one log, whose seeds gain nothing."""
    random = np.random.default_rng(seed)
    log = log_of(random, mixed)
    return np.array([judged(log, random_policy(random), level(night, BUDGET)) for night in range(1, NIGHTS + 1)])


def _errors() -> Iterator[str]:
    yield "| world and candidate | sufficient evidence | bounds pass | accepted |"
    yield "|---|---|---|---|"
    for name, (pay, policy, crashes, other, guests) in NULLS.items():
        random = np.random.default_rng(1)
        logs = (log_of(random, pay, crashes, other, guests) for _ in range(LOGS))
        found = np.array([judged(log, policy, level(1, BUDGET)) for log in logs])
        enough, passes = found.T
        yield f"| {name} | {enough.mean():.0%} | {passes.mean():.2%} | {(enough & passes).mean():.2%} |"


def _power() -> Iterator[str]:
    yield "|  | " + " | ".join(f"seeds gain {gain:g} points" for gain in GAINS) + " |"
    yield "|---" * (1 + len(GAINS)) + "|"
    for night, loggers in ((1, 1), (10, 1), (40, 1), (1, 10)):
        shares = []
        for gain in GAINS:
            random = np.random.default_rng(2)
            logs = (log_of(random, flat(gain), loggers=loggers) for _ in range(POWER_LOGS))
            found = [judged(log, GROWS, level(night, BUDGET)) for log in logs]
            shares.append(f"{np.all(found, axis=1).mean():.0%}")
        of_many = f", logged by {loggers} controllers" if loggers > 1 else ""
        yield f"| judgement {night}{of_many} | {' | '.join(shares)} |"


def measurements() -> str:
    """Return the tables in Markdown."""
    homes = np.array([home_of(seed) for seed in range(HOMES)])
    accepting, sufficient = homes.all(axis=2).any(axis=1), homes[:, :, 0]
    parts = [
        f"{LOGS:,} logs of {HOSTS:,} held-out hosts per line, at the level of the first judgement, "
        f"{level(1, BUDGET):.2%}. The promise is about the last column.",
        "\n".join(_errors()),
        f"{NIGHTS} candidates in a row on one and the same log, whose seeds gain on half of the hosts what they lose "
        f"on the others: {accepting.mean():.1%} of {HOMES} homes accept at least one; the budget is {BUDGET:.1%}. The "
        f"evidence suffices for {sufficient.mean():.0%} of the candidates, and for at least one in "
        f"{sufficient.any(axis=1).mean():.0%} of the homes.",
        "Chance that a candidate is accepted that plants in 85 % of its episodes, where the log plants in 60 %:",
        "\n".join(_power()),
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Measure, and replace the tables of the page."""
    replace_part(PAGE, BEGIN, END, measurements())


if __name__ == "__main__":
    main()
