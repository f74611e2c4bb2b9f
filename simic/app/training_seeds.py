"""The last training of a run with several seeds: which seeds, and which policy is judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simic.app.container import Container
from simic.app.training import require_finished
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.results.trials import SeedChoice
from simic.validation.report import learned_spec
from simic.validation.training_seeds import choose, row_of, validation_hosts
from simic.validation.trials import TrialSettings, run_trials

__all__ = ["choose_seed"]


def choose_seed(container: Container, trained: Sequence[TrainingReport]) -> SeedChoice:
    """Try the policies of all training seeds and never growing on the same validation hosts, and choose the best one.

    Trainings that ended early because they were hopeless take no part.

    The episodes do not land, and the hosts are none on which a policy is judged.

    Raises:
        HopelessError: if no training has finished.
        IntegrityError: if a policy is not as it was sealed.
    """
    require_finished(*trained)
    config, started_at = container.config, container.clock()
    hosts = validation_hosts(trained[0].snapshot_digest, config.world, config.trial)
    specs = {
        row_of(training): learned_spec(Path(training.path), training.digest, container.home.keys)
        for training in trained
        if training.stopped is None
    }
    with container.progress.task("trials of training seeds", len(hosts) * (len(specs) + 1)) as advance:
        report = run_trials(
            specs,
            hosts,
            TrialSettings.of(config),
            provenance=container.provenance,
            clock=container.clock,
            on_done=lambda episodes: advance(len(episodes.returns)),
        )
    path = container.receipts.save(report)
    name = f"{path.parent.name}/{path.name}"
    return container.save_receipt(choose(trained, report, name, started_at, container.provenance))
