"""Judge planted policies with the gate, and write the rates into ``docs/trust.md`` and ``docs/trust-planted.png``.

``make trust`` runs it. Growing the bank takes some minutes on one core, and judging again as long. Hosts of a judgement
are simulated: for each, one of the bank of the same family is drawn with replacement. Everything else is the gate's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from marked_part import replace_part
from numpy.typing import NDArray
from planted_policies import BASE, CLONE, HACKER, NEVER_WORSE, WITH_LOSSES, Bank, Planted, Policy, grow_bank, plant

from simic.contracts.names import CANDIDATE, CHAMPION
from simic.contracts.results.gate import GateDecision, Probe, ValidationReport, Verdict
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import RunConfig, TrialConfig
from simic.contracts.state import HostIdentity
from simic.ledgers.judgements import next_judgement
from simic.numerics.mean_bounds import lower_bound
from simic.numerics.spending import level
from simic.trust.canonical import digest_of
from simic.validation.baselines.plan_book import BookUse
from simic.validation.criteria import commit_rate, determinism_mismatches, mean_ratio
from simic.validation.criteria.return_over import BASELINES
from simic.validation.episodes import Episodes
from simic.validation.palette import BLUE, GREEN, ORANGE
from simic.validation.plots import new_figure, save, style_axes
from simic.validation.promotion_gate import applied_criteria, decide
from simic.validation.report import differences_of, held_out_hosts
from simic.validation.trials import trial_report

PAGE = Path(__file__).parents[1] / "trust.md"
PICTURE = Path(__file__).parents[1] / "trust-planted.png"
BEGIN, END = "<!-- measured by docs/scripts/draw_planted.py -->", "<!-- end of the planted policies -->"

HOSTS, FURTHER_HOSTS = 600, 160
"""Hosts of the bank, on the run's set and on the further one."""
RUNS, NIGHTS, HOMES, FEW_HOMES, TRIES = 200, 60, 100, 20, 20
LEVEL = 0.1
"""Loss in points up to which a clone counts as level with the champion."""
SHOWN = (2, 10, 40)
"""Judgements of which the power is shown; the second one, after the first champion, has the largest level."""
CONFIG = RunConfig(trial=TrialConfig(bootstrap_samples=200))
"""The defaults. The gate decides by bounds that resample nothing, so few resamples suffice."""
NOW, PROVENANCE = datetime(2026, 1, 1, tzinfo=UTC), Provenance("planted", digest_of("planted"), 0)
PROBES = {one.NAME: Probe(value=0.0, count=1) for one in applied_criteria(()) if hasattr(one, "measure")}
"""What probes find in every planted policy but a hacker: no network is there to examine."""
HEALTHY = {commit_rate.NAME: 0.8, mean_ratio.NAME: 0.8}
"""Training metrics of every planted policy: nothing was trained."""

Judge = Callable[[Planted, Policy, Judgement, int], bool]


