"""A report whose fields contradict each other never lands, and says what was expected and what was found."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.reports import BLUEPRINTS, episode, line, plain, varied_episode
from support.fakes.custom_hosts import ToyFamily, install
from support.homes.pipeline import NOW, PROVENANCE, drop, ingest_all

from simic.bus.factory import BusSpec
from simic.bus.protocol import Line
from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.collection.collect import collect
from simic.contracts.consistency import find_contradiction
from simic.contracts.controllers import ControllerSpec
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.settings.run import IngestConfig, WorldConfig
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.ingestion.episode_order import MOST_ENDED, MOST_OPEN, EpisodeOrder, read_link
from simic.ingestion.fast_validator import strict_struct_for
from simic.ingestion.validate import Accepted, Refused, Validator
from simic.lake.quarantine import Reason
from simic.runtime.home import Home

KNOWN = frozenset(BLUEPRINTS)
TWIN = msgspec.json.Decoder(strict_struct_for(FieldReport, KNOWN))
Json = dict[str, Any]
Spoil = Callable[[Json], object]
WAITING, GERMINATION, TRAINING, ADVANCE, HOLDING, RETARGET, FOSSILIZE, LAST = 0, 2, 4, 5, 7, 8, 12, 19
PANIC = 3


def report(**fields: Any) -> Spoil:
    return lambda raw: raw.update(fields)


def metrics(**fields: Any) -> Spoil:
    return lambda raw: raw["metrics"].update(fields)


def state(name: str = "state", **fields: Any) -> Spoil:
    return lambda raw: raw[name].update(fields)


def slot(number: int = 0, name: str = "state", **fields: Any) -> Spoil:
    return lambda raw: raw[name]["slots"][number].update(fields)


def newest(history: str, value: float) -> Spoil:
    return lambda raw: raw["state"][f"{history}_history"].__setitem__(-1, value)


CONTRADICTIONS: dict[str, tuple[int, Spoil, str]] = {
    "a policy that is not named": (
        WAITING,
        report(controller="learned", policy_version=None),
        "policy_version: expected the digest of the policy, because controller = 'learned', found null",
    ),
    "a policy that consulted Karn and is not named": (
        WAITING,
        report(controller="learned-karn-" + "c" * 16, policy_version=None),
        "policy_version: expected the digest of the policy",
    ),
    "accuracy before": (
        WAITING,
        metrics(validation_accuracy_before=0.125),
        r"metrics.validation_accuracy_before: expected state.validation_accuracy = 0\.32\d+, found 0.125",
    ),
    "accuracy before by a hair": (
        WAITING,
        lambda r: r["metrics"].update(validation_accuracy_before=r["state"]["validation_accuracy"] + 2e-6),
        "metrics.validation_accuracy_before: expected",
    ),
    "loss before": (
        WAITING,
        metrics(validation_loss_before=9.5),
        r"metrics.validation_loss_before: expected state.validation_loss = 0\.\d+, found 9.5",
    ),
    "accuracy after the last step": (
        LAST,
        metrics(validation_accuracy_after=0.125),
        r"validation_accuracy_after: expected final_state.committed_validation_accuracy = 0\.\d+, found 0.125",
    ),
    "a committed accuracy too early": (
        WAITING,
        state(committed_validation_accuracy=0.5),
        "state.committed_validation_accuracy: expected null but in a final state",
    ),
    "a test accuracy too early": (
        WAITING,
        metrics(test_accuracy=0.5),
        "metrics.test_accuracy: expected null but on an episode's last report",
    ),
    "fewer epochs than steps": (TRAINING, report(step=9), "state.epoch: expected .* = 9, found 4"),
    "a window beyond the horizon": (
        FOSSILIZE,
        report(observation_window_epochs=9),
        "observation_window_epochs: expected at most state.horizon - state.epoch = 8, found 9",
    ),
    "an episode that goes on at its horizon": (
        LAST,
        lambda r: r.update(terminated=False, final_state=None, metrics={**r["metrics"], "test_accuracy": None}),
        "terminated: expected the episode's end after epoch 20, its horizon, found neither end",
    ),
    "a final state of another epoch": (
        LAST,
        state("final_state", epoch=19),
        "final_state.epoch: expected state.epoch [+] observation_window_epochs = 20, found 19",
    ),
    "a final state of another horizon": (
        LAST,
        state("final_state", horizon=21),
        "final_state.horizon: expected state.horizon = 20, found 21",
    ),
    "a final state with fewer slots": (
        LAST,
        lambda r: (r["final_state"]["slots"].pop(), r["final_state"]["graph"]["monitors"].pop()),
        "final_state.slots: expected as many as in state = 3, found 2",
    ),
    "two ends": (LAST, report(truncated=True), "truncated: expected false where terminated, found both"),
    "aborted by nobody": (
        WAITING,
        report(outcome="ABORTED"),
        "outcome: expected ABORTED exactly with a governor event, found ABORTED without one",
    ),
    "mitigation of nothing": (
        WAITING,
        report(mitigation=["rolled back"]),
        "mitigation: expected nothing without a governor event, found 1 measures",
    ),
    "a branch that ends before it leaves its parent": (
        LAST,
        report(branch_of="0" * 32, branch_step=20),
        "branch_step: expected at most the last step of its episode = 19, found 20",
    ),
    "an operation without a slot": (
        WAITING,
        lambda r: r["available"]["op"].__setitem__(5, True),
        "available.op of PRUNE: expected false where available.slot allows no slot, found true",
    ),
    "germination without a blueprint": (
        WAITING,
        lambda r: (
            r["available"]["op"].__setitem__(1, True),
            r["available"]["slot"][1].__setitem__(0, True),
            r["available"].update(blueprint=[]),
        ),
        "available.op of GERMINATE: expected false without a blueprint",
    ),
    "a seed for nobody": (
        WAITING,
        report(blueprint_id="mlp"),
        "seed_id and blueprint_id: expected null for WAIT, found a seed",
    ),
    "germination without a seed": (
        GERMINATION,
        report(seed_id=None),
        "seed_id: expected that of the seed which GERMINATE addresses, found null",
    ),
    "germination without the seed's blueprint": (
        GERMINATION,
        report(blueprint_id=None),
        "blueprint_id: expected that of the seed which GERMINATE addresses, found null",
    ),
    "germination of another blueprint": (
        GERMINATION,
        report(blueprint_id="norm"),
        "blueprint_id: expected action.blueprint = mlp, found norm",
    ),
    "a seed of another episode": (
        FOSSILIZE,
        report(seed_id="0" * 32 + "/0/1"),
        r"seed_id: expected [0-9a-f]{32}/0/<germination number from 1>, found '0{32}/0/1'",
    ),
    "a seed of another slot": (
        FOSSILIZE,
        lambda r: r.update(seed_id=r["run_id"] + "/1/1"),
        "seed_id: expected .*/0/<germination",
    ),
    "a seed without a number": (FOSSILIZE, lambda r: r.update(seed_id=r["run_id"] + "/0/"), "seed_id: expected"),
    "a seed of number 0": (FOSSILIZE, lambda r: r.update(seed_id=r["run_id"] + "/0/0"), "seed_id: expected"),
    "another blueprint than the seed's": (
        FOSSILIZE,
        report(blueprint_id="norm"),
        "blueprint_id: expected state.slots.0.blueprint = mlp, found norm",
    ),
    "germination where a seed is": (
        GERMINATION,
        slot(stage="TRAINING", blueprint="mlp"),
        "state.slots.0.stage: expected DORMANT for GERMINATE, found TRAINING",
    ),
    "fossilising a seed in training": (
        FOSSILIZE,
        slot(stage="TRAINING", alpha=0),
        "state.slots.0.stage: expected HOLDING for FOSSILIZE, found TRAINING",
    ),
    "alpha in training": (TRAINING, slot(alpha=0.5), "slots.0.alpha: expected 0 in stage TRAINING"),
    "alpha without a seed": (
        WAITING,
        slot(1, alpha=0.5),
        "state.slots.1: expected alpha 0 and 0 parameters in stage DORMANT, found alpha 0.5 and 0 parameters",
    ),
    "alpha beside its target": (
        HOLDING,
        slot(alpha=0.5),
        "state.slots.0.alpha: expected its target 1.0 in stage HOLDING, found 0.5",
    ),
    "a seed too many": (HOLDING, state(seeds_alive=2), "state.seeds_alive: .* = 1, found 2"),
    "more seeds than may be": (
        HOLDING,
        state(seeds_max=0),
        "state.seeds_alive: expected at most seeds_max = 0, found 1",
    ),
    "parameters that nobody has": (
        HOLDING,
        state(seed_parameters=821),
        "state.seed_parameters: expected the sum over its slots alive or fossilised = 820, found 821",
    ),
    "parameters of a final state": (
        LAST,
        state("final_state", seed_parameters=0),
        "final_state.seed_parameters: expected .* = 820, found 0",
    ),
    "trained before the first epoch": (
        WAITING,
        state(train_loss=0.5),
        "state.train_loss: expected null before the first epoch, found 0.5",
    ),
    "a history that ends elsewhere": (
        HOLDING,
        newest("validation_accuracy", 0.125),
        r"validation_accuracy_history: expected state.validation_accuracy = 0\.\d+ at its end, found 0.125",
    ),
    "a history of losses that ends elsewhere": (
        HOLDING,
        newest("validation_loss", 9.5),
        r"validation_loss_history: expected state.validation_loss = \d\.\d+ at its end, found 9.5",
    ),
    "a history of training that ends elsewhere": (
        HOLDING,
        newest("train_loss", 9.5),
        r"train_loss_history: expected state.train_loss = \d\.\d+ at its end, found 9.5",
    ),
    "rent too low": (
        HOLDING,
        metrics(rent_parameters=819),
        "metrics.rent_parameters: expected 820 to 820 after WAIT, by state.seed_parameters, found 819",
    ),
    "rent of nobody": (WAITING, metrics(rent_parameters=1), "expected 0 to 0 after WAIT"),
    "rent of more than a seed may have": (
        GERMINATION,
        metrics(rent_parameters=10_000_001),
        "rent_parameters: expected 0 to 10000000 after GERMINATE, by state.seed_parameters, found 10000001",
    ),
    "rent of more seeds than may be": (
        HOLDING,
        lambda r: r.update(
            observation_window_epochs=5,
            state={**r["state"], "seeds_max": 2},
            metrics={**r["metrics"], "rent_parameters": 20_000_001},
        ),
        "rent_parameters: expected at most 20000000 of 2 seeds, found 20000001",
    ),
    "rent of more seeds than slots": (
        HOLDING,
        lambda r: r.update(
            observation_window_epochs=5,
            state={**r["state"], "seeds_max": 10_000_000},
            metrics={**r["metrics"], "rent_parameters": 2**53},
        ),
        "rent_parameters: expected at most 30000000 of 3 seeds, found 9007199254740992",
    ),
    "nothing committed by a fossil": (
        FOSSILIZE,
        metrics(committed_parameters=0),
        "metrics.committed_parameters: expected .* after FOSSILIZE = 820, found 0",
    ),
    "a final state without its fossil": (
        LAST,
        slot(0, "final_state", stage="HOLDING"),
        "final_state.slots: expected fossilised seeds of 820 parameters, found 0",
    ),
}


def check(data: bytes) -> Accepted | Refused:
    validator = Validator(IngestConfig(), KNOWN)
    validator.begin(NOW, NOW)
    result = validator.validate(Line(1, data, None))
    assert result == validator.validate_with_contract(Line(1, data, None)), "both readers say the same"
    return result


@pytest.mark.parametrize("rent", [0, 819, 9_000_000])
def test_the_rent_of_a_seed_that_germinates_in_the_last_step_is_that_of_its_parameters(rent: int) -> None:
    raw = plain(episode(1, truncate_at=GERMINATION)[GERMINATION])
    assert isinstance(check(line(raw)), Accepted)
    raw["metrics"]["rent_parameters"] = rent
    result = check(line(FieldReport.model_validate(raw)))
    assert isinstance(result, Refused) and result.reason is Reason.CONTRADICTION
    expected = "state.seed_parameters and those of the germinated seed = 820"
    assert result.message == f"metrics.rent_parameters: expected {expected}, found {rent}"
    seed = raw["final_state"]["slots"][0]
    seed.update(stage="PRUNED", alpha=0.0)
    raw["final_state"].update(seeds_alive=0, seed_parameters=0)
    assert isinstance(check(line(FieldReport.model_validate(raw))), Accepted), "it did not live on"


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_d6_a_contradiction_is_refused_with_what_was_expected_and_found(name: str) -> None:
    step, spoil, message = CONTRADICTIONS[name]
    raw = plain(episode(1)[step])
    assert isinstance(check(line(raw)), Accepted)
    spoil(raw)
    data = line(FieldReport.model_validate(raw))
    result = check(data)
    assert isinstance(result, Refused) and result.reason is Reason.CONTRADICTION
    assert re.search(message, result.message)
    assert ": expected " in result.message and ", found " in result.message
    assert find_contradiction(TWIN.decode(data)) == result.message


def test_l4_a_governor_event_without_an_aborted_outcome_is_a_contradiction() -> None:
    raw = plain(episode(1, governor_at=PANIC)[-1])
    raw["outcome"] = "NEUTRAL"
    result = check(line(raw))
    assert isinstance(result, Refused) and "found NEUTRAL with one" in result.message


def test_contradictions_are_in_the_quarantine_and_the_other_reports_land(tmp_path: Path) -> None:
    home, rows = Home(tmp_path), [plain(report) for report in episode(1)]
    rows[6]["metrics"]["validation_accuracy_before"] = 0.125
    drop(home, "rows", rows)
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.reasons) == (19, {"contradiction": 1})
    (kept,) = query(home, "SELECT reason, line, message FROM quarantine")
    assert (kept["reason"], kept["line"]) == ("contradiction", 7)
    assert kept["message"].endswith("found 0.125")


LEGAL: dict[str, tuple[int, Spoil]] = {
    "within the tolerance": (
        WAITING,
        lambda r: r["metrics"].update(validation_accuracy_before=r["state"]["validation_accuracy"] + 9e-7),
    ),
    "no committed accuracy": (LAST, state("final_state", committed_validation_accuracy=None)),
    "no histories": (
        HOLDING,
        state(validation_accuracy_history=[], validation_loss_history=[], train_loss_history=[]),
    ),
    "histories that end within the tolerance": (
        HOLDING,
        lambda r: [
            r["state"][f"{name}_history"].__setitem__(-1, r["state"][name] + 9e-7)
            for name in ("validation_accuracy", "validation_loss", "train_loss")
        ],
    ),
    "a longer window": (HOLDING, report(observation_window_epochs=5)),
    "rent of the largest seed": (GERMINATION, metrics(rent_parameters=10_000_000)),
    "an episode cut off": (LAST, report(terminated=False, truncated=True)),
    "an operation masked although a slot would allow it": (
        WAITING,
        lambda r: r["available"]["slot"][1].__setitem__(1, True),
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_the_contract_leaves_open_lands(name: str) -> None:
    step, spoil = LEGAL[name]
    raw = plain(episode(1)[step])
    spoil(raw)
    assert isinstance(check(line(raw)), Accepted)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 18))
def test_episodes_of_every_course_tell_one_story(key: int, cut: int) -> None:
    assert [find_contradiction(report) for report in varied_episode(key, cut)] == [None] * len(varied_episode(key, cut))


WORLDS: list[tuple[str, str, dict[str, Any]]] = [
    ("random", "benchmark", {"horizon": 20}),
    ("heuristic", "benchmark", {"horizon": 12}),
    ("random", "compound", {"horizon": 30, "prune_epochs": 3}),
    ("explore", "compound", {"horizon": 20, "prune_epochs": 1, "blend": "gate"}),
    ("random", "images", {"horizon": 6, "prune_epochs": 2}),
    ("random", "toy", {"horizon": 8}),
    ("random", "wild", {"horizon": 8}),
]


@pytest.mark.parametrize(("controller", "world", "settings"), WORLDS, ids=lambda value: str(value))
def test_whatever_our_own_collections_report_lands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controller: str, world: str, settings: dict[str, Any]
) -> None:
    """Own modules, several seeds at a time, seeds that fade and panics of the governor among them."""
    install(monkeypatch, {"toy": ToyFamily(), "wild": ToyFamily(learning_rate=1e6)})
    collect(
        ControllerSpec(name=controller),
        identify(world, range(2 if world == "images" else 6)),
        WorldConfig(set=world, workers=1, **settings),
        BusSpec(tmp_path),
        seed=7,
        provenance=PROVENANCE,
        clock=lambda: NOW,
    )
    validator = Validator(IngestConfig(), frozenset(blueprint_names()))
    validator.begin(NOW, NOW)
    lines = [each for delivery in SpoolBus(tmp_path).claim(FIELD_REPORTS) for each in delivery.open(1 << 20)]
    results = [validator.validate(each) for each in lines]
    assert [result for result in results if isinstance(result, Refused)] == []
    order = EpisodeOrder(MOST_OPEN, MOST_ENDED)
    for link in sorted(
        (read_link(result.data) for result in results if isinstance(result, Accepted)), key=lambda link: link.step
    ):
        assert order.check(link) is None
        order.record(link)
    assert (order.complete > 0, order.incomplete) == (True, 0)
    assert len(results) >= 6 and (world != "wild" or any(b'"governor":{' in each.data for each in lines))


LATEST, EARLIEST, SHORTEST = NOW + timedelta(days=1), NOW - timedelta(days=3650), timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("issued_at", "message"),
    [
        (LATEST, None),
        (EARLIEST, None),
        (
            LATEST + timedelta(microseconds=1),
            "expected at the latest 2026-01-07T08:30:00+00:00 (ingest.max_future_s = 86400)",
        ),
        (datetime(9999, 12, 31, tzinfo=UTC), "found 9999-12-31T00:00:00+00:00: set the producer's clock, or send"),
        (
            EARLIEST - timedelta(microseconds=1),
            "expected at the earliest 2016-01-09T08:30:00+00:00 (ingest.max_age_days",
        ),
        (datetime(1970, 1, 1, tzinfo=UTC), "found 1970-01-01T00:00:00+00:00"),
    ],
)
def test_d6_a_report_from_far_off_is_refused_and_names_the_bound(issued_at: datetime, message: str | None) -> None:
    result = check(line(episode(1)[WAITING].model_copy(update={"issued_at": issued_at})))
    if message is None:
        assert isinstance(result, Accepted)
        return
    assert isinstance(result, Refused) and result.reason is Reason.ISSUED_AT
    assert result.message.startswith("issued_at: expected ") and message in result.message


def test_a_report_refused_for_its_time_lands_when_it_is_sent_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    ahead = episode(1, issued_at=NOW + timedelta(days=40))
    path = drop(home, "ahead", ahead)
    assert ingest_all(home).reasons == {"issued_at": 20}
    (path.parent.with_name("aside") / "ahead.jsonl").rename(path)
    assert ingest_all(home, max_future_s=50 * 86_400.0).landed == 20


def test_a_clock_set_back_makes_no_good_report_one_of_the_future(tmp_path: Path) -> None:
    """What landed before tells that the clock is behind; a year of collections would be refused otherwise."""
    home = Home(tmp_path)
    drop(home, "first", episode(1))
    ingest_all(home)
    drop(home, "second", episode(2))
    assert ingest_all(home, clock=lambda: NOW - timedelta(days=365)).landed == 20
