"""The whole learner: it learns what can be learned, twice the same, goes on where it stopped, and refuses the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.learning import KINDS, RETURNS, STEPS, bandit_episodes, may_fossilise
from support.builders.reports import episode
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import ConfigError, ContractError, IntegrityError, TrainingError
from simic.contracts.feature_ranges import FeatureRange
from simic.contracts.results.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import ReplayConfig, TrainConfig
from simic.controllers.policy_files import load_policy, save_policy
from simic.controllers.sampling import sample_op_greedy_factors
from simic.hosts.plugins import blueprint_names
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.telemetry import NullObserver, Update, read_metrics
from simic.trust.keys import Keyring
from simic.trust.seal import verify as verify_seal

PROVENANCE = Provenance("test", "0" * 64, 0)
SMALL = TrainConfig(
    network=NetworkConfig(hidden=16, layers=1),
    batch_sequences=16,
    cloning_passes=2,
    value_passes=2,
    vtrace_passes=6,
    round_passes=2,
    min_experiences=100,
    min_commit_rate=0.0,
)
EPISODES = 240


class RecordingObserver:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.data: dict[str, float] = {}
        self.updates: list[Update] = []
        self.ends: list[tuple[str, int]] = []

    def begin(self, metrics: Any) -> None:
        self.data |= metrics

    def update(self, update: Update) -> None:
        self.updates.append(update)

    def end(self, policy: str, recoveries: int, stopped: str | None = None) -> None:
        assert stopped is None
        self.ends.append((policy, recoveries))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("learning")


@pytest.fixture(scope="module")
def first_snapshot(root: Path) -> SnapshotManifest:
    return write_snapshot(root / "first", bandit_episodes(range(EPISODES)), split="train")


@pytest.fixture(scope="module")
def second_snapshot(root: Path) -> SnapshotManifest:
    """The first one and sixty episodes more."""
    return write_snapshot(root / "second", bandit_episodes(range(EPISODES + 60)), split="train")


@pytest.fixture(scope="module")
def trained(root: Path, first_snapshot: SnapshotManifest) -> TrainingReport:
    return sealed(root, first_snapshot, SMALL)


@pytest.fixture(scope="module")
def continued(root: Path, trained: TrainingReport, second_snapshot: SnapshotManifest) -> TrainingReport:
    return sealed(root, second_snapshot, SMALL, start=WarmStart(Path(trained.path), is_continuation=True))


def choices(path: Path, snapshot: SnapshotManifest) -> dict[str, set[str]]:
    """What the policy most likely does in the first state, by kind of host."""
    network = load_policy(path).network
    store = GraphDataset.load(Path(snapshot.path), blueprints=blueprint_names())
    batch = store.batch(np.arange(len(store)))
    middle = np.full((len(batch.time), len(HEADS)), 0.5)
    distribution = batch.distribution(network.act(batch.steps), exploration=0.0)
    decisions = sample_op_greedy_factors(distribution, middle).actions
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for row in np.flatnonzero(batch.time.numpy() == 0):
        kind = KINDS[store.sequences.host_keys[batch.sequence[row]] % 3]
        op, blueprint = decisions[row][0], decisions[row][2]
        found[kind].add(blueprint_names()[blueprint] if op == OP_INDEX[Op.GERMINATE] else "wait")
    return found


def test_the_right_choice_is_learned_for_every_kind_of_host(
    trained: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    best = {kind: {max(RETURNS, key=lambda key: (key[0] == kind, RETURNS[key]))[1]} for kind in KINDS}
    assert best == {"linear": {"gate"}, "curved": {"norm"}, "healthy": {"wait"}}
    assert choices(Path(trained.path), first_snapshot) == best


def test_same_snapshot_and_seed_same_digest_other_seed_another(
    root: Path, tmp_path: Path, trained: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    again = sealed(tmp_path, first_snapshot, SMALL)
    assert again.digest == trained.digest
    assert again.metrics == trained.metrics
    assert Path(again.curves_path).read_bytes() == Path(trained.curves_path).read_bytes()
    other = sealed(tmp_path, first_snapshot, SMALL, seed=1)
    assert other.digest != trained.digest
    seeds = [json.loads((Path(r.path) / "learner.json").read_text())["sampler"]["seed"] for r in (trained, other)]
    assert seeds[0] != seeds[1]


def test_a_snapshot_larger_than_memory_may_be_trains_the_same_policy(
    tmp_path: Path, trained: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    mapped = sealed(
        tmp_path, first_snapshot, SMALL.model_copy(update={"replay": ReplayConfig().model_copy(update={"max_mb": 0})})
    )
    assert len(list((tmp_path / "columns").iterdir())) == 1
    assert mapped.digest == trained.digest


def test_a_damaged_policy_gives_way_to_the_same_one_whole(tmp_path: Path, first_snapshot: SnapshotManifest) -> None:
    config = SMALL.model_copy(update={"cloning_passes": 0, "value_passes": 0, "vtrace_passes": 1})
    first = sealed(tmp_path, first_snapshot, config)
    weights = Path(first.path) / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    again = sealed(tmp_path, first_snapshot, config)
    assert (again.digest, again.path) == (first.digest, first.path)
    assert weights.read_bytes() == whole
    assert [path.name for path in (tmp_path / "policies").iterdir()] == [first.digest]
    (kept,) = (tmp_path / "damaged").iterdir()
    assert (kept / weights.name).read_bytes() != whole


def test_l7_who_listens_changes_nothing(
    tmp_path: Path, trained: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    observer, told = RecordingObserver(), []
    heard = sealed(tmp_path, first_snapshot, SMALL, observer=observer, on_progress=told.append)
    assert heard.digest == trained.digest
    assert sum(told) == 100
    assert min(told) > 0
    records = [(one.step, one.metrics) for one in observer.updates]
    assert [step for step, _ in records] == list(range(1, trained.updates + 1))
    assert records == list(read_metrics(Path(heard.curves_path)))
    assert min(one.time_ms for one in observer.updates) > 0.0
    assert list(dict.fromkeys(one.phase for one in observer.updates)) == ["cloning", "value_fit", "vtrace"]
    assert observer.data["buffer_size"] == first_snapshot.rows_out
    assert observer.ends == [(heard.digest, 0)]


def test_the_thread_count_is_given_back(tmp_path: Path) -> None:
    snapshot = write_snapshot(tmp_path / "s", may_fossilise(bandit_episodes(range(40))), split="train")
    torch.set_num_threads(2)
    try:
        with pytest.raises(TrainingError, match="the commit rate"):
            sealed(tmp_path, snapshot, SMALL.model_copy(update={"min_commit_rate": 1.0, "vtrace_passes": 0}))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_the_report_tells_what_was_done(trained: TrainingReport, first_snapshot: SnapshotManifest) -> None:
    updates = (SMALL.cloning_passes + SMALL.value_passes + SMALL.vtrace_passes) * EPISODES // SMALL.batch_sequences
    assert (trained.updates, trained.episodes, trained.passes) == (updates, EPISODES, float(SMALL.vtrace_passes))
    assert trained.snapshot_digest == first_snapshot.digest
    assert trained.start_digest is None
    expected = """policy_loss value_loss mean_ratio commit_rate explained_variance advantage_sd clamp_count entropy_op
        grad_norm_policy grad_norm_value lr_policy effective_sample_share mean_log_ratio"""
    assert set(expected.split()) <= set(trained.metrics)
    assert trained.metrics["explained_variance"] > 0.2


@pytest.mark.parametrize("batch", [8, 32])
def test_m17_the_requested_batch_is_the_one_that_trains(
    tmp_path: Path, first_snapshot: SnapshotManifest, batch: int
) -> None:
    passes = {"cloning_passes": 1, "value_passes": 0, "vtrace_passes": 1}
    report = sealed(tmp_path, first_snapshot, SMALL.model_copy(update={"batch_sequences": batch, **passes}))
    assert report.updates == 2 * -(-EPISODES // batch)


def test_l8_passes_move_the_policy_off_the_behaviour(trained: TrainingReport) -> None:
    """The first ratios are near 1, the last are not: truncation has something to do."""
    records = [m for _, m in read_metrics(Path(trained.curves_path)) if "mean_ratio" in m]
    assert records[0]["mean_ratio"] > 0.95
    assert trained.metrics["mean_ratio"] < 0.9
    assert trained.metrics["clamp_count"] == 0.0


def test_simic001_v_trace_stops_far_from_the_behaviour(tmp_path: Path, first_snapshot: SnapshotManifest) -> None:
    """An effective sample size of all steps is never reached, so the first pass is the last; progress ends at 100."""
    told: list[int] = []
    config = SMALL.model_copy(update={"cloning_passes": 0, "value_passes": 0, "min_effective_share": 1.0})
    report = sealed(tmp_path, first_snapshot, config, on_progress=told.append)
    updates = EPISODES // SMALL.batch_sequences
    assert (report.updates, report.passes) == (updates, 1.0)
    assert report.metrics["updates_left_out"] == (SMALL.vtrace_passes - 1) * updates
    assert report.metrics["effective_sample_share"] < 1.0
    assert sum(told) == 100


def test_the_policy_is_sealed_complete_and_without_pickle(root: Path, trained: TrainingReport) -> None:
    path = Path(trained.path)
    assert verify_seal(path, Keyring(root / "keys"), trained.digest).digest == path.name == trained.digest
    names = {file.name for file in path.iterdir()}
    assert names == {"weights.safetensors", "card.json", "learner.safetensors", "learner.json", "manifest.json"}
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []
    card = json.loads((path / "card.json").read_text())
    assert card["snapshot_digest"] == trained.snapshot_digest
    assert card["set"] == "benchmark"
    assert card["germinated"] == ["gate", "norm"]


@pytest.mark.parametrize(("earlier", "known"), [(["dense", "gate"], ("dense", "gate", "norm")), (None, None)])
def test_what_a_policy_met_before_it_has_met(
    earlier: list[str] | None,
    known: tuple[str, ...] | None,
    tmp_path: Path,
    trained: TrainingReport,
    first_snapshot: SnapshotManifest,
) -> None:
    network, card = load_policy(Path(trained.path))
    save_policy(tmp_path / "other", network, card.model_copy(update={"germinated": earlier}))
    store = GraphDataset.load(Path(first_snapshot.path), blueprints=blueprint_names())
    begun = TrainingRun.begin(store, SMALL, WarmStart(tmp_path / "other", is_continuation=False), seed=0)
    assert begun.germinated == known


def test_the_ranges_of_a_policy_are_those_of_all_that_it_learned_from(
    tmp_path: Path, trained: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    network, card = load_policy(Path(trained.path))
    store = GraphDataset.load(Path(first_snapshot.path), blueprints=blueprint_names())
    table, names = store.table.context_x, card.features["context"]
    column, ranges = names.index("validation_loss"), card.feature_ranges
    assert ranges is not None
    known = ranges["context"][column]
    assert known is not None
    assert (known.lower, known.upper) == (float(table[:, column].min()), float(table[:, column].max()))
    wider = {**ranges, "context": [FeatureRange(lower=-12, upper=12)] * len(names)}
    for number, (earlier, expected) in enumerate(((wider, wider), (None, None))):
        path = tmp_path / str(number)
        save_policy(path, network, card.model_copy(update={"feature_ranges": earlier}))
        begun = TrainingRun.begin(store, SMALL, WarmStart(path, is_continuation=False), seed=0)
        assert begun.feature_ranges == expected


def test_c5_the_normaliser_is_the_first_snapshots_and_stays(
    trained: TrainingReport, continued: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    store = GraphDataset.load(Path(first_snapshot.path), blueprints=blueprint_names())
    policies = [load_policy(Path(report.path)) for report in (trained, continued)]
    assert policies[0].card.normaliser_version == policies[1].card.normaliser_version
    accuracy = policies[0].card.features["context"].index("validation_accuracy")
    mean = policies[0].network.normaliser().mean["context"][accuracy]
    assert float(mean) == pytest.approx(float(store.table.context_x[:, accuracy].mean()), rel=1e-4)


def test_a_round_goes_on(trained: TrainingReport, continued: TrainingReport) -> None:
    """New episodes in each pass, worn-in ones as far as they may; counters and moments go on.

    LF-12: of eight passes the first training makes six, so two are left for rounds.
    """
    state, later = (json.loads((Path(r.path) / "learner.json").read_text()) for r in (trained, continued))
    assert continued.start_digest == trained.digest
    assert continued.episodes == EPISODES + 60
    assert later["snapshots"] == [trained.snapshot_digest, continued.snapshot_digest]
    assert (state["rounds"], later["rounds"]) == (1, 2)
    assert later["advantage_scale"] == state["advantage_scale"]
    assert continued.updates == later["updates"] > state["updates"] == trained.updates
    counts, after = state["sampler"]["counts"], later["sampler"]["counts"]
    assert set(counts.values()) == {6}
    new = set(after) - set(counts)
    assert {after[run_id] for run_id in new} == {2}
    assert sum(after[run_id] - 6 for run_id in counts) == 2 * len(new)
    assert max(after.values()) <= SMALL.max_passes


def test_rounds_are_averaged_and_the_learner_goes_on_from_its_own_weights(
    root: Path, tmp_path: Path, continued: TrainingReport
) -> None:
    """The first round is acted with as it is; from the second on, most of the average before stays."""
    snapshot = write_snapshot(tmp_path / "third", bandit_episodes(range(EPISODES + 90)), split="train")
    start = WarmStart(Path(continued.path), is_continuation=True)
    averaged, own = (
        sealed(root, snapshot, SMALL.model_copy(update={"average": share}), start=start, out_root=tmp_path / str(share))
        for share in (0.6, 0.0)
    )
    before, mean, raw = (
        dict(load_policy(Path(report.path)).network.named_parameters()) for report in (continued, averaged, own)
    )
    for name, value in mean.items():
        torch.testing.assert_close(value, 0.6 * before[name] + 0.4 * raw[name])
    assert not torch.equal(mean["op_head.0.weight"], raw["op_head.0.weight"])
    learners = [(Path(report.path) / "learner.safetensors").read_bytes() for report in (averaged, own)]
    assert learners[0] == learners[1], "what is acted with moves nothing that is learned from the same episodes"


def test_a_rounds_curves_begin_with_those_of_the_rounds_before(
    trained: TrainingReport, continued: TrainingReport
) -> None:
    before, after = (list(read_metrics(Path(r.curves_path))) for r in (trained, continued))
    assert after[: len(before)] == before
    assert [step for step, _ in after] == list(range(1, continued.updates + 1))
    assert all("cloning_gap" not in metrics for _, metrics in after[len(before) :])


def test_a_round_takes_smaller_steps(trained: TrainingReport, continued: TrainingReport) -> None:
    before, after = (list(read_metrics(Path(r.curves_path))) for r in (trained, continued))
    rates = [metrics["lr_policy"] for _, metrics in after[len(before) :]]
    assert rates == sorted(rates, reverse=True)
    assert max(rates) < max(m.get("lr_policy", 0.0) for _, m in before)


@pytest.fixture(scope="module")
def second_night(root: Path, continued: TrainingReport, second_snapshot: SnapshotManifest) -> TrainingReport:
    """A run that starts from the policy of another one, with its episodes."""
    return sealed(root, second_snapshot, SMALL, start=WarmStart(Path(continued.path), is_continuation=False))


def counts_of(report: TrainingReport) -> dict[str, int]:
    counts: dict[str, int] = json.loads((Path(report.path) / "learner.json").read_text())["sampler"]["counts"]
    return counts


def test_lf74_a_later_run_uses_the_passes_that_earlier_ones_left_and_no_more(
    root: Path,
    tmp_path: Path,
    continued: TrainingReport,
    second_night: TrainingReport,
    second_snapshot: SnapshotManifest,
) -> None:
    before, after = counts_of(continued), counts_of(second_night)
    assert min(before.values()) < max(before.values()) == SMALL.max_passes
    assert set(after.values()) == {SMALL.max_passes}, "what was left is used, and not a pass more"
    assert second_night.passes == float(SMALL.max_passes)
    start = WarmStart(Path(second_night.path), is_continuation=False)
    with pytest.raises(TrainingError, match=r"8 passes of .* raise train\.max_passes"):
        sealed(root, second_snapshot, SMALL, start=start)
    snapshot = write_snapshot(tmp_path / "third", bandit_episodes(range(200, EPISODES + 90)), split="train")
    third = sealed(root, snapshot, SMALL, start=start)
    new = set(counts_of(third)) - set(after)
    assert {counts_of(third)[run_id] for run_id in new} == {SMALL.vtrace_passes}
    assert len(new) == 30
    assert len(counts_of(third)) == EPISODES + 90 - 200, "episodes that left the data are forgotten"


def test_lf74_a_run_with_rounds_waits_for_their_episodes(
    root: Path, tmp_path: Path, second_night: TrainingReport, second_snapshot: SnapshotManifest
) -> None:
    """Its first training makes no update, and the round trains the same weights from the new episodes."""
    start = WarmStart(Path(second_night.path), is_continuation=False, has_rounds=True)
    idle = sealed(root, second_snapshot, SMALL, start=start)
    assert (idle.updates, idle.metrics) == (0, {})
    weights = [(Path(report.path) / "weights.safetensors").read_bytes() for report in (second_night, idle)]
    assert weights[0] == weights[1]
    snapshot = write_snapshot(tmp_path / "third", bandit_episodes(range(EPISODES + 90)), split="train")
    report = sealed(root, snapshot, SMALL, start=WarmStart(Path(idle.path), is_continuation=True))
    assert report.updates == SMALL.round_passes * -(-30 // SMALL.batch_sequences)


def test_the_first_round_after_a_training_without_updates_warms_up(tmp_path: Path) -> None:
    """The champion has no pass left, so no optimiser has moments; at full rate its first steps would be too large."""
    old, new = bandit_episodes(range(96)), bandit_episodes(range(200, 264))
    first, second = (
        write_snapshot(tmp_path / name, reports, split="train") for name, reports in (("1", old), ("2", old + new))
    )
    config = TrainConfig(
        network=NetworkConfig(hidden=8, layers=1), batch_sequences=32, min_experiences=100, min_commit_rate=0.0,
        start="scratch", vtrace_passes=2, max_passes=2, round_passes=2, cloning_passes=1, value_passes=1,
        warmup_updates=10,
    )  # fmt: skip
    champion = sealed(tmp_path, first, config)
    waits = sealed(tmp_path, first, config, WarmStart(Path(champion.path), False, has_rounds=True))
    assert waits.updates == 0
    store = GraphDataset.load(Path(second.path), blueprints=blueprint_names())
    training = TrainingRun.begin(store, config, WarmStart(Path(waits.path), True), 0)
    rates = [record.metrics["lr_policy"] for record in training.run()]
    assert rates[0] < rates[1] < rates[2]


def test_a_policy_without_counted_passes_is_measured_on_the_log(tmp_path: Path) -> None:
    """The gate asks for its importance ratios; of a training with passes they are those of its updates."""
    snapshot = write_snapshot(tmp_path / "s", bandit_episodes(range(96)), split="train")
    config = TrainConfig(
        network=NetworkConfig(hidden=8, layers=1), batch_sequences=32, min_experiences=100, min_commit_rate=0.0,
        start="scratch", vtrace_passes=0, cloning_passes=4, value_passes=1,
    )  # fmt: skip
    assert 0.5 < sealed(tmp_path, snapshot, config).metrics["mean_ratio"] <= 1.0


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_the_replay_ratio_bounds_the_earlier_episodes_of_a_pass(
    ratio: float, root: Path, tmp_path: Path, trained: TrainingReport, second_snapshot: SnapshotManifest
) -> None:
    """Sixty new episodes, and no more than that share of them from the 240 that have two passes left."""
    config = SMALL.model_copy(update={"replay_ratio": ratio})
    start = WarmStart(Path(trained.path), is_continuation=True)
    report = sealed(root, second_snapshot, config, start=start, out_root=tmp_path / "policies")
    before, after = counts_of(trained), counts_of(report)
    assert sum(after[run_id] - count for run_id, count in before.items()) == SMALL.round_passes * ratio * 60


def test_a_champion_gives_its_weights_and_statistics(
    continued: TrainingReport, second_night: TrainingReport, second_snapshot: SnapshotManifest
) -> None:
    """No supervised phase, a new optimiser; the statistics its weights were made for."""
    report = second_night
    assert report.start_digest == continued.digest
    assert report.episodes == EPISODES + 60
    curves = [metrics for _, metrics in read_metrics(Path(report.curves_path))]
    for name in ("lr_policy", "lr_value"):
        peak = max(metrics.get(name, 0.0) for _, metrics in read_metrics(Path(continued.curves_path)))
        assert max(metrics[name] for metrics in curves) == pytest.approx(peak / 2)
        assert curves[0][name] < curves[1][name], "a new optimiser warms up"
    assert not any("cloning_gap" in metrics or "value_fit_loss" in metrics for metrics in curves)
    assert (
        load_policy(Path(report.path)).card.normaliser_version
        == load_policy(Path(continued.path)).card.normaliser_version
    )
    assert choices(Path(report.path), second_snapshot) == {"linear": {"gate"}, "curved": {"norm"}, "healthy": {"wait"}}


def test_nothing_is_read_from_a_policy_that_does_not_verify(
    root: Path, tmp_path: Path, trained: TrainingReport, second_snapshot: SnapshotManifest
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained.path, copy)
    content = bytearray((copy / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "weights.safetensors").write_bytes(bytes(content))
    with pytest.raises(IntegrityError):
        sealed(
            root, second_snapshot, SMALL, start=WarmStart(copy, is_continuation=True), out_root=tmp_path / "policies"
        )


def test_only_the_training_split_teaches(tmp_path: Path) -> None:
    snapshot = write_snapshot(tmp_path / "s", bandit_episodes(range(EPISODES)))
    store = GraphDataset.load(Path(snapshot.path), blueprints=blueprint_names())
    report = sealed(tmp_path, snapshot, SMALL.model_copy(update={"vtrace_passes": 1}))
    assert report.episodes == len(store) < EPISODES
    counted = json.loads((Path(report.path) / "learner.json").read_text())["sampler"]["counts"]
    assert set(counted) == set(store.sequences.run_ids)


def test_too_little_experience_is_refused(tmp_path: Path) -> None:
    snapshot = write_snapshot(tmp_path / "s", bandit_episodes(range(10)), split="train")
    with pytest.raises(TrainingError, match=rf"{10 * STEPS} training steps, fewer than train.min_experiences 100"):
        sealed(tmp_path, snapshot, SMALL)
    assert not (tmp_path / "policies").exists()


def in_set(name: str, share: int) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Every ``share``-th host lives in another world."""

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "set": name if row["host_key"] % share == 0 else row["set"]} for row in rows]

    return change