class Gate:
    """Judges policies of a bank: each judgement has hosts of its own, for which hosts of the bank stand in."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._rows = tuple(_by_family(hosts) for hosts in (bank.own_hosts, bank.further_hosts))

    def accepts(self, one: Planted, champion: Policy, judgement: Judgement, seed: int) -> bool:
        """Return whether the gate accepts, without the other criteria where that on the champion fails."""
        hosts, rows = self._drawn(0, judgement.ordinal, seed)
        differences = (one.policy.own.returns - champion.own.returns)[rows]
        bound = lower_bound(differences, judgement.alpha, [host.family for host in hosts]).lower
        return bool(bound > self._bank.config.gate.margin_over_champion) and (
            self.judge(one, champion, judgement, seed).accepted
        )

    def judge(self, one: Planted, champion: Policy, judgement: Judgement, seed: int) -> GateDecision:
        """Return the gate's decision on hosts of a judgement; ``seed`` chooses the hosts of the bank."""
        config = self._bank.config
        return decide(
            self.report(one, champion, judgement.ordinal, seed),
            config.gate,
            judgement=judgement,
            trial=config.trial,
            min_commit_rate=config.train.min_commit_rate,
            provenance=PROVENANCE,
            now=NOW,
        )

    def report(self, one: Planted, champion: Policy, ordinal: int, seed: int) -> ValidationReport:
        """Return the evidence about a candidate, composed by the functions of ``simic validate``."""
        arms, digest = self._bank.arms, digest_of(one.name)
        own = {name: policy.own for name, policy in arms.items() if not name.startswith("noisy")}
        own |= {CANDIDATE: one.policy.own, CHAMPION: champion.own}
        further = {"wait": arms["wait"].further, CANDIDATE: one.policy.further}
        trials, elsewhere = (
            self._trials(side, policies, digest, ordinal, seed) for side, policies in enumerate((own, further))
        )
        return ValidationReport(
            **PROVENANCE._asdict(),
            started_at=NOW,
            finished_at=NOW,
            ordinal=ordinal,
            policy_digest=digest,
            champion_digest=digest_of("champion"),
            snapshot_digest=digest_of("no snapshot"),
            trials=trials,
            differences=differences_of(trials, self._bank.config.trial, PROVENANCE.seed),
            training_metrics=HEALTHY,
            figures={},
            probes={**PROBES, determinism_mismatches.NAME: Probe(value=one.mismatches, count=1)},
            further=[elsewhere],
        )

    def _trials(self, side: int, policies: Mapping[str, Episodes], digest: str, ordinal: int, seed: int) -> TrialReport:
        """Return the trials on the hosts of a judgement."""
        config = (self._bank.config, self._bank.further)[side]
        hosts, rows = self._drawn(side, ordinal, seed)
        drawn = {name: episodes.take(rows) for name, episodes in policies.items()}
        return trial_report(
            drawn, hosts, config.world, config.trial, provenance=PROVENANCE, started_at=NOW, finished_at=NOW,
            policy_digest=digest, book=BookUse(digest_of("the shipped plan book")),
        )  # fmt: skip

    def _drawn(self, side: int, ordinal: int, seed: int) -> tuple[tuple[HostIdentity, ...], NDArray[np.int64]]:
        """Return the hosts of a judgement and, for each, a host of the bank of the same family."""
        config = (self._bank.config, self._bank.further)[side]
        hosts = _hosts(config, config.gate.min_episodes if side == 0 else 0, ordinal)
        numbers = np.random.default_rng([side, ordinal, seed]).random(len(hosts))
        pools = [self._rows[side][host.family] for host in hosts]
        return hosts, np.array([pool[int(u * len(pool))] for pool, u in zip(pools, numbers, strict=True)])


@lru_cache(maxsize=256)
def _hosts(config: RunConfig, least: int, ordinal: int) -> tuple[HostIdentity, ...]:
    return held_out_hosts(ordinal, config.world, config.trial, least)


def _by_family(hosts: Sequence[HostIdentity]) -> dict[str, NDArray[np.int64]]:
    labels = np.array([host.family for host in hosts])
    return {family: np.flatnonzero(labels == family) for family in dict.fromkeys(labels.tolist())}


def gain(one: Policy, other: Policy) -> float:
    """Return the true gain in points: judgements draw from the bank, so its mean is exact for them."""
    return float((one.own.returns - other.own.returns).mean())


def error(one: Policy, other: Policy) -> float:
    """Return the standard error of ``gain`` for hosts outside the bank."""
    differences = one.own.returns - other.own.returns
    return float(differences.std(ddof=1) / np.sqrt(len(differences)))


def is_wrong(one: Planted, champion: Policy, bank: Bank) -> bool:
    """Return whether promoting a candidate would be wrong: no better than an opponent, or a hacker."""
    opponents = [champion, *(bank.arms[name] for name in BASELINES)]
    return one.kind == HACKER or any(gain(one.policy, other) <= 0.0 for other in opponents)


class Promotion(NamedTuple):
    """A candidate that the gate accepted."""

    name: str
    gain: float
    is_wrong: bool


