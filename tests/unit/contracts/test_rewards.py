"""A reward family and its constants belong together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from simic.contracts.config import CurateConfig, RewardConfig
from simic.contracts.errors import ConfigError
from simic.contracts.rewards import DEFAULT_FAMILY, FAMILIES
from simic.runtime.settings import load_profile


@pytest.mark.parametrize(
    "pair",
    [
        {"family": "basic", "potential": 1.0},
        {"family": "sparse", "germination_cost": 0.1},
        {"family": "minimal", "contribution_full": 0.1},
        {"family": "shaped", "prune_cost": 0.1},
        {"family": "dense"},
        {"family": None},
        {"germination_cost": 1.0},
        {"family": "shaped", "potential": float("nan")},
        {"family": "shaped", "contribution_full": 0.0},
    ],
)
def test_drl_09_an_invalid_pair_raises(pair: dict[str, Any]) -> None:
    """DRL-09: a family with another's constants, an unknown family, or a constant out of bounds."""
    with pytest.raises(ValidationError):
        CurateConfig.model_validate({"reward": pair})
    with pytest.raises(ConfigError, match=r"curate\.reward"):
        load_profile("default", {f"curate.reward.{name}": value for name, value in pair.items()})


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_is_one_setting_and_survives_json(family: str) -> None:
    config = load_profile("default", {"curate.reward.family": family}).curate
    assert type(config.reward) is FAMILIES[family]
    assert CurateConfig.model_validate_json(config.model_dump_json()) == config


def test_a_recipe_that_names_no_family_has_the_default_one() -> None:
    config = CurateConfig.model_validate({"reward": {"rent": 1.0}})
    assert (config.reward.family, config.reward.rent) == (DEFAULT_FAMILY, 1.0)
    assert CurateConfig().reward.family == DEFAULT_FAMILY


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_trials_see_the_same_prices_whatever_the_family(family: type[Any]) -> None:
    """M5."""
    prices = {"accuracy_scale": 50.0, "rent": 2.0, "rent_parameters": 99, "governor_penalty": 1.0}
    assert family(**prices).basic == RewardConfig(**prices)