def test_the_card_names_every_set_whose_hosts_were_learned_from(tmp_path: Path) -> None:
    snapshot = write_snapshot(tmp_path / "s", bandit_episodes(range(60)), split="train", change=in_set("other", 2))
    report = sealed(tmp_path, snapshot, SMALL)
    assert load_policy(Path(report.path)).card.set == "benchmark+other"


@pytest.mark.parametrize("is_continuation", [True, False])
def test_a_policy_of_other_sets_alone_cannot_go_on(
    root: Path, tmp_path: Path, trained: TrainingReport, is_continuation: bool
) -> None:
    snapshot = write_snapshot(tmp_path / "s", bandit_episodes(range(60)), split="train", change=in_set("other", 1))
    start = WarmStart(Path(trained.path), is_continuation)
    with pytest.raises(ContractError, match="trained on hosts of benchmark, the snapshot has only hosts of other:"):
        sealed(root, snapshot, SMALL, start=start, out_root=tmp_path / "policies")


def test_a_policy_goes_on_with_hosts_of_a_further_set(root: Path, tmp_path: Path, trained: TrainingReport) -> None:
    snapshot = write_snapshot(tmp_path / "s", bandit_episodes(range(60)), split="train", change=in_set("other", 2))
    report = sealed(root, snapshot, SMALL, start=WarmStart(Path(trained.path), is_continuation=False))
    assert report.start_digest == trained.digest