def nights(bank: Bank, planted: Sequence[Planted], accepts: Judge, seed: int, count: int) -> list[Promotion]:
    """Return the promotions of a home in which a planted policy is judged every night.

    The first judgement made the tree champion, and its level passes on, as in a new home. An accepted candidate is the
    champion of the next night, and the levels are those of the home's ledger.
    """
    random, champion = np.random.default_rng([seed, count]), bank.arms[BASE]
    earlier, accepted, against = [next_judgement([], (), 0, CONFIG.gate.error_budget)], {1}, 0
    found = []
    for _ in range(count):
        one = planted[int(random.integers(len(planted)))]
        judgement = next_judgement(earlier, accepted, against, CONFIG.gate.error_budget)
        earlier.append(judgement)
        against += 1
        if accepts(one, champion, judgement, seed):
            found.append(Promotion(one.name, gain(one.policy, champion), is_wrong(one, champion, bank)))
            accepted.add(judgement.ordinal)
            champion, against = one.policy, 0
    return found


def at(ordinal: int) -> Judgement:
    """Return a judgement against the first champion; the second has the level of the first in addition."""
    budget = CONFIG.gate.error_budget
    alpha = level(ordinal, budget, level(1, budget) if ordinal == SHOWN[0] else 0.0)
    return Judgement(ordinal=ordinal, attempts=1, budget=budget, alpha=alpha, spent=alpha)


def same_level(accepts: Judge) -> Judge:
    """Return a gate that spends the whole budget on every judgement."""
    budget = CONFIG.gate.error_budget
    return lambda one, champion, judgement, seed: accepts(
        one, champion, judgement.model_copy(update={"alpha": budget}), seed
    )


def section(bank: Bank) -> Iterator[str]:
    """Yield the part of the page, and draw the picture."""
    planted, champion, gate = plant(bank), bank.arms[BASE], Gate(bank)
    yield _bank_text(bank, planted)
    yield from ("", *_runs_table(bank, planted, gate), "", *_nights_table(bank, planted, gate), "")
    better = [one for one in planted if not is_wrong(one, champion, bank)]
    by_ordinal = {
        ordinal: [
            float(np.mean([gate.accepts(one, champion, at(ordinal), seed) for seed in range(TRIES)])) for one in better
        ]
        for ordinal in SHOWN
    }
    draw(better, champion, by_ordinal)
    yield from _power_table(better, champion, by_ordinal)


def _bank_text(bank: Bank, planted: Sequence[Planted]) -> str:
    champion = bank.arms[BASE]
    wrong = sum(is_wrong(one, champion, bank) for one in planted)
    errors = [error(one.policy, champion) for one in planted]
    return (
        f"{len(bank.own_hosts)} hosts of `{bank.config.world.set}` and {len(bank.further_hosts)} of "
        f"`{bank.further.world.set}` were grown under {len(bank.arms)} controllers. Of {len(planted)} planted policies "
        f"{wrong} must not be promoted over `{BASE}`. The value of a policy is its mean return on the whole bank, "
        f"exact for judgements that draw from it; for hosts outside the bank the standard error of a gain is up to "
        f"{max(errors):.2f} points, {np.median(errors):.2f} in the median."
    )


def _runs_table(bank: Bank, planted: Sequence[Planted], gate: Gate) -> Iterator[str]:
    """Yield the gate runs of the policies that must not be promoted, each as judgement 2."""
    champion = bank.arms[BASE]
    wrong = [one for one in planted if is_wrong(one, champion, bank)]
    judged: dict[str, list[GateDecision]] = {}
    for run in range(RUNS):
        one = wrong[run % len(wrong)]
        judged.setdefault(one.name, []).append(gate.judge(one, champion, at(SHOWN[0]), run))
    accepted = sum(one.accepted for found in judged.values() for one in found)
    yield (
        f"{RUNS} gate runs of the {len(wrong)} policies that must not be promoted, at the largest level of any "
        f"judgement, {at(SHOWN[0]).alpha:.2g}: {accepted} promoted."
    )
    yield from ("", "| planted policy | kind | true gain | promoted | rejected by |", "|---|---|---|---|---|")
    for one in wrong:
        decisions = judged[one.name]
        failed = Counter(
            line.name for found in decisions for line in found.criteria if line.verdict is not Verdict.PASS
        )
        reasons = ", ".join(f"`{name}`" for name, _ in failed.most_common(2))
        promoted = f"{sum(found.accepted for found in decisions)} of {len(decisions)}"
        yield f"| {one.name} | {one.kind} | {gain(one.policy, champion):+.2f} | {promoted} | {reasons} |"


