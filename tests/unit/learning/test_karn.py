"""Karn learns which blueprint suits a slot, from branches and from drawn germinations, and from nothing else."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.learning import KINDS, RETURNS, bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.errors import CircuitOpenError, ContractError, TrainingError
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.receipts import Provenance, SnapshotManifest
from simic.contracts.settings.karn import KarnConfig, KarnNetworkConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import BreakerConfig, BreakersConfig, SafetyConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.karn import KarnNetwork, load_karn
from simic.hosts.plugins import blueprint_names
from simic.learning import karn
from simic.learning.karn import KarnTraining
from simic.learning.karn_examples import Comparisons, Germinations, examples_of
from simic.learning.train_karn import train_karn
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive
from simic.trust.keys import Keyring, load_signer
from simic.trust.seal import verify

BLUEPRINTS = blueprint_names()
GATE, NORM = BLUEPRINTS.index("gate"), BLUEPRINTS.index("norm")
CONFIG = KarnConfig(network=KarnNetworkConfig(hidden=16, layers=1), passes=60, min_examples=16)
TRAIN = TrainConfig(network=NetworkConfig(exploration=0.02), min_experiences=1)
KEYS = range(90)


def store_of(root: Path, *parts: list) -> GraphDataset:
    write_snapshot(root / "s", [report for part in parts for report in part], split="train")
    return GraphDataset.load(root / "s", blueprints=BLUEPRINTS)


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return store_of(tmp_path_factory.mktemp("branched"), bandit_branches(KEYS))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return store_of(tmp_path_factory.mktemp("drawn"), bandit_episodes(range(180)))


def trained(store: GraphDataset, seed: int = 0, config: KarnConfig = CONFIG) -> KarnTraining:
    training = KarnTraining(store, config, TRAIN, seed)
    assert len(list(training.run())) == training.updates
    return training


def choice_by_kind(network: KarnNetwork, store: GraphDataset) -> dict[str, float]:
    """Mean of P(gate) - P(norm) among the two, over the first steps of the episodes of each kind."""
    starts = store.sequences.starts
    states, _ = store.states(starts)
    with torch.no_grad():
        logits = network(states)[states.slot_ptr[:-1]][:, [GATE, NORM]]
    lead = logits.softmax(1) @ torch.tensor([1.0, -1.0])
    kinds = store.sequences.host_keys % 3
    return {name: float(lead[torch.from_numpy(kinds == index)].mean()) for index, name in enumerate(KINDS)}


def test_a_comparison_holds_the_returns_of_the_blueprints_tried_in_one_slot(tmp_path: Path) -> None:
    """The oracle is the table of the world: each half of an entry comes as 100 points per unit, discounted by 0.99."""
    store = store_of(tmp_path, bandit_branches(range(5, 11), noise=0.0))
    found = examples_of(store)
    assert len(found.compared.rows) == 6 and not len(found.germinated.rows) and found.undrawn == 0
    for row, slot, returns in zip(found.compared.rows, found.compared.slots, found.compared.returns, strict=True):
        sequence = int(np.searchsorted(store.sequences.starts, row, side="right")) - 1
        kind = KINDS[int(store.sequences.host_keys[sequence]) % 3]
        assert int(slot) == 0
        assert {BLUEPRINTS[index] for index in (~returns.isnan()).nonzero().flatten().tolist()} == {"gate", "norm"}
        expected = [50 * RETURNS[kind, name] * (0.99 + 0.99**2) for name in ("gate", "norm")]
        assert returns[[GATE, NORM]].tolist() == pytest.approx(expected, abs=1e-3)


def test_the_wait_of_a_parent_is_no_blueprint_and_one_blueprint_is_no_comparison(tmp_path: Path) -> None:
    reports = [one for one in bandit_branches(range(9)) if one.action.blueprint != "norm" or one.step]
    whole = {one.run_id for one in reports if one.step == 0}
    found = examples_of(store_of(tmp_path, [one for one in reports if one.run_id in whole]))
    assert len(found.compared.rows) == 0 and found.size == 0


def test_a_germination_keeps_its_own_propensity_and_a_certain_one_is_left_out(tmp_path: Path) -> None:
    """A blueprint that was chosen with probability 1 says nothing about the others, so it is not learned from."""
    reports = bandit_episodes(range(60))
    certain = []
    for one in reports:
        log_prob = one.log_prob_behaviour
        if one.host.key % 2 and log_prob.blueprint is not None:
            log_prob = log_prob.model_copy(update={"blueprint": 0.0, "joint": log_prob.joint - log_prob.blueprint})
        certain.append(one.model_copy(update={"log_prob_behaviour": log_prob}))
    store = store_of(tmp_path, certain)
    found, germinations = examples_of(store), sum(one.action.blueprint is not None for one in reports)
    assert found.undrawn == sum(one.action.blueprint is not None and one.host.key % 2 for one in reports) > 0
    assert len(found.germinated.rows) == germinations - found.undrawn
    assert found.germinated.log_probs.tolist() == pytest.approx([math.log(0.5)] * len(found.germinated.rows))
    assert {*found.germinated.blueprints.tolist()} == {GATE, NORM}
    assert torch.equal(found.germinated.returns, store.steps.returns[torch.from_numpy(found.germinated.rows)])


def test_an_episode_without_a_propensity_is_refused_and_not_taken_for_certain(tmp_path: Path) -> None:
    def without(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        germination = next(row for row in rows if row["action"]["blueprint"] is not None)
        germination["log_prob_behaviour"] = {**germination["log_prob_behaviour"], "blueprint": None}
        return rows

    write_snapshot(tmp_path / "s", bandit_episodes(range(9)), split="train", change=without)
    with pytest.raises(ContractError, match="log_prob_behaviour is missing in 1 of"):
        GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)


@pytest.mark.parametrize("source", ["branched", "drawn"])
def test_it_learns_the_right_blueprint_of_each_kind_from_either_source(
    source: str, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(source)
    training = trained(store)
    lead = choice_by_kind(training.network, store)
    assert lead["linear"] > 0.5 and lead["curved"] < -0.5, lead


def test_both_sources_are_learned_from_together(tmp_path: Path) -> None:
    store = store_of(tmp_path, bandit_branches(range(30)), bandit_episodes(range(100, 160)))
    training = KarnTraining(store, CONFIG, TRAIN, 0)
    assert len(training.examples.compared.rows) and len(training.examples.germinated.rows)
    list(training.run())
    lead = choice_by_kind(training.network, store)
    assert lead["linear"] > 0.5 and lead["curved"] < -0.5, lead


def test_its_regret_on_held_out_hosts_is_below_that_of_one_ranking_for_all(branched: GraphDataset) -> None:
    found = trained(branched).metrics
    assert found["held_out_greedy_regret"] < 1.0 < found["held_out_fixed_regret"]
    assert found["held_out_regret"] < found["held_out_uniform_regret"]


def test_hosts_that_only_measure_are_learned_from_in_no_way(tmp_path: Path) -> None:
    """An ordinary episode on the host of a held-out comparison would tell which blueprint suits it."""
    found = examples_of(store := store_of(tmp_path, bandit_branches(KEYS), bandit_episodes(range(120))))

    def hosts(rows: Any) -> set[int]:
        sequences = np.searchsorted(store.sequences.starts, rows, side="right") - 1
        return {*store.sequences.host_keys[sequences].tolist()}

    measured, compared = hosts(found.held_out.rows), hosts(found.compared.rows)
    assert len(measured) >= 8 and measured.isdisjoint(compared)
    drawn = {one.host.key for one in bandit_episodes(range(120)) if one.action.blueprint is not None}
    held_out = {key for key in drawn if derive(key, "held out") % 8 == 0}
    assert hosts(found.germinated.rows) == drawn - held_out
    assert held_out & measured and held_out - measured and drawn & compared


def test_hosts_are_held_out_even_if_they_are_too_few_to_measure(tmp_path: Path) -> None:
    """Of 12 hosts one is held out by its hash, host 4."""
    store = store_of(tmp_path, bandit_branches(range(12)), bandit_episodes(range(12)))
    found = examples_of(store)
    drawn = [one for one in bandit_episodes(range(12)) if one.action.blueprint is not None and one.host.key != 4]
    assert not len(found.held_out.rows)
    assert len(found.compared.rows) == 11
    assert len(found.germinated.rows) == len(drawn)
    assert "held_out_regret" not in trained(store).metrics


def test_a_blueprint_of_which_nothing_was_learned_is_not_the_one_for_all(branched: GraphDataset) -> None:
    found, other = examples_of(branched), next(i for i in range(len(BLUEPRINTS)) if i not in (GATE, NORM))
    returns = found.compared.returns.clone()
    returns[:, other], returns[:, NORM] = found.compared.returns[:, NORM], torch.nan
    learned = found._replace(compared=found.compared._replace(returns=returns))
    network = KarnNetwork(CONFIG.network, BLUEPRINTS)
    regrets = karn.regrets(network, branched, learned)
    regret = found.held_out.regret
    assert regrets["held_out_fixed_regret"] == pytest.approx(float(regret[:, GATE].mean()), rel=1e-5)
    assert regrets["held_out_uniform_regret"] == pytest.approx(float(regret[:, [GATE, NORM]].mean()), rel=1e-5)


def test_the_regrets_are_those_of_the_definition() -> None:
    """Two comparisons on paper: regrets (0, 4) and (6, 0) points, one ranking that prefers the first blueprint."""
    nan = torch.nan
    compared = Comparisons(
        np.array([0, 1]), torch.zeros(2, dtype=torch.int64), torch.tensor([[9, 5, nan], [1, 7, nan]])
    )
    assert compared.regret.tolist() == [[0.0, 4.0, 0.0], [6.0, 0.0, 0.0]]
    assert compared.tried.tolist() == [[True, True, False]] * 2


def test_a_drawn_germination_counts_by_its_own_propensity_and_at_most_as_far_as_the_cut() -> None:
    """Half as probable under the behaviour as under Karn: two residuals. A catastrophe: two cuts."""
    table, predicted = torch.full((2, 2), 0.5).log(), torch.tensor([[1.0, 3.0], [1.0, 3.0]])
    drawn = Germinations(
        np.arange(2), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 0]), torch.full((2,), 0.25).log(),
        torch.tensor([5.0, -500.0]),
    )  # fmt: skip
    loss = karn._germination_loss(table, predicted, drawn, max_weight=5.0, temperature=0.0)
    assert (-karn.UNIT * loss).tolist() == pytest.approx([2.0 + 2 * (5.0 - 1.0), 2.0 - 2 * karn.REGRET_CUT])


@pytest.mark.parametrize("size", [1, 7, 16])
def test_the_loss_of_a_batch_is_the_mean_over_its_parts(tmp_path: Path, size: int) -> None:
    """Comparisons come before germinations, so a part can hold both; parts are weighted by their rows."""
    store = store_of(tmp_path, bandit_branches(range(12)), bandit_episodes(range(100, 130)))
    training = KarnTraining(store, CONFIG, TRAIN, 0)
    compared, germinated = (np.arange(len(one.rows)) for one in training.examples[::2])
    rows = len(compared) + len(germinated)
    loss_of = partial(training._loss, compared, germinated, 1.0, None)
    parts = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
    mean = sum(float(loss_of(part).total.detach()) * (part.stop - part.start) for part in parts) / rows
    assert mean == pytest.approx(float(loss_of(slice(0, rows)).total.detach()), rel=1e-5)


def test_equal_seeds_give_equal_bits_and_other_seeds_others(branched: GraphDataset) -> None:
    config = CONFIG.model_copy(update={"passes": 3})
    first, again, other = (trained(branched, seed, config).network.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_too_little_experience_is_refused_and_the_message_says_what_to_collect(branched: GraphDataset) -> None:
    with pytest.raises(TrainingError, match=r"compares 7\d slots .* fewer than karn\.min_examples 500: collect branch"):
        KarnTraining(branched, CONFIG.model_copy(update={"min_examples": 500}), TRAIN, 0)


def test_a_batch_is_read_again_as_often_as_the_breaker_of_the_settings_lets_it(
    branched: GraphDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()

    def broken(_store: GraphDataset, rows: np.ndarray) -> None:
        calls.append(len(rows))
        raise OSError("Input/output error")

    breakers = BreakersConfig(sampling=BreakerConfig(failures=2, open_s=0.0))
    config = TRAIN.model_copy(update={"safety": SafetyConfig(breakers=breakers)})
    training = KarnTraining(branched, CONFIG, config, 0)
    monkeypatch.setattr(GraphDataset, "states", broken)
    with pytest.raises(CircuitOpenError, match="after 2 failures and a pause of 0 s one more attempt failed"):
        next(training.run())
    assert len(calls) == 3


def sealed(root: Path, snapshot: SnapshotManifest, seed: int = 0) -> KarnReport:
    signer, shown = load_signer(root / "keys", {}), list[int]()
    report = train_karn(
        snapshot, CONFIG.model_copy(update={"passes": 4}), TRAIN, blueprints=BLUEPRINTS, out_root=root / "karn",
        signer=signer, verify=lambda path: verify(path, Keyring(root / "keys")).digest, seed=seed,
        provenance=Provenance("0.1.0", "a" * 64, seed), clock=lambda: datetime(2026, 1, 5, tzinfo=UTC),
        on_progress=shown.append,
    )  # fmt: skip
    assert sum(shown) == 100 and min(shown) >= 0
    return report


def test_training_seals_what_it_reports_and_a_second_one_gives_the_same_digest(tmp_path: Path) -> None:
    snapshot = write_snapshot(tmp_path / "s", bandit_branches(range(40)), split="train")
    (tmp_path / "karn" / f".train-{snapshot.digest[:12]}-0").mkdir(parents=True)  # what a killed training left
    first = sealed(tmp_path, snapshot)
    seal = verify(tmp_path / "karn" / first.digest, Keyring(tmp_path / "keys"), first.digest)
    loaded = load_karn(tmp_path / "karn" / first.digest, {file.name: file.sha256 for file in seal.files})
    assert (loaded.card.snapshot_digest, loaded.card.set) == (snapshot.digest, "benchmark")
    assert loaded.card.germinated == ["gate", "norm"]
    assert loaded.card.feature_ranges is not None
    assert first.comparisons and first.sets == ["benchmark"]
    assert sealed(tmp_path, snapshot).digest == first.digest != sealed(tmp_path, snapshot, seed=1).digest
    assert len(list((tmp_path / "karn").iterdir())) == 2, "no unfinished folder stays"