def test_a_policy_that_stops_committing_is_an_error_and_leaves_no_policy(tmp_path: Path) -> None:
    """Episodes in which growing could be kept, and a bound that nothing can meet."""
    reports = [report for key in range(20) for report in episode(key)]
    snapshot = write_snapshot(
        tmp_path / "s", [], split="train", change=lambda _: _renamed_rows(reports, {"mlp": "gate", "attention": "dense",
                                                                                    "relu": "heavy"})
    )  # fmt: skip
    config = SMALL.model_copy(update={"min_commit_rate": 1.0, "vtrace_passes": 1})
    with pytest.raises(TrainingError, match="collapsed"):
        sealed(tmp_path, snapshot, config)
    assert [path for path in (tmp_path / "policies").iterdir() if not path.name.startswith(".")] == []


def _renamed_rows(reports: list[Any], names: dict[str, str]) -> list[dict[str, Any]]:
    from support.builders.snapshots import rows_of

    text = json.dumps(rows_of(reports, 0.99, "train"))
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def test_a_receipt_of_another_snapshot_is_refused(
    tmp_path: Path, first_snapshot: SnapshotManifest, second_snapshot: SnapshotManifest
) -> None:
    with pytest.raises(ContractError, match="the receipt names"):
        sealed(tmp_path, first_snapshot.model_copy(update={"path": second_snapshot.path}), SMALL)


