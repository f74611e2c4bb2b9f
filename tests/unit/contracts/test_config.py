"""One configuration model that refuses recipes which contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import BusConfig, CurateConfig, LakeConfig, RunConfig, WorldConfig
from simic.contracts.settings.training import TrainConfig


def numbers(model: Any, prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in model:
        if hasattr(value, "model_fields_set"):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            found[prefix + name] = value
    return found


def test_the_defaults_are_the_designs() -> None:
    train = TrainConfig()
    assert (train.value_lr, train.min_lr, train.clip_norm, train.warmup_updates) == (1e-3, 1e-6, 0.5, 10)
    assert (train.batch_sequences, train.rho_bar, train.c_bar, train.min_experiences) == (32, 1.0, 1.0, 1000)
    assert CurateConfig().gamma == 0.99


def test_c1_there_is_one_discount() -> None:
    assert [name for name in numbers(RunConfig()) if "gamma" in name or "discount" in name] == ["curate.gamma"]


def test_a_reward_has_at_most_six_constants() -> None:
    assert len(numbers(RewardConfig())) <= 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_sequences": 24},
        {"batch_sequences": 4},
        {"batch_sequences": 512},
        {"policy_lr": 2e-2},
        {"policy_lr": 0.0},
        {"min_lr": 5e-4, "policy_lr": 3e-4},
        {"rho_bar": -1.0},
        {"learning_rate": 1e-3},
    ],
)
def test_d21_recipes_out_of_bounds_or_in_contradiction_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(**wrong)


def test_a_gpu_takes_the_masked_form_and_one_process() -> None:
    with pytest.raises(ValidationError, match="on cuda use masked or auto"):
        WorldConfig(device="cuda", form="compacted")
    asked = [("cpu", "auto"), ("cpu", "compacted"), ("cpu", "masked"), ("cuda", "auto"), ("cuda", "masked")]
    worlds = [WorldConfig.model_validate({"device": device, "form": form}) for device, form in asked]
    assert [world.is_masked for world in worlds] == [False, False, True, True, True]
    assert [world.processes for world in worlds] == [None, None, None, 1, 1]
    assert [WorldConfig(device="cuda", workers=3).processes, WorldConfig(workers=3).processes] == [3, 3]


def test_a_choice_among_training_seeds_needs_hosts_that_grow() -> None:
    assert RunConfig.model_validate({"train": {"seeds": 2}}).train.seeds == 2
    assert RunConfig.model_validate({"gate": {"evidence": "reports"}}).train.seeds == 1
    with pytest.raises(ValidationError, match=r"train.seeds = 2 chooses among policies on validation hosts"):
        RunConfig.model_validate({"train": {"seeds": 2}, "gate": {"evidence": "reports"}})


def test_a_bus_waits_for_its_server_longer_than_it_asks_it_to_keep_silent() -> None:
    assert BusConfig(block_ms=999, deadline_s=1.0).block_ms == 999
    with pytest.raises(ValidationError, match=r"bus\.deadline_s = 1 must be more than bus\.block_ms = 1000"):
        BusConfig(block_ms=1000, deadline_s=1.0)


def test_the_address_of_a_lake_is_checked_and_never_repeated() -> None:
    assert LakeConfig(url=None).url is None
    assert LakeConfig(url="s3://bucket/lake?region=x").url == "s3://bucket/lake?region=x"
    unusable = ("ftp://secret", "s3://", "s3://[secret", f"s3://{'secret' * 400}")
    for wrong in ("s3://key:secret@bucket", "s3://bucket?secret=1", "s3://bucket?scheme=secret", *unusable):
        with pytest.raises(ValidationError, match=r"address of a lake|expected s3://") as caught:
            LakeConfig(url=wrong)
        assert "secret" not in str(caught.value.errors()[0]["msg"])


def test_d7_zero_is_a_value() -> None:
    assert TrainConfig(rho_bar=0.0, c_bar=0.0).rho_bar == 0.0


@pytest.mark.parametrize("gamma", [0.89, 1.01])
def test_the_discount_keeps_its_range(gamma: float) -> None:
    with pytest.raises(ValidationError):
        CurateConfig(gamma=gamma)


@pytest.mark.parametrize("batch", [8, 16, 32, 64, 128, 256])
def test_m17_what_is_asked_for_is_what_is_set(batch: int) -> None:
    assert RunConfig.model_validate({"train": {"batch_sequences": batch}}).train.batch_sequences == batch


def test_every_table_and_every_list_of_words_says_what_it_is_and_refuses_what_is_unknown() -> None:
    schema = RunConfig.model_json_schema()
    for definition in (schema, *schema["$defs"].values()):
        assert "enum" in definition or definition["additionalProperties"] is False
        assert definition["description"]
