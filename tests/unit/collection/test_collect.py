"""Collection: every decision reaches the bus once, whatever the chunks and the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from support.builders.action_rows import actions_to_rows
from support.builders.observations import make_scene

from simic.bus.factory import BusSpec
from simic.bus.spool.bus import SpoolBus
from simic.collection import collect as module
from simic.collection.collect import ChunkJob, collect
from simic.contracts.actions import HEADS
from simic.contracts.batches import Masks, Observations
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import CollectionReceipt, Provenance
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.run import WorldConfig
from simic.controllers import heads
from simic.controllers.features import encode
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.policy_files import describe, load_policy, save_policy
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.hosts.world_identity import world_identity
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import seal

HOSTS = identify("benchmark", [2, 5, 14, 21, 33])
BASE = datetime(2026, 3, 1, tzinfo=UTC)
ON_CPU = {"device": "cpu"}
NETWORK = NetworkConfig(hidden=8, layers=1, exploration=0.05)


def run(
    root: Path, name: str = "random", *, chunk: int = 3, workers: int = 1, horizon: int = 4, **spec: object
) -> CollectionReceipt:
    ticks = iter(BASE + timedelta(seconds=second) for second in range(100))
    return collect(
        ControllerSpec(name=name, **spec),
        HOSTS,
        WorldConfig(horizon=horizon, chunk=chunk, workers=workers),
        BusSpec(root),
        seed=7,
        provenance=Provenance("0.1.0+test", "c" * 64, 7),
        clock=lambda: next(ticks),
    )


def test_episodes_of_other_pictures_are_other_episodes(tmp_path: Path) -> None:
    """The same keys, the same seed and the same path: only what the pictures show has changed."""
    path, labels = tmp_path / "own.npz", np.arange(420) % 3
    receipts = []
    for seed in (0, 0, 1):
        np.savez(path, images=np.random.default_rng(seed).random((420, 8, 8)), labels=labels)
        receipts.append(
            collect(
                ControllerSpec(name="wait"),
                identify("images", [2]),
                WorldConfig(set="images", images=str(path), horizon=4, workers=1),
                BusSpec(tmp_path / f"bus{len(receipts)}"),
                seed=7,
                provenance=Provenance("0.1.0+test", "c" * 64, 7),
                clock=lambda: BASE,
            )
        )
    first, again, other = receipts
    assert first.pictures_digest == again.pictures_digest != other.pictures_digest
    assert first.reports_digest == again.reports_digest != other.reports_digest
    ids = [{report.run_id for report in reports_in(tmp_path / f"bus{n}")} for n in range(3)]
    assert ids[0] == ids[1] != ids[2]
    assert run(tmp_path / "digits").pictures_digest is None


def reports_in(root: Path) -> list[FieldReport]:
    lines = [line for delivery in SpoolBus(root).claim(FIELD_REPORTS) for line in delivery.open(1 << 20)]
    assert all(line.defect is None for line in lines)
    return [FieldReport.model_validate_json(line.data) for line in lines]


def test_every_decision_reaches_the_bus_in_step_order(tmp_path: Path) -> None:
    receipt = run(tmp_path)
    reports = reports_in(tmp_path)
    assert receipt.episodes == 5
    assert receipt.reports == len(reports) == len({report.report_id for report in reports}) == 20
    assert sum(receipt.actions.values()) == 20
    assert receipt.governor_events == 0
    for host in HOSTS:
        assert [report.step for report in reports if report.host == host] == [0, 1, 2, 3]
    ends = [report for report in reports if report.final_state is not None]
    assert receipt.test_accuracy == pytest.approx(np.mean([report.metrics.test_accuracy for report in ends]))
    assert {report.issued_at for report in reports} == {BASE} == {receipt.started_at}
    assert receipt.finished_at > BASE


def test_chunks_and_processes_change_nothing(tmp_path: Path) -> None:
    """The same bytes, host by host, from one chunk here and from three in two processes."""
    one = run(tmp_path / "one", chunk=64)
    three = run(tmp_path / "three", chunk=2, workers=2)
    same = {"reports_digest", "host_keys_digest", "actions", "reports", "test_accuracy"}
    assert one.model_dump(include=same) == three.model_dump(include=same)
    assert one.mean_return == pytest.approx(three.mean_return)
    key = lambda report: (report.host.key, report.step)  # noqa: E731
    assert sorted(reports_in(tmp_path / "one"), key=key) == sorted(reports_in(tmp_path / "three"), key=key)


def test_collecting_twice_is_one_delivery(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert first == second
    assert SpoolBus(tmp_path).pending(FIELD_REPORTS) == 2
    run(tmp_path, "wait")
    assert SpoolBus(tmp_path).pending(FIELD_REPORTS) == 4


def test_another_horizon_is_another_delivery_of_other_reports(tmp_path: Path) -> None:
    """What a shorter episode reports at the same step differs at its end, so the two must not share names."""
    run(tmp_path, "wait")
    run(tmp_path, "wait", horizon=5)
    reports = reports_in(tmp_path)
    assert len(reports) == len({report.report_id for report in reports}) == 20 + 25


@pytest.mark.parametrize(("workers", "chunks"), [(1, [1, 2, 2]), (2, [1, 1, 1, 2])])
def test_progress_counts_episodes_of_nearly_equal_chunks_an_even_number_for_several_processes(
    tmp_path: Path, workers: int, chunks: list[int]
) -> None:
    seen: list[tuple[str, int]] = []

    class Counted:
        @contextmanager
        def task(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
            seen.append((name, total))
            yield lambda count: seen.append((name, count))

    world = WorldConfig(horizon=4, chunk=2, workers=workers)
    made = Provenance("x", "c" * 64, 0)
    collect(
        ControllerSpec(name="wait"), HOSTS, world, BusSpec(tmp_path), seed=0, provenance=made, clock=lambda: BASE,
        progress=Counted(),
    )  # fmt: skip
    assert seen[0] == ("collect benchmark", 5)
    assert sorted(seen[1:]) == [("collect benchmark", size) for size in chunks]
    with pytest.raises(ConfigError, match="no hosts"):
        collect(ControllerSpec(name="wait"), (), world, BusSpec(tmp_path), seed=0, provenance=made, clock=lambda: BASE)


def test_reports_stream_while_the_hosts_still_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: the first line leaves before the second epoch begins."""
    epochs: list[int] = []

    class Watched(SpoolBus):
        def put(self, topic: str, name: str, lines: object) -> str:
            for _ in lines:  # type: ignore[attr-defined]
                epochs.append(len(trained))
            return name

    trained: list[int] = []
    real = module.rollout

    def counting(*args: object) -> object:
        for step in real(*args):  # type: ignore[arg-type]
            trained.append(step.epoch)
            yield step

    monkeypatch.setattr(module, "open_bus", lambda spec: Watched(spec.spool))
    monkeypatch.setattr(module, "rollout", counting)
    world = WorldConfig(horizon=4)
    module.collect_chunk(
        ChunkJob(ControllerSpec(name="wait"), HOSTS, world, RewardConfig(), BusSpec(tmp_path), "x", 0, BASE)
    )
    assert epochs == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5