def test_without_passes_left_there_is_nothing_to_learn(
    root: Path, tmp_path: Path, trained: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    config = SMALL.model_copy(update={"max_passes": 6})
    start = WarmStart(Path(trained.path), is_continuation=True)
    with pytest.raises(TrainingError, match="no episode has a pass left"):
        sealed(root, first_snapshot, config, start=start, out_root=tmp_path / "policies")


def test_more_passes_than_allowed_are_refused_before_any_work(tmp_path: Path, first_snapshot: SnapshotManifest) -> None:
    with pytest.raises(ConfigError, match=r"exceeds train\.max_passes"):
        sealed(tmp_path, first_snapshot, SMALL.model_copy(update={"max_passes": 5}))


def test_another_architecture_cannot_go_on(
    root: Path, tmp_path: Path, trained: TrainingReport, second_snapshot: SnapshotManifest
) -> None:
    config = SMALL.model_copy(update={"network": NetworkConfig(hidden=24, layers=1)})
    with pytest.raises(ConfigError, match=r"train\.network"):
        sealed(root, second_snapshot, config, start=WarmStart(Path(trained.path), True), out_root=tmp_path / "policies")


def test_l18_a_killed_training_leaves_no_policy_and_the_next_one_the_same_digest(
    root: Path, tmp_path: Path, trained: TrainingReport, first_snapshot: SnapshotManifest
) -> None:
    class Killed(BaseException):
        pass

    class KillingObserver(NullObserver):
        def update(self, update: Update) -> None:
            if update.step == 20:
                raise Killed

    with pytest.raises(Killed):
        sealed(root, first_snapshot, SMALL, observer=KillingObserver(), out_root=tmp_path / "policies")
    left = list((tmp_path / "policies").iterdir())
    assert [path.name[0] for path in left] == ["."]
    assert sealed(root, first_snapshot, SMALL, out_root=tmp_path / "policies").digest == trained.digest
    assert [path.name for path in (tmp_path / "policies").iterdir()] == [trained.digest]


def test_how_many_seeds_a_run_trains_does_not_keep_a_training_from_going_on(
    root: Path,
    tmp_path: Path,
    trained: TrainingReport,
    first_snapshot: SnapshotManifest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class KillingObserver(NullObserver):
        def update(self, update: Update) -> None:
            if update.step == 20:
                raise KeyboardInterrupt

    checkpointed = SMALL.model_copy(update={"checkpoint_updates": 5})
    with pytest.raises(KeyboardInterrupt):
        sealed(root, first_snapshot, checkpointed, observer=KillingObserver(), out_root=tmp_path / "policies")
    several = checkpointed.model_copy(update={"seeds": 3})
    with caplog.at_level("INFO", logger="simic"):
        resumed = sealed(root, first_snapshot, several, out_root=tmp_path / "policies", resume=True)
    assert "goes on from checkpoint" in caplog.text
    assert resumed.updates == trained.updates
