"""Karn from its judgement on real hosts to a consumer that consults it, by the verbs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders.karns import karn_report
from support.homes.karns import SETTINGS, crowned, karn_home

import simic
from simic.app import karn as judging
from simic.app.checks.doctor import open_doctor
from simic.app.container import Container
from simic.cli.registry import promote, publish, rollback, verify
from simic.cli.stages import validate
from simic.contracts.errors import ConfigError
from simic.contracts.names import KARN
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.lake import Health
from simic.ledgers.judgements import judgements
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

LEFT_OUT = ("return_over", "regression", "fault_recovery", "success", "governor_rate")
"""What an untrained pair cannot show, and what takes longest."""


def test_karn_is_judged_promoted_published_consulted_and_rolled_back(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = karn_home(Home(home), gate__without=list(LEFT_OUT))
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    settings.append(f"gate.without={json.dumps(LEFT_OUT)}")
    digests = []
    for seed in range(2):
        made = place.karn(seed)
        validate(model=KARN, profile="quick", override=settings, as_json=True)
        report = ValidationReport.model_validate_json(capsys.readouterr().out)
        assert (report.model, report.policy_digest, report.consulted_by) == (KARN, made.digest, place.champion.digest)
        assert {"policy_alone", "candidate", "wait"} <= {row.controller for row in report.trials.controllers}
        assert report.champion_digest == (digests[0] if digests else None)
        promote(model=KARN, profile="quick", override=settings)
        assert f"models:/karn/{seed + 1}" in capsys.readouterr().out
        digests.append(made.digest)
    ordinals = [(one.ordinal, one.model) for one in judgements(place.app.home, place.app.keyring)]
    assert ordinals == [(1, "tamiyo"), (2, KARN), (3, KARN)], "one error budget for both"
    publish(profile="quick", override=settings)
    publish(model=KARN, profile="quick", override=settings)
    with simic.Subscriber(
        simic.Home(home), trusted_keys=simic.Home(home), state=tmp_path / "state", consult_karn=True
    ) as subscriber:
        subscriber.poll()
        assert subscriber.policy is not None
        assert (subscriber.policy.digest, subscriber.policy.karn) == (place.champion.digest, digests[1])
        rollback("worse", model=KARN, profile="quick")
        subscriber.poll()
        assert subscriber.policy.karn == digests[0] and subscriber.refusals == 0
    verify("models:/karn@champion")
    app = opened(home)
    assert app.policies.spec("champion+karn/champion", is_decisive=True).karn_digest == digests[0]
    crowned(app, 5, place.champion.digest)
    found = {check.name: check.health for check in open_doctor(app).examine(is_deep=True).checks}
    assert found["registry of karn"] is Health.HEALTHY


def opened(home: Path) -> Container:
    return Container(Home(home), load_profile("quick", {**SETTINGS, "controller.karn": "consult"}), 0)


def test_without_a_champion_of_policies_no_karn_is_judged(home: Path) -> None:
    app = opened(home)
    app.home.create()
    karn = karn_report("c" * 64)
    with pytest.raises(ConfigError, match="there is none: `simic run` makes one"):
        judging.validate(app, karn)
    assert judgements(app.home, app.keyring) == [], "nothing of the error budget is spent"