def test_reports_name_the_device_that_trained_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is only named here; the hosts grow on the CPU."""
    monkeypatch.setattr(module, "ensemble_of", lambda hosts, world: Ensemble(hosts, world.model_copy(update=ON_CPU)))
    for name, world in (("one", WorldConfig(horizon=4)), ("two", WorldConfig(horizon=4, device="cuda"))):
        root = tmp_path / name
        module.collect_chunk(
            ChunkJob(ControllerSpec(name="wait"), HOSTS[:1], world, RewardConfig(), BusSpec(root), "x", 0, BASE)
        )
        assert {report.state.hardware.device for report in reports_in(root)} == {world.device}


def test_forms_and_devices_are_other_episodes() -> None:
    worlds = [WorldConfig(), WorldConfig(form="masked"), WorldConfig(device="cuda")]
    assert len({str(world_identity(world)) for world in worlds}) == 3
    assert world_identity(WorldConfig(form="compacted")) == world_identity(WorldConfig())
    assert world_identity(WorldConfig(device="cuda", form="masked")) == world_identity(WorldConfig(device="cuda"))


def sealed_policy(directory: Path) -> tuple[Path, Path]:
    blueprints = blueprint_names()
    network = PolicyNetwork(NetworkShape.of(NETWORK, blueprints), seed=1)
    network.set_normaliser(fit_normaliser(encode(make_scene(0, 60).observations), blueprints))
    with torch.no_grad():
        network.op_head[-1].weight.mul_(100.0)
    card = describe(
        network, NETWORK, set_name="benchmark", snapshot_digest=None, code_version="x", config_digest="d" * 64
    )
    save_policy(directory / "policy", network, card)
    signer = Signer(b"k" * 32)
    Keyring(directory / "keys").trust(signer.public_bytes)
    seal(directory / "policy", signer)
    return directory / "policy", directory / "keys"


def test_high2_a_learned_policy_reports_what_it_did(tmp_path: Path) -> None:
    """HIGH-2: from the bus alone, the policy's own log-probabilities come back to 1e-5; its digest is the version."""
    policy, keys = sealed_policy(tmp_path)
    receipt = run(tmp_path / "bus", "learned", policy_path=str(policy), keyring_path=str(keys), is_decisive=False)
    reports = reports_in(tmp_path / "bus")
    assert {report.policy_version for report in reports} == {receipt.policy_digest}
    assert receipt.policy_digest is not None
    names = blueprint_names()
    batch = encode(Observations.from_states([report.state for report in reports], names))
    masks = Masks(
        np.array([report.available.op for report in reports]),
        np.concatenate([np.array(report.available.slot).T for report in reports]),
        np.array([[name in report.available.blueprint for name in names] for report in reports]),
    )
    actions = torch.from_numpy(actions_to_rows([report.action for report in reports], names))
    with torch.no_grad():
        output = load_policy(policy).network(batch)
        available = heads.MaskTensors.of(masks)
        found = heads.ActionDistribution(output, batch.slot_ptr, available, NETWORK.exploration).log_prob(actions)
    stored = torch.tensor([report.log_prob_behaviour.joint for report in reports])
    assert (found.joint - stored).abs().max() < 1e-5
    for column, head in enumerate(HEADS):
        values = torch.tensor([getattr(report.log_prob_behaviour, head.value) or 0.0 for report in reports])
        assert (found.heads[:, column] - values).abs().max() < 1e-5


def test_another_sealed_policy_in_the_place_of_the_one_asked_for_never_acts(tmp_path: Path) -> None:
    policy, keys = sealed_policy(tmp_path)
    with pytest.raises(IntegrityError, match="expected digest"):
        run(tmp_path / "bus", "learned", policy_path=str(policy), keyring_path=str(keys), policy_digest="0" * 64)
    assert SpoolBus(tmp_path / "bus").pending(FIELD_REPORTS) == 0


def test_a_tampered_policy_never_acts(tmp_path: Path) -> None:
    policy, keys = sealed_policy(tmp_path)
    weights = bytearray((policy / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (policy / "weights.safetensors").write_bytes(bytes(weights))
    with pytest.raises(IntegrityError):
        run(tmp_path / "bus", "learned", policy_path=str(policy), keyring_path=str(keys))
    with pytest.raises(ConfigError, match="keyring_path"):
        run(tmp_path / "bus", "learned", policy_path=str(policy))
    assert SpoolBus(tmp_path / "bus").pending(FIELD_REPORTS) == 0
