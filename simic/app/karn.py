"""Karn in a home: its training, and its judgement together with the champion of policies."""

from __future__ import annotations

from pathlib import Path

from simic.app.container import Container
from simic.app.evidence.judging import begin, check_growable, judging_run
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.contracts.errors import ConfigError
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.receipts import SnapshotManifest
from simic.hosts.world_identity import world_identity
from simic.learning import train_karn as learning
from simic.runtime.locks import exclusive
from simic.validation import report as reports
from simic.validation.arithmetic import arithmetic
from simic.validation.criterion import REPORTS

__all__ = ["resolve_training", "train", "validate"]


def train(container: Container, snapshot: SnapshotManifest) -> KarnReport:
    """Train Karn on a snapshot and keep the receipt; only one training of Karn runs at a time.

    Raises:
        TrainingError: for too few germinations to learn from.
    """
    with exclusive(container.home.locks / "karn", "training Karn"), container.progress.task("karn", 100) as advance:
        receipt = learning.train_karn(
            snapshot,
            container.config.karn,
            container.config.train,
            blueprints=vocabulary(container.config.ingest),
            out_root=container.home.karn,
            signer=container.signer,
            verify=container.policies.check,
            seed=container.seed,
            provenance=container.provenance,
            clock=container.clock,
            on_progress=advance,
        )
    return container.save_receipt(receipt)


def resolve_training(container: Container, name: str | None) -> KarnReport:
    """Return the training of a Karn by a receipt or the first characters of its digest; else the latest.

    Raises:
        ConfigError: if no Karn or several have that name, or it was not trained in this home.
        IntegrityError: if Karn or the receipt is not as it was sealed.
    """
    if name is None:
        return container.receipts.latest(KarnReport, "run `simic karn train` first")
    if Path(name).is_file():
        return container.receipts.read(KarnReport, Path(name))
    digest = container.karns.named(name).digest
    return container.receipts.find(
        KarnReport, lambda report: report.digest == digest, f"Karn {name} was not trained in this home"
    )


def validate(container: Container, karn: KarnReport) -> ValidationReport:
    """Try the champion of policies consulting a Karn, against it alone and with the champion of Karn.

    Raises:
        ConfigError: if there is no champion of policies, Simic cannot grow what Karn learned from, or
            ``gate.evidence`` is reports.
        IntegrityError: if policy or Karn are not as they were sealed.
        ContractError: if Karn does not fit the policy.
    """
    config = container.config
    if config.gate.evidence == REPORTS:
        raise ConfigError("Karn is judged by trials alone; set gate.evidence = trials")
    check_growable(karn)
    policy, present = container.policies.champion_digest(), container.karns.champion()
    if policy is None:
        raise ConfigError("Karn is judged with the champion that consults it, and there is none: `simic run` makes one")
    alone = reports.learned_spec(container.policies.fetch_champion(policy), policy, container.home.keys)
    champion = None
    if present is not None:
        champion = alone.consulting(str(container.karns.named("champion").path), present.digest)
    rival = None if present is None else present.digest
    inputs = {**arithmetic(config.world.device), "world": world_identity(config.world), "consulted_by": policy}
    judgement = begin(container, config.world.set, karn, rival, inputs)
    hosts = reports.held_out_count(config.world, config.trial, config.gate.min_episodes)
    with container.progress.task("validate", (3 + (champion is not None)) * hosts) as advance:
        run = judging_run(container, karn, judgement, config.world, advance)
        return container.save_receipt(reports.validate_karn(karn, alone, champion, config, run))
