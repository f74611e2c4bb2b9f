"""A run's key is plain data, and its log says what each stage counted and why something was left out."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest
from support.builders.judged_candidates import decision
from support.builders.reports import episodes
from support.builders.validation_reports import trials_of
from support.homes.pipeline import NOW, PROVENANCE, land

from simic.app.container import Container
from simic.app.runs import RunKey, describe, open_container, open_run, open_run_in
from simic.app.training import require_finished, validate
from simic.contracts.errors import ConfigError, HopelessError, ResourceLimitError, TransientError
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.results.trials import SeedChoice
from simic.contracts.settings.safety import StopCause, TrainingStop
from simic.runtime.home import Home
from simic.runtime.progress import NoProgress
from simic.runtime.settings import load_profile
from simic.validation.training_seeds import choose, row_of


def test_the_log_of_an_ingest_counts_what_landed_and_names_each_reason_for_a_refusal(tmp_path: Path) -> None:
    receipt = land(Home(tmp_path), episodes(range(2)))
    refused = {"quarantined": 3, "reasons": {"depth": 1, "contradiction": 2}, "landed": 1200, "duplicate": 5}
    assert describe(receipt.model_copy(update=refused)) == (
        "1,200 landed, 3 refused (2 contradiction, 1 depth), 5 duplicate"
    )


def test_the_log_of_a_rejection_names_the_criteria_that_failed() -> None:
    assert describe(decision("1" * 64, accepted=False)).startswith("rejected: ")
    assert "return_over_wait is -5, needs > 0" in describe(decision("1" * 64, accepted=False))
    assert describe(decision("1" * 64)).startswith("accepted: ")


def test_stages_of_a_run_work_with_the_settings_it_began_with(home: Path) -> None:
    """Whatever becomes of the file of the profile meanwhile; and a key survives being stored as JSON."""
    profile = home.parent / "own.toml"
    profile.write_text("[collect]\nepisodes = 7\n")
    with open_run(str(profile), 3, {"gate.require_plan_book": False}) as run:
        profile.write_text("[collect]\nepisodes = 8\n")
        key = RunKey.model_validate_json(run.key.model_dump_json())
        assert key == run.key
        container = open_container(key, NoProgress())
        assert (container.config.collect.episodes, container.seed) == (7, 3)
        assert container.provenance.seed == 3


def test_a_transient_error_leaves_a_run_open_and_the_next_one_resumes_it(home: Path) -> None:
    with pytest.raises(TransientError), open_run("quick", 0, {}) as run:
        token = run.key.token
        raise TransientError("the disk is busy")
    with pytest.raises(KeyError), open_run("quick", 0, {}) as run:
        assert run.key.token == token
        raise KeyError("a bug")
    with open_run("quick", 0, {}) as run:
        assert run.key.token != token
        assert run.key.config == load_profile("quick")
        assert (run.key.earlier_runs, run.key.champion, run.needs_own_experience) == (1, None, True)


def test_a_run_that_reached_a_limit_of_its_training_goes_on_with_a_higher_one(home: Path) -> None:
    with pytest.raises(ResourceLimitError), open_run("quick", 0, {"train.max_hours": 1.0}) as run:
        token = run.key.token
        raise ResourceLimitError("training has taken 1.01 hours")
    with open_run("quick", 0, {"train.max_hours": 48.0}) as run:
        assert (run.key.token, run.key.config.train.max_hours) == (token, 48.0)


def trained(seed: int, *, is_hopeless: bool) -> TrainingReport:
    stop = TrainingStop(
        cause=StopCause.COLLAPSED, phase="ppo", updates=7, planned_updates=70, detail="it only ever waited"
    )
    return TrainingReport(
        code_version="0.1.0", config_digest="c" * 64, seed=seed, started_at=NOW, finished_at=NOW, digest=f"{seed}" * 64,
        path="p", snapshot_digest="5" * 64, start_digest=None, updates=7, episodes=1, passes=1.0, metrics={},
        curves_path="c", stopped=stop if is_hopeless else None,
    )  # fmt: skip


class Trainer:
    """The stages of a run that train, with trainings that were made before."""

    def __init__(self, hopeless: Collection[int]) -> None:
        self.hopeless = hopeless
        self.offered: list[TrainingReport] = []

    def train(self, run: RunKey, *_: Any) -> TrainingReport:
        return trained(run.seed, is_hopeless=run.seed in self.hopeless)

    def train_seed(self, run: RunKey, number: int, snapshot: Any, previous: Any, seed: str, /) -> TrainingReport:
        return trained(int(seed), is_hopeless=int(seed) in self.hopeless)

    def choose(self, run: RunKey, number: int, offered: list[TrainingReport], /) -> SeedChoice:
        self.offered = offered
        require_finished(*offered)
        rows = {"wait": 50.0, **{row_of(one): 60.0 - one.seed for one in offered if one.stopped is None}}
        report = trials_of(rows, run.config, PROVENANCE, 20)
        return choose(offered, report, "trials/x.json", NOW, PROVENANCE)


@pytest.mark.parametrize(("hopeless", "chosen"), [((), 3), ((3,), 4), ((3, 4), 5)])
def test_low_the_other_seeds_go_on_without_a_hopeless_training(
    home: Path, hopeless: tuple[int, ...], chosen: int
) -> None:
    stages: Any = Trainer(hopeless)
    with open_run("quick", 3, {"train.seeds": 3}) as run:
        policy = run._train(stages, len(run.rounds), cast(Any, None), None)
    assert (policy.seed, policy.stopped) == (chosen, None)
    assert [one.seed for one in stages.offered] == [3, 4, 5]
    lines = [describe(one) for one in stages.offered]
    assert ["ended early as hopeless (collapsed in phase ppo)" in line for line in lines] == [
        seed in hopeless for seed in (3, 4, 5)
    ]


@pytest.mark.parametrize(("seeds", "what"), [(1, "the training"), (3, "all 3 trainings")])
def test_low_a_run_without_a_finished_training_fails_and_judges_nothing(home: Path, seeds: int, what: str) -> None:
    """It is closed: the same command begins another one."""
    stages: Any = Trainer((3, 4, 5))
    with (
        pytest.raises(HopelessError, match=rf"{what} ended early, collapsed in phase ppo after 7 of 70 updates"),
        open_run("quick", 3, {"train.seeds": seeds}) as run,
    ):
        run._train(stages, len(run.rounds), cast(Any, None), None)
    with open_run("quick", 3, {"train.seeds": seeds}) as again:
        assert again.key.token != run.key.token
    container = Container(Home(home), load_profile("quick"), 3)
    with pytest.raises(HopelessError, match="Its policy is not judged"):
        validate(container, trained(3, is_hopeless=True), None, [])


def test_an_unknown_objective_is_refused_before_a_run_begins(home: Path) -> None:
    """Only the stage of training loads it, after all hosts are grown, and a distillation never does."""
    for start in ("scratch", "distil"):
        with (
            pytest.raises(ConfigError, match="Did you mean 'fitted_q'"),
            open_run("quick", 0, {"train.objective": "fited_q", "train.start": start}),
        ):
            pass
    assert not (home / "data" / "ledger" / "runs.jsonl").exists()


def test_an_unknown_criterion_is_refused_before_a_run_begins(home: Path) -> None:
    """Only the judgement loads the criteria, after all hosts are grown and the policy is trained."""
    asked = {"gate.without": ["return_over_heuristic"]}
    with pytest.raises(ConfigError, match="a line of criterion return_over,"), open_run("quick", 0, asked):
        pass
    assert not (home / "data" / "ledger" / "runs.jsonl").exists()
    container = Container(Home(home), load_profile("quick", asked), 0)
    with open_run_in(container, "quick", has_gate=False):
        pass


def test_a_run_that_reports_judge_grows_nothing(home: Path) -> None:
    with open_run("quick", 0, {"gate.evidence": "reports", "trial.also_sets": ["benchmark", "varied"]}) as run:
        assert not run.needs_own_experience
        assert (len(run.rounds), run.further_sets) == (0, ())
