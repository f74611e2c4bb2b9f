"""A reward family and its constants belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from simic.catalogue.contract_schemas import schema_of
from simic.contracts import rewards
from simic.contracts.errors import ConfigError
from simic.contracts.rewards import DEFAULT_FAMILY, FAMILIES, RewardConfig, declared_constants
from simic.contracts.settings.run import CurateConfig
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


def test_a_constant_declares_default_bounds_and_meaning() -> None:
    family = FAMILIES["shaped"].model_fields
    assert family["contribution_full"].default == 0.1
    assert (family["contribution_full"].description or "").startswith("Contribution, as a share of accuracy")
    assert CurateConfig(reward={"contribution_full": 1}).reward.contribution_full == 1
    assert set(declared_constants("-- constant last = 1 in [0, 2]: no line end follows", "x.sql")) == {"last"}
    assert declared_constants("-- term reward_rent in [0, 0]: none\n-- constants are none\n", "x.sql") == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-- constant cost = 1 points", "expected `-- constant name"),
        ("-- constant cost = one in [0, 2]: text", "expected `-- constant name"),
        ("-- constant rent = 1 in [0, 2]: text", "'rent' exists already"),
        ("-- constant cost = 1 in [0, 2]: text\n-- constant cost = 1 in [0, 2]: text", "exists already"),
    ],
)
def test_a_line_that_declares_no_constant_is_named(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"x\.sql: .*{message}"):
        declared_constants(f"{line}\n", "x.sql")


def test_a_default_out_of_its_bounds_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dear.sql").write_text("-- summary: dear\n-- constant price = 9.0 in [0, 1]: Points.\nSELECT 1\n")
    monkeypatch.setattr(rewards, "_FILES", tmp_path)
    with pytest.raises(ConfigError, match=r"dear\.sql: a default is out of its bounds: (.|\n)*price"):
        rewards._family("dear")
    (tmp_path / "dear.sql").write_text("SELECT 1\n")
    with pytest.raises(ConfigError, match=r"dear\.sql: expected one line `-- summary: text`, found 0"):
        rewards._family("dear")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torn.sql").write_bytes(b"-- summary: \xff\n")
    monkeypatch.setattr(rewards, "_FILES", tmp_path)
    for name, found in (("torn", "can't decode byte 0xff"), ("absent", "No such file")):
        with pytest.raises(ConfigError, match=rf"{name}\.sql: expected SQL in UTF-8, found .*{found}"):
            rewards._family(name)


def test_every_family_has_a_published_schema() -> None:
    for family in FAMILIES.values():
        assert schema_of(family.__name__) == family.model_json_schema()
    germination = schema_of("MinimalReward")["properties"]["germination_cost"]
    assert germination == {
        **{"default": 0.1, "maximum": 1000, "minimum": 0, "title": "Germination Cost", "type": "number"},
        "description": "Points a germination costs.",
    }
