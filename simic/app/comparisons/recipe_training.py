"""One training of a recipe in a home of its own: a policy, and the Karn that it consults."""

from __future__ import annotations

from typing import Any, NamedTuple

from simic.app import karn, training
from simic.app.artifacts import resolve_snapshot
from simic.app.comparisons.inner_runs import InnerStages
from simic.app.comparisons.recipes import Recipe
from simic.app.container import Container
from simic.app.runs import open_run_in
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError, TrainingError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.recipes import RecipeTraining
from simic.contracts.settings.karn import ControllerConfig
from simic.contracts.settings.run import RunConfig
from simic.learning.training_run import WarmStart
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import verify
from simic.validation.report import learned_spec

__all__ = ["Trained", "learn", "require_own_karn", "spec_of", "without_karn"]


class Trained(NamedTuple):
    """One training of a recipe, with its home and its row in the trials."""

    training: RecipeTraining
    home: Home
    row: str
    """Its row in the trials; that of ``wait`` if training failed, as in a home without a policy."""


def require_own_karn(recipe: Recipe) -> None:
    """Raise ConfigError if the recipe names a Karn: each of its trainings makes one, on its own snapshot."""
    named = recipe.config.controller.karn_digest
    if named is not None:
        raise ConfigError(
            f"{recipe.name} has controller.karn_digest {named}, but a recipe trains the Karn that it consults; leave "
            "the setting out"
        )


def without_karn(config: RunConfig) -> RunConfig:
    """Return the settings under which a home learns that has no Karn yet."""
    return config.model_copy(update={"controller": ControllerConfig()})


def learn(
    container: Container, recipe: Recipe, snapshot: SnapshotManifest | None, start: WarmStart | None
) -> dict[str, Any]:
    """Return the fields of a ``RecipeTraining`` that a training in the new home of ``container`` results in.

    A recipe with ``controller.karn = consult`` trains Karn after its policy, on the snapshot of the policy.
    """
    stages = InnerStages(container)
    failure = policy = consulted = None
    try:
        if snapshot is not None:
            report = training.train(container, snapshot, start, resume=False)
            training.require_finished(report)
        else:
            with open_run_in(container, recipe.profile, has_gate=False) as run:
                report = run.learn(stages)
        if recipe.config.controller.karn == "consult":
            used = snapshot or resolve_snapshot(container, report.snapshot_digest)
            consulted = karn.train(container, used).digest
        policy = report.digest
    except TrainingError as error:
        failure = str(error)
    return {"policy_digest": policy, "karn_digest": consulted, "failure": failure, "episodes": stages.episodes}


def spec_of(trained: Trained) -> ControllerSpec:
    """Return the spec of the policy, with the Karn that it consults; both are verified now and wherever they load."""
    receipt, home = trained.training, trained.home
    policy, consulted = str(receipt.policy_digest), receipt.karn_digest
    spec = learned_spec(home.policies / policy, policy, home.keys)
    if consulted is None:
        return spec
    path = home.karn / consulted
    verify(path, Keyring(home.keys), consulted)
    return spec.consulting(str(path), consulted)
