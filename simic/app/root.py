"""One method per verb: parts do the work, receipts are kept."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from simic.app import named
from simic.app.intact import is_intact, set_aside
from simic.app.parts import Parts
from simic.app.policies import CHAMPION, CHAMPION_REFERENCE, REFERENCE_PREFIX
from simic.bus.protocol import FIELD_REPORTS
from simic.contracts.controllers import ControllerSpec, PlanBook
from simic.contracts.errors import ConfigError
from simic.contracts.receipts import (
    CollectionReceipt,
    GateDecision,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    SnapshotManifest,
    TrainingReport,
    TrialReport,
    ValidationReport,
)
from simic.contracts.splits import Split
from simic.runtime.locks import exclusive
from simic.runtime.seeds import derive

if TYPE_CHECKING:
    from simic.app.snapshots import Snapshots
    from simic.app.watching import Watch
    from simic.bus.protocol import TopicStatus
    from simic.learning.start import StartPoint
    from simic.trust.seal import Seal

__all__ = ["App"]

TARGETS = ("tamiyo",)
"""Controllers in production that are told of a new champion."""
NOTHING = "nothing"
"""A start from no policy."""
KEY_STARTS = 2**30
"""Collection starts drawing its hosts below this, half of all keys, so that there is room above any start."""
KEY_STRIDE = 2**20 + 7
"""From the start of one collection to that of the next of its kind: more keys than any collection draws from."""


class App(Parts):
    """One method per verb; what a verb does not need is never loaded."""

    @cached_property
    def snapshots(self) -> Snapshots:
        """The verbs about snapshots."""
        from simic.app.snapshots import Snapshots

        return Snapshots(self)

    def init(self) -> dict[str, Any]:
        """Directories, key and the registry's database; safe to repeat and to run side by side."""
        from simic.registry.store import initialise

        initialise(self.home)
        return {"home": str(self.home.root), "key_id": self.signer.key_id, "tracking_uri": self.home.tracking_uri}

    def collect(
        self, controller: str, host_keys: Sequence[int] | None = None, plot: Path | None = None
    ) -> CollectionReceipt:
        """Grow hosts under a named controller; without keys, the profile's number of training hosts, others each time.

        Which ones depends on how many collections this home holds, so that hosts grown before are not grown again.
        ``plot`` names a PNG that shows one of them per family; it has no part in what is collected.
        """
        if plot is not None:
            from simic.app.watching import check_plot

            check_plot(plot)
        spec = self.policies.spec(controller, is_decisive=False)
        if host_keys is None:
            host_keys = self._training_keys(
                self.config.collect.episodes, controller, 0, self.shelf.count(CollectionReceipt)
            )
        receipt = self._collect(spec, host_keys)
        if plot is not None:
            from simic.app.watching import draw_collection

            draw_collection(self, spec, controller, host_keys, plot)
        return receipt

    def collect_round(self, number: int, policy: TrainingReport | None, earlier_runs: int = 0) -> CollectionReceipt:
        """Round 0 explores; later rounds sample from the newest policy, on hosts of their own.

        ``earlier_runs`` of this home may have begun the same way: a run after them draws other hosts.
        """
        config = self.config.collect
        if policy is None:
            keys = self._training_keys(config.episodes, "none", number, earlier_runs)
            return self._collect(self.policies.spec(config.controller, is_decisive=False), keys)
        spec = self.policies.learned(Path(policy.path), is_decisive=False)
        keys = self._training_keys(config.round_episodes, policy.digest, number, earlier_runs)
        return self._collect(spec, keys)

    def _training_keys(self, count: int, start_name: str, number: int, earlier: int) -> list[int]:
        """Hosts that may teach; another policy or round, or one of these again, draws from elsewhere."""
        from simic.hosts.keys import draw_keys

        start = (derive(self.seed, "collect", start_name, number) + earlier * KEY_STRIDE) % KEY_STARTS
        return draw_keys(self.config.world.set, Split.TRAIN, count, start)

    def _collect(self, spec: ControllerSpec, host_keys: Sequence[int]) -> CollectionReceipt:
        from simic.collection.collect import collect
        from simic.hosts.keys import identify

        with self.progress.task("collect", len(host_keys)) as advance:
            receipt = collect(
                spec,
                identify(self.config.world.set, host_keys),
                self.config.world,
                self.bus_spec,
                seed=self.seed,
                provenance=self.provenance,
                clock=self.clock,
                on_progress=advance,
                reward=self.config.curate.reward.basic,
            )
        return self.keep(receipt)

    def ingest(self) -> IngestReceipt:
        """Tidy the lake, then land what waits on the bus; refuse what is malformed, with its reason.

        What it counts is added to ``runs/ingest/<UTC day>.jsonl``: after each batch, and with the bus's own at the end.
        """
        from simic.hosts.catalogue import blueprint_names
        from simic.ingestion.ingest import ingest
        from simic.runtime.telemetry import JsonLinesSink

        self.keeper.tidy()
        waiting = self.bus.pending(FIELD_REPORTS)
        counts = self.home.runs / "ingest" / f"{self.clock():%Y-%m-%d}.jsonl"
        with JsonLinesSink(counts) as sink, self.progress.task("ingest", waiting) as advance:
            receipt = ingest(
                self.bus,
                self.home,
                self.config.ingest,
                frozenset(blueprint_names()),
                provenance=self.provenance,
                clock=self.clock,
                sink=sink,
                on_progress=advance,
            )
        return self.keep(receipt)

    def curate(self) -> SnapshotManifest:
        """Seal a snapshot of all landed experience."""
        from simic.curation.run import curate

        receipt = curate(
            self.home, self.config.curate, self.config.world.horizon, provenance=self.provenance, clock=self.clock
        )
        return self.keep(receipt)

    def train(self, snapshot: SnapshotManifest, start: StartPoint | None) -> TrainingReport:
        """Learn from a snapshot, from nothing or from a policy; one at a time, for equal ones share a folder."""
        from simic.learning.train import train
        from simic.runtime.telemetry import NullSink

        with exclusive(self.home.locks / "train", "training"), self.progress.task("train", 100) as advance:
            receipt = train(
                snapshot,
                self.config.train,
                start=start,
                out_root=self.home.policies,
                signer=self.signer,
                verify=self.policies.check,
                sink=NullSink(),
                seed=self.seed,
                provenance=self.provenance,
                clock=self.clock,
                on_progress=advance,
            )
        return self.keep(receipt)

    def train_round(
        self, snapshot: SnapshotManifest, previous: TrainingReport | None, champion: str | None
    ) -> TrainingReport:
        """The first training of a run starts from the champion, if there was one; later ones go on with their own."""
        from simic.learning.start import StartPoint

        if previous is not None:
            return self.train(snapshot, StartPoint(Path(previous.path), is_continuation=True))
        if champion is not None:
            return self.train(snapshot, StartPoint(self.policies.fetch_champion(champion), is_continuation=False))
        return self.train(snapshot, None)

    def start_point(self, name: str) -> StartPoint | None:
        """``champion`` (nothing, where there is none), ``nothing``, or a sealed policy's directory."""
        from simic.learning.start import StartPoint

        if name == NOTHING or (name == CHAMPION and self.champion_digest() is None):
            return None
        path = self.policies.fetch(CHAMPION_REFERENCE) if name == CHAMPION else Path(name)
        self.policies.check(path)
        return StartPoint(path, is_continuation=False)

    def champion_digest(self) -> str | None:
        """Of the present champion."""
        champion = self.policies.champion()
        return None if champion is None else champion.digest

    def validate(self, training: TrainingReport, champion: str | None) -> ValidationReport:
        """Closed-loop trials of a policy on held-out hosts, against every baseline and the champion."""
        from simic.validation.report import episodes_planned, validate

        planned = episodes_planned(self.config.world, self.config.trial, has_champion=champion is not None)
        with self.progress.task("validate", planned) as advance:
            report = validate(
                training,
                None if champion is None else self.policies.fetch_champion(champion),
                self.config,
                keyring=self.home.keys,
                figures=self.home.runs / training.digest[:16] / "figures",
                provenance=self.provenance,
                clock=self.clock,
                on_done=lambda episodes: advance(len(episodes.returns)),
            )
        return self.keep(report)

    def decide(self, report: ValidationReport) -> GateDecision:
        """The gate: pure, and closed where evidence is missing."""
        from simic.validation.gate import decide

        decision = decide(
            report,
            self.config.gate,
            min_commit_rate=self.config.train.min_commit_rate,
            provenance=self.provenance,
            now=self.clock(),
        )
        return self.keep(decision)

    def record(self, report: ValidationReport, decision: GateDecision) -> PolicyVersion:
        """A judged candidate and all its evidence, into the registry; accepted or not.

        The parameters on record are this app's, so it must run under the settings the policy was trained with.
        """
        from simic.registry.recording import Evidence

        hint = f"what policy {report.policy_digest[:12]} was made from is not on the shelf of this home"
        training = self.shelf.find(TrainingReport, lambda found: found.digest == report.policy_digest, hint)
        snapshot = self.shelf.find(SnapshotManifest, lambda found: found.digest == report.snapshot_digest, hint)
        if training.config_digest != self.provenance.config_digest:
            raise ConfigError(
                f"policy {training.digest[:12]} was trained under configuration {training.config_digest[:12]}, but "
                f"this is {self.provenance.config_digest[:12]}: name the profile and overrides it was trained with"
            )
        return self.registry.record(Evidence(training, report, decision, snapshot, self.config))

    def promote(self, candidate: PolicyVersion, decision: GateDecision) -> PolicyVersion:
        """The candidate becomes the champion; the alias moves last."""
        return self.keep(self.registry.promote(candidate, decision))

    def publish(self, version: PolicyVersion) -> PublicationReceipt:
        """Tell production: a signed update on the bus, once per version and target."""
        from simic.publication.publish import publish

        receipt = publish(
            version,
            self.registry.summary(version),
            TARGETS,
            bus=self.bus,
            signer=self.signer,
            home=self.home,
            provenance=self.provenance,
            clock=self.clock,
        )
        return self.keep(receipt)

    def rollback(self, reason: str) -> PolicyVersion:
        """The champion before this one is the champion again."""
        return self.keep(self.registry.rollback(reason))

    def publish_champion(self) -> PublicationReceipt:
        """Likewise, for the champion as it stands."""
        champion = self.policies.champion()
        if champion is None:
            raise ConfigError("there is no champion to publish: `simic run` or `simic promote` makes one")
        return self.publish(champion)

    def trials(self, controllers: Sequence[str], host_keys: Sequence[int] | None = None) -> TrialReport:
        """Several controllers on the same hosts, paired; without keys, test hosts of the profile's number."""
        from simic.hosts.keys import draw_keys, host_set, identify
        from simic.validation.book import BOOKED, book_digest
        from simic.validation.trials import run_trials

        world = self.config.world
        if host_keys is None:
            count = self.config.trial.hosts_per_family * len(host_set(world.set).families)
            host_keys = draw_keys(world.set, Split.TEST, count)
        specs = {name: self.policies.spec(name, is_decisive=True) for name in controllers}
        plans_digest = book_digest(world.set) if BOOKED & set(controllers) else None
        with self.progress.task("trials", len(host_keys) * len({*specs, "wait"})) as advance:
            report = run_trials(
                specs,
                identify(world.set, host_keys),
                world,
                self.config.trial,
                self.config.curate.reward.basic,
                provenance=self.provenance,
                clock=self.clock,
                on_done=lambda episodes: advance(len(episodes.returns)),
                plans_digest=plans_digest,
            )
        return self.keep(report)

    def watch(self, controller: str | None = None, key: int | None = None) -> Watch:
        """One host epoch by epoch; unnamed, the champion or else the heuristic on the first host of the test split."""
        from simic.app.watching import Watch

        return Watch(self, controller, key)

    def check_baselines(self) -> None:
        """A missing or outdated plan book is a ConfigError: before a run, for the judgement at its end refuses it."""
        from simic.validation.book import current_book

        current_book(self.config.world.set)

    def search_plans(self) -> PlanBook:
        """The best fixed plans and the best rules for the heuristic, found on training hosts."""
        from simic.validation.search import search_plans

        return search_plans(self.config.world, self.config.curate.reward.basic, seed=self.seed, progress=self.progress)

    def sql(self, query: str) -> Generator[dict[str, Any], None, None]:
        """Rows of a read-only query over the views, as they come; close it when done."""
        from simic.lake import catalogue

        return catalogue.stream(self.home, query)

    def bus_topics(self) -> list[TopicStatus]:
        """What waits on the bus."""
        from simic.app.transport import list_topics

        return list_topics(self.bus)

    def forward(self, limit: int | None = None) -> dict[str, int]:
        """Sends what was spilled while Redis was away, and lands nothing."""
        from simic.app.transport import forward

        return forward(self.bus_spec, limit, self.progress)

    def dead_letters(self, topic: str, limit: int) -> list[dict[str, Any]]:
        """The oldest entries that could not be delivered."""
        from simic.app.transport import list_dead_letters

        return list_dead_letters(self.bus, topic, limit)

    def verify(self, reference: str) -> Seal:
        """The seal of a registered policy or of a directory, every byte checked; IntegrityError otherwise."""
        if not reference.startswith(REFERENCE_PREFIX):
            return self.policies.seal(Path(reference))
        with TemporaryDirectory(dir=self.home.tmp) as folder:
            path = self.registry.load(reference, Path(folder) / "policy")
            return self.policies.seal(path, self.registry.find(reference).digest)

    def is_intact(self, receipt: Receipt) -> bool:
        """Whether what a stored receipt speaks of is still whole."""
        return is_intact(receipt, self.home, self.policies)

    def set_aside(self, receipt: Receipt) -> None:
        """Put damaged files out of the way of doing the same again."""
        set_aside(receipt)

    def snapshot_at(self, path: Path | None) -> SnapshotManifest:
        """By directory or receipt; else the newest."""
        return named.snapshot_at(self.shelf, path)

    def training_at(self, path: Path | None) -> TrainingReport:
        """By sealed directory or receipt; else the newest."""
        return named.training_at(self.shelf, self.policies, path)

    def validation_at(self, path: Path | None) -> ValidationReport:
        """By receipt; else the newest."""
        return named.validation_at(self.shelf, path)
