"""``simic plans headroom``: what it shows, as a table and as JSON, and that it writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from simic.cli.console import stdout
from simic.cli.headroom import headroom, headroom_tables
from simic.contracts.controllers import Plan, PlannedSeed
from simic.contracts.results.headroom import FamilyHeadroom, Headroom, PlanGain
from simic.contracts.results.trials import Estimate
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig


def gain(mean: float) -> Estimate:
    return Estimate(mean=mean, lower=mean - 1, upper=mean + 1, confidence=0.95, n=4)


def plan(blueprint: str, slot: int = 0) -> Plan:
    return Plan(seeds=[PlannedSeed(epoch=1, slot=slot, blueprint=blueprint)])


def family(best: float, chosen: Plan) -> FamilyHeadroom:
    plans = [PlanGain(plan=plan("gate", slot), over_wait=gain(best - 2 * slot)) for slot in range(6)]
    return FamilyHeadroom(
        plans=plans, chosen=chosen, when_chosen=best, over_wait=gain(best - 1), hindsight=gain(best + 2)
    )


FOUND = Headroom(
    set="varied", horizon=20, reward=RewardConfig(), seed=0, host_keys=list(range(8)),
    families={"region_few": family(1.0, Plan()), "region_select": family(5.0, plan("gate"))},
    all_families=family(2.0, plan("norm", 2)), plan_per_family=gain(2.5),
)  # fmt: skip


def test_the_table_is_sorted_and_shows_the_best_plans_and_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int, int]] = []

    def stand_in(world: WorldConfig, reward: object, hosts: int, *, seed: int, progress: object) -> Headroom:
        asked.append((world.set, hosts, seed))
        return FOUND

    monkeypatch.setattr("simic.validation.baselines.headroom.measure_headroom", stand_in)
    monkeypatch.setenv("SIMIC_HOME", str(tmp_path / "nowhere"))
    headroom(hosts=4, world_set="varied", seed=7)
    assert asked == [("varied", 4, 7)]
    lines = capsys.readouterr().out.splitlines()
    text = " ".join(" ".join(lines).split())
    assert "4 hosts per family of set varied" in text
    rows = [line.split() for line in lines if line.strip()]
    first = [row[0] for row in rows if row[0].startswith("region_") or row[0] == "all,"]
    assert first == ["region_select", "region_few", "all,", "all,", "region_select", "region_few"]
    assert "never grow" in text
    assert "gate in slot 0 at 1 +5.0 +4.0 [+3.0, +5.0] +7.0 [+6.0, +8.0]" in text
    assert "gate in slot 2 at 1 +1.0 [+0.0, +2.0]" in text
    assert "gate in slot 3" not in text
    assert "Half of 4 hosts is few" in text
    assert "gate in slot 5 at 1 -5.0 [-6.0, -4.0]" in text, "the worst plan"
    headroom(hosts=4, world_set="varied", as_json=True)
    assert Headroom.model_validate_json(capsys.readouterr().out) == FOUND
    assert not (tmp_path / "nowhere").exists()


def test_enough_hosts_need_no_remark(capsys: pytest.CaptureFixture[str]) -> None:
    many = FOUND.model_copy(update={"host_keys": list(range(32))})
    stdout().print(headroom_tables(many))
    assert "is few" not in capsys.readouterr().out
