"""Rollouts: who is within a share, with which plan an update begins, and one update per step and target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.judged_candidates import NOW, SIGNER, receipt, ticking

from simic.bus.protocol import Bus
from simic.bus.spool.bus import SpoolBus
from simic.contracts.actor import Actor
from simic.contracts.errors import IntegrityError, TransientError
from simic.contracts.names import POLICY_UPDATES
from simic.contracts.policy_update import PolicyUpdate, RolloutPlan, ValidationSummary
from simic.contracts.results.receipts import PolicyVersion, Provenance, PublicationReceipt
from simic.contracts.settings.run import RolloutConfig
from simic.publication.publish import publish, sign_update, verify_update
from simic.publication.rollout import digest_for, first_plan, is_within
from simic.runtime.home import Home
from simic.trust.keys import Keyring

SUMMARY = ValidationSummary(episodes=160, return_over_wait=6.0, lower_bound=5.0, confidence=0.95, gate_digest="a" * 64)
ACTOR = Actor(operator="operator", host="host")
PARTIAL = RolloutConfig(start="partial")


def plan(share: float = 0.1, baseline: str = "1" * 64) -> RolloutPlan:
    return RolloutPlan(
        share=share, hours=24.0, min_success=0.8, min_episodes=50, baseline=baseline, baseline_version="1.0.1"
    )


def version(number: int) -> PolicyVersion:
    return PolicyVersion(
        **receipt(), name="tamiyo", number=number, semantic_version=f"1.0.{number}", digest=f"{number}" * 64,
        reference=f"models:/tamiyo/{number}", aliases=[], previous=None, snapshot_digest="d" * 64,
        gate_digest="a" * 64, mlflow_run_id="run",
    )  # fmt: skip


def update(number: int, begun: RolloutPlan | None = None) -> PolicyUpdate:
    named = version(number)
    return sign_update(
        PolicyUpdate(
            policy_name=named.name, version=named.semantic_version, digest=named.digest, reference=named.reference,
            targets=["tamiyo"], validation=SUMMARY, issued_at=NOW, key_id="0" * 16, rollout=begun,
        ),
        SIGNER,
    )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Home:
    home = Home(tmp_path / "place")
    home.create()
    Keyring(home.keys).trust(SIGNER.public_bytes)
    return home


@given(st.text(max_size=40), st.floats(0.01, 0.98), st.floats(0.01, 0.98))
def test_a_larger_share_keeps_every_consumer_of_a_smaller_one(consumer: str, one: float, other: float) -> None:
    smaller, larger = (update(2, plan(share)) for share in sorted((one, other)))
    assert is_within(larger, consumer) >= is_within(smaller, consumer)
    assert digest_for(smaller, consumer) == ("2" * 64 if is_within(smaller, consumer) else "1" * 64)
    assert is_within(update(2), consumer)


def test_the_share_of_many_consumers_is_the_share_and_other_policies_are_tried_by_others() -> None:
    within = [{name for name in range(4000) if is_within(update(number, plan()), str(name))} for number in (2, 3)]
    assert [len(names) for names in within] == pytest.approx([400, 400], abs=80)
    assert len(within[0] & within[1]) == pytest.approx(40, abs=30)


def test_an_update_without_a_plan_has_no_field_for_it_and_plan_and_issuer_are_signed(place: Home) -> None:
    """Consumers of earlier releases know neither field, and refuse an update that has one."""
    keyring = Keyring(place.keys)
    whole = send(place, 1).update
    begun = send(place, 2, begun=plan()).update
    assert "rollout" not in json.loads(whole.model_dump_json())
    assert json.loads(whole.model_dump_json())["issued_by"] == ACTOR.model_dump()
    for told in (whole, begun):
        again = PolicyUpdate.model_validate_json(told.model_dump_json())
        assert again == told
        verify_update(again, keyring)
    for changed in (None, plan(0.9), plan(baseline="3" * 64)):
        with pytest.raises(IntegrityError):
            verify_update(begun.model_copy(update={"rollout": changed}), keyring)
    with pytest.raises(IntegrityError):
        verify_update(whole.model_copy(update={"issued_by": None}), keyring)


def test_a_plan_names_what_the_others_go_on_with() -> None:
    one, two, three = version(1), version(2), version(3)
    first = first_plan(one, None, [], PARTIAL, is_rollback=False)
    assert first is None, "nobody has a policy to go on with"
    second = first_plan(two, one, [update(1)], PARTIAL, is_rollback=False)
    assert second == plan()
    assert first_plan(two, one, [update(1)], RolloutConfig(), is_rollback=False) is None
    told = [update(1), update(2, second)]
    third = first_plan(three, two, told, PARTIAL, is_rollback=False)
    assert third == plan(), "the second was never for all"
    assert first_plan(one, None, told, PARTIAL, is_rollback=True) is None, "all had it before"
    assert first_plan(two, one, [*told, update(3, third)], PARTIAL, is_rollback=True) == plan()
    assert first_plan(one, two, [update(1)], PARTIAL, is_rollback=False) is None, "it would be its own baseline"


class _AbsentBus(SpoolBus):
    def put(self, topic: str, *_: object) -> str:
        raise TransientError(f"{topic} is away")


class _DyingBus(SpoolBus):
    def put(self, topic: str, *arguments: object) -> str:
        super().put(topic, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt


def send(
    place: Home, number: int, bus: Bus | None = None, begun: RolloutPlan | None = None, *, is_for_all: bool = False
) -> PublicationReceipt:
    return publish(
        version(number), SUMMARY, ["tamiyo"], bus=bus or SpoolBus(place.spool), signer=SIGNER, home=place,
        provenance=Provenance("0.1.0+0", "c" * 64, 0), clock=ticking(), plan=begun, is_for_all=is_for_all,
        actor=ACTOR,
    )  # fmt: skip


@pytest.mark.parametrize("fault", [None, _AbsentBus, _DyingBus])
def test_each_step_of_a_rollout_is_one_update_also_after_a_fault(place: Home, fault: type[SpoolBus] | None) -> None:
    send(place, 1)
    steps = [
        lambda bus: send(place, 2, bus, plan()),
        lambda bus: send(place, 2, bus, is_for_all=True),
        lambda bus: send(place, 1, bus),
    ]
    told = []
    for step in steps:
        if fault is not None:
            with pytest.raises((TransientError, KeyboardInterrupt)):
                step(fault(place.spool))
        told.append(step(None).update)
        again = step(None)
        assert (again.delivered, again.update) == (False, told[-1])
        assert not send(place, int(told[-1].version[-1]), begun=plan(0.5)).delivered, "publish alone moves no rollout"
    assert [(one.version, one.rollout) for one in told] == [("1.0.2", plan()), ("1.0.2", None), ("1.0.1", None)]
    assert SpoolBus(place.spool).pending(POLICY_UPDATES) == 4


def test_a_step_that_waits_is_withdrawn_when_the_rollout_ends(place: Home) -> None:
    send(place, 1)
    with pytest.raises(TransientError):
        send(place, 2, _AbsentBus(place.spool), plan())
    assert send(place, 2, is_for_all=True).update.rollout is None
    assert SpoolBus(place.spool).pending(POLICY_UPDATES) == 2
