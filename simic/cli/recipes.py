"""Recipes on the command line: a profile, with the overrides that `simic run` would get."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simic.app.names.host_set_names import check_run
from simic.cli.console import parse_overrides
from simic.contracts.errors import ConfigError
from simic.runtime.settings import load_profile, profile_names

if TYPE_CHECKING:
    from simic.app.comparisons.recipes import Recipe

__all__ = ["RECIPE_HELP", "is_recipe", "parse_recipe", "parse_recipes"]

RECIPE_HELP = (
    "a shipped profile or the path of a TOML file, in quotes with overrides of its own, such as "
    "'quick -o train.distil_passes=5'"
)
_SUFFIX = ".toml"


def is_recipe(text: str) -> bool:
    """Return whether the name of an arm is a recipe: its first word is a shipped profile or a TOML file."""
    profile = _words(text)[0]
    return profile.endswith(_SUFFIX) or profile in profile_names()


def parse_recipes(texts: Sequence[str], common: Sequence[str] | None) -> tuple[Recipe, ...]:
    """Return the recipes with different names; ``common`` holds overrides that all of them get first.

    Raises:
        ConfigError: for fewer than two recipes, or one that ``parse_recipe`` refuses.
    """
    if len(texts) < 2:
        raise ConfigError(f"a comparison needs 2 or more recipes, found {len(texts)}; name another: {RECIPE_HELP}")
    recipes: list[Recipe] = []
    for text in texts:
        recipe = parse_recipe(text, common)
        same = sum(earlier.name == recipe.name or earlier.name.startswith(f"{recipe.name} (") for earlier in recipes)
        recipes.append(recipe._replace(name=f"{recipe.name} ({same + 1})") if same else recipe)
    return tuple(recipes)


def parse_recipe(text: str, common: Sequence[str] | None = None) -> Recipe:
    """Return a recipe with its resolved configuration.

    Raises:
        ConfigError: for an unknown profile or setting, or words that are no override.
    """
    from simic.app.comparisons.recipes import Recipe

    profile, *words = _words(text)
    flags, own = words[::2], words[1::2]
    if len(flags) != len(own) or not {*flags} <= {"-o", "--override"}:
        raise ConfigError(f"recipe {text!r}: expected {RECIPE_HELP}, found {' '.join(words)!r} after the profile")
    overrides = (*(common or ()), *own)
    config = load_profile(profile, parse_overrides(overrides))
    check_run(config)
    stem = Path(profile).stem if profile.endswith(_SUFFIX) else profile
    return Recipe(" ".join([stem, *own]), profile, overrides, config)


def _words(text: str) -> list[str]:
    """Return the words of a recipe; a text that is the path of a file as it stands is one word."""
    if text.endswith(_SUFFIX) and Path(text).is_file():
        return [text]
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"recipe {text!r}: {error}; close the quotes") from None
    return words or [text]
