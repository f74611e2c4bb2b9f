"""Whatever the masks allow is carried out; whatever they forbid is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders.ensembles import ensemble, random_actions

from simic.contracts.actions import HEADS, OPS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import IllegalActionError
from simic.hosts.action_masks import check_actions
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import SETS, STANDARD, HostSet
from simic.hosts.plugins import blueprint_names


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), budget=st.sampled_from([1, 3]), first=st.integers(0, 10_000))
def test_drl_8_an_action_the_masks_allow_is_never_refused(
    monkeypatch: pytest.MonkeyPatch, seed: int, budget: int, first: int
) -> None:
    monkeypatch.setitem(SETS, "fuzzed", HostSet(SETS["benchmark"].families, seeds_max=budget))
    grown = ensemble(range(first, first + 10), horizon=8, world_set="fuzzed")
    rng = np.random.default_rng(seed)
    while not grown.is_finished.all():
        masks, slots = grown.masks(), grown._slots
        outcome = grown.step(random_actions(masks, rng.random((10, len(HEADS))), patience=0.1))
        assert (slots.is_paying.sum(axis=1) <= budget).all()
        assert (outcome.rent_parameters >= outcome.committed_parameters).all()
        assert np.isfinite(outcome.validation_accuracy_after).all()
        assert ((slots["alpha"] >= 0) & (slots["alpha"] <= 1)).all()
        assert ((slots["alpha"] > 0) <= slots.is_paying).all()


OFFERED = [name in STANDARD for name in blueprint_names()]
SLOT_PTR = 3 * np.arange(31)


@pytest.fixture(scope="module")
def middle() -> Ensemble:
    """Hosts in all kinds of states."""
    grown = ensemble(range(30), horizon=12)
    rng = np.random.default_rng(0)
    for _ in range(6):
        grown.step(random_actions(grown.masks(), rng.random((30, len(HEADS)))))
    return grown


@given(data=st.data())
@settings(max_examples=200)
def test_drl_8_check_and_masks_agree_on_any_row(middle: Ensemble, data: st.DataObject) -> None:
    """A row is accepted exactly if its factors are present when relevant, in range, and allowed."""
    masks, keys = middle.masks(), np.arange(30)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows = random_actions(masks, rng.random((30, len(HEADS))), patience=0.3)
    check_actions(rows, masks, SLOT_PTR, keys)
    host, head = data.draw(st.integers(0, 29)), data.draw(st.integers(0, len(HEADS) - 1))
    rows[host, head] = value = data.draw(st.integers(-2, 7))
    op, slot, blueprint, target, speed, curve, tempo = rows[host].tolist()
    is_legal = 0 <= op < len(OPS) and bool(masks.op[host, op])
    wants_slot, grows, ramps = op > 0, op == OP_INDEX[Op.GERMINATE], op in (OP_INDEX[Op.ADVANCE], 2)
    is_legal &= (0 <= slot < 3 and bool(masks.slot[host * 3 + slot, op])) if is_legal and wants_slot else slot == -1
    is_legal &= 0 <= blueprint < len(OFFERED) and bool(OFFERED[blueprint]) if grows else blueprint == -1
    is_legal &= 0 <= tempo < 3 if grows else tempo == -1
    for factor, size in ((target, 3), (speed, 4), (curve, 3)):
        is_legal &= 0 <= factor < size if ramps else factor == -1
    if is_legal:
        check_actions(rows, masks, SLOT_PTR, keys)
    else:
        with pytest.raises(IllegalActionError, match=f"host {host}"):
            check_actions(rows, masks, SLOT_PTR, keys)
    assert value == rows[host, head]
