"""Comparison of controllers by pairs, from trials on the same hosts, at once or in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from simic.app.container import Container
from simic.app.evidence.judging_experience import reporter_of_comparison
from simic.app.names.trial_controllers import SelectedControllers, select_controllers
from simic.app.training import try_controllers
from simic.contracts.errors import ConfigError
from simic.contracts.results.comparison import Comparison, SequentialStop, Verdict
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.validation.comparison import BOUND, check_first_look, compare_pairs, looks_of
from simic.validation.episodes import Episodes, join
from simic.validation.trials import grow_all, trial_report, trial_seed, with_wait

__all__ = ["compare", "compare_until_decided"]


def compare(container: Container, arms: Sequence[str], host_keys: Sequence[int] | None, split: Split) -> Comparison:
    """Grow the same hosts under all arms and compare these by pairs.

    Raises:
        ConfigError: if fewer than 2 hosts or arms are named, two arms are the same, an arm is unknown, or the episodes
            are to land and a host is not of the test split.
    """
    if host_keys is not None and len(host_keys) < 2:
        raise ConfigError(f"a comparison needs 2 or more hosts, found {len(host_keys)}; give more --host-keys")
    labels = list(_select_arms(container, arms).specs)
    report = try_controllers(container, arms, host_keys, split, may_land=True)
    return Comparison(pairs=compare_pairs(report, list(combinations(labels, 2)), container.config.trial), trials=report)


def _select_arms(container: Container, arms: Sequence[str]) -> SelectedControllers:
    if len(arms) < 2:
        found = arms[0] if arms else "none"
        raise ConfigError(f"a comparison needs 2 or more arms, with a space between them; found {found}")
    chosen = select_controllers(container, arms)
    if len(chosen.specs) != len(arms):
        raise ConfigError(f"expected different arms, found {', '.join(arms)}, which are {', '.join(chosen.specs)}")
    return chosen


def compare_until_decided(container: Container, arms: Sequence[str], split: Split) -> Comparison:
    """Compare as ``compare``, in rounds of hosts, until every pair shows a difference or all hosts have grown.

    The hosts are those of a trial of the present number of hosts per family. P values and intervals hold at every look
    (``numerics.sequential``), so that stopping when they show something keeps their level.

    Raises:
        ConfigError: if fewer than 2 arms are named, two arms are the same, an arm is unknown, the episodes are to land
            and the split is not the test split, or the hosts of the first look are too few for an interval of the
            confidence.
    """
    chosen, config, clock = _select_arms(container, arms), container.config, container.clock
    world, provenance, started_at = config.world, container.provenance, container.clock()
    families = len(host_set(world.set).families)
    counts, looks = looks_of(families, config.trial.hosts_per_family)
    check_first_look(looks, config.trial)
    reporter = reporter_of_comparison(container, chosen, identify(world.set, draw_keys(world.set, split, counts[0])))
    specs, grown, keys = with_wait(chosen.specs), dict[str, Episodes](), list[int]()
    with container.progress.task("compare", counts[-1] * len(specs)) as advance:
        for count in counts:
            drawn = set(keys)
            # The first hosts of each family: those of every larger count are among them.
            new = [key for key in draw_keys(world.set, split, count) if key not in drawn]
            added = grow_all(
                specs, identify(world.set, new), world, config.curate.reward.basic, trial_seed(provenance),
                lambda episodes: advance(len(episodes.returns)), reporter, config.curate.flags,
            )  # fmt: skip
            grown = {name: join([grown[name], part]) if grown else part for name, part in added.items()}
            keys += new
            report = trial_report(
                grown, identify(world.set, keys), world, config.trial, provenance=provenance, started_at=started_at,
                finished_at=clock(), policy_digest=None, book=chosen.book,
            )  # fmt: skip
            pairs = compare_pairs(report, list(combinations(chosen.specs, 2)), config.trial, looks)
            is_decided = all(pair.verdict is not Verdict.NOT_SHOWN for pair in pairs)
            if is_decided:
                break
    stop = SequentialStop(
        looks=counts.index(len(keys)) + 1,
        most_looks=len(counts),
        hosts=len(keys),
        most_hosts=counts[-1],
        is_decided=is_decided,
        bound=BOUND,
    )
    return Comparison(pairs=pairs, trials=container.save_receipt(report), sequential=stop)
