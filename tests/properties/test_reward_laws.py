"""Laws that every reward family keeps on any walk through the lifecycle, in its real SQL."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders.rewards import HORIZON, WALK, Seed, priced, step_of

from simic.contracts.lifecycle import TRANSITIONS, SeedStage
from simic.contracts.rewards import DEFAULT_FLAGS, FAMILIES, FlagConfig, Reward, RewardConfig
from simic.contracts.settings.run import CurateConfig
from simic.curation.run import CONSTANTS
from simic.curation.statements import family_statement, family_terms, load_statements
from simic.numerics.rewards import basic_rewards

EMPTY = {SeedStage.DORMANT, SeedStage.PRUNED, SeedStage.EMBARGOED, SeedStage.RESETTING}
contributions = st.none() | st.floats(-1.0, 1.0) | st.sampled_from([1e300, -1e300])
rewards = st.sampled_from(
    [
        RewardConfig(),
        FAMILIES["shaped"](potential=2.5),
        FAMILIES["shaped"](potential=0.0),
        FAMILIES["sparse"](rent=0.5),
        FAMILIES["minimal"](germination_cost=0.5, prune_cost=0.1),
    ]
)
laws = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def walks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """An episode: seeds in two slots move by the table of transitions or dwell, and are measured now and then."""
    stages = [SeedStage.DORMANT, SeedStage.DORMANT]
    length = draw(st.integers(1, 25))
    states, ops = [], []
    for number in range(length + 1):
        states.append([(stage.value, draw(contributions)) for stage in stages if stage not in EMPTY])
        slot = draw(st.integers(0, 1))
        moves = [move for move in TRANSITIONS if move.source is stages[slot]]
        move = draw(st.none() | st.sampled_from(moves)) if moves else None
        ops.append("WAIT" if move is None or move.op is None else move.op.value)
        if move is not None and number < length:
            stages[slot] = move.target
    accuracies = draw(st.lists(st.floats(0, 1), min_size=length + 1, max_size=length + 1))
    rents = draw(st.lists(st.integers(0, 5000), min_size=length, max_size=length))
    has_governor, is_cut = draw(st.booleans()), draw(st.booleans())
    return [
        step_of(
            number, states[number], states[number + 1], seeds_max=2, op=ops[number],
            has_governor=has_governor and number == length - 1, has_final_state=number == length - 1,
            terminated=number == length - 1 and (has_governor or not is_cut),
            truncated=number == length - 1 and is_cut and not has_governor,
            accuracy_before=accuracies[number], accuracy_after=accuracies[number + 1], start_accuracy=accuracies[0],
            rent_parameters=rents[number], parameter_epochs=owed,
        )
        for number, owed in zip(range(length), accumulate(rents), strict=True)
    ]  # fmt: skip


def happy_path(dwells: list[int], values: list[float | None]) -> list[dict[str, Any]]:
    """Dormant, then every stage in turn, each for its dwell, to the end; contributions never fall."""
    states: list[list[Seed]] = [[]] * dwells[0]
    for stage, dwell, value in zip(WALK, dwells[1:], values, strict=True):
        states += [[(stage, value)]] * dwell
    last = len(states) - 2
    return [
        step_of(number, before, after, has_final_state=number == last, terminated=number == last)
        for number, (before, after) in enumerate(pairwise(states))
    ]


@laws
@given(walks(), st.floats(0.9, 1.0))
def test_shaping_telescopes_to_minus_the_first_potential(walk: list[dict[str, Any]], gamma: float) -> None:
    """H8: strictly, on any walk; a cut episode keeps the potential it stands at."""
    rows = priced(FAMILIES["shaped"](potential=2.5), gamma=gamma, rows=walk)
    total = sum(gamma ** row["step"] * row["reward_shaping"] for row in rows)
    end = 0.0 if rows[-1]["terminated"] else gamma ** len(rows) * rows[-1]["next_potential"]
    assert total == pytest.approx(end - rows[0]["potential"], rel=0, abs=1e-9)
    for before, after in pairwise(rows):
        assert after["potential"] == before["next_potential"], "a function of the state alone"


@laws
@given(
    st.lists(st.integers(1, 12), min_size=6, max_size=6),
    st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=5).map(sorted),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.floats(0.9, 1.0),
)
def test_no_step_of_the_happy_path_is_charged_for(
    dwells: list[int], values: list[float], measured: list[bool], gamma: float
) -> None:
    """L3: growing, dwelling and ending all bring points or none, measured or not."""
    told = [value if is_told else None for value, is_told in zip(values, measured, strict=True)]
    rows = priced(FAMILIES["shaped"](), gamma=gamma, rows=happy_path(dwells, told))
    assert all(row["reward_shaping"] >= 0 for row in rows)
    for row in rows[:-1]:
        has_moved = [seed["stage"] for seed in row["seeds"]] != [seed["stage"] for seed in row["next_seeds"]]
        assert not has_moved or row["next_potential"] >= row["potential"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("TRAINING", "BLENDING"), ("HOLDING", "FOSSILIZED"), ("BLENDING", "HOLDING")],
)
def test_the_three_moves_that_were_punished(before: str, after: str) -> None:
    """L3: even if the contribution is lost, or turns out as bad as can be, with the move."""
    for value in (None, 0.3, -0.3):
        (row,) = priced(FAMILIES["shaped"](), rows=[step_of(0, [(before, 0.3)], [(after, value)])])
        assert row["reward_shaping"] >= 0


def test_waiting_is_never_worth_more_the_longer_it_lasts() -> None:
    """H11: no penalty or bonus grows with the epochs spent in a stage."""
    for stage in WALK:
        rows = priced(FAMILIES["shaped"](), rows=[step_of(n, [(stage, None)], [(stage, None)]) for n in range(19)])
        assert len({row["reward_shaping"] for row in rows}) == 1


def test_unmeasured_adds_nothing() -> None:
    (null, zero, some) = (
        priced(FAMILIES["shaped"](), rows=[step_of(0, [("HOLDING", value)], [])])[0]["potential"]
        for value in (None, 0.0, 0.05)
    )
    assert null == zero < some


def test_contributions_are_clipped_before_they_are_scaled() -> None:
    """H10: the declared range scales with the setting."""
    for potential in (1.0, 2.5):
        rows = priced(
            FAMILIES["shaped"](potential=potential),
            rows=[
                step_of(0, [], [("FOSSILIZED", 1e300)]),
                step_of(1, [("FOSSILIZED", -1e300)], [("FOSSILIZED", None)]),
            ],
        )
        assert rows[0]["potential"] == -potential and rows[0]["next_potential"] == 0.0
        assert rows[1]["potential"] == pytest.approx(-0.2 * potential, abs=1e-12)
        held = [step_of(0, [("HOLDING", 1e300)], [])]
        (holding,) = priced(FAMILIES["shaped"](potential=potential), rows=held)
        assert holding["potential"] == pytest.approx(-0.2 * potential, abs=1e-12), "a seed's worth is at most 0.8"


@laws
@given(walks(), rewards)
def test_terms_account_for_the_total_and_keep_their_declared_ranges(walk: list[dict[str, Any]], reward: Any) -> None:
    """L20, M3."""
    terms = family_terms(family_statement(reward.family))
    constants = {
        **reward.model_dump(exclude={"family"}),
        **CONSTANTS,
        **DEFAULT_FLAGS.model_dump(),
        "shortest_horizon": HORIZON,
        "gamma": 0.99,
    }
    for row in priced(reward, rows=walk):
        assert {name for name in row if name.startswith("reward_")} == {term.name for term in terms}
        assert sum(row[term.name] for term in terms) == pytest.approx(row["reward"], rel=0, abs=1e-9)
        for term in terms:
            low, high = (_value(bound, constants) for bound in (term.low, term.high))
            assert low - 1e-9 <= row[term.name] <= high + 1e-9


def _value(bound: str, constants: dict[str, Any]) -> float:
    code = re.sub(r"\$([a-z_]+)", lambda match: repr(constants[match[1]]), bound).replace("greatest", "max")
    return float(eval(code, {"max": max, "__builtins__": {}}))  # noqa: S307 - bounds of our own files


@laws
@given(walks(), rewards)
def test_a_step_is_rewarded_for_itself_alone(walk: list[dict[str, Any]], reward: Any) -> None:
    """L20: f(s, a, s'): a step without its episode around it is worth the same."""
    together = priced(reward, rows=walk)
    chosen = len(walk) // 2
    (alone,) = priced(reward, rows=[walk[chosen]])
    assert alone == together[chosen]


@laws
@given(walks())
def test_basic_is_what_trials_count(walk: list[dict[str, Any]]) -> None:
    """M5: one price list; any family's ``basic`` prices an episode like the family basic."""
    twin = basic_rewards(
        RewardConfig(),
        horizon=HORIZON,
        accuracy_before=[row["accuracy_before"] for row in walk],
        accuracy_after=[row["accuracy_after"] for row in walk],
        rent_parameters=[row["rent_parameters"] for row in walk],
        governor=[row["has_governor"] for row in walk],
    )
    for family in FAMILIES.values():
        found = [row["reward"] for row in priced(family().basic, rows=walk)]
        assert found == pytest.approx(twin.tolist(), rel=0, abs=1e-9)


def test_the_end_counts_from_the_start_and_not_from_the_last_epoch() -> None:
    """L10."""
    last = step_of(
        7, [], [], start_accuracy=0.2, accuracy_before=0.9, accuracy_after=0.8, terminated=True, has_final_state=True
    )
    for reward in (FAMILIES["sparse"](), FAMILIES["minimal"]()):
        before, end = priced(reward, rows=[step_of(6, [], [], accuracy_after=0.9), last])
        assert before["reward"] == 0.0
        assert end["reward_progress"] == pytest.approx(60.0)


def test_families_are_those_of_the_union_and_of_the_files_with_six_constants_at_most() -> None:
    """M5: every constant of a family is named once, in its config, and used by its SQL."""
    assert list(FAMILIES.values()) == list(get_args(get_args(Reward)[0]))
    shared = {*CONSTANTS, *FlagConfig.model_fields, *CurateConfig.model_fields, "shortest_horizon"}
    for name, config in FAMILIES.items():
        constants = set(config.model_fields) - {"family"}
        assert config().family == name and len(constants) <= 6
        used = set(re.findall(r"\$([a-z_]+)", family_statement(name)))
        assert constants <= used <= constants | shared


def test_no_bare_epsilon_in_the_rules() -> None:
    """M1: tolerances have names, and units where they are named."""
    for family in FAMILIES:
        for statement in load_statements(family):
            code = re.sub(r"--.*", "", statement.sql)
            assert not re.findall(r"\b\d+(?:\.\d+)?e-\d+", code), statement.file


def test_the_potential_has_one_weight() -> None:
    """M2: what a contribution counts follows from the weight of the whole, so no two weights can drift apart."""
    rows = [step_of(0, [("HOLDING", 0.05)], [("FOSSILIZED", 0.1)])]
    (once,), (twice,) = (priced(FAMILIES["shaped"](potential=p), rows=rows) for p in (1.0, 2.0))
    assert twice["reward_shaping"] == pytest.approx(2 * once["reward_shaping"])
