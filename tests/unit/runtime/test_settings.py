"""Where things are kept, and recipes that refuse what they do not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import RunConfig
from simic.runtime.settings import config_digest, load_profile, profile_names


def test_every_shipped_profile_is_a_complete_recipe() -> None:
    assert profile_names() == ("default", "nightly", "quick")
    for name in profile_names():
        assert isinstance(load_profile(name), RunConfig)


def test_default_is_the_defaults_and_nightly_grows_no_hosts() -> None:
    assert load_profile("default") == RunConfig()
    nightly = load_profile("nightly")
    assert (nightly.collect.episodes, nightly.collect.rounds) == (0, 0)
    assert nightly.train == RunConfig().train


def test_quick_fits_together() -> None:
    quick = load_profile("quick")
    hosts = 5 * quick.trial.hosts_per_family
    assert quick.gate.min_episodes <= hosts
    steps = quick.collect.episodes * quick.world.horizon
    assert quick.train.min_experiences <= 0.6 * steps, "four fifths of the hosts teach, give or take"


def test_a_profile_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train.network]\nhidden = 16\n[curate.reward]\nrent = 1.5\n")
    config = load_profile(str(path))
    assert (config.train.network.hidden, config.curate.reward.rent) == (16, 1.5)
    assert config.train.network.layers == RunConfig().train.network.layers


def test_overrides_win_over_the_profile_dotted_or_nested() -> None:
    config = load_profile("quick", {"collect.episodes": 7, "train": {"vtrace_passes": 1}})
    assert (config.collect.episodes, config.collect.rounds, config.train.vtrace_passes) == (7, 1, 1)
    assert config.train.batch_sequences == load_profile("quick").train.batch_sequences


def test_loading_twice_does_not_leak_overrides() -> None:
    load_profile("quick", {"collect.episodes": 7})
    assert load_profile("quick").collect.episodes == 60


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.polcy_lr": 1e-4}, "train.polcy_lr is not a setting; did you mean train.policy_lr?"),
        ({"trian": {"policy_lr": 1e-4}}, "trian.policy_lr is not a setting; did you mean train.policy_lr?"),
        ({"policy_lr": 1e-4}, "policy_lr is not a setting; did you mean train.policy_lr?"),
        ({"curate.reward.famly": "basic"}, "curate.reward.famly is not a setting; did you mean curate.reward.family?"),
        ({"curate.threds": 1}, "curate.threds is not a setting; did you mean curate.threads?"),
        ({"gamma": 0.99}, "gamma is not a setting; did you mean curate.gamma?"),
        ({"gate.xyzzy": 1}, "--override: section gate has no setting 'xyzzy'; its settings: without, min_episodes"),
        (
            {"gate.return_over": 1},
            "a criterion is left out by its name, as in -o 'gate.without=[\"return_over\"]' (docs/trust",
        ),
        ({"xyzzy": 1}, "--override: section 'xyzzy' does not exist; sections: world, collect"),
        ({"foo.bar": 1}, "--override: section 'foo' does not exist; sections: world, collect"),
        ({"train.epoks": 1}, "section train has no setting 'epoks'; its settings: start, objective, seeds"),
    ],
)
def test_an_unknown_key_is_named_with_its_nearest_match(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("default", overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.policy_lr": 3}, "--override train.policy_lr: expected a number less than or equal to 0.01, found 3"),
        ({"train.policy_lr": "fast"}, "train.policy_lr: expected a number, found 'fast'"),
        ({"train.batch_sequences": "x"}, "train.batch_sequences: expected a whole number, found 'x'"),
        ({"train.policy_lr": float("nan")}, "train.policy_lr: expected a finite number, found nan"),
        ({"train": 3}, "--override: train is a section, not a setting; write -o train.KEY=VALUE"),
        ({"train.policy_lr": {"x": 1}}, "train.policy_lr: expected a number, found"),
        (
            {"curate.reward.family": "shapely"},
            "curate.reward.family: expected basic, shaped, sparse or minimal, found 'shapely'",
        ),
    ],
)
def test_a_wrong_value_names_setting_expectation_and_finding(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("default", overrides)
    assert message in str(caught.value)


def test_an_error_names_the_option_or_the_profile_that_gave_the_value(tmp_path: Path) -> None:
    flags = {"lake.max_age_days": "--max-age-days"}
    with pytest.raises(ConfigError, match=r"^--max-age-days: expected a number greater than 0, found -1$"):
        load_profile("default", {"lake.max_age_days": -1}, flags)
    path = tmp_path / "mine.toml"
    path.write_text("train = 1\n[curate.reward]\nrent = -1\n")
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path), {"train.policy_lr": 1e-4, "lake.max_age_days": 1}, flags)
    assert f"profile {path}: curate.reward.rent: expected a number greater than" in str(caught.value)


def test_a_check_across_settings_speaks_for_itself() -> None:
    with pytest.raises(ConfigError, match=r"train: train.batch_sequences must be a power of two, found 20$"):
        load_profile("default", {"train.batch_sequences": 20})


def test_several_wrong_values_are_all_named() -> None:
    with pytest.raises(ConfigError, match=r"world\.horizon.*train\.policy_lr"):
        load_profile("default", {"world.horizon": 0, "train.policy_lr": 1})


def test_d17_there_is_one_model_and_it_survives_a_round_trip() -> None:
    config = load_profile("quick")
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_d17_every_model_of_the_configuration_refuses_an_unknown_key() -> None:
    def models(value: object) -> list[BaseModel]:
        inner = [getattr(value, name) for name in type(value).model_fields] if isinstance(value, BaseModel) else []
        return ([value] if isinstance(value, BaseModel) else []) + [found for each in inner for found in models(each)]

    found = models(load_profile("quick"))
    assert len(found) > 5
    for model in found:
        with pytest.raises(ValidationError, match="unheard_of"):
            type(model).model_validate({**model.model_dump(), "unheard_of": 1})


def test_an_unknown_profile_is_named_with_its_nearest_match() -> None:
    with pytest.raises(ConfigError, match=r"qick is not a profile; did you mean quick; shipped are default, nightly"):
        load_profile("qick")


def test_a_profile_file_must_be_there_and_be_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a TOML file, found none at .*gone\.toml; shipped"):
        load_profile(str(tmp_path / "gone.toml"))
    (tmp_path / "broken.toml").write_text("[train\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_profile(str(tmp_path / "broken.toml"))


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    class Table(BaseModel):
        values: dict[str, int]

    assert config_digest(Table(values={"a": 1, "b": 2})) == config_digest(Table(values={"b": 2, "a": 1}))


def test_the_digest_follows_the_values_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "same.toml"
    path.write_text(f"[collect]\nepisodes = {RunConfig().collect.episodes}\n")
    assert config_digest(load_profile(str(path))) == config_digest(RunConfig())
    assert config_digest(load_profile("default", {"train.policy_lr": 1e-4})) != config_digest(RunConfig())
    assert len(config_digest(RunConfig())) == 64


def test_limits_of_a_training_and_of_stages_are_no_part_of_the_digest() -> None:
    limits = {"train.max_hours": 48.0, "train.max_memory_gb": 99.0, "train.checkpoint_updates": 7}
    limits |= {"stages.max_hours": 24.0}
    assert config_digest(load_profile("default", limits)) == config_digest(load_profile("default"))
