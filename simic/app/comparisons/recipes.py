"""Recipes: complete configurations that are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simic.app.container import Container
from simic.contracts.errors import ConfigError
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.results.trials import SeedChoice
from simic.contracts.settings.run import RunConfig
from simic.hosts.world_identity import world_identity
from simic.registry.mlflow_run import flatten
from simic.runtime.settings import config_digest

__all__ = ["Recipe", "differing_settings", "judging_config", "newest_policy"]


class Recipe(NamedTuple):
    """A complete configuration and how it was named."""

    name: str
    """Name in tables."""
    profile: str
    overrides: tuple[str, ...]
    config: RunConfig


def judging_config(recipes: Sequence[Recipe], set_name: str | None) -> RunConfig:
    """Return the settings under which the policies of all recipes are tried: those of the first one.

    Raises:
        ConfigError: if the recipes differ in a setting that decides the result of a trial; their sets may differ if
            ``set_name`` chooses one.
    """
    first = recipes[0].config
    chosen = set_name or first.world.set
    for other in recipes[1:]:
        if set_name is None and other.config.world.set != chosen:
            raise ConfigError(
                f"{recipes[0].name} trains on set {chosen}, {other.name} on {other.config.world.set}; name the set of "
                "the judging hosts with --set"
            )
        ours, theirs = _judging_settings(first, chosen), _judging_settings(other.config, chosen)
        # Some settings are named only where they differ from the usual ones.
        names = dict.fromkeys([*ours, *theirs])
        if wrong := next((name for name in names if ours.get(name) != theirs.get(name)), None):
            raise ConfigError(
                f"{recipes[0].name} and {other.name} differ in {wrong}: {ours.get(wrong, 'not set')} and "
                f"{theirs.get(wrong, 'not set')}. It decides how policies are judged; give both the same value, such "
                "as with -o for all recipes"
            )
    world = first.world.model_copy(update={"set": chosen, "without": ()})
    return first.model_copy(update={"world": world})


def _judging_settings(config: RunConfig, set_name: str) -> dict[str, Any]:
    world = config.world.model_copy(update={"set": set_name, "without": ()})
    return {
        **{f"world.{name}": value for name, value in world_identity(world).items() if name != "code"},
        **{f"curate.reward.{name}": value for name, value in config.curate.reward.basic},
    }


def newest_policy(container: Container, config: RunConfig, name: str) -> str:
    """Return the digest of the policy that this home trained last with exactly these settings, and chose if several.

    Raises:
        ConfigError: if there is none.
        IntegrityError: if the seal of its receipt is broken.
    """
    digest = config_digest(config)
    hint = f"no policy was trained with recipe {name} (configuration {digest[:12]}); `simic run` trains one"
    if config.train.seeds > 1:
        return container.receipts.find(SeedChoice, lambda choice: choice.config_digest == digest, hint).policy_digest
    return container.receipts.find(
        TrainingReport, lambda report: report.config_digest == digest and report.stopped is None, hint
    ).digest


def differing_settings(recipes: Sequence[Recipe]) -> list[dict[str, str]]:
    """Return for each recipe its values of the settings in which not all are equal, by dotted name."""
    flat = [dict(flatten(recipe.config.model_dump(mode="json"))) for recipe in recipes]
    names = dict.fromkeys(name for settings in flat for name in settings)
    differing = [name for name in names if len({settings.get(name) for settings in flat}) > 1]
    return [{name: settings[name] for name in differing if name in settings} for settings in flat]