def _nights_table(bank: Bank, planted: Sequence[Planted], gate: Gate) -> Iterator[str]:
    """Yield what homes promote in sixty nights, under the gate and with the same level every night."""
    level_ones = [one for one in planted if one.kind == CLONE and gain(one.policy, bank.arms[BASE]) > -LEVEL]
    yield (
        f"{NIGHTS} nights in a row in {HOMES} homes ({FEW_HOMES} in the last column); an accepted candidate is the "
        "next champion. Share of homes with a wrong promotion, which is one of a hacker or of a policy no better than "
        "the champion of that night or a baseline:"
    )
    yield from (
        "",
        "| a night's candidate | the gate | wrongly promoted | right promotions | 2.5 % every night |",
        "|---|---|---|---|---|",
    )
    for what, pool in ((f"one of all {len(planted)}", planted), (f"one of {len(level_ones)} level clones", level_ones)):
        ours = [nights(bank, pool, gate.accepts, home, NIGHTS) for home in range(HOMES)]
        theirs = [nights(bank, pool, same_level(gate.accepts), home, NIGHTS) for home in range(FEW_HOMES)]
        wrong, other = (np.mean([any(one.is_wrong for one in home) for home in homes]) for homes in (ours, theirs))
        right = np.mean([sum(not one.is_wrong for one in home) for home in ours])
        names = Counter(one.name for home in ours for one in home if one.is_wrong)
        named = "; ".join(f"{name}: {count}" for name, count in names.most_common()) or "-"
        yield f"| {what} | {wrong:.1%} | {named} | {right:.1f} a home | {other:.1%} |"


def _power_table(
    better: Sequence[Planted], champion: Policy, by_ordinal: Mapping[int, Sequence[float]]
) -> Iterator[str]:
    yield f"Promotion rate of the policies that are better, of {TRIES} gate runs each:"
    heads = [f"judgement {ordinal}" for ordinal in by_ordinal]
    yield from ("", f"| planted policy | true gain | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|")
    for row in sorted(range(len(better)), key=lambda index: gain(better[index].policy, champion)):
        cells = " | ".join(f"{found[row]:.0%}" for found in by_ordinal.values())
        yield f"| {better[row].name} | {gain(better[row].policy, champion):+.2f} | {cells} |"


def draw(better: Sequence[Planted], champion: Policy, by_ordinal: Mapping[int, Sequence[float]]) -> None:
    """Draw the promotion rate over the true gain, with its standard error."""
    figure = new_figure(7.0, 3.8)
    axes, gains = figure.subplots(), np.array([gain(one.policy, champion) for one in better])
    for kind, style in ((WITH_LOSSES, "-"), (NEVER_WORSE, ":")):
        rows = np.array([row for row in np.argsort(gains) if better[row].kind == kind], dtype=np.int64)
        for (ordinal, found), colour in zip(by_ordinal.items(), (BLUE, ORANGE, GREEN), strict=True):
            rate = np.asarray(found)[rows]
            axes.errorbar(
                gains[rows], 100.0 * rate, 100.0 * np.sqrt(rate * (1.0 - rate) / TRIES), color=colour, marker="o",
                markersize=3, linewidth=1.2, linestyle=style, label=f"judgement {ordinal}: {kind}",
            )  # fmt: skip
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel("true gain of a planted policy over the champion, points", fontsize=8)
    axes.set_ylabel("gate runs that promote, %", fontsize=8)
    axes.legend(frameon=False, fontsize=7)
    style_axes(axes)
    save(figure, PICTURE)


def main() -> None:
    """Replace what stands between the marks of the page."""
    bank = grow_bank(CONFIG, HOSTS, FURTHER_HOSTS, print)
    replace_part(PAGE, BEGIN, END, "\n".join(section(bank)))


if __name__ == "__main__":
    main()
