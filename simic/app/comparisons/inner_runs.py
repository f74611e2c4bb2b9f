"""Runs in homes of their own, below the home of a command that compares several trainings."""

from __future__ import annotations

import shutil

from simic.app import data, training, training_seeds
from simic.app.container import Container
from simic.app.runs import RunKey
from simic.contracts.results.receipts import CollectionReceipt, IngestReceipt, SnapshotManifest, TrainingReport
from simic.contracts.results.trials import SeedChoice
from simic.contracts.settings.run import RunConfig
from simic.runtime.home import Home
from simic.runtime.progress import Titled

__all__ = ["InnerStages", "open_inner"]


def open_inner(outer: Container, home: Home, title: str, config: RunConfig, seed: int) -> Container:
    """Return the container of a new home with the plan books of ``outer``; what is in the way is removed.

    What a killed run left there would be learned from twice. Reports go to a bus of the home itself, also if
    ``REDIS_URL`` names another. ``title`` names the run in its progress.
    """
    if home.root.exists():
        shutil.rmtree(home.root)
    if outer.home.plans.is_dir():
        shutil.copytree(outer.home.plans, home.plans)
    progress = Titled(outer.progress, title)
    return Container(home, config, seed, clock=outer.clock, progress=progress, spool=home.spool)


class InnerStages:
    """The stages of a run in this process, without Prefect; a killed run begins again."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.episodes = 0
        """Episodes collected so far, branches included."""

    def collect(self, run: RunKey, number: int, policy: TrainingReport | None, set_name: str, /) -> CollectionReceipt:
        receipt = training.collect_round(self._container, number, policy, run.earlier_runs, set_name)
        self.episodes += receipt.episodes + receipt.branches
        return receipt

    def ingest(self, _run: RunKey, _number: int, _collected: list[CollectionReceipt], /) -> IngestReceipt:
        return data.ingest(self._container)

    def curate(self, _run: RunKey, _number: int, _landed: IngestReceipt, /) -> SnapshotManifest:
        return data.curate(self._container)

    def train(
        self, run: RunKey, _number: int, snapshot: SnapshotManifest, previous: TrainingReport | None, /
    ) -> TrainingReport:
        return training.train_round(self._container, snapshot, previous, run.champion)

    def train_seed(
        self, run: RunKey, _number: int, snapshot: SnapshotManifest, previous: TrainingReport | None, seed: str, /
    ) -> TrainingReport:
        return training.train_round(self._container, snapshot, previous, run.champion, int(seed))

    def choose(self, _run: RunKey, _number: int, trained: list[TrainingReport], /) -> SeedChoice:
        return training_seeds.choose_seed(self._container, trained)
