"""Karns that never trained, sealed or only loaded, and a home's choice of none."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from simic.app.names.karn_names import Karns
from simic.app.receipts import ReceiptStore
from simic.contracts.results.karn import KarnReport
from simic.contracts.settings.karn import ControllerConfig, KarnNetworkConfig
from simic.controllers.features import encode
from simic.controllers.karn import ConsultedKarn, KarnNetwork, LoadedKarn, describe_karn, save_karn
from simic.controllers.network import fit_normaliser
from simic.registry.registry import Registry
from simic.runtime.clock import utc_now
from simic.runtime.home import Home
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import seal
from support.builders.judged_candidates import NOW
from support.builders.observations import BLUEPRINTS, make_scene

__all__ = ["consulted", "files_of", "karn_report", "loaded_karn", "no_karns", "sealed_karn"]

SMALL = KarnNetworkConfig(hidden=8, layers=1)


def loaded_karn(
    seed: int = 0, *, germinated: tuple[str, ...] | None = None, config: KarnNetworkConfig = SMALL
) -> LoadedKarn:
    """A Karn with strong opinions."""
    network = KarnNetwork(config, BLUEPRINTS, seed)
    network.set_normaliser(fit_normaliser(encode(make_scene(3, 60).observations), BLUEPRINTS))
    with torch.no_grad():
        network.blueprint_head[-1].weight.mul_(150.0)
    card = describe_karn(
        network, set_name="benchmark", snapshot_digest=None, code_version="0.1.0", config_digest="b" * 64,
        germinated=germinated, feature_ranges=None,
    )  # fmt: skip
    return LoadedKarn(network.eval(), card)


def consulted(seed: int = 0, germinated: tuple[str, ...] | None = None) -> ConsultedKarn:
    """Such a Karn, as a policy consults it."""
    return ConsultedKarn(loaded_karn(seed, germinated=germinated), "c" * 64)


def sealed_karn(home: Home, signer: Signer, seed: int = 0) -> str:
    """Seal such a Karn in a home, and return its digest."""
    folder = home.tmp / f"karn-{seed}"
    save_karn(folder, *loaded_karn(seed))
    digest = seal(folder, signer).digest
    home.karn.mkdir(exist_ok=True)
    folder.rename(home.karn / digest)
    return digest


def karn_report(digest: str) -> KarnReport:
    """The receipt of a training that made the Karn of ``digest``."""
    return KarnReport(
        code_version="0.1.0", config_digest="b" * 64, seed=0, started_at=NOW, finished_at=NOW, digest=digest,
        path=f"data/karn/{digest}",
        snapshot_digest="d" * 64, sets=["benchmark"], comparisons=1, germinations=0, undrawn=0, updates=1, metrics={},
    )  # fmt: skip


def files_of(folder: Path) -> dict[str, str]:
    """SHA-256 of each file but the seal, by name."""
    paths = [path for path in folder.iterdir() if path.name != "manifest.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def no_karns(home: Home) -> Karns:
    """What lets policies of a home consult nobody."""
    keyring = Keyring(home.keys)

    def no_signer() -> Signer:
        raise AssertionError("nothing is sealed here")

    def no_registry() -> Registry:
        raise AssertionError("nothing is registered here")

    receipts = ReceiptStore(home, utc_now, no_signer, keyring)
    return Karns(home, keyring, receipts, ControllerConfig(), no_registry)
